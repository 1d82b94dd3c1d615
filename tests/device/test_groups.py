"""``grouped_matmul`` from arrays to the arguments of the launch and back; once with the kernel itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from cache_engine.cache import matmul as multiplication
from cache_engine.errors import UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.fp8 import dequantise, quantise
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import Layout, Mode
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder, array, normal
from tests.ptx.problems import Case, kernel_of

Grouped = Callable[..., Any]
COUNTS = (3, 0, 6, 1)


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Finder]:
    with numpy_gpu.launching_in_numpy(monkeypatch):
        yield Finder()


@pytest.fixture
def grouped(finder: Finder) -> Grouped:
    cache: Any = finder
    return lambda *given, **asked: multiplication.grouped_matmul(*given, cache=cache, **asked)


def on_gpu(counts: Any) -> Any:
    return array(counts, "int32")


def expected(a: Any, b: Any, counts: Any = COUNTS) -> Any:
    ends = numpy.cumsum(counts)
    parts = [a[end - count : end] @ each for end, count, each in zip(ends, counts, b, strict=True)]
    return numpy.concatenate(parts)


@pytest.mark.parametrize(
    "counts", [COUNTS, list(COUNTS), numpy.array(COUNTS), on_gpu(COUNTS)], ids=["tuple", "list", "NumPy", "GPU"]
)
def test_rows_of_groups_follow_each_other(grouped: Grouped, finder: Finder, counts: Any) -> None:
    a, b = normal(10, 16), normal(4, 16, 6, seed=1)
    c = grouped(a, b, counts, dtype="tf32")
    assert (c.shape, c.dtype) == ((10, 6), numpy.float32)
    assert numpy.allclose(c, expected(a, b), rtol=1e-5, atol=1e-5)
    (problem,) = finder.asked
    assert (problem.mode, problem.batch, problem.m, problem.layout) == (Mode.GROUPED, 4, 10, Layout.NN)


def test_groups_with_room_of_their_own(grouped: Grouped, finder: Finder) -> None:
    """Weights as a linear layer stores them, a bias of each group, and rows beyond the counts as they were."""
    a, weight, bias = normal(4, 8, 16), normal(4, 6, 16, seed=1), normal(4, 6, seed=2)
    out = array(numpy.full((4, 8, 6), 7), "float32")
    asked: dict[str, Any] = {"dtype": "tf32", "bias": bias, "activation": "relu", "alpha": 0.5}
    assert grouped(a, weight.swapaxes(1, 2), on_gpu(COUNTS), out, **asked) is out
    for group, count in enumerate(COUNTS):
        right = numpy.maximum(0.5 * a[group] @ weight[group].T + bias[group], 0)
        assert numpy.allclose(out[group, :count], right[:count], rtol=1e-5, atol=1e-5)
        assert (out[group, count:] == 7).all()
    (problem,) = finder.asked
    assert (problem.mode, problem.batch, problem.m, problem.layout) == (Mode.MASKED, 4, 8, Layout.NT)


def test_blocks_of_groups_with_scales(grouped: Grouped, finder: Finder) -> None:
    scales: Any = "1x128,128x128"
    (a, a_scales), (b, b_scales) = quantise(normal(10, 256), scales), quantise(normal(4, 130, 256), scales, of_b=True)
    placed = {"a_scales": array(a_scales), "b_scales": array(b_scales)}
    c = grouped(array(a), array(b).swapaxes(1, 2), COUNTS, dtype="fp8_e4m3", out_dtype="fp32", **placed)
    near_a = dequantise(a, a_scales, scales, dtype="fp8_e4m3")
    near_b = dequantise(b, b_scales, scales, of_b=True, dtype="fp8_e4m3")
    assert numpy.allclose(c, expected(near_a, near_b.transpose(0, 2, 1)), rtol=1e-5, atol=1e-4)
    assert finder.asked[0].scales == scales


def test_arrays_that_lie_otherwise_are_copied(grouped: Grouped) -> None:
    """A column by column or cut out of wider rows, and B with gaps."""
    a, wide, b = normal(10, 16), normal(10, 40), normal(4, 16, 12, seed=1)
    for one in (array(numpy.asfortranarray(a)), wide[:, :16]):
        c = grouped(one, b[:, :, ::2], COUNTS, dtype="tf32")
        assert numpy.allclose(c, expected(one, b[:, :, ::2]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((3, 0, 6), "counts has the shape (3,) and elements of int32; it must have an int32 for each of the 4 groups"),
        ((3, 0, 6, 2), "the groups have 11 rows together, and A has 10; every row must be of one group"),
        ((3, -1, 6, 2), "group 1 has -1 rows; it must have 0 to 10"),
        ((2**40, 0, 6, 2), "group 0 has 1,099,511,627,776 rows"),
        ((3.0, 0, 6, 1), "counts is (3.0, 0, 6, 1); give the rows of each group as whole numbers"),
        (7, "counts is 7; give the rows of each group as whole numbers"),
        (array(COUNTS, "int64"), "counts has elements of int64; on a GPU they must be int32"),
    ],
)  # fmt: skip
def test_wrong_counts_are_refused(grouped: Grouped, counts: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        grouped(normal(10, 16), normal(4, 16, 6), counts, dtype="tf32")


def test_counts_on_the_gpu_are_checked_if_asked(grouped: Grouped) -> None:
    a, b = normal(10, 16), normal(4, 16, 6)
    with pytest.raises(UsageError, match="the groups have 11 rows together"):
        grouped(a, b, on_gpu((3, 0, 6, 2)), dtype="tf32", check=True)
    c = grouped(a, b, on_gpu((3, 0, 6, 2)), dtype="tf32")
    assert numpy.allclose(c, expected(a, b), rtol=1e-5, atol=1e-5), "the last count is clamped"
    with pytest.raises(UsageError, match="group 2 has 9 rows; it must have 0 to 8"):
        grouped(normal(4, 8, 16), b, on_gpu((8, 0, 9, 2)), dtype="tf32", check=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"b": normal(16, 6)}, "A has the shape (10, 16) and B (16, 6); B must be groups × k × n"),
        ({"b": normal(4, 15, 6)}, "A must have as many columns as B has rows"),
        ({"a": normal(3, 10, 16)}, "their batches must be the same"),
        ({"bias": normal(6)}, "the bias has the shape (6,); it must be 4 × 6"),
        ({"bias": array(numpy.zeros((4, 6)), "float64")}, "the bias has elements of fp64; it must have those of C"),
        ({"out": array(numpy.zeros((4, 6)), "float32")}, "out is 4 × 6; C is 10 × 6"),
        ({"beta": 1.0}, "there is no out to be added"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_go_together_are_refused(grouped: Grouped, change: dict[str, Any], says: str) -> None:
    given = {"a": normal(10, 16), "b": normal(4, 16, 6), "counts": COUNTS, "dtype": "tf32"} | change
    with pytest.raises(UsageError, match=re.escape(says)):
        grouped(**given)


def test_out_must_not_share_memory_with_counts(grouped: Grouped) -> None:
    out = array(numpy.zeros((10, 6)), "float32")
    with pytest.raises(UsageError, match="out overlaps counts"):
        grouped(normal(10, 16), normal(4, 16, 6), out.view("int32").reshape(-1)[:4], out, dtype="tf32")


def test_the_kernel_that_is_launched_computes_the_groups(
    grouped: Grouped, finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the way: the choice, the launch and its arguments, and the PTX of the kernel."""
    a, b = array(numpy.rint(3 * normal(10, 32)), "float16"), array(numpy.rint(3 * normal(4, 32, 8, seed=1)), "float16")
    out, counts = array(numpy.zeros((10, 8)), "float16"), on_gpu((3, -5, 6, 9))
    placed = {one.ctypes.data: one for one in (a, b, out, counts)}

    def load_function(cubin: bytes, name: str, shared_bytes: int) -> Callable[..., None]:
        (problem,) = finder.asked
        kernel = kernel_of(Case(*_chosen(problem)))

        def run(grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int) -> None:
            kernel(grid, block, tuple(placed.get(int(one), one) for one in arguments), shared_mem)

        return run

    monkeypatch.setattr(multiply, "load_function", load_function)
    grouped(a, b, counts, out)
    assert numpy.array_equal(out, expected(a, b, (3, 0, 6, 1)))


def _chosen(problem: Any) -> Any:
    family, config = choose(problem)
    return family, problem, config
