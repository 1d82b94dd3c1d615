"""The operators ``torch.ops.gemm_cache``, for tensors on any device and fake tensors; checks of their arguments."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from cache_engine.errors import UsageError
from cache_engine.model.gemm import SCALE_BLOCK, Activation
from cache_engine.torch import launches, products
from cache_engine.torch.launches import Given
from cache_engine.torch.products import FLOATS, result_type

LIBRARY = torch.library.Library("gemm_cache", "DEF")
"""The library with the operators; PyTorch removes them when this object is deleted."""
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
Form = tuple[tuple[Any, ...], Any]
"""The shape and the type of a result."""


# ---- What comes of given tensors; raises UsageError, naming the dtype, device, shape or stride that does not fit ----


def form_of_linear(x: Any, weight: Any, bias: Any | None = None, activation: str = "none") -> Form:
    """The shape and the type of ``linear``'s result; raises ``UsageError`` if the arguments do not fit."""
    _check_alike(FLOATS, x=x, weight=weight, bias=bias)
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"x is {_shown(x)} and weight {_shown(weight)}; x must be … × k and weight n × k")
    _check_epilogue(bias, (weight.shape[0],), x.dtype, activation)
    return (*x.shape[:-1], weight.shape[0]), x.dtype


def form_of_mm(a: Any, b: Any, *, out_dtype: Any | None = None) -> Form:
    """The shape and the type of ``mm``'s result; raises ``UsageError`` if the tensors do not fit."""
    _check_alike((*FLOATS, *_FP8, torch.int8), a=a, b=b)
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise UsageError(f"a is {_shown(a)} and b {_shown(b)}; they must be m × k and k × n, or a batch of each")
    return (*a.shape[:-1], b.shape[-1]), _result("of int8" if a.dtype is torch.int8 else "", a, out_dtype)


