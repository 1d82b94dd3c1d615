"""Gradients of the operators, and their behaviour under autocast and ``torch.func``.

The products in a gradient call our operators too, and read their tensors without copying them: the gradient of x is a
product with the layout nn, and the gradient of a weight is one with the layout tn. Inside ``torch.func`` and
``forward_ad``, an operator calls PyTorch's own functions, for which every transformation is defined.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import forward_ad

from cache_engine.torch import products
from cache_engine.torch.ops import LIBRARY

_ops = torch.ops.gemm_cache
_transformation = torch._C._functorch.peek_interpreter_stack  # noqa: SLF001 (nothing public says whether one is active)


def _before_activation(grad: Any, y: Any, activation: str) -> Any:
    """The gradient with respect to the input of an activation, from the gradient of its output.

    Args:
        y: for gelu, the activation's input; for relu, its output.
    """
    if activation == "relu":
        return torch.where(y > 0, grad, grad.new_zeros(()))
    return torch.ops.aten.gelu_backward(grad, y) if activation == "gelu" else grad


def _linear(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight, bias, y = ctx.saved_tensors
    if ctx.activation == "gelu":
        y = _ops.linear(x, weight, bias)  # what the kernel has passed to the activation, and not stored
    rows = _rows(_before_activation(grad, y, ctx.activation))
    of_x, of_weight, of_bias = ctx.needs
    return (
        _ops.mm(rows, weight).reshape(x.shape) if of_x else None,
        _ops.mm(rows.t(), _rows(x)) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


def _rows(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # not -1, of which no axis may be empty


def _mm(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    grad = grad.to(a.dtype)
    return _ops.mm(grad, b.mT) if ctx.needs[0] else None, _ops.mm(a.mT, grad) if ctx.needs[1] else None


def _grouped(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, counts, bias, y = ctx.saved_tensors
    if ctx.activation == "gelu":
        y = _ops.grouped_mm(a, b, counts, bias)
    grad = _before_activation(grad, y, ctx.activation)
    of_a, of_b, _, of_bias = ctx.needs
    ones = a.new_ones(*a.shape[:-1], 1)
    return (
        _ops.grouped_mm(grad, b.mT, counts) if of_a else None,
        _ops.grouped_weight_gradient(a, grad, counts) if of_b else None,
        None,
        _ops.grouped_weight_gradient(ones, grad, counts).squeeze(1) if of_bias else None,
    )


def _none(name: str) -> Any:
    def refuse(*_: Any) -> tuple[Any, ...]:
        raise RuntimeError(f"gemm_cache::{name} has no gradient; call it under torch.no_grad()")

    return refuse


def _register(name: str, tensors: int, backward: Any) -> None:
    """Registers an operator's gradient, and its behaviour in transformations such as ``torch.func.vmap``.

    Args:
        tensors: the number of the operator's first arguments that are tensors.
        backward: computes the gradients of these tensors.
    """
    op, here = getattr(_ops, name).default, getattr(products, name, None)

    def forward(ctx: Any, named: dict[str, Any], *given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 (as torch.library does)
            y = op(*given, **named)
        ctx.activation = given[tensors] if len(given) > tensors else "none"
        further = [None] * (tensors - len(given)) + ([] if tensors == 2 else [y if ctx.activation == "relu" else None])
        ctx.save_for_backward(*given[:tensors], *further)
        ctx.needs = (*ctx.needs_input_grad[1 : tensors + 1], *[False] * (tensors - len(given)))
        return y

    def gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
        found = (None, *backward(ctx, grad))
        return (*found, *[None] * 2)[: len(ctx.needs_input_grad)]

    parts = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    function: Any = type(f"{name}_of_gemm_cache", (torch.autograd.Function,), parts)

    def autograd(*given: Any, **named: Any) -> Any:
        # Tangents of forward_ad, which no kernel computes, would be lost below this.
        if here is not None and (_transformation() is not None or forward_ad._current_level >= 0):  # noqa: SLF001
            return here(*given, **named)
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given[:tensors]):
            return function.apply(named, *given)
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
            return op(*given, **named)

    LIBRARY.impl(name, autograd, "Autograd")
    if here is not None:
        LIBRARY.impl(name, here, "FuncTorchBatched")


def _register_autocast(name: str, device: str) -> None:
    """Makes autocast convert an operator's floating-point tensors to autocast's type, as it does for ``F.linear``."""
    op = getattr(_ops, name).default
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))  # noqa: SLF001

    def cast(*given: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(device.lower())
        is_float = (torch.float32, torch.float16, torch.bfloat16)
        with torch._C._ExcludeDispatchKeyGuard(keys):  # noqa: SLF001
            return op(*(one.to(dtype) if getattr(one, "dtype", None) in is_float else one for one in given), **named)

    LIBRARY.impl(name, cast, f"Autocast{device}")


_register("linear", 3, _linear)
_register("mm", 2, _mm)
_register("scaled_mm", 5, _none("scaled_mm"))
_register("grouped_mm", 4, _grouped)
_register("grouped_weight_gradient", 3, _none("grouped_weight_gradient"))
for _name in ("linear", "mm", "grouped_mm"):
    _register_autocast(_name, "CPU")
    _register_autocast(_name, "CUDA")
