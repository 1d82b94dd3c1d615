"""Calls of PyTorch's tensors: the host's time of ours beside PyTorch's own, and swapping a model's layers."""

from __future__ import annotations

from functools import partial

from benchmarks.results import Report
from benchmarks.timing import compare

_SHAPES = ((1, 64), (16, 64), (1, 256), (16, 256))
_LAYERS = 200


def calling(report: Report) -> None:
    """On the CPU, without gradients, in one thread.

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
    finally:
        torch.set_num_threads(threads)
