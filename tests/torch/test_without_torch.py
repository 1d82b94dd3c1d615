"""Plans, waiting, graphs and warming, where PyTorch is not installed: tensors are NumPy's, launches too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.gpu import multiply
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder
from tests.torch import fake_torch
from tests.torch.fake_torch import Tensor

pytestmark = pytest.mark.skipif(find_spec("torch") is not None, reason="the real one is tested by the other modules")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``cache_engine.torch``, whose kernels are found in every call."""
    import cache_engine

    torch = fake_torch.install(monkeypatch)
    import cache_engine.torch as module

    with numpy_gpu.launching_in_numpy(monkeypatch):
        state = SimpleNamespace(is_captured=False)
        torch.cuda.current_device = lambda: 0
        torch._C._cuda_getCurrentRawStream = lambda number: 0
        torch.cuda.is_current_stream_capturing = lambda: state.is_captured
        monkeypatch.setattr(multiply, "compiled_for", str)
        monkeypatch.setattr(sys.modules["cache_engine.torch.launches"], "require_gpu", lambda what: numpy_gpu.DEVICE)
        module.serving.cache, module.serving.wait_ms = Finder(), None  # type: ignore[assignment]
        yield SimpleNamespace(module=module, launches=module.launches, finder=module.serving.cache, state=state)
    for name in [one for one in sys.modules if one.startswith("cache_engine.torch")]:
        del sys.modules[name]
    vars(cache_engine).pop("torch", None)


def _some(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(numpy.random.default_rng(seed).standard_normal(shape).astype("float32")).clone()


def test_a_linear_product_is_launched_planned_once_and_looked_up_once(ours: Any) -> None:
    x, weight, bias = _some(2, 3, 8), _some(5, 8, seed=1), _some(5, seed=2)
    exact = numpy.maximum(x.array @ weight.array.T + bias.array, 0)
    for _ in range(2):
        y = ours.module.linear(x, weight, bias, "relu")
        assert (y.shape, y.dtype) == ((2, 3, 5), "torch.float32")
        numpy.testing.assert_allclose(y.array, exact, rtol=1e-5, atol=1e-6)
    (problem,) = ours.finder.asked
    assert (problem.m, problem.n, problem.k, str(problem.layout), str(problem.epilogue)) == (6, 5, 8, "nt", "bias+relu")
    assert len(ours.launches._plans) == 1


@pytest.mark.parametrize("where", ["gaps", "not at 16 bytes"])
def test_tensors_that_no_kernel_reads_are_copied(ours: Any, where: str) -> None:
    x, weight = _some(6, 40), _some(5, 20, seed=1)
    x = Tensor(x.array[:, ::2]) if where == "gaps" else Tensor(x.array.reshape(-1)[1:121].reshape(6, 20))
    y = ours.module.linear(x, weight)
    numpy.testing.assert_allclose(y.array, x.array @ weight.array.T, rtol=1e-5, atol=1e-6)


def test_while_a_graph_is_captured_a_kernel_is_loaded_before_or_the_error_names_warm(ours: Any) -> None:
    x, weight = _some(3, 8), _some(5, 8, seed=1)
    ours.state.is_captured = True
    with pytest.raises(UsageError, match=r"GemmProblem\(3, 5, 8.* is not loaded; call cache_engine\.torch\.warm"):
        ours.module.linear(x, weight)
    assert not ours.finder.asked
    ours.state.is_captured = False
    ours.module.linear(x, weight)
    ours.state.is_captured = True
    ours.module.linear(x, weight)
    assert len(ours.finder.asked) == len(ours.launches._in_graphs) == 1


@pytest.mark.parametrize("error", [InvalidProblem("no such type"), UsageError("no family")])
def test_what_no_family_computes_is_pytorchs_own(ours: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(problem: Any, **_: Any) -> Any:
        raise error

    monkeypatch.setattr(ours.finder, "get_to_launch", refuse)
    own = ours.module.launches.Given(
        _some(3, 8), _some(5, 8, seed=1), lambda: "PyTorch's", lambda: None, transposes_b=True
    )
    monkeypatch.setattr(ours.launches, "_new_plan", lambda given, forms: ours.launches.plan_of(*forms))
    assert ours.launches.product(own) == "PyTorch's"


def test_a_swapped_layer_is_warmed_for_the_problem_that_its_call_has(ours: Any) -> None:
    layer = fake_torch.Linear(_some(5, 8), _some(5))
    assert ours.module.swap(layer).swapped == ("",)
    problems = list(ours.module.modules.problems_of(layer, [1, 3], None, training=False))
    for m in (1, 3):
        ours.module.linear(_some(m, 8), layer.weight, layer.bias)
    assert [problem.on("sm_90") for problem in problems] == ours.finder.asked
    assert len(list(ours.module.modules.problems_of(layer, [3], None, training=True))) == 3
    assert ours.module.unswap(layer) == 1
