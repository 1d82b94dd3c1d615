"""Calls of PyTorch's tensors: the host's time of ours beside PyTorch's own, swapping, and capturing a CUDA graph."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.results import LeftOut, Report
from benchmarks.timing import compare

_SHAPES = ((1, 64), (16, 64), (1, 256), (16, 256))
_LAYERS, _CAPTURED = 200, 20


def calling(report: Report) -> None:
    """On the CPU, without gradients, in one thread; the capture on a GPU.

    Raises:
        ExtraMissing: when PyTorch is not installed.
    """
    import cache_engine.torch as ours  # first: it says what to install

    import torch  # isort: skip

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            for m, k in _SHAPES:
                given = (torch.randn(m, k), torch.randn(k, k), torch.randn(k))
                name, own = f"torch: linear, {m} × {k}", partial(torch.nn.functional.linear, *given)
                report(compare(name, partial(ours.linear, *given), "F.linear", own, goal_ratio=1.3, calls=200))
            given = (torch.randn(1, 64), torch.randn(64, 64), torch.randn(64))
            by_operator, own = partial(torch.ops.gemm_cache.linear, *given), partial(torch.nn.functional.linear, *given)
            report(compare("torch: the operator, 1 × 64", by_operator, "F.linear", own, calls=200))
        model = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(_LAYERS))

        def there_and_back() -> None:
            ours.swap(model)
            ours.unswap(model)

        name = f"torch: swap of {_LAYERS} layers and back"
        report(compare(name, there_and_back, "a walk over them", lambda: list(model.named_modules()), goal_seconds=1.0))
        _capturing(report)
    finally:
        torch.set_num_threads(threads)


def _capturing(report: Report) -> None:
    """Captures a swapped model whose kernels are loaded, beside PyTorch's own layers; no kernel may be compiled."""
    import torch

    import cache_engine.torch as ours
    from cache_engine.cache.operator import default_cache

    name = f"torch: a CUDA graph of {_CAPTURED} layers"
    if not torch.cuda.is_available():
        report(LeftOut(name, "it needs a GPU"))
        return
    own, swapped = (
        torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(_CAPTURED))).to("cuda", torch.bfloat16)
        for _ in range(2)
    )
    ours.swap(swapped)
    ours.warm(swapped, m=16)
    x = torch.randn(16, 1024, device="cuda", dtype=torch.bfloat16)

    def capture(model: Any) -> None:
        with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x)

    before = default_cache().stats().totals.compiles
    report(compare(name, partial(capture, swapped), "nn.Linear", partial(capture, own), samples=20))
    assert default_cache().stats().totals.compiles == before  # noqa: S101
