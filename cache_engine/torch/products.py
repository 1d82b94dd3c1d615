"""Products by PyTorch's own functions: on the CPU, inside ``torch.func``, and on a GPU if no kernel serves.

Each function has the name and the arguments of an operator in ``torch.ops.gemm_cache``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.errors import UsageError
from cache_engine.model.gemm import SCALE_BLOCK, Activation, DType

DTYPES = {
    torch.float16: DType.FP16, torch.bfloat16: DType.BF16, torch.float32: DType.FP32, torch.float64: DType.FP64,
    torch.float8_e4m3fn: DType.FP8_E4M3, torch.float8_e5m2: DType.FP8_E5M2, torch.int8: DType.INT8,
    torch.int32: DType.INT32,
}  # fmt: skip
"""The element types of kernels, by PyTorch's dtypes."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The types that PyTorch multiplies without converting them."""


def result_type(dtype: Any, asked: Any | None = None) -> Any:
    """The type of a product: ``asked`` if given; else bf16 for fp8, int32 for int8, ``dtype`` for all others."""
    if asked is not None or dtype in FLOATS:
        return asked or dtype
    return torch.int32 if dtype is torch.int8 else torch.bfloat16


def activated(y: Any, activation: str) -> Any:
    """``y`` after the activation; gelu is the exact one, with erf."""
    if activation not in tuple(Activation):
        raise UsageError(f"unknown activation {activation!r}; use one of: {', '.join(Activation)}")
    return y if activation == "none" else torch.relu(y) if activation == "relu" else F.gelu(y)


def linear(x: Any, weight: Any, bias: Any | None = None, activation: str = "none") -> Any:
    """``activation(x · weightᵀ + bias)``."""
    return activated(F.linear(x, weight, bias), activation)


def mm(a: Any, b: Any, *, out_dtype: Any | None = None) -> Any:
    """``a · b``.

    If PyTorch has no product of these types, the operands are converted first, int8 to fp64 and others to fp32; the
    result is rounded once.
    """
    wanted = result_type(a.dtype, out_dtype)
    if a.dtype is wanted and wanted in FLOATS:
        return torch.matmul(a, b)
    sums = torch.float64 if {a.dtype, wanted} & {torch.float64, torch.int8} else torch.float32
    return torch.matmul(a.to(sums), b.to(sums)).to(wanted)


def scaled_mm(
    a: Any, b: Any, a_scales: Any, b_scales: Any, bias: Any | None = None, *, out_dtype: Any | None = None,
    activation: str = "none",
) -> Any:  # fmt: skip
    """``activation(a · b + bias)`` for operands with a scale for each block; computed in fp32, then rounded once."""
    height = 1 if b_scales.shape[-2] == b.shape[-1] else SCALE_BLOCK
    product = torch.matmul(_unscaled(a, a_scales, 1), _unscaled(b.mT, b_scales, height).mT)
    product = product if bias is None else product + bias.float()
    return activated(product, activation).to(result_type(a.dtype, out_dtype))


def _unscaled(codes: Any, scales: Any, height: int) -> Any:
    """The values that codes with scales represent: rows × k, each times the scale of its block of ``height`` × 128."""
    rows, k = codes.shape[-2:]
    if scales.dtype is not torch.float32:  # E8M0: powers of two by their exponents; 255 is NaN
        exponents = scales.view(torch.uint8).float()
        scales = torch.where(exponents == 255, torch.nan, torch.exp2(exponents - 127))
    of_columns = scales[..., : k // SCALE_BLOCK].repeat_interleave(SCALE_BLOCK, dim=-1)
    return codes.float() * of_columns.repeat_interleave(height, dim=-2)[..., :rows, :]


def grouped_mm(a: Any, b: Any, counts: Any, bias: Any | None = None, activation: str = "none") -> Any:
    """Multiplies each group's rows of ``a`` by the group's matrix in ``b``; rows that belong to no group become 0.

    Reads the counts, which waits for the GPU.
    """
    y = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for group, rows in enumerate(rows_of_groups(a, counts)):
        y[rows] = linear(a[rows], b[group].mT, None if bias is None else bias[group], activation)
    return y


def rows_of_groups(a: Any, counts: Any) -> list[Any]:
    """For each group, the index into ``a`` that selects its rows; counts are clamped as kernels clamp them.

    Reads the counts, which waits for the GPU.
    """
    found, first, masked = [], 0, a.dim() == 3
    for group, count in enumerate(counts.tolist()):
        end = min(first + max(count, 0), a.shape[-2])
        found.append((group, slice(first, end)) if masked else slice(first, end))
        first = 0 if masked else end
    return found
