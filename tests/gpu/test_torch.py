"""On a real GPU: the operators for PyTorch's tensors, where PyTorch is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from cache_engine.cache.cache import Cache
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


def test_streams_threads_and_the_compiler(ours: Any) -> None:
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
