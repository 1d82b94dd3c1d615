"""Descriptions of arrays on a GPU, from ``__cuda_array_interface__`` or DLPack. Does not use the GPU.

Sources: Numba documentation, "CUDA Array Interface (Version 3)"; DLPack 1.1, ``dlpack.h``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType

BITS8, BITS16 = "8 bits", "16 bits"
"""The names for element types if an array states only the size, not the meaning."""

# Types by kind and bytes, as in a typestr: for the types that NumPy knows, and for others (u, V).
_BY_TYPESTR = {
    "f2": DType.FP16.value,
    "f4": DType.FP32.value,
    "f8": DType.FP64.value,
    "i1": DType.INT8.value,
    "i4": DType.INT32.value,
    "u1": BITS8,
    "V1": BITS8,
    "u2": BITS16,
    "V2": BITS16,
}
# Types by the name of the array's own dtype, if the typestr cannot express it: those of ml_dtypes and of PyTorch.
_BY_NAME = {
    "bfloat16": DType.BF16.value,
    "float8_e4m3fn": DType.FP8_E4M3.value,
    "float8_e5m2": DType.FP8_E5M2.value,
}
# Types by DLDataTypeCode and bits.
_BY_DLPACK = {
    (0, 8): DType.INT8.value,
    (0, 32): DType.INT32.value,
    (1, 8): BITS8,
    (1, 16): BITS16,
    (2, 16): DType.FP16.value,
    (2, 32): DType.FP32.value,
    (2, 64): DType.FP64.value,
    (4, 16): DType.BF16.value,
    (10, 8): DType.FP8_E4M3.value,
    (12, 8): DType.FP8_E5M2.value,
}
_DL_CUDA = (2, 13)  # DLDeviceType: kDLCUDA, kDLCUDAManaged
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY

ITEMSIZE = {**{dtype.value: dtype.itemsize for dtype in DType}, BITS8: 1, BITS16: 2}
"""The bytes of one element, by the name of its type."""


class Form(NamedTuple):
    """The layout of an array in memory.

    A tuple, because its hash is fastest: each call of ``matmul`` looks a plan up by the layouts of its arrays.

    Attributes:
        element: the name of a ``DType``, or ``BITS8`` or ``BITS16``.
        shape: the number of elements along each axis.
        strides: the strides, in elements.
    """

    element: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return ITEMSIZE[self.element]

    def is_packed(self) -> bool:
        """Whether the elements are contiguous, row by row."""
        return self.strides == packed_strides(self.shape) or _packed(self.shape, self.strides)

    def transposed(self) -> Form:
        """The layout of the same elements with the last two axes exchanged."""
        *outer, rows, columns = self.shape
        *outer_strides, row, column = self.strides
        return Form(self.element, (*outer, columns, rows), (*outer_strides, column, row))


@dataclass(slots=True)
class ArrayView:
    """An array: its layout and its address. Not frozen, because creating a frozen one takes three times as long.

    Attributes:
        address: the address of its first element.
        read_only: whether it must not be written.
        stream: the handle of the stream on which its contents may still be computed; ``None`` if unknown.
        owner: an object that keeps its memory alive.
    """

    form: Form
    address: int
    read_only: bool = False
    stream: int | None = None
    owner: object = field(default=None, compare=False, repr=False)

    def extent(self) -> tuple[int, int]:
        """The lowest address of the array's bytes, and the address after the highest."""
        low, high = _reach(self.form)
        return self.address + low, self.address + high

    def overlaps(self, other: ArrayView) -> bool:
        """Whether the two arrays may share bytes."""
        (low, high), (other_low, other_high) = _reach(self.form), _reach(other.form)
        ahead = other.address - self.address
        return low < ahead + other_high and ahead + other_low < high and low < high and other_low < other_high


@lru_cache(maxsize=4096)
def _reach(form: Form) -> tuple[int, int]:
    """The lowest byte of an array and the byte after the highest, relative to its first element."""
    if 0 in form.shape:
        return 0, 0
    ends = [(extent - 1) * stride for extent, stride in zip(form.shape, form.strides, strict=True)]
    low, high = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
    return low * form.itemsize, (high + 1) * form.itemsize


