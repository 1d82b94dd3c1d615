"""The methods of vLLM's linear layers. They call our operators if the layer's kernels are ready.

When a layer's weights are loaded, before vLLM captures CUDA graphs, its kernels are compiled for every number of tokens
that a step can have, and loaded for the numbers that graphs are captured for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import vllm.envs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels.linear.scaled_mm import Fp8BlockScaledMMLinearKernel
from vllm.model_executor.layers.linear import (
    LinearBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from vllm.platforms import current_platform

from cache_engine.batch.warm import problems_of, warm
from cache_engine.cache.operator import default_cache
from cache_engine.evaluator.catalogue.tables import ModelShape
from cache_engine.gpu.probe import require_gpu
from cache_engine.model.gemm import SCALE_BLOCK
from cache_engine.torch import launches
from cache_engine.torch.calls import linear, scaled_mm
from cache_engine.torch.products import FLOATS

_log = logging.getLogger(__name__)
_MOST_TOKENS = 2**20


# ---- Warming ----


class Rows(NamedTuple):
    """The numbers of rows of a model's products.

    Attributes:
        captured: the numbers that have CUDA graphs.
        most: the largest number.
    """

    captured: tuple[int, ...]
    most: int


def rows_of(config: Any) -> Rows:
    """The numbers of rows that a config of vLLM states; impossible numbers are left out."""
    sizes = getattr(getattr(config, "compilation_config", None), "cudagraph_capture_sizes", None)
    most = getattr(getattr(config, "scheduler_config", None), "max_num_batched_tokens", None)
    possible = sizes if isinstance(sizes, list | tuple) else ()
    captured = sorted({one for one in possible if type(one) is int and 0 < one <= _MOST_TOKENS})
    tokens = most if type(most) is int and 0 < most <= _MOST_TOKENS else 1
    return Rows(tuple(captured), max(tokens, *captured, 1))


def _form_of_linear(m: int, n: int, k: int, dtype: Any, has_bias: bool) -> tuple[Any, ...]:
    bias = (dtype, (n,), (1,)) if has_bias else None
    given = ((dtype, (m, k), (k, 1)), (dtype, (n, k), (k, 1)), bias, None, None, None)
    return ("none", None, True, launches.tf32(dtype), *given)


def _form_of_scaled(m: int, n: int, k: int, dtype: Any) -> tuple[Any, ...]:
    blocks, fp8 = k // SCALE_BLOCK, torch.float8_e4m3fn
    a_scales, b_scales = ((torch.float32, (rows, blocks), (blocks, 1)) for rows in (m, -(-n // SCALE_BLOCK)))
    return ("none", dtype, False, False, (fp8, (m, k), (k, 1)), (fp8, (k, n), (1, k)), None, a_scales, b_scales, None)


@cache
def are_ready(form: Callable[..., tuple[Any, ...]], n: int, k: int, rest: tuple[Any, ...], rows: Rows) -> bool:
    """Compiles a layer's kernels, and loads those for CUDA graphs; logs the reason if a kernel is missing.

    Args:
        form: returns the arguments of ``launches.plan_of`` for m, n, k and ``rest``.
    """
    try:
        plans = [launches.plan_of(*form(m, n, k, *rest)) for m in (rows.most, *rows.captured)]
        why = _trouble([None if plan is None else plan[0].problem for plan in plans], rows)
    except Exception as error:  # vLLM serves without us
        why = f"{type(error).__name__}: {error}"
    if why:
        _log.warning("vLLM multiplies its layers of %d × %d itself: %s", n, k, why)
    return not why


def _trouble(problems: list[Any], rows: Rows) -> str:
    largest, *captured = problems
    if None in problems:
        return "no kernel computes them"
    target = require_gpu("--quantization gemm_cache").arch
    there = launches.serving.cache or default_cache()
    shape = ModelShape("vllm", "layer", 1, largest.n, largest.k, 1)
    every = problems_of(
        there, [shape], arch=target, m=f"1-{rows.most}", dtype=largest.dtype, out_dtype=largest.out_dtype,
        layout=largest.layout, epilogue=largest.epilogue, scales=largest.scales,
    )  # fmt: skip
    failed = [one.trouble for one in warm(there, every) if one.trouble is not None]
    if failed:
        return f"{len(failed)} of {len(every)} kernels are missing; {failed[0]}"
    launches.serving.strict_graphs = False  # a graph of a size that vLLM's config does not name must not end vLLM
    for problem in captured:
        launches.load(problem)
    return ""


# ---- Methods ----


def method_of(layer: Any) -> Any:
    """The method of a layer without quantization; ``None`` if the layer is not linear."""
    if not isinstance(layer, LinearBase):
        return None
    return UnquantizedLinearMethod() if _why_not() else GemmCacheLinearMethod()


@cache
def _why_not() -> str:
    """The reason why vLLM must multiply in all layers; logged once."""
    why = "" if current_platform.is_cuda() else "it needs an NVIDIA GPU"
    why = "VLLM_BATCH_INVARIANT asks for other kernels" if getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False) else why
    if why:
        _log.warning("--quantization gemm_cache changes nothing: %s", why)
    return why


@register_weight_loader_v2_supported_method
class GemmCacheLinearMethod(UnquantizedLinearMethod):  # type: ignore[misc]
    """``torch.ops.gemm_cache.linear`` in a layer without quantization, if the layer's kernels are ready."""

    def __init__(self) -> None:
        super().__init__()
        self.has_kernels, self._rows = False, rows_of(get_current_vllm_config_or_none())

    def process_weights_after_loading(self, layer: Any) -> None:
        """Compiles and loads the layer's kernels."""
        super().process_weights_after_loading(layer)
        weight, has_bias = layer.weight, getattr(layer, "bias", None) is not None
        # A layer with a bias also multiplies without it: where it returns the bias, and on all ranks but the first.
        self.has_kernels = weight.dtype in FLOATS and weight.dim() == 2 and weight.is_contiguous() and all(
            are_ready(_form_of_linear, *weight.shape, (weight.dtype, with_bias), self._rows)
            for with_bias in ((False, True) if has_bias else (False,))
        )  # fmt: skip

    def apply(self, layer: Any, x: Any, bias: Any | None = None) -> Any:
        """``x · weightᵀ + bias``."""
        return linear(x, layer.weight, bias) if self.has_kernels else super().apply(layer, x, bias)


class GemmCacheBlockScaledKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """``torch.ops.gemm_cache.scaled_mm`` of activations that vLLM has quantized; only the layers below use it."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:  # noqa: ARG003
        """Always true: a layer uses this class only after its kernels were loaded."""
        return True, None

    def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:  # noqa: N803 (vLLM's names)
        """``A · Bᵀ``."""
        return scaled_mm(A, B.t(), As, Bs, out_dtype=self.config.out_dtype)


class Fp8(Fp8Config):  # type: ignore[misc]
    """vLLM's config of fp8, whose linear layers have our kernels."""

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        """The method of a layer: ours for a linear layer if we can serve, else vLLM's."""
        theirs = super().get_quant_method(layer, prefix)
        if type(theirs) is UnquantizedLinearMethod:
            return method_of(layer)
        return GemmCacheFp8LinearMethod(self) if type(theirs) is Fp8LinearMethod and not _why_not() else theirs


@register_weight_loader_v2_supported_method
class GemmCacheFp8LinearMethod(Fp8LinearMethod):  # type: ignore[misc]
    """vLLM's method of fp8, with our kernel, if it is ready, in place of the kernel that vLLM chose."""

    fp8_linear: Any

    def create_weights(self, layer: Any, *given: Any, **named: Any) -> None:
        """Creates the weights as vLLM does, and our kernel, because vLLM's config is known here."""
        super().create_weights(layer, *given, **named)
        self._rows = rows_of(get_current_vllm_config_or_none())
        self._ours = GemmCacheBlockScaledKernel(self.fp8_linear.config)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Compiles and loads the layer's kernels; without them, vLLM's own kernel stays."""
        # Layers in batches are multiplied elsewhere in vLLM, by weights as its own kernel arranges them.
        is_single = not getattr(layer, "is_bmm", False)
        if is_single and are_ready(_form_of_scaled, *layer.weight.shape, (self.out_dtype,), self._rows):
            self.fp8_linear, self.use_marlin = self._ours, False
        super().process_weights_after_loading(layer)
