"""The functions that programs call. A call without gradients, tracing or transformations goes straight to the launch.

Each raises ``UsageError`` if the arguments do not fit together; the text names the wrong dtype, device, shape or
stride. Each also raises it while a CUDA graph is captured, if the kernel was not loaded before, as ``warm`` does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.autograd import forward_ad

from cache_engine.gpu.matmul_plan import ALIGNMENT
from cache_engine.torch import launches, ops, products
from cache_engine.torch.products import FLOATS, activated

_ops = torch.ops.gemm_cache
# Whether somebody has to see the operator itself: what traces calls, torch.fx's proxies among it, and torch.func.
_modes, _transformation = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # noqa: SLF001
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _in_forward_mode() -> bool:
    return bool(forward_ad._current_level >= 0)  # noqa: SLF001 (nothing public says it)


def _is_spread(weight: Any) -> bool:
    """Whether a tensor consists of other tensors, as a DTensor consists of the tensors of several processes."""
    return hasattr(type(weight), "__tensor_flatten__")  # which torch.compile understands


def linear(x: Any, weight: Any, bias: Any | None = None, activation: str = "none") -> Any:
    """``activation(x · weightᵀ + bias)``, as ``torch.nn.functional.linear``; the kernel applies all of it.

    Example:
        ```python
        y = linear(x, layer.weight, layer.bias, "gelu")
        ```

    Args:
        x: … × k, of fp16, bf16, fp32 or fp64. ``torch.set_float32_matmul_precision`` decides how fp32 is rounded.
        weight: n × k, of the same type.
        bias: n elements.
        activation: ``"none"``, ``"relu"`` or ``"gelu"`` (the exact one, with erf).
    """
    if torch.compiler.is_compiling() or _modes() or _transformation() is not None or not isinstance(x, torch.Tensor):
        by = products if _is_spread(weight) else _ops
        return by.linear(x, weight, bias, activation)
    if not launches.gpu.owns(x):
        try:
            y = F.linear(x, weight, bias)
        except RuntimeError:
            ops.form_of_linear(x, weight, bias, activation)  # says why
            raise
        return y if activation == "none" else activated(y, activation)
    is_plain = type(x) in _PLAIN and type(weight) in _PLAIN
    # Sparse, nested, or spread over processes (DTensor): what PyTorch knows of it.
    if x.layout is not torch.strided or x.is_nested or (not is_plain and _is_spread(weight)):
        return products.linear(x, weight, bias, activation)
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        if activation == "gelu":  # what the kernel applies gelu to would have to be computed again for its gradient
            return F.gelu(_ops.linear(x, weight, bias))
        return _ops.linear(x, weight, bias, activation)
    if torch.is_autocast_enabled("cuda") or not is_plain or _in_forward_mode():
        return _ops.linear(x, weight, bias, activation)
    return ops.launched_linear(x, weight, bias, activation)


def mm(a: Any, b: Any, *, out_dtype: Any | None = None) -> Any:
    """``a · b`` for matrices m × k and k × n, or a batch of each.

    A matrix is read without a copy if it is contiguous, by rows or by columns.

    Args:
        a: a tensor of fp16, bf16, fp32, fp64, fp8 or int8.
        b: a tensor of the same type.
        out_dtype: the type of the result; by default bf16 for fp8, int32 for int8, and otherwise the type of ``a``.
    """
    return _ops.mm(a, b, out_dtype=out_dtype)


def scaled_mm(
    a: Any, b: Any, a_scales: Any, b_scales: Any, bias: Any | None = None, *, out_dtype: Any | None = None,
    activation: str = "none",
) -> Any:  # fmt: skip
    """``activation(a · b + bias)`` for fp8 operands with a scale for each block; has no gradient.

    Args:
        a: m × k, where k is a multiple of 128.
        b: k × n, contiguous by columns, as ``weight.T`` is.
        a_scales: m × k / 128 of fp32; or of E8M0 (PyTorch's type, or ``uint8``), with the number of columns padded to
            a multiple of four.
        b_scales: n × k / 128, or n / 128 (rounded up) × k / 128, in the same format.
        bias: n elements of the result's type.
        out_dtype: the type of the result; by default bf16.
        activation: as for ``linear``.
    """
    return _ops.scaled_mm(a, b, a_scales, b_scales, bias, out_dtype=out_dtype, activation=activation)


def grouped_mm(a: Any, b: Any, counts: Any, bias: Any | None = None, activation: str = "none") -> Any:
    """Multiplies each group of rows of ``a`` by its own matrix in ``b``: the experts of a mixture.

    Args:
        a: rows × k, with the rows of the first group first; or groups × rows × k, with a group's rows at the start of
            its matrix.
        b: groups × k × n.
        counts: the number of rows of each group, as int32 on the same device; the call does not wait for them. In the
            result, rows that belong to no group have any values, or 0 if ``a`` is groups × rows × k.
        bias: groups × n.
        activation: as for ``linear``.
    """
    return _ops.grouped_mm(a, b, counts, bias, activation)


def external_matmul(a: Any, b: Any, out: Any) -> None:
    """Writes ``a · b`` to ``out``; for Inductor, which times it against its own kernels.

    The first call for a problem waits until its kernel is compiled.

    Example:
        ```python
        torch._inductor.config.external_matmul.append(cache_engine.torch.external_matmul)
        torch.compile(model, mode="max-autotune")
        ```
    """
    if a.dtype not in FLOATS or not launches.gpu.owns(a) or not out.is_contiguous() or out.data_ptr() % ALIGNMENT:
        torch.mm(a, b, out=out)
        return
    given = launches.Given(a, b, partial(products.mm, a, b), ops.form_of_mm, out_dtype=out.dtype)
    launches.product(given, out, waits=True)
