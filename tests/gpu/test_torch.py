"""On a real GPU: the operators for PyTorch's tensors, where PyTorch is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.fp8 import quantise

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def ours(kernels: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, whose kernels come from the tests' cache and are waited for."""
    import cache_engine.torch as module

    monkeypatch.setattr(module.serving, "cache", kernels)
    monkeypatch.setattr(module.serving, "wait_ms", None)
    yield module
    multiply.unload()


def on_gpu(*shape: int, dtype: str = "bfloat16", seed: int = 0) -> Any:
    """Values in quarters, whose sums are exact."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-4, 5, shape, generator=generator) / 4).to("cuda", getattr(torch, dtype))


def assert_close(found: Any, exact: Any) -> None:
    """To the last rounding of bf16."""
    import torch

    torch.testing.assert_close(found.double(), exact.double(), rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_linear_and_its_gradients(ours: Any, dtype: str, activation: str) -> None:
    import torch

    given = [on_gpu(3, 33, 264, dtype=dtype), on_gpu(136, 264, dtype=dtype, seed=1), on_gpu(136, dtype=dtype, seed=2)]
    with torch.no_grad():
        fused = ours.linear(*given, activation)
    right = [one.double().requires_grad_() for one in given]
    exact = torch.nn.functional.linear(*right)
    exact = {"none": lambda y: y, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[activation](exact)
    assert_close(fused, exact.detach())
    for one in given:
        one.requires_grad_()
    grad = on_gpu(3, 33, 136, dtype=dtype, seed=3)
    ours.linear(*given, activation).backward(grad)
    exact.backward(grad.double())
    for one, other in zip(given, right, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=2**-5, atol=1.0)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_mm_of_each_layout(ours: Any, layout: str) -> None:
    a = on_gpu(40, 72) if layout[0] == "n" else on_gpu(72, 40).t()
    b = on_gpu(72, 56, seed=1) if layout[1] == "n" else on_gpu(56, 72, seed=1).t()
    assert_close(ours.mm(a, b), a.double() @ b.double())


def test_scaled_and_grouped(ours: Any) -> None:
    import torch

    values, weight = torch.randn(40, 256), torch.randn(130, 256)
    (a, a_scales), (b, b_scales) = quantise(values, "1x128,128x128"), quantise(weight, "1x128,128x128", of_b=True)
    a, b = (torch.from_numpy(one).view(torch.float8_e4m3fn).cuda() for one in (a, b))
    scales = torch.from_numpy(a_scales).cuda(), torch.from_numpy(b_scales).cuda()
    found = ours.scaled_mm(a, b.t(), *scales)
    assert_close(found, ours.products.scaled_mm(a, b.t(), *scales, out_dtype=torch.float32))
    tokens, experts = on_gpu(48, 64), on_gpu(3, 80, 64, seed=1).mT
    counts = torch.tensor([17, 0, 31], dtype=torch.int32, device="cuda")
    assert_close(ours.grouped_mm(tokens, experts, counts), ours.products.grouped_mm(tokens, experts, counts))


def test_a_swapped_model_is_warmed_captured_and_replayed(ours: Any) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 256))
    model = model.to("cuda", torch.bfloat16).eval()
    x = on_gpu(16, 256)
    with torch.no_grad():
        expected = model(x)
        assert len(ours.swap(model).swapped) == 2
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(UsageError, match="is not loaded"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x)
        assert not [one.trouble for one in ours.warm(model, 16) if one.trouble]
        with torch.cuda.graph(graph):
            y = model(x)
        for seed in (0, 7, 8):
            x.copy_(on_gpu(16, 256, seed=seed))
            graph.replay()
            ours.unswap(model)
            expected = model(x)
            ours.swap(model)
            torch.testing.assert_close(y, expected, rtol=2**-5, atol=2**-5)


def test_streams_and_the_compiler(ours: Any) -> None:
    import torch

    weight = on_gpu(96, 64, seed=1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = on_gpu(40, 64)
        y = ours.linear(x, weight)
    torch.cuda.synchronize()
    assert_close(y, x.double() @ weight.double().t())
    compiled = torch.compile(lambda x: ours.linear(x, weight, None, "relu") + 1, fullgraph=True, dynamic=True)
    for m in (8, 40, 41):
        x = on_gpu(m, 64, seed=m)
        assert_close(compiled(x), (x.double() @ weight.double().t()).relu() + 1)


def test_inductor_may_choose_our_product(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch._inductor.config, "external_matmul", [ours.external_matmul])
    compiled = torch.compile(torch.mm, mode="max-autotune")
    a, b = on_gpu(256, 512), on_gpu(512, 256, seed=1)
    assert_close(compiled(a, b), a.double() @ b.double())


def test_threads_with_streams_of_their_own_train_the_same(ours: Any) -> None:
    """Also autograd's own thread, in which backward runs on a GPU; k is divided, so each stream needs a workspace."""
    import torch

    weight, wrong = on_gpu(48, 4096, seed=1), list[BaseException]()

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for m in (3, 16, 16):
                    x = on_gpu(m, 4096, seed=seed).requires_grad_()
                    y = ours.linear(x, weight)
                    y.sum().backward()
                    torch.cuda.current_stream().synchronize()
                    assert_close(y, x.double() @ weight.double().t())
                    assert_close(x.grad, weight.double().sum(0).expand(m, -1))
        except BaseException as error:
            wrong.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_replays_overlap_with_other_launches_and_outlive_the_cache_of_kernels(ours: Any) -> None:
    """K is divided: a graph's workspace is its own, and its kernel stays when all others are unloaded."""
    import torch

    x, weight = on_gpu(16, 4096), on_gpu(48, 4096, seed=1)
    exact, side = x.double() @ weight.double().t(), torch.cuda.Stream()
    with torch.no_grad():
        ours.linear(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours.linear(x, weight)
        for _ in range(20):
            with torch.cuda.stream(side):
                graph.replay()
            other = ours.linear(x, weight)
        torch.cuda.synchronize()
        assert_close(y, exact)
        assert_close(other, exact)
        multiply.unload()
        for m in (1, 2, 4):
            ours.linear(on_gpu(m, 4096), weight)
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert_close(y, exact)


def test_warming_loads_what_a_first_capture_needs_also_where_a_family_is_not_proved(
    tmp_path: Path, ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(512, 512)).to("cuda", torch.bfloat16)
    ours.swap(model)
    with open_cache(tmp_path / "store", durability="fast") as cache, torch.no_grad():
        monkeypatch.setattr(ours.serving, "cache", cache)
        monkeypatch.setattr(ours.serving, "wait_ms", 0.0)
        ours.warm(model, m=range(1, 65))
        compiled = cache.stats().totals.compiles
        for m in (1, 33, 64):
            x = on_gpu(m, 512)  # nothing may be copied from the host while a graph is captured
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(x)
        assert cache.stats().totals.compiles == compiled


def test_autocast_export_and_func(ours: Any) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8)).cuda()
    x = on_gpu(12, 64, dtype="float32")
    expected = model(x)
    ours.swap(model)
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    rows = torch.export.Dim("rows", min=2, max=512)
    exported = torch.export.export(model.eval(), (x,), dynamic_shapes=({0: rows},)).module()
    torch.testing.assert_close(exported(x[:5]), expected[:5], rtol=1e-2, atol=1e-2)
    mapped = torch.func.vmap(model)(x)
    torch.testing.assert_close(mapped, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_serves_a_model_with_our_kernels_in_its_graphs(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = (
        "from vllm import LLM, SamplingParams\n"
        f"model = LLM({str(tmp_path)!r}, load_format='dummy', skip_tokenizer_init=True, quantization='gemm_cache',\n"
        "    max_model_len=128, gpu_memory_utilization=0.3, max_num_seqs=8)\n"
        "given = [{'prompt_token_ids': [1, 2, 3]}] * 4\n"
        "done = model.generate(given, SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False))\n"
        "print([len(one.outputs[0].token_ids) for one in done])\n"
    )
    environment = {**os.environ, "GEMM_CACHE_DIR": str(tmp_path / "store")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=540)
    assert done.stdout.endswith("[8, 8, 8, 8]\n"), done.stderr[-4000:]
    assert "vLLM multiplies its layers" not in done.stderr
    with open_cache(tmp_path / "store", create=False) as cache:
        assert cache.demand().total.launches > 0
