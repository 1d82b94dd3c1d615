"""vLLM's linear layers by our kernels: ``vllm serve MODEL --quantization gemm_cache``.

vLLM calls ``register`` at its start, by the entry point ``vllm.general_plugins``, in each of its processes; nothing
changes without the option. It serves models in fp16, bf16 and fp32, and models in fp8 with scales of 128 × 128 blocks.
If a layer's kernels cannot be compiled or loaded, the layer stays with vLLM, and the log says why.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

NAME = "gemm_cache"
"""The value of vLLM's option ``--quantization``."""
_log = logging.getLogger(__name__)


def register() -> None:
    """Makes ``--quantization gemm_cache`` known to vLLM. Never raises an exception: vLLM would not start."""
    try:
        from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

        from cache_engine.torch.vllm.config import GemmCacheConfig

        if NAME not in QUANTIZATION_METHODS:
            register_quantization_config(NAME)(GemmCacheConfig)
    except Exception as error:
        _log.warning("vLLM %s has no --quantization %s: %s: %s", installed(), NAME, type(error).__name__, error)


def installed() -> str:
    """The version of vLLM."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "of no known version"
