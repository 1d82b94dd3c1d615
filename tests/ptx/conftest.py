"""Launches go through the project's own launch code, with NumPy in the place of CuPy, and of the driver."""

from __future__ import annotations

from typing import Any

import pytest

from cache_engine.gpu import tensor_map
from cache_engine.gpu.tensor_map import TensorMap
from cache_engine.model.gemm import DType
from tests.device import numpy_gpu
from tests.ptx import maps


@pytest.fixture(autouse=True)
def _numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_gpu.install(monkeypatch)

    def encode(tensor: TensorMap) -> Any:
        tensor.check()
        kind = {DType.FP8_E4M3: 0, DType.FP8_E5M2: 0, DType.FP16: 6, DType.BF16: 9, DType.TF32: 11, DType.FP32: 7}[
            tensor.dtype
        ]
        return maps.encode(kind, tensor.address, tensor.sizes, tensor.strides, tensor.box, maps.SWIZZLE_128B)

    monkeypatch.setattr(tensor_map, "encode", encode)
