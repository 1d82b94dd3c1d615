"""A model's linear layers: swapping them for ones that use our kernels, and warming those."""

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
"""Names of layers, as patterns such as ``"*.mlp.*"``; or what says of a name and a module whether it is one."""


class Linear(torch.nn.Linear):  # type: ignore[misc]  # PyTorch's types are not read
    """``torch.nn.Linear`` with our kernels, and an activation that the kernel applies.

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
        swapped: names of the layers that use our kernels now.
        left: names of the others that multiply, and why each was left.
    """

    swapped: tuple[str, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        """A line for each layer that was left."""
        lines = [f"{len(self.swapped)} linear layers swapped, {len(self.left)} left"]
        return "\n".join([*lines, *(f"  {name}: {why}" for name, why in self.left.items())])


def swap(model: Any, only: Only = "*") -> Swapped:
    """Has a model's linear layers use our kernels, in place: modules, weights and ``state_dict`` stay the same.

    A layer becomes a ``Linear`` by its class alone, so hooks, optimizers and references to it stay right.

    Args:
        model: a module; itself, or any inside.
        only: the layers to swap; by default all that can be.
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
    """Undoes ``swap``; returns the number of layers. A ``Linear`` with an activation stays."""
    layers = [module for module in model.modules() if type(module) is Linear and module.activation == "none"]
    for module in layers:
        module.__class__ = torch.nn.Linear
    return len(layers)


def _why_not(module: Any) -> str | None:
    """The reason why a module cannot be swapped: empty where it is no layer that multiplies; ``None`` where it can."""
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
        model: with layers that ``swap`` swapped.
        m: numbers of rows, batch and sequence multiplied: all that calls will have, such as ``range(1, 257)``.
        training: whether the products of gradients are warmed too.
        dtype: of the inputs, where that is not the weights', as under autocast.
        arch: a target, such as ``"sm_90a"``, to compile for without a GPU, and to load nothing.

    Returns:
        One result for each problem; see its ``trouble``.

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
    """Each problem once that the layers have with so many rows; those that no kernel is for are left out."""
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
