"""The plugin in a vLLM that is installed: its real classes, on a CPU. Its wheel has hundreds of megabytes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.torch.record_vllm import CONTRACT, recorded

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

PROGRAM = """
import sys, torch, vllm, vllm.platforms
from vllm.platforms.interface import DeviceCapability, PlatformEnum, UnspecifiedPlatform

class Platform(UnspecifiedPlatform):  # one that computes on the CPU
    device_type = device_name = "cpu"
    dispatch_key = "CPU"
    fp8_dtype = classmethod(lambda cls: torch.float8_e4m3fn)
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    is_cuda_alike = lambda self: False

vllm.platforms._current_platform = vllm.platforms.current_platform = Platform()
from cache_engine.torch.vllm import register
register()
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.linear import *
from cache_engine.gpu.fp8 import quantise
from cache_engine.torch.vllm import layers

config = get_quantization_config("gemm_cache")
blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
assert config.override_quantization_method(blocks, "gemm_cache", hf_config=None) == "gemm_cache"
whole = VllmConfig()
assert layers.rows_of(whole).most == whole.scheduler_config.max_num_batched_tokens > 1
with set_current_vllm_config(whole):
    init_distributed_environment(1, 0, "file://" + sys.argv[1], 0, backend="gloo")
    initialize_model_parallel(1, 1)
    kind = dict(params_dtype=torch.float32, quant_config=config(), prefix="layer")
    assert type(RowParallelLinear(64, 96, **kind).quant_method) is UnquantizedLinearMethod  # no GPU
    layers._why_not = lambda: ""
    for layer in (
        ReplicatedLinear(64, 96, **kind), ColumnParallelLinear(64, 96, **kind), RowParallelLinear(64, 96, **kind),
        QKVParallelLinear(64, 16, 4, 2, bias=True, **kind), MergedColumnParallelLinear(64, [96, 96], **kind),
    ):
        assert type(layer.quant_method) is layers.GemmCacheLinearMethod
        layer.weight.data.normal_()
        layer.bias.data.normal_()
        x = torch.randn(5, 64)
        layer.quant_method.process_weights_after_loading(layer)
        assert not layer.quant_method.has_kernels  # no GPU
        for layer.quant_method.has_kernels in (False, True):
            torch.testing.assert_close(layer(x)[0], torch.nn.functional.linear(x, layer.weight, layer.bias))
    whole.model_config = type("Model", (), {"dtype": torch.bfloat16, "model": ""})()
    torch.set_default_dtype(torch.bfloat16)
    Platform._enum = PlatformEnum.CUDA  # which chooses a kernel of vLLM
    layer = ReplicatedLinear(256, 384, params_dtype=torch.bfloat16, quant_config=config.from_config(blocks), prefix="")
    Platform._enum = PlatformEnum.UNSPECIFIED
    method = layer.quant_method
    assert type(method) is layers.GemmCacheFp8LinearMethod and type(method.fp8_linear) is not type(method._ours)
    weight = torch.randn(384, 256, dtype=torch.float32)
    codes, scales = (torch.from_numpy(one) for one in quantise(weight, "1x128,128x128", of_b=True))
    layer.weight.data.copy_(codes.view(torch.float8_e4m3fn))
    layer.weight_scale_inv.data.copy_(scales)
    layer.bias.data.zero_()
    layers.are_ready = lambda *_: True
    method.process_weights_after_loading(layer)
    assert type(method.fp8_linear) is layers.GemmCacheBlockScaledKernel
    x = torch.randn(5, 256)
    found = layer(x)[0]
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), x.float() @ weight.T, rtol=0.1, atol=2.5)
print("right")
"""


def test_the_real_layers_compute_the_same_with_our_methods(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "group")], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.endswith("right\n"), done.stderr


def test_the_contract_is_that_of_the_installed_version() -> None:
    contract = json.loads(CONTRACT.read_text())
    if contract["vllm"] != version("vllm"):
        pytest.skip(f"recorded of vLLM {contract['vllm']}, and {version('vllm')} is installed")
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    assert {"vllm": contract["vllm"], **recorded(Path(found.origin).parent)} == contract
