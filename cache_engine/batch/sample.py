"""The demonstration store: compiled kernels of public models, and requests for them."""

from __future__ import annotations

from collections.abc import Collection

from cache_engine.cache.cache import Cache
from cache_engine.evaluator.catalogue import ModelShape, model_shapes
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

# (model, operation, m, dtype, out dtype): decode and prefill sizes; routers in fp32, as their models compute them.
_CHOICES = (
    ("DeepSeek-V3", "shared gate+up", 4096, DType.BF16, None),
    ("DeepSeek-V3", "o", 128, DType.BF16, None),
    ("DeepSeek-V3", "W_UK absorb", 64, DType.BF16, None),
    ("DeepSeek-V3", "router", 512, DType.FP32, None),
    ("Llama-3.1-8B", "qkv", 1, DType.BF16, None),
    ("Llama-3.1-8B", "gate+up", 2048, DType.FP16, None),
    ("Llama-3.1-8B", "lm_head", 1, DType.BF16, DType.FP32),
    ("Qwen3-8B", "down", 512, DType.BF16, None),
    ("Qwen3-30B-A3B", "expert gate+up", 32, DType.BF16, None),
    ("Qwen3-30B-A3B", "router", 256, DType.FP32, None),
    ("gpt-oss-20b", "expert down", 64, DType.BF16, None),
    ("Mixtral-8x7B", "router", 64, DType.FP32, None),
)

# Steps of a server by how many tokens each computes: many of decode, as batches grow, and a few of prefill.
_STEPS = {1: 24, 2: 12, 4: 12, 8: 12, 16: 12, 32: 8, 64: 8, 128: 4, 256: 2, 512: 2, 1024: 1, 2048: 1, 4096: 1}


def sample_problems() -> list[GemmProblem]:
    """The problems of the demonstration store: each kind of kernel on each architecture."""
    shapes = _shapes()
    return [
        shapes[model, operation].problem(m, dtype, out_dtype).on(arch)
        for model, operation, m, dtype, out_dtype in _CHOICES
        for arch in ARCHITECTURES
    ]


def request_kernels(cache: Cache, stored: Collection[CacheKey]) -> int:
    """Requests stored kernels as a server would, for each layer of each step; returns the number of requests.

    Each request is really made, and is recorded as demand. A size whose kernel is not among ``stored`` is left out, so
    nothing is compiled.
    """
    shapes, requests = _shapes(), 0
    for model, operation, _, dtype, out_dtype in _CHOICES:
        shape = shapes[model, operation]
        for arch in ARCHITECTURES:
            for m, steps in _STEPS.items():
                problem = shape.problem(m, dtype, out_dtype).on(arch)
                if cache.select(problem).key in stored:
                    for _ in range(steps * shape.layers):
                        cache.get_or_compile(problem)
                    requests += steps * shape.layers
    return requests


def _shapes() -> dict[tuple[str, str], ModelShape]:
    return {(shape.model, shape.operation): shape for shape in model_shapes()}
