"""The answers to vLLM's questions about ``--quantization gemm_cache``. Imports vLLM's layers only when asked for one.

All processes of vLLM import this module, also those that load no model.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from cache_engine.model.gemm import SCALE_BLOCK
from cache_engine.torch.vllm import NAME, installed


class GemmCacheConfig(QuantizationConfig):  # type: ignore[misc]  # vLLM's types are not read
    """The config of a model that is not quantized, or whose linear layers are fp8 with scales of blocks."""

    def get_name(self) -> str:
        """The value of the option."""
        return NAME

    def get_supported_act_dtypes(self) -> list[Any]:
        """The types of activations."""
        return [torch.bfloat16, torch.half, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """0, which means any: a layer without kernels for this GPU stays with vLLM."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """An empty list: no file is needed."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The config for a model that is quantized as ``override_quantization_method`` accepts."""
        return _layers().Fp8.from_config(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None  # noqa: ARG003 (vLLM passes it)
    ) -> str | None:  # fmt: skip
        """The option's name if the user chose it and the model is in fp8 with scales of 128 × 128 blocks.

        vLLM refuses the option for models that are quantized otherwise.
        """
        if user_quant != NAME or not isinstance(hf_quant_cfg, dict) or hf_quant_cfg.get("quant_method") != "fp8":
            return None
        return NAME if hf_quant_cfg.get("weight_block_size") == [SCALE_BLOCK, SCALE_BLOCK] else None

    def get_quant_method(self, layer: Any, prefix: str) -> Any:  # noqa: ARG002 (every layer alike)
        """The method of a linear layer; ``None`` for others, which vLLM then computes as without the option."""
        return _layers().method_of(layer)


def _layers() -> Any:
    try:
        from cache_engine.torch.vllm import layers
    except ImportError as error:
        raise RuntimeError(
            f"--quantization {NAME} knows the layers of vLLM 0.33, and this is vLLM {installed()}; leave the option "
            f"out, or install that version: {error}"
        ) from error
    return layers
