"""The demonstration store: compiled kernels of public models."""

from __future__ import annotations

from cache_engine.catalogue import model_shapes
from cache_engine.model.gemm import DType, GemmProblem

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


def sample_problems() -> list[GemmProblem]:
    """The problems of the demonstration store: every choice on every architecture."""
    shapes = {(shape.model, shape.operation): shape for shape in model_shapes()}
    return [
        shapes[model, operation].problem(m, dtype, out_dtype).on(arch)
        for model, operation, m, dtype, out_dtype in _CHOICES
        for arch in ARCHITECTURES
    ]
