"""The two 8-bit floating-point types as tables. Source: OCP 8-bit Floating Point Specification (OFP8), table 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_engine.model.gemm import DType

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Floats = numpy.typing.NDArray[numpy.float32]
    Codes = numpy.typing.NDArray[numpy.uint8]

FP8 = (DType.FP8_E4M3, DType.FP8_E5M2)


def fp8_values(dtype: DType) -> Floats:
    """What each of the 256 codes means."""
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


def fp8_in_order(dtype: DType) -> tuple[Codes, Floats]:
    """The codes of all finite values, and these, from the least to the greatest."""
    import numpy

    values = fp8_values(dtype)
    codes = numpy.flatnonzero(numpy.isfinite(values))
    codes = codes[numpy.argsort(values[codes], kind="stable")]
    return codes.astype(numpy.uint8), values[codes]