def view(array: Any, name: str, stream: int = 0) -> ArrayView:
    """The description of an array, which the array itself provides.

    Args:
        name: the name of the array in errors.
        stream: the handle of the stream on which it will be used.

    Raises:
        UsageError: when it is not an array on a GPU, or one that cannot be used.
    """
    try:
        interface = array.__cuda_array_interface__
    except (AttributeError, KeyError, TypeError):  # PyTorch raises these for types that the interface has no name for
        interface = None
    except Exception as error:
        raise UsageError(f"{name} cannot be used: {error}") from error
    if interface is not None:
        return read_interface(interface, name, array)
    if not hasattr(array, "__dlpack__"):
        raise UsageError(
            f"{name} is of type {type(array).__name__}; it must be an array on a GPU, with __cuda_array_interface__ or "
            "__dlpack__, such as CuPy's or PyTorch's"
        )
    device_type, _ = array.__dlpack_device__()
    if device_type not in _DL_CUDA:
        raise UsageError(f"{name} is not on an NVIDIA GPU; move it there first")
    try:
        # DLPack numbers the default stream 1.
        capsule = array.__dlpack__(stream=stream or 1)
    except Exception as error:
        raise UsageError(f"{name} cannot be used: {error}") from error
    return replace(read_capsule(capsule, name), owner=(array, capsule))


def read_interface(interface: Mapping[str, Any], name: str, owner: object = None) -> ArrayView:
    """The array that a ``__cuda_array_interface__`` describes.

    Args:
        owner: the array; its ``dtype`` names element types that the interface cannot.

    Raises:
        UsageError: when the array cannot be used.
    """
    typestr, strides, own = interface["typestr"], interface.get("strides"), ""
    if interface.get("mask") is not None:
        raise UsageError(f"{name} is masked; fill it first")
    if typestr[1:2] == "V":
        dtype = getattr(owner, "dtype", None)
        own = str(getattr(dtype, "name", dtype))
    form = _form(name, typestr, own, tuple(interface["shape"]), None if strides is None else tuple(strides))
    address, read_only = interface["data"]
    if not address:
        _refuse_without_memory(form, name)
    return ArrayView(form, address, bool(read_only), interface.get("stream"), owner)


@lru_cache(maxsize=4096)
def _form(name: str, typestr: str, own: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Form:
    """The layout of an array from the values of its ``__cuda_array_interface__``; cached by these values.

    Args:
        own: the array's own name for its element type, used for types that the interface has no name for.
        strides: the strides, in bytes.
    """
    element = _BY_TYPESTR.get(typestr[1:]) if typestr[:1] in ("<", "|", "=") else None
    element = _BY_NAME.get(own.removeprefix("torch."), element)
    if element is None:
        raise UsageError(f"{name} has elements of type {typestr}; {_known()}")
    itemsize = ITEMSIZE[element]
    if strides is None:
        in_elements = packed_strides(shape)
    elif any(stride % itemsize for stride in strides):
        raise UsageError(f"{name} has strides of {strides} bytes, not all whole elements; copy it first")
    else:
        in_elements = tuple(stride // itemsize for stride in strides)
    return Form(element, shape, in_elements)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _VersionedTensor(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def read_capsule(capsule: Any, name: str) -> ArrayView:
    """The array in a DLPack capsule. The capsule keeps ownership of the tensor.

    Raises:
        UsageError: when the array cannot be used.
    """
    read_only = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise UsageError(f"{name} comes as DLPack {versioned.major}.{versioned.minor}; 1 is the newest known here")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _is_capsule(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    else:
        raise UsageError(f"{name} gives {capsule!r} for its __dlpack__, which is no DLPack tensor")
    element = _BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if element is None:
        kind = f"{tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes"
        raise UsageError(f"{name} has elements of DLPack's type {kind}; {_known()}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else packed_strides(shape)
    form = Form(element, shape, strides)
    if not tensor.data:
        _refuse_without_memory(form, name)
    return ArrayView(form, (tensor.data or 0) + tensor.byte_offset, read_only)


def _refuse_without_memory(form: Form, name: str) -> None:
    """Raises an error for an array at address 0, such as PyTorch's fake tensors, because a kernel would fault there."""
    if 0 not in form.shape:
        raise UsageError(
            f"{name} has no memory on a GPU (its address is 0), as a fake tensor of PyTorch; give a real array"
        )


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of an array that is contiguous row by row."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an array is contiguous row by row; strides of axes with one element do not matter."""
    wanted = packed_strides(shape)
    return all(extent == 1 or stride == want for extent, stride, want in zip(shape, strides, wanted, strict=True))


def _known() -> str:
    names = ", ".join(dtype.value for dtype in DType if dtype is not DType.TF32)
    return f"known are {names}, and unsigned integers or raw bits of 8 or 16 where dtype= says what they mean"
