"""The two 8-bit floating-point types as tables, and matrices of these types with a scale for each block.

Sources: OCP 8-bit Floating Point Specification (OFP8), table 2; for E8M0, OCP Microscaling Formats 1.0, 5.4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.model.gemm import SCALE_BLOCK, DType, DTypeLike, Scales, ScalesLike

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Floats = numpy.typing.NDArray[numpy.float32]
    Codes = numpy.typing.NDArray[numpy.uint8]

LARGEST = {DType.FP8_E4M3: 0x7E, DType.FP8_E5M2: 0x7B}  # codes of the largest finite values
E8M0_BIAS = 127
_E8M0_NAN, _FP8_NAN = 255, 127


def fp8_values(dtype: DType) -> Floats:
    """The values of the 256 codes of an fp8 type."""
    import numpy

    mantissa_bits, bias = (3, 7) if dtype is DType.FP8_E4M3 else (2, 15)
    codes = numpy.arange(256)
    exponent = codes >> mantissa_bits & (0xF if dtype is DType.FP8_E4M3 else 0x1F)
    mantissa = (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    values = numpy.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent.astype(float) - bias)
    )
    if dtype is DType.FP8_E4M3:
        values[codes & 0x7F == 0x7F] = numpy.nan  # its one NaN; it has no infinity
    else:
        values[codes & 0x7F == 0x7C] = numpy.inf
        values[codes & 0x7F > 0x7C] = numpy.nan
    return numpy.where(codes & 0x80, -values, values).astype(numpy.float32)


def fp8_codes(values: Any, dtype: DType, arrays: Any) -> Any:
    """The fp8 codes nearest to float32 values; ties go to the even code, and larger values become the largest one.

    Args:
        arrays: the module of ``values``: NumPy or CuPy.
    """
    finite = arrays.asarray(fp8_values(dtype)[: LARGEST[dtype] + 1])  # ascending: the index is the code
    between, sizes = (finite[1:] + finite[:-1]) / 2, abs(values)
    codes = arrays.searchsorted(between, sizes)
    is_tie = sizes == between[arrays.minimum(codes, len(between) - 1)]
    codes = arrays.where(arrays.isnan(values), _FP8_NAN, codes + (is_tie & (codes % 2 == 1)))
    return (codes + 128 * arrays.signbit(values)).astype("uint8")


def quantise(
    values: Any, scales: ScalesLike, *, of_b: bool = False, dtype: DTypeLike = DType.FP8_E4M3
) -> tuple[Codes, numpy.typing.NDArray[Any]]:
    """Converts A, or with ``of_b`` B, to fp8 with a scale for each block; on the CPU, with NumPy.

    A scale is the largest magnitude of its block divided by the type's largest value (448 for ``fp8_e4m3``). For E8M0
    this is rounded up to a power of two. For a block of zeroes it is 1. An element is rounded to the nearest value,
    ties to even. So the error of an element x in a block with scale s is at most 2⁻⁴ · |x| or 2⁻¹⁰ · s, whichever is
    larger (for ``fp8_e5m2``: 2⁻³ and 2⁻¹⁷): half the distance between neighbouring values.

    Example:
        ```python
        weight_codes, weight_scales = quantise(weight, "1x128,128x128", of_b=True)  # weight: n × k
        ```

    Args:
        values: rows × k of any float type: A as m × k, B as n × k; further axes in front are a batch.
        scales: the blocks that have a scale, as for ``GemmProblem``.

    Returns:
        The codes, as ``uint8`` in the shape of ``values``; and the scales as a kernel takes them, in the shape of
        ``Scales.shapes``: ``float32``, or ``uint8`` for E8M0.

    Raises:
        UsageError: when k is not a multiple of 128, or a value is NaN or infinite.
    """
    import numpy

    blocks = Scales(str(scales).replace(" ", ""))
    element = DType(str(dtype))
    array = numpy.asarray(values, dtype=numpy.float32)
    if not blocks or array.ndim < 2 or array.shape[-1] % SCALE_BLOCK or 0 in array.shape:
        raise UsageError(
            f"values of the shape {array.shape} have no blocks of {SCALE_BLOCK} with scales {str(scales)!r}; give rows "
            f"of a multiple of {SCALE_BLOCK}, padded with zeroes, and scales as a problem has them"
        )
    if not numpy.isfinite(array).all():
        raise UsageError("a value is NaN or infinite, and then its block has no scale; replace it first")
    *outer, rows, k = array.shape
    height = blocks.b_columns if of_b else 1
    padded = numpy.zeros((*outer, -(-rows // height) * height, k), dtype=numpy.float32)
    padded[..., :rows, :] = numpy.abs(array)
    tall = padded.reshape(*outer, -1, height, k // SCALE_BLOCK, SCALE_BLOCK)
    wanted = tall.max(axis=(-3, -1)) / fp8_values(element)[LARGEST[element]]
    stored = _to_e8m0(wanted) if blocks.is_e8m0 else numpy.where(wanted == 0, numpy.float32(1), wanted)
    of_rows = scale_values(stored, k // SCALE_BLOCK).repeat(height, axis=-2)[..., :rows, :]
    quotients = array.reshape(*outer, rows, -1, SCALE_BLOCK) / of_rows[..., None]
    return fp8_codes(quotients, element, numpy).reshape(array.shape), stored


def _to_e8m0(wanted: Any) -> Any:
    """The E8M0 codes of scales, rounded up to powers of two; rows are padded with 0 to words of four codes."""
    import numpy

    mantissa, exponent = numpy.frexp(wanted)
    power = numpy.where(mantissa == 0.5, exponent - 1, exponent)
    codes = numpy.where(wanted == 0, E8M0_BIAS, numpy.clip(power + E8M0_BIAS, 0, _E8M0_NAN - 1))
    stored = numpy.zeros((*codes.shape[:-1], codes.shape[-1] + -codes.shape[-1] % 4), dtype=numpy.uint8)
    stored[..., : codes.shape[-1]] = codes
    return stored


def scale_values(stored: Any, blocks: int) -> Any:
    """The first ``blocks`` scales of each row as ``float32``. E8M0's code 255 is NaN. Arrays of NumPy or of CuPy."""
    found = stored[..., :blocks]
    if found.dtype != "uint8":
        return found
    bits = found.astype("uint32") << 23
    bits[found == 0] = 0x0040_0000  # 2⁻¹²⁷, which is subnormal
    bits[found == _E8M0_NAN] = 0x7FC0_0000
    return bits.view("float32")


def scaled(values: Any, stored: Any, height: int = 1) -> Any:
    """The product of values and their scales: ``values`` is rows × k, with a scale for each ``height`` × 128 block.

    For arrays of NumPy or CuPy.
    """
    *outer, rows, k = values.shape
    of_rows = scale_values(stored, k // SCALE_BLOCK).repeat(height, axis=-2)[..., :rows, :]
    return (values.reshape(*outer, rows, k // SCALE_BLOCK, SCALE_BLOCK) * of_rows[..., None]).reshape(values.shape)


def dequantise(codes: Codes, stored: Any, scales: ScalesLike, *, of_b: bool = False, dtype: DTypeLike) -> Any:
    """The values that the codes and scales of ``quantise`` represent, in ``float64``."""
    blocks = Scales(str(scales))
    values = fp8_values(DType(str(dtype)))[codes].astype("float64")
    return scaled(values, stored, blocks.b_columns if of_b else 1)
