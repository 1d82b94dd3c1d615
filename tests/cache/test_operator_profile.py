"""Profiling of an operator's calls, and epilogues apart from the kernel. NumPy stands for CuPy and the kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from cache_engine import GemmOperator, UsageError, matmul, switches
from cache_engine.cache import operator
from cache_engine.gpu import multiply, products
from cache_engine.gpu.launch import LoadedKernel, from_stored, to_stored
from cache_engine.model.gemm import NO_EPILOGUE, DType
from tests.device.numpy_gpu import Finder, normal, stored

ALL = "alpha+beta+bias+gelu"


@pytest.fixture(autouse=True)
def _fresh_switches() -> Iterator[None]:
    operator._in_force.cache_clear()
    yield
    switches.fusion = None
    operator._in_force.cache_clear()


# ---- Profiling ----


def test_each_call_is_recorded_with_its_kernel_sizes_and_time(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32", epilogue="relu")
    a, b = normal(4, 8), normal(6, 8).T
    linear(a, b)
    began = time.perf_counter()
    with linear.profiling() as calls:
        linear(a, b)
        linear(normal(5, 8), b)
        passed_ms = (time.perf_counter() - began) * 1e3
    linear(a, b)
    first, second = calls
    assert (len(calls), calls.dropped) == (2, 0)
    assert [(call.problem.m, call.problem.n, call.problem.k, call.problem.arch) for call in calls] == [
        (4, 6, 8, "sm_90a"),
        (5, 6, 8, "sm_90a"),
    ]
    assert (first.kernel, second.kernel) == tuple(str(problem) for problem in finder.asked)
    assert (first.tier, first.stages_ms) == (None, {}), "it was loaded"
    assert (second.tier, second.stages_ms) == ("compiled", {"compile": 7.0})
    times = [call.gpu_ms for call in calls]
    assert all(ms is not None and 0 < ms < passed_ms for ms in times)
    assert [call.gpu_ms for call in calls] == times, "read once, and the same from then on"


def test_a_time_is_read_from_the_gpu_once(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    linear, read = GemmOperator(dtype="fp32"), cupy.cuda.get_elapsed_time
    asked: list[Any] = []

    def counted(*events: Any) -> float:
        asked.append(events)
        return float(read(*events))

    monkeypatch.setattr(cupy.cuda, "get_elapsed_time", counted)
    with linear.profiling() as calls:
        linear(normal(4, 8), normal(6, 8).T)
    assert asked == [], "nothing is waited for before"
    (call,) = calls
    assert call.gpu_ms == call.gpu_ms
    assert len(asked) == 1


def test_the_time_is_that_of_the_launch_alone(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    happened: list[str] = []

    def noted(what: str, does: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any, **options: Any) -> Any:
            happened.append(what)
            return does(*given, **options)

        return note

    monkeypatch.setattr(finder, "get_to_launch", noted("found", finder.get_to_launch))
    monkeypatch.setattr(LoadedKernel, "__call__", noted("launched", LoadedKernel.__call__))
    monkeypatch.setattr(cupy.cuda.Event, "record", noted("event", cupy.cuda.Event.record))
    linear = GemmOperator(dtype="fp32")
    with linear.profiling():
        linear(normal(4, 8), normal(6, 8).T)
    assert happened == ["found", "event", "launched", "event"]


def test_a_kernel_that_is_not_launched_has_stages_and_no_time(tmp_path: Path) -> None:
    linear = GemmOperator(dtype="fp32", arch="sm_90", cache_dir=tmp_path)
    with linear.profiling() as calls:
        kernels = [linear.kernel(64, 48, 80) for _ in range(2)]
    assert [call.tier for call in calls] == ["compiled", "memory"]
    assert [call.kernel for call in calls] == [kernel.entry for kernel in kernels]
    assert [call.gpu_ms for call in calls] == [None, None]
    assert [call.stages_ms for call in calls] == [kernel.stages_ms for kernel in kernels]
    assert next(iter(calls)).stages_ms["compile"] > 0


def test_the_last_calls_are_stored_and_the_others_counted(finder: Finder) -> None:
    linear, b = GemmOperator(dtype="fp32"), normal(6, 8).T
    with linear.profiling(most=2) as calls, linear.profiling() as all_calls:
        for m in (1, 2, 3):
            linear(normal(m, 8), b)
    assert ([call.problem.m for call in calls], calls.dropped) == ([2, 3], 1)
    assert [call.problem.m for call in all_calls] == [1, 2, 3]
    for most in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="give a whole number of at least 1"), linear.profiling(most):  # type: ignore[arg-type]
            pass


def test_a_call_that_fails_is_not_recorded_and_profiling_ends(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32")
    with pytest.raises(UsageError), linear.profiling() as calls:
        linear(normal(4, 8), normal(4, 8))
    assert (len(calls), linear._profiles) == (0, [])


def test_calls_of_threads_are_all_recorded(finder: Finder) -> None:
    linear, a, b = GemmOperator(dtype="fp32"), normal(4, 8), normal(6, 8).T
    with linear.profiling() as calls, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: linear(a, b), range(100)))
    assert len(calls) == 100


# ---- Fusion ----


def _gelu(x: Any) -> Any:
    from math import erf

    return x * (1 + numpy.vectorize(erf, otypes=["float32"])(x / numpy.float32(2**0.5))) / 2


def test_apart_from_the_kernel_an_epilogue_gives_the_same(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32", epilogue=ALL, fusion=False)
    a, b, bias, out = normal(6, 8), normal(5, 8).T, normal(5), normal(6, 5)
    expected = _gelu(0.5 * (a @ b) + 2.0 * out + bias)
    assert linear(a, b, out, alpha=0.5, beta=2.0, bias=bias) is out
    assert numpy.allclose(out, expected, atol=1e-5)
    assert [problem.epilogue for problem in finder.asked] == [NO_EPILOGUE]
    fused = linear(a, b, alpha=0.5, bias=bias)
    linear.fusion = True
    assert numpy.allclose(linear(a, b, alpha=0.5, bias=bias), fused, atol=1e-5)
    assert str(finder.asked[-1].epilogue) == ALL


def test_the_product_is_rounded_before_the_epilogue_and_once_after_it(finder: Finder) -> None:
    a, weight, bias = stored(6, 64, seed=1), stored(5, 64, seed=2), stored(5, seed=3)
    out = GemmOperator(dtype="bf16", epilogue="bias+relu", fusion=False)(a, weight.T, bias=bias)
    product = from_stored(a, DType.BF16, "float64") @ from_stored(weight, DType.BF16, "float64").T
    rounded = from_stored(to_stored(product.astype("float32"), DType.BF16), DType.BF16, "float32")
    expected = to_stored(numpy.maximum(rounded + from_stored(bias, DType.BF16, "float32"), 0), DType.BF16)
    once = product + from_stored(bias, DType.BF16, "float64")
    assert numpy.array_equal(out, expected)
    assert not numpy.array_equal(out, to_stored(numpy.maximum(once, 0).astype("float32"), DType.BF16)), "as fused"


def test_parts_of_c_are_done_one_after_the_other(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "CHUNK_ELEMENTS", 10)
    linear = GemmOperator(dtype="fp32", layout="nn", epilogue="beta+bias", fusion=False)
    a, b, bias, out = normal(2, 7, 8), normal(2, 8, 5), normal(5), normal(2, 7, 5)
    expected = a @ b + 3.0 * out + bias
    assert numpy.allclose(linear(a, b, out, beta=3.0, bias=bias), expected, atol=1e-4)


def test_c_is_not_read_when_beta_is_0(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32", epilogue="beta", fusion=False)
    out = normal(4, 6)
    out[...] = numpy.nan
    a, b = normal(4, 8), normal(6, 8).T
    assert numpy.allclose(linear(a, b, out), a @ b, atol=1e-5)


def test_a_bias_that_does_not_fit_is_refused_as_ever(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32", epilogue="bias", fusion=False)
    with pytest.raises(UsageError, match="the bias is 5; it must be 6 elements"):
        linear(normal(4, 8), normal(6, 8).T, bias=normal(5))


def test_its_time_includes_the_steps(finder: Finder) -> None:
    linear = GemmOperator(dtype="fp32", epilogue="relu", fusion=False)
    with linear.profiling() as calls:
        linear(normal(4, 8), normal(6, 8).T)
    (call,) = calls
    assert call.kernel == str(finder.asked[0])
    assert (str(call.problem.epilogue), call.problem.arch) == ("relu", "sm_90a")


def test_it_is_switched_for_an_operator_and_for_all() -> None:
    linear, own = GemmOperator(epilogue="relu"), GemmOperator(fusion=True)
    assert (linear.fusion, own.fusion) == (True, True)
    switches.fusion = False
    assert (linear.fusion, own.fusion) == (False, True)
    switches.fusion = True
    assert linear.fusion is True
    linear.fusion = False
    assert linear.fusion is False


def test_operators_with_and_without_fusion_share_a_cache(tmp_path: Path) -> None:
    one, other = (GemmOperator(cache_dir=tmp_path, fusion=fusion) for fusion in (True, False))
    assert one.cache is other.cache


@pytest.mark.usefixtures("numpy_launches")
def test_matmul_takes_it_and_asks_the_switches() -> None:
    finder: Any = Finder()
    a, b = normal(4, 8), normal(8, 6)

    def epilogues(**asked: Any) -> list[str]:
        finder.asked.clear()
        multiply._kernels.clear()
        assert numpy.allclose(
            matmul(a, b, cache=finder, activation="relu", **asked), numpy.maximum(a @ b, 0), atol=1e-5
        )
        return [str(problem.epilogue) for problem in finder.asked]

    assert (epilogues(), epilogues(fusion=False)) == (["relu"], [""])
    switches.fusion = False
    assert (epilogues(), epilogues(fusion=True)) == ([""], ["relu"])
    switches.fusion = None
    assert epilogues() == ["relu"]