def form_of_scaled(
    a: Any, b: Any, a_scales: Any, b_scales: Any, bias: Any | None = None, *, out_dtype: Any | None = None,
    activation: str = "none",
) -> Form:  # fmt: skip
    """The shape and the type of ``scaled_mm``'s result; raises ``UsageError`` if the arguments do not fit."""
    _check_alike(_FP8, a=a, b=b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.shape[1] % SCALE_BLOCK:
        raise UsageError(f"a is {_shown(a)} and b {_shown(b)}; they must be m × k and k × n, k a multiple of 128")
    if not b.mT.is_contiguous():
        raise UsageError(f"b has strides of {tuple(b.stride())}; it must lie column by column, as a weight.T")
    n, blocks = b.shape[1], a.shape[1] // SCALE_BLOCK
    for name, scales, rows in (("a_scales", a_scales, [a.shape[0]]), ("b_scales", b_scales, [n, -(-n // SCALE_BLOCK)])):
        if scales.dtype not in (torch.float32, torch.uint8, getattr(torch, "float8_e8m0fnu", None)):
            raise UsageError(f"{name} has the dtype {scales.dtype}; it must be float32, or E8M0 as uint8")
        columns = blocks if scales.dtype is torch.float32 else -(-blocks // 4) * 4
        if scales.dim() != 2 or scales.shape[0] not in rows or scales.shape[1] != columns:
            raise UsageError(f"{name} is {_shown(scales)}; it must be {' or '.join(map(str, rows))} × {columns}")
        _check_place(name, scales, a)
    dtype = _result("", a, out_dtype)
    _check_epilogue(bias, (n,), dtype, activation)
    return (a.shape[0], n), dtype


def form_of_grouped(a: Any, b: Any, counts: Any, bias: Any | None = None, activation: str = "none") -> Form:
    """The shape and the type of ``grouped_mm``'s result; raises ``UsageError`` if the arguments do not fit."""
    _check_alike(FLOATS, a=a, b=b, bias=bias)
    if b.dim() != 3 or a.dim() not in (2, 3) or a.shape[-1] != b.shape[1] or (a.dim() == 3 and len(a) != len(b)):
        raise UsageError(f"a is {_shown(a)} and b {_shown(b)}; they must be (groups ×) rows × k and groups × k × n")
    if counts.dtype is not torch.int32 or tuple(counts.shape) != (b.shape[0],):
        raise UsageError(f"counts is {_shown(counts)} of {counts.dtype}; it must be {b.shape[0]} of int32")
    _check_place("counts", counts, a)
    _check_epilogue(bias, (b.shape[0], b.shape[2]), a.dtype, activation)
    return (*a.shape[:-1], b.shape[2]), a.dtype


def _check_alike(known: tuple[Any, ...], /, **tensors: Any) -> None:
    (first_name, first), *others = tensors.items()
    if first.dtype not in known:
        raise UsageError(f"{first_name} has the dtype {first.dtype}; use one of: {', '.join(map(str, known))}")
    for name, other in others:
        if other is not None and other.dtype is not first.dtype:
            raise UsageError(f"{name} has the dtype {other.dtype} and {first_name} {first.dtype}; convert one of them")
        if other is not None and other.device != first.device:
            raise UsageError(f"{name} is on {other.device} and {first_name} on {first.device}; move one of them")


def _check_place(name: str, tensor: Any, a: Any) -> None:
    if tensor.device != a.device:
        raise UsageError(f"{name} is on {tensor.device} and a on {a.device}; move one of them")
    if not tensor.is_contiguous():
        raise UsageError(f"{name} has strides of {tuple(tensor.stride())}; it must be contiguous")


def _check_epilogue(bias: Any | None, shape: tuple[Any, ...], dtype: Any, activation: str) -> None:
    if activation not in tuple(Activation):
        raise UsageError(f"unknown activation {activation!r}; use one of: {', '.join(Activation)}")
    if bias is not None and (tuple(bias.shape) != shape or bias.dtype is not dtype):
        raise UsageError(f"bias is {_shown(bias)} of {bias.dtype}; it must be {' × '.join(map(str, shape))} of {dtype}")


def _result(of_whole: str, a: Any, asked: Any | None) -> Any:
    allowed = (torch.int32,) if of_whole else (torch.float64,) if a.dtype is torch.float64 else FLOATS[:3]
    if asked is not None and asked not in allowed:
        raise UsageError(f"out_dtype is {asked}; of {a.dtype} it can be: {', '.join(map(str, allowed))}")
    return result_type(a.dtype, asked)


def _shown(tensor: Any) -> str:
    return " × ".join(map(str, tensor.shape)) or "a single number"


# ---- How a GPU computes them ----


def launched_linear(x: Any, weight: Any, bias: Any | None = None, activation: str = "none") -> Any:
    """``activation(x · weightᵀ + bias)`` by a kernel; by PyTorch if there is no kernel for these tensors."""
    if x.dim() == 1:
        return launched_linear(x[None], weight, bias, activation)[0]
    own = partial(products.linear, x, weight, bias, activation)
    return launches.product(Given(x, weight, own, form_of_linear, bias, activation, transposes_b=True))


def _launched_mm(a: Any, b: Any, *, out_dtype: Any | None = None) -> Any:
    own = partial(products.mm, a, b, out_dtype=out_dtype)
    return launches.product(Given(a, b, own, form_of_mm, out_dtype=result_type(a.dtype, out_dtype)))


def _launched_scaled(
    a: Any, b: Any, a_scales: Any, b_scales: Any, bias: Any | None = None, *, out_dtype: Any | None = None,
    activation: str = "none",
) -> Any:  # fmt: skip
    own = partial(products.scaled_mm, a, b, a_scales, b_scales, bias, out_dtype=out_dtype, activation=activation)
    wanted = result_type(a.dtype, out_dtype)
    return launches.product(Given(a, b, own, form_of_scaled, bias, activation, wanted, a_scales, b_scales))


def _launched_grouped(a: Any, b: Any, counts: Any, bias: Any | None = None, activation: str = "none") -> Any:
    own = partial(products.grouped_mm, a, b, counts, bias, activation)
    return launches.product(Given(a, b, own, form_of_grouped, bias, activation, counts=counts))


def _weight_gradient(a: Any, grad: Any, counts: Any) -> Any:
    """The gradient of ``grouped_mm`` with respect to ``b``: for each group, ``aᵀ · grad`` over the rows of the group.

    Reads the counts, which waits for the GPU.
    """
    made = grad.new_zeros(counts.shape[0], a.shape[-1], grad.shape[-1])
    for group, rows in enumerate(products.rows_of_groups(a, counts)):
        made[group] = torch.ops.gemm_cache.mm(a[rows].t(), grad[rows])
    return made


def _form_of_weight_gradient(a: Any, grad: Any, counts: Any) -> Form:
    return (counts.shape[0], a.shape[-1], grad.shape[-1]), grad.dtype


# ---- Registering ----


def _register(name: str, schema: str, form: Any, here: Any, launched: Any) -> None:
    """Defines an operator.

    Args:
        schema: the operator's arguments, as PyTorch declares them.
        form: returns the shape and the type of the result; raises ``UsageError`` if the arguments do not fit.
        here: computes the operator for tensors that are not on a GPU.
        launched: computes it for tensors on a GPU.
    """

    def real(*given: Any, **named: Any) -> Any:
        if launches.gpu.owns(given[0]):
            return launched(*given, **named)
        form(*given, **named)
        return here(*given, **named)

    def fake(*given: Any, **named: Any) -> Any:
        shape, dtype = form(*given, **named)
        return given[0].new_empty(shape, dtype=dtype)

    LIBRARY.define(f"{name}({schema}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, real, "CompositeExplicitAutograd")  # on any device, so that a model runs everywhere
    torch.library.register_fake(f"gemm_cache::{name}", fake, lib=LIBRARY)


_EPILOGUE = "Tensor? bias=None, str activation='none'"
_SCALED = "Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias=None, *, ScalarType? out_dtype=None, "
_register("linear", f"Tensor x, Tensor weight, {_EPILOGUE}", form_of_linear, products.linear, launched_linear)
_register("mm", "Tensor a, Tensor b, *, ScalarType? out_dtype=None", form_of_mm, products.mm, _launched_mm)
_register("scaled_mm", f"{_SCALED}str activation='none'", form_of_scaled, products.scaled_mm, _launched_scaled)
_register(
    "grouped_mm", f"Tensor a, Tensor b, Tensor counts, {_EPILOGUE}", form_of_grouped, products.grouped_mm,
    _launched_grouped,
)  # fmt: skip
# The gradient of grouped_mm with respect to b: the length of each sum is a number of its own, on the device.
_register(
    "grouped_weight_gradient", "Tensor a, Tensor grad, Tensor counts", _form_of_weight_gradient, _weight_gradient,
    _weight_gradient,
)  # fmt: skip


@register_flop_formula([getattr(torch.ops.gemm_cache, name) for name in ("linear", "mm", "scaled_mm", "grouped_mm")])  # type: ignore[untyped-decorator]
def _flops(a: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    """The floating-point operations of a product, for ``FlopCounterMode``, which would otherwise count 0.

    For ``grouped_mm``, every row counts, as if each belonged to a group.
    """
    return int(2 * math.prod(out_shape) * a[-1])


@register_flop_formula(torch.ops.gemm_cache.grouped_weight_gradient)  # type: ignore[untyped-decorator]
def _flops_of_weight_gradient(a: Any, grad: Any, *_: Any, **__: Any) -> int:
    return int(2 * math.prod(a) * grad[-1])
