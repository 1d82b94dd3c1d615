"""The plugin for vLLM: on classes with vLLM's recorded signatures, and launches that NumPy computes."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.cache.cache import open_cache
from cache_engine.errors import UsageError
from cache_engine.gpu.fp8 import quantise
from cache_engine.torch import launches, vllm
from tests.device.numpy_gpu import DEVICE
from tests.torch.fake_vllm import FakeVllm
from tests.torch.record_vllm import CONTRACT
from tests.torch.test_launches import some

ROOT = Path(__file__).parents[2]
_OURS = "cache_engine.torch.vllm."


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the modules that derive from vLLM's classes imported again."""
    for name in ("config", "layers"):
        monkeypatch.delitem(sys.modules, _OURS + name, raising=False)
        monkeypatch.delattr(vllm, name, raising=False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A vLLM with the plugin registered."""
    made = FakeVllm(monkeypatch)
    _forget(monkeypatch)
    vllm.register()
    yield made
    _forget(monkeypatch)


@pytest.fixture
def layers(fake: FakeVllm, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with our methods, on a machine with a GPU and a store."""
    module = importlib.import_module(_OURS + "layers")
    monkeypatch.setattr(module, "require_gpu", lambda _: DEVICE)
    with open_cache(tmp_path / "store", durability="fast") as cache:
        monkeypatch.setattr(launches.serving, "cache", cache)
        monkeypatch.setattr(launches.serving, "strict_graphs", True)
        yield module


# ---- The contract ----


def test_the_plugin_is_an_entry_point_and_is_registered_once(fake: FakeVllm) -> None:
    vllm.register()
    assert fake.quantization.QUANTIZATION_METHODS == ["fp8", "gemm_cache"]
    assert (
        'vllm.general_plugins"]\ngemm_cache = "cache_engine.torch.vllm:register"'
        in (ROOT / "pyproject.toml").read_text()
    )
    config = fake.registered["gemm_cache"]()
    assert (config.get_name(), config.get_config_filenames(), config.get_min_capability()) == ("gemm_cache", [], 0)
    assert torch.bfloat16 in config.get_supported_act_dtypes()


def test_what_we_override_takes_the_arguments_that_vllm_gives(layers: Any, fake: FakeVllm) -> None:
    compared = 0
    for ours in (fake.registered["gemm_cache"], *(one for one in vars(layers).values() if inspect.isclass(one))):
        recorded = [fake.contract["classes"].get(base.__name__, {}).get("methods", {}) for base in ours.__mro__[1:]]
        for name in vars(ours) if ours.__module__.startswith(_OURS) else ():
            for how in [methods[name] for methods in recorded if name in methods][:1]:
                made = inspect.getattr_static(ours, name)
                given = inspect.signature(getattr(made, "__func__", made))
                names = [text.partition("=")[0] for text in how["parameters"] if not text.startswith("*")]
                given.bind(*names)
                named = [one.name for one in given.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
                assert named == names[: len(named)], (ours, name)
                assert [one for one in how["decorators"] if one != "abstractmethod"] == [
                    type(made).__name__ for _ in (1,) if isinstance(made, classmethod | staticmethod)
                ]
                compared += 1
    assert compared == 15


def test_vllm_without_the_classes_starts_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FakeVllm(monkeypatch)
    _forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.quantization.base_config", None)
    vllm.register()
    assert "has no --quantization gemm_cache: ModuleNotFoundError" in caplog.text


def test_another_version_of_vllm_says_what_to_do_when_a_model_is_loaded(
    fake: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.model_executor.kernels.linear.scaled_mm", None)
    with pytest.raises(RuntimeError, match=r"knows the layers of vLLM 0\.33, .*; leave the option out, or install"):
        fake.registered["gemm_cache"]().get_quant_method(torch.nn.Linear(2, 2), "layer")


def test_without_vllm_nothing_is_raised_and_no_module_of_it_is_imported() -> None:
    program = (
        "import sys; sys.modules['vllm'] = None\nimport cache_engine.torch.vllm as ours; ours.register()\n"
        "print([one for one in sys.modules if one.startswith('vllm.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr
    assert "vLLM of no known version has no --quantization gemm_cache" in done.stderr


# ---- Layers without quantization ----


def test_a_layer_is_warmed_captured_and_computed_by_our_operator(
    layers: Any, fake: FakeVllm, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each number of tokens of a step, and with and without its bias, though graphs are captured of three."""
    monkeypatch.setattr(launches.serving, "wait_ms", None)  # a missing kernel would be compiled at once, and counted
    bias = some(1024, dtype=torch.bfloat16, seed=1)
    layer = fake.layer(some(1024, 64, dtype=torch.bfloat16), bias)
    method = fake.registered["gemm_cache"]().get_quant_method(layer, "model.layers.0.qkv_proj")
    assert type(method).__name__ in fake.loads_by_v2
    method.process_weights_after_loading(layer)
    assert method.has_kernels
    monkeypatch.setattr(launches.serving, "strict_graphs", True)
    compiled = launches.serving.cache.stats().totals.compiles  # type: ignore[union-attr]
    gpu.is_captured = True
    for m in fake.config.compilation_config.cudagraph_capture_sizes:
        x = some(m, 64, dtype=torch.bfloat16, seed=m)
        for given in (bias, None):
            torch.testing.assert_close(method.apply(layer, x, given), F.linear(x, layer.weight, given))
    gpu.is_captured = False
    for m in (3, 17, 200):
        x = some(m, 64, dtype=torch.bfloat16, seed=m)
        torch.testing.assert_close(method.apply(layer, x, bias), F.linear(x, layer.weight, bias))
    assert launches.serving.cache.stats().totals.compiles == compiled == 4  # type: ignore[union-attr]
    assert not fake.by_vllm


def test_vllms_compiler_meets_no_break(layers: Any, fake: FakeVllm) -> None:
    layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
    method = layers.method_of(layer)
    method.has_kernels = True
    fp8_layer, _ = _fp8_layer(fake, 192, 256)
    kernel = layers.GemmCacheBlockScaledKernel(SimpleNamespace(out_dtype=torch.bfloat16))

    def step(x: Any, codes: Any, scales: Any) -> Any:
        return method.apply(layer, x).sum() + kernel.apply_block_scaled_mm(
            codes, fp8_layer.weight, scales, fp8_layer.weight_scale_inv
        )

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")
    for m in (3, 7):
        given = some(m, 16, dtype=torch.bfloat16), torch.zeros(m, 256).to(torch.float8_e4m3fn), torch.ones(m, 2)
        assert torch.equal(compiled(*given), step(*given))


def test_a_graph_of_a_size_that_the_config_does_not_name_has_pytorchs_product(
    layers: Any, fake: FakeVllm, gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
    method = layers.method_of(layer)
    method.process_weights_after_loading(layer)
    x, gpu.is_captured = some(7, 16, dtype=torch.bfloat16), True
    assert torch.equal(method.apply(layer, x), F.linear(x, layer.weight))
    assert "a CUDA graph is captured with PyTorch's product: no kernel is loaded for GemmProblem(7, 24" in caplog.text


def test_a_layer_whose_kernels_cannot_be_compiled_stays_with_vllm(
    layers: Any, fake: FakeVllm, gpu: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError("the disk is full")

    monkeypatch.setattr(launches.serving.cache, "get_or_compile", refuse)
    for _ in range(2):
        layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
        method = layers.method_of(layer)
        method.process_weights_after_loading(layer)
        gpu.is_captured = True
        method.apply(layer, some(3, 16, dtype=torch.bfloat16), None)
    assert fake.by_vllm == [3, 3]
    assert caplog.text.count("vLLM multiplies its layers of 24 × 16 itself") == 1
    assert "kernels are missing; the disk is full" in caplog.text


@pytest.mark.parametrize(
    "weight", [torch.ones(24, 16, dtype=torch.int8), torch.ones(16, 24).t(), torch.ones(3, 24, 16)]
)
def test_weights_that_no_kernel_reads_stay_with_vllm(layers: Any, fake: FakeVllm, weight: Any) -> None:
    layer = fake.layer(weight[0] if weight.dim() == 3 else weight)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    method = layers.method_of(layer)
    method.process_weights_after_loading(layer)
    assert not method.has_kernels


def test_without_a_gpu_the_layer_says_so_and_stays_with_vllm(fake: FakeVllm, caplog: pytest.LogCaptureFixture) -> None:
    module = importlib.import_module(_OURS + "layers")
    layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
    method = module.method_of(layer)
    method.process_weights_after_loading(layer)
    x = some(3, 16, dtype=torch.bfloat16)
    assert torch.equal(method.apply(layer, x), F.linear(x, layer.weight))
    assert fake.by_vllm == [3]
    assert "GpuRequired: --quantization gemm_cache needs an NVIDIA GPU" in caplog.text


def test_another_platform_and_batch_invariance_are_vllms_own(
    layers: Any, fake: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    own = fake.made["UnquantizedLinearMethod"]
    layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
    assert layers.method_of(torch.nn.Embedding(3, 4)) is None
    fake.envs.VLLM_BATCH_INVARIANT = True
    assert type(layers.method_of(layer)) is own
    layers._why_not.cache_clear()
    fake.envs.VLLM_BATCH_INVARIANT, fake.platform.is_cuda = False, lambda: False
    assert [type(layers.method_of(layer)) for _ in range(3)] == [own] * 3
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "--quantization gemm_cache changes nothing: VLLM_BATCH_INVARIANT asks for other kernels",
        "--quantization gemm_cache changes nothing: it needs an NVIDIA GPU",
    ]


def test_a_model_config_of_any_kind_gives_rows(layers: Any) -> None:
    for sizes, most, rows in (
        ([8, 1, 8, 2], 64, ((1, 2, 8), 64)),
        ([8], None, ((8,), 8)),
        (None, 2048, ((), 2048)),
        ([-1, 0, True, "4", None, 2.0, 10**30, 16], "many", ((16,), 16)),
        ("1024", -3, ((), 1)),
        ({}, 10**30, ((), 1)),
    ):
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=most),
        )
        assert layers.rows_of(config) == rows
    assert layers.rows_of(None) == layers.rows_of(SimpleNamespace(compilation_config=3)) == ((), 1)


# ---- fp8 ----


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def test_the_option_takes_models_in_fp8_with_blocks_and_no_others(fake: FakeVllm) -> None:
    override = fake.registered["gemm_cache"].override_quantization_method
    assert override(BLOCKS, "gemm_cache", hf_config=None) == "gemm_cache"
    for given in (
        {**BLOCKS, "weight_block_size": [64, 128]},
        {"quant_method": "awq"},
        {"quant_method": "fp8"},
        None,
        3,
    ):
        assert override(given, "gemm_cache") is None
    assert override(BLOCKS, "fp8") is None
    assert override(BLOCKS, None) is None


@pytest.fixture
def fp8(layers: Any, fake: FakeVllm) -> Any:
    """The config of a model in fp8."""
    return fake.registered["gemm_cache"].from_config(BLOCKS)


def _fp8_layer(fake: FakeVllm, n: int, k: int) -> tuple[Any, Any]:
    weight = some(n, k, dtype=torch.float32)
    codes, scales = quantise(weight, "1x128,128x128", of_b=True)
    codes = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return fake.layer(codes, weight_scale_inv=torch.from_numpy(scales)), weight


def test_a_layer_in_fp8_has_our_kernel(fp8: Any, fake: FakeVllm, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, weight = _fp8_layer(fake, 192, 256)
    module = importlib.import_module(_OURS + "layers")
    monkeypatch.setattr(module, "are_ready", lambda *_: True)
    method = fp8.get_quant_method(layer, "model.layers.0.mlp")
    method.create_weights(layer, 256, [192], 256, 192, torch.bfloat16, weight_loader=None)
    method.process_weights_after_loading(layer)
    assert not method.use_marlin
    x = some(5, 256, dtype=torch.bfloat16)
    found = method.apply(layer, x, None)
    torch.testing.assert_close(found.float(), F.linear(x.float(), weight), rtol=0.05, atol=1.0)
    assert [(str(one.scales), one.m, one.n, one.k) for one in machine] == [("1x128,128x128", 5, 192, 256)]


@pytest.mark.parametrize(
    ("n", "k", "is_bmm", "is_ours"), [(192, 256, False, True), (192, 200, False, False), (192, 256, True, False)]
)
def test_kernels_for_fp8_are_compiled_or_vllms_kernel_stays(
    fp8: Any, layers: Any, fake: FakeVllm, n: int, k: int, is_bmm: bool, is_ours: bool
) -> None:
    layer = fake.layer(torch.zeros(n, k, dtype=torch.float8_e4m3fn), weight_scale_inv=torch.ones(2, 2), is_bmm=is_bmm)
    method = fp8.get_quant_method(layer, "")
    method.create_weights(layer, k, [n], k, n, torch.bfloat16)
    method.process_weights_after_loading(layer)
    assert isinstance(method.fp8_linear, layers.GemmCacheBlockScaledKernel) == is_ours
    assert method.use_marlin is not is_ours


def test_layers_that_the_model_leaves_unquantized_have_our_operator_and_others_are_vllms(
    fp8: Any, layers: Any, fake: FakeVllm
) -> None:
    layer = fake.layer(some(24, 16, dtype=torch.bfloat16))
    assert type(fp8.get_quant_method(layer, "ignored")) is layers.GemmCacheLinearMethod
    assert fp8.get_quant_method(torch.nn.Embedding(3, 4), "") is None
    layers._why_not.cache_clear()
    fake.platform.is_cuda = lambda: False
    assert type(fp8.get_quant_method(layer, "")) is fake.made["Fp8LinearMethod"]


def test_the_contract_says_of_which_version_it_is() -> None:
    assert json.loads(CONTRACT.read_text())["vllm"] == "0.33.0"
