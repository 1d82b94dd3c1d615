"""``matmul(…, wait_ms=0)``: what serves while a kernel is compiled; NumPy stands for CuPy and for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.matmul import matmul
from cache_engine.cache.operator import GemmOperator, Product
from cache_engine.errors import UsageError
from cache_engine.gpu.launch import LoadedKernel, Operands, random_operands, to_stored
from cache_engine.gpu.multiply import _by_cupy
from cache_engine.gpu.products import ByCupy
from cache_engine.gpu.reference import largest_error, tolerance
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout, Specialisation
from cache_engine.store.journal.spans import distributions
from tests.device import numpy_gpu
from tests.device.numpy_gpu import array, launching_in_numpy

A = array(numpy.random.default_rng(0).standard_normal((40, 128)), "float32")
B = array(numpy.random.default_rng(1).standard_normal((128, 192)), "float32")
BIAS = array(numpy.random.default_rng(2).standard_normal(192), "float32")
RIGHT = numpy.maximum(A @ B + BIAS, 0)
PROBLEM = GemmProblem(40, 192, 128, dtype=DType.FP32, layout=Layout.NN, arch="sm_90a", epilogue="bias+relu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    with launching_in_numpy(monkeypatch), open_cache(tmp_path / "store", durability="fast") as opened:
        yield opened


def multiplied(cache: Cache, wait: float = 0) -> Product:
    """The product, found right."""
    product = matmul(A, B, bias=BIAS, activation="relu", cache=cache, wait_ms=wait)
    assert isinstance(product, Product)
    assert numpy.allclose(product.array, RIGHT, rtol=1e-4, atol=1e-4)
    return product


def test_with_nothing_there_cublas_serves_until_the_kernel_takes_its_place(cache: Cache) -> None:
    first = multiplied(cache)
    assert first.served_by == "cuBLAS, by CuPy"
    assert first.better is not None
    assert first.better.wait(120)
    after = multiplied(cache)
    assert (after.served_by, after.better) == (cache.select(PROBLEM).name, None)
    assert multiplied(cache)[1:] == after[1:]


def test_a_dynamic_kernel_serves_until_the_kernel_takes_its_place(cache: Cache) -> None:
    floor = cache.get_or_compile(replace(PROBLEM, specialisation=Specialisation.DYNAMIC))
    first = multiplied(cache)
    assert first.served_by == floor.entry
    assert first.better is not None
    assert first.better.wait(120)
    assert multiplied(cache).served_by == cache.select(PROBLEM).name


def test_without_wait_the_array_comes_alone_from_the_kernel_itself(cache: Cache) -> None:
    first = multiplied(cache)
    assert numpy.allclose(matmul(A, B, bias=BIAS, activation="relu", cache=cache), RIGHT, rtol=1e-4, atol=1e-4)
    assert first.better is not None
    assert first.better.wait(120)
    assert cache.stats().totals.compiles == 1


def test_loading_the_code_is_counted_once(cache: Cache) -> None:
    for _ in range(3):
        matmul(A, B, bias=BIAS, activation="relu", cache=cache)
    lengths = distributions(cache.stats().totals.spans)
    assert lengths["module"].count == 1


def test_what_is_no_time_to_wait_is_refused(cache: Cache) -> None:
    with pytest.raises(UsageError, match="milliseconds"):
        multiplied(cache, wait=-1)


def test_an_operator_does_not_wait_either(cache: Cache) -> None:
    linear = GemmOperator(
        dtype="fp32", layout="nn", epilogue="bias+relu", cache_dir=cache.layout.root, family="simt", wait_ms=0
    )
    with linear.profiling() as calls:
        first = linear(A, B, bias=BIAS)
        assert isinstance(first, Product)
        assert numpy.allclose(first.array, RIGHT, rtol=1e-4, atol=1e-4)
        assert first.served_by == "cuBLAS, by CuPy"
        assert (linear.statistics().calls, linear.statistics().kernels) == (1, {}), "no kernel is there yet"
        assert first.better is not None
        assert first.better.wait(120)
        after = linear(A, B, bias=BIAS)
    assert first.better.kernel is not None
    assert (after.served_by, after.better) == (first.better.kernel.entry, None)
    assert linear.statistics().kernels == {"memory": 1}
    assert [call.tier for call in calls] == [None, "memory"]
    wide = linear.kernel(40, 96, 128)
    assert (wide.tier, wide.better) == ("compiled", None), "with nothing there, kernel waits"


def test_an_operators_kernel_may_be_another_that_serves(cache: Cache) -> None:
    floor = cache.get_or_compile(replace(PROBLEM, specialisation=Specialisation.DYNAMIC))
    linear = GemmOperator(
        dtype="fp32", layout="nn", arch="sm_90a", epilogue="bias+relu", cache_dir=cache.layout.root, wait_ms=0
    )
    kernel = linear.kernel(40, 192, 128)
    assert kernel.key == floor.key
    assert kernel.better is not None
    assert kernel.better.wait(120)
    assert linear.kernel(40, 192, 128).key == kernel.better.key


def test_an_operator_refuses_what_is_no_time_to_wait() -> None:
    with pytest.raises(UsageError, match="milliseconds"):
        GemmOperator(wait_ms=-1)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", INPUT_DTYPES)
def test_cupy_computes_every_type_and_layout(cache: Cache, dtype: DType, layout: Layout) -> None:
    problem = GemmProblem(5, 24, 48, batch=3, dtype=dtype, layout=layout, arch="sm_90")
    operands = random_operands(problem, seed=1)
    a, b, c = (numpy.uint64(one.ctypes.data) for one in (operands.a, operands.b, operands.c))
    ByCupy(problem)(Operands(a, b, c))
    assert largest_error(problem, operands, None) <= tolerance(problem)


def test_cupy_applies_the_epilogue_before_it_rounds_to_fp8(cache: Cache) -> None:
    """To the bit as a kernel, but for the order of sums: of these numbers each is exact."""
    problem = GemmProblem(5, 24, 48, 2, "bf16", "fp8_e4m3", arch="sm_90", epilogue="alpha+bias+relu")
    operands = random_operands(problem, seed=1)
    whole = [(one % 16).astype("float32") - 8 for one in (operands.a, operands.b)]
    operands.a, operands.b = (array(to_stored(one, problem.dtype)) for one in whole)
    family, config = choose(problem)
    launch = launch_of(family, problem, config)
    kernel = LoadedKernel(b"", "gemm", launch, problem, numpy_gpu.kernel(problem, launch.parameters))
    kernel(operands)
    wanted = operands.c.copy()
    operands.c[...] = 0xFF
    arrays = (operands.a, operands.b, operands.c, operands.bias)
    a, b, c, bias = (numpy.uint64(one.ctypes.data) for one in arrays)
    _by_cupy(problem)(replace(operands, a=a, b=b, c=c, bias=bias))
    assert numpy.array_equal(operands.c, wanted)
    assert len(numpy.unique(wanted)) > 10
