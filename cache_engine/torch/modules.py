"""Swaps a model's linear layers for layers that use our kernels, and compiles their kernels in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch

from cache_engine.batch.warm import Warmed
from cache_engine.batch.warm import warm as warm_problems
from cache_engine.cache.operator import default_cache
from cache_engine.gpu.probe import require_gpu
from cache_engine.model.gemm import GemmProblem
from cache_engine.torch import launches
from cache_engine.torch.calls import linear
from cache_engine.torch.products import FLOATS

Only = str | Iterable[str] | Callable[[str, Any], bool]
"""The layers to swap: patterns of their names, such as ``"*.mlp.*"``, or a function of a name and a module.

The function returns whether to swap the module.
"""


class Linear(torch.nn.Linear):  # type: ignore[misc]  # PyTorch's types are not read
    """A ``torch.nn.Linear`` that uses our kernels, with an activation that the kernel applies.

    Attributes:
        activation: ``"none"``, ``"relu"`` or ``"gelu"``.
    """

    activation: str = "none"

    def forward(self, x: Any) -> Any:
        """``activation(x · weightᵀ + bias)``."""
        return linear(x, self.weight, self.bias, self.activation)


@dataclass(frozen=True, slots=True)
class Swapped:
    """The result of ``swap``.

    Attributes:
        swapped: the names of the layers that use our kernels now.
        left: the names of the other layers that multiply, and for each the reason why it was not swapped.
    """

    swapped: tuple[str, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        """The numbers of layers, then a line for each layer that was not swapped, with the reason."""
        lines = [f"{len(self.swapped)} linear layers swapped, {len(self.left)} left"]
        return "\n".join([*lines, *(f"  {name}: {why}" for name, why in self.left.items())])


def swap(model: Any, only: Only = "*") -> Swapped:
    """Makes a model's linear layers use our kernels, in place: modules, weights and ``state_dict`` stay the same.

    Only the class of a layer is changed, to ``Linear``, so hooks, optimizers and references to the layer stay valid.

    Args:
        model: a module. It is swapped too if it is a linear layer itself.
        only: the layers to swap; by default all that can be swapped.
    """
    patterns = [only] if isinstance(only, str) else () if callable(only) else tuple(only)
    swapped, left = [], {}
    for name, module in model.named_modules():
        why = _why_not(module)
        if why is None and not (only(name, module) if callable(only) else any(fnmatch(name, one) for one in patterns)):
            why = "only= leaves it out"
        if why is None:
            module.__class__ = Linear
            swapped.append(name)
        elif why:
            left[name] = why
    return Swapped(tuple(swapped), left)


def unswap(model: Any) -> int:
    """Undoes ``swap``; returns the number of layers that became ``torch.nn.Linear`` again.

    A ``Linear`` with an activation is not changed back.
    """
    layers = [module for module in model.modules() if type(module) is Linear and module.activation == "none"]
    for module in layers:
        module.__class__ = torch.nn.Linear
    return len(layers)


def _why_not(module: Any) -> str | None:
    """The reason why a module cannot be swapped; ``None`` if it can; empty if it is not a layer that multiplies."""
    if isinstance(module, torch.nn.MultiheadAttention):
        return "its projections are multiplied inside of one function of PyTorch"
    if not isinstance(module, torch.nn.Linear):
        return ""
    weight = module.weight
    if type(module) is not torch.nn.Linear:
        ours = "it uses our kernels already"
        return ours if isinstance(module, Linear) else f"it is a {type(module).__name__}, which may do more"
    if "forward" in vars(module):
        return "its forward has been replaced"
    if type(weight) not in (torch.Tensor, torch.nn.Parameter):
        return f"its weight is a {type(weight).__name__}"
    if weight.dtype not in FLOATS:
        return f"its weight has the dtype {weight.dtype}"
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        return f"its weight has strides of {tuple(weight.stride())}, and would be copied in each call"
    return None


# ---- Warming ----


def warm(
    model: Any, m: int | Iterable[int], *, training: bool = False, dtype: Any | None = None, arch: str | None = None
) -> list[Warmed]:
    """Compiles the kernels of a model's ``Linear`` layers, and loads them on the current GPU: then no call compiles.

    Call it before a CUDA graph is captured. It launches nothing.

    Args:
        model: a model with layers that ``swap`` has changed.
        m: every number of rows that calls will have (batch × sequence length), such as ``range(1, 257)``.
        training: whether to compile the kernels for the gradients too.
        dtype: the type of the inputs, if it differs from the weights' type, as under autocast.
        arch: a target, such as ``"sm_90a"``: compiles for it without a GPU, and loads nothing.

    Returns:
        One result for each problem; its ``trouble`` is the reason if the kernel is not in the store.

    Raises:
        GpuRequired: when there is neither a GPU nor an ``arch``.
    """
    target = arch or require_gpu("warm without arch=").arch
    problems = list(problems_of(model, [m] if isinstance(m, int) else list(m), dtype, training=training))
    done = warm_problems(launches.serving.cache or default_cache(), [problem.on(target) for problem in problems])
    if arch is None:
        failed = {one.problem for one in done if one.kernel is None}
        for problem in problems:
            if problem.on(target) not in failed:
                launches.load(problem)
    return done


def problems_of(model: Any, rows: Iterable[int], dtype: Any | None, *, training: bool) -> Iterator[GemmProblem]:
    """The problems that the layers ask for with these numbers of rows, each once.

    Leaves out problems that no kernel computes.
    """
    seen = set()
    for layer in (module for module in model.modules() if isinstance(module, Linear)):
        (n, k), strides, kind = layer.weight.shape, layer.weight.stride(), dtype or layer.weight.dtype
        weight = (kind, (n, k), strides)
        bias = None if layer.bias is None else (kind, (n,), (1,))
        for m in rows:
            x, grad, transposed = (kind, (m, k), (k, 1)), (kind, (m, n), (n, 1)), (kind, (n, m), (1, n))
            asked: list[tuple[Any, ...]] = [(layer.activation, None, True, x, weight, bias)]
            if training:  # gelu is a step of its own then, as in calls; the others are those of gradients
                asked += [("none", None, True, x, weight, bias)] if layer.activation == "gelu" else []
                asked += [("none", kind, False, grad, weight), ("none", kind, False, transposed, x)]
            for activation, out, transposes, *tensors in asked:
                all_six = [*tensors, *[None] * (6 - len(tensors))]
                found = launches.plan_of(activation, out, transposes, launches.tf32(kind), *all_six)
                if found is not None and found[1] not in seen:
                    seen.add(found[1])
                    yield found[0].problem
