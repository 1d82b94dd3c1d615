"""Tensor maps: descriptions of a matrix from which the copy engine (TMA) of sm_90 and newer copies boxes (parts) of it.

The driver encodes them. Its rules are checked here first, so that an error can say what to do.
Source: CUDA Driver API 13, "Tensor Map Object Management", ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import Box

MAP_BYTES = 128
_ALIGNED = 64  # the driver writes a map at a multiple of this many bytes
_ADDRESS_STEP = _STRIDE_STEP = _LINE_STEP = 16
_MOST_SIZE, _MOST_STRIDE, _MOST_EDGE, _SWIZZLED_BYTES = 1 << 32, 1 << 40, 256, 128
# Enumerations of cuda.h: CU_TENSOR_MAP_DATA_TYPE_…, _INTERLEAVE_NONE, _SWIZZLE_128B, _L2_PROMOTION_L2_128B and
# _FLOAT_OOB_FILL_NONE, which means zeroes. For TFLOAT32, the copy engine rounds fp32 to tf32; fp8 codes are copied as
# bytes.
_DATA_TYPES = {DType.FP16: 6, DType.BF16: 9, DType.FP32: 7, DType.TF32: 11, DType.FP8_E4M3: 0, DType.FP8_E5M2: 0}
_INTERLEAVE, _SWIZZLE, _PROMOTION, _FILL = 0, 3, 2, 0


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in device memory, and the boxes that are copied from it, swizzled by 128 bytes.

    The fastest dimension is first.

    Attributes:
        address: the address of its first element.
        sizes: the sizes, in elements.
        strides: for each dimension but the first, the bytes from one index to the next.
        box: the size of a box, in elements.
    """

    dtype: DType
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def check(self) -> None:
        """Checks the driver's rules for tensor maps.

        Raises:
            UsageError: when a rule is broken; the text names the first.
        """
        line = self.box[0] * self.dtype.itemsize
        rules = (
            (self.dtype in _DATA_TYPES, f"its elements are {self.dtype}; the copy engine's are {_names()} here"),
            (self.address % _ADDRESS_STEP == 0, f"it begins at {self.address:#x}, not at a multiple of 16 bytes"),
            (all(1 <= one <= _MOST_SIZE for one in self.sizes), f"its sizes are {self.sizes}; each must be 1 to 2^32"),
            (
                all(one % _STRIDE_STEP == 0 and 0 < one < _MOST_STRIDE for one in self.strides),
                f"its strides are {self.strides} bytes; each must be a multiple of 16 below 2^40",
            ),
            (all(1 <= one <= _MOST_EDGE for one in self.box), f"its box is {self.box}; each edge must be 1 to 256"),
            (
                line % _LINE_STEP == 0 and line <= _SWIZZLED_BYTES,
                f"a line of its box has {line} bytes; it must be a multiple of 16, at most {_SWIZZLED_BYTES}",
            ),
        )
        for is_kept, fault in rules:
            if not is_kept:
                raise UsageError(f"no tensor map can be made of this operand: {fault}; use --family tensor_core")


def map_of(problem: GemmProblem, box: Box, address: int) -> TensorMap:
    """The tensor map of an operand as it is stored: batch × rows × columns."""
    m, n, k, layout = problem.m, problem.n, problem.k, problem.layout
    columns, rows = {
        "a": (m, k) if layout.a_transposed else (k, m),
        "b": (k, n) if layout.b_transposed else (n, k),
        "c": (n, m),
    }[box.operand]
    dtype = problem.output if box.operand == "c" else problem.dtype
    row_bytes = columns * dtype.itemsize
    strides = (row_bytes, rows * row_bytes)
    return TensorMap(dtype, address, (columns, rows, problem.batch), strides, (box.columns, box.rows, 1))


def encode(tensor: TensorMap) -> Any:
    """The map in the driver's encoding: an array with one element of 128 bytes, because CuPy passes only this by value.

    Raises:
        UsageError: when a rule is broken, or the driver refuses the map.
    """
    import ctypes

    import numpy

    tensor.check()
    memory = numpy.zeros(MAP_BYTES + _ALIGNED, dtype=numpy.uint8)
    start = -memory.ctypes.data % _ALIGNED
    made = memory[start : start + MAP_BYTES]
    rank = len(tensor.sizes)
    call = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    code = call(
        ctypes.c_void_p(made.ctypes.data),
        ctypes.c_int(_DATA_TYPES[tensor.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(tensor.address),
        (ctypes.c_uint64 * rank)(*tensor.sizes),
        (ctypes.c_uint64 * (rank - 1))(*tensor.strides),
        (ctypes.c_uint32 * rank)(*tensor.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(_INTERLEAVE),
        ctypes.c_int(_SWIZZLE),
        ctypes.c_int(_PROMOTION),
        ctypes.c_int(_FILL),
    )
    if code:
        raise UsageError(f"the driver made no tensor map: error {code} of cuTensorMapEncodeTiled; {tensor}")
    return made.view(f"V{MAP_BYTES}")


def address_of(operand: Any) -> int:
    """The address of a CuPy array, or of an address given as ``numpy.uint64``."""
    interface = getattr(operand, "__cuda_array_interface__", None)
    return int(operand) if interface is None else int(interface["data"][0])


def _names() -> str:
    return ", ".join(_DATA_TYPES)
