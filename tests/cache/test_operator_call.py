"""Calling an operator: ``matmul`` with its types, epilogue and layout. NumPy stands for CuPy and the kernel."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

from cache_engine import GemmOperator, matmul, open_cache
from cache_engine.cache import operator
from cache_engine.device import OperatorStatistics
from cache_engine.errors import GpuRequired, NotCached, UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.fp8 import dequantise, quantise
from cache_engine.gpu.launch import from_stored, to_stored
from cache_engine.gpu.probe import gpu
from cache_engine.model.gemm import DType, Scales
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Finder, normal, stored


def test_a_call_computes_with_everything_that_the_operator_names(finder: Finder) -> None:
    linear = GemmOperator(
        dtype="bf16", out_dtype="fp32", arch="sm_90a", epilogue="alpha+beta+bias+relu", specialisation="exact",
        opt_level=1, family="tensor_core",
    )  # fmt: skip
    x, weight, bias, out = stored(6, 16, seed=1), stored(8, 16, seed=2), normal(8), normal(6, 8)
    expected = numpy.maximum(0.5 * _widened(x) @ _widened(weight).T + 2.0 * out + bias, 0)
    assert linear(x, weight.T, out, alpha=0.5, beta=2.0, bias=bias) is out
    assert numpy.allclose(out, expected, rtol=1e-5, atol=1e-5)
    (problem,) = finder.asked
    assert (problem.m, problem.n, problem.k, problem.batch) == (6, 8, 16, 1)
    assert (problem.dtype, problem.out_dtype, problem.layout, problem.arch) == ("bf16", "fp32", "nt", "sm_90a")
    assert (str(problem.epilogue), problem.specialisation) == ("alpha+beta+bias+relu", "exact")
    assert problem.opt_level == 1


def test_an_operator_has_results_of_fp8(finder: Finder) -> None:
    x, weight = stored(6, 16, seed=1), stored(8, 16, seed=2)
    product = GemmOperator(dtype="bf16", out_dtype="fp8_e4m3", epilogue="alpha")(
        x, weight.T, alpha=0.5, scale_result=3.0
    )
    exact = (1.5 * _widened(x) @ _widened(weight).T).astype("float32")
    assert numpy.array_equal(product, to_stored(exact, DType.FP8_E4M3))


@pytest.mark.parametrize("scales", [scales for scales in Scales if scales])
@pytest.mark.parametrize("n", [1, 200])
def test_an_operator_takes_operands_with_scales(finder: Finder, scales: Scales, n: int) -> None:
    """Of a single column the shapes do not say which blocks have scales; the operator does."""
    x, weight = normal(4, 256), normal(n, 256, seed=1)
    (a, a_scales), (b, b_scales) = quantise(x, scales), quantise(weight, scales, of_b=True)
    linear = GemmOperator(dtype="fp8_e4m3", out_dtype="fp32", scales=scales)
    placed = [numpy_gpu.array(one) for one in (a, b.T, a_scales, b_scales)]
    product = linear(placed[0], placed[1], a_scales=placed[2], b_scales=placed[3])
    wide_a = dequantise(a, a_scales, scales, dtype="fp8_e4m3")
    wide_b = dequantise(b, b_scales, scales, of_b=True, dtype="fp8_e4m3")
    assert numpy.allclose(product, wide_a @ wide_b.T, rtol=1e-5, atol=1e-5)
    assert finder.asked[0].scales is scales


@pytest.mark.parametrize(
    ("scales", "given", "what"),
    [
        ("1x128,128x128", (), "operands have scales, 1x128,128x128; give a_scales and b_scales"),
        ("1x128,128x128", ("a_scales",), "scales are given of one operand"),
        ("", ("a_scales", "b_scales"), "operands have no scales; leave them out"),
        ("1x128,128x128,e8m0", ("a_scales", "b_scales"), "scales are fp32; the operator's are E8M0 as uint8"),
        ("1x128,1x128", ("a_scales", "b_scales"), "the scales of B are 2 × 2; they must be 200 × 2"),
    ],
)
def test_scales_that_are_not_the_operators_are_refused(
    finder: Finder, scales: Any, given: tuple[str, ...], what: str
) -> None:
    a, b = (numpy_gpu.array(numpy.zeros((rows, 256), "uint8")) for rows in (4, 200))
    placed = {
        "a_scales": numpy_gpu.array(numpy.ones((4, 2), "f4")),
        "b_scales": numpy_gpu.array(numpy.ones((2, 2), "f4")),
    }
    linear = GemmOperator(dtype="fp8_e4m3", out_dtype="fp32", scales=scales)
    with pytest.raises(UsageError, match=what):
        linear(a, b.T, **{name: placed[name] for name in given})
    assert not finder.asked


def _widened(values: Any) -> Any:
    return from_stored(values, DType.BF16, "float64")


def test_without_a_target_it_is_that_of_the_gpu(finder: Finder) -> None:
    GemmOperator(dtype="fp32")(normal(4, 8), normal(4, 8).T)
    assert finder.asked[0].arch == "sm_90a"


def test_parts_of_the_epilogue_that_a_call_leaves_out_do_nothing(finder: Finder) -> None:
    a, b = normal(4, 8), normal(8, 4)
    out = GemmOperator(dtype="fp32", layout="nn", epilogue="alpha+beta")(a, b)
    assert numpy.allclose(out, a @ b, atol=1e-5)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_single_row_or_column_is_read_in_the_operators_layout(finder: Finder, layout: Any) -> None:
    a, b = normal(1, 8), normal(8, 1, seed=1)
    assert numpy.allclose(GemmOperator(dtype="fp32", layout=layout)(a, b), a @ b, atol=1e-5)
    assert finder.asked[0].layout == layout


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("how", ["padded", "reversed", "misaligned"])
def test_what_no_layout_describes_is_copied_into_the_operators(finder: Finder, layout: Any, how: str) -> None:
    def odd(rows: int, columns: int, seed: int) -> Any:
        wide = normal(rows, columns + 4, seed=seed)
        flat = wide.ravel()
        return {
            "padded": wide[:, :columns],
            "reversed": wide[:, columns - 1 :: -1],
            "misaligned": flat[1 : 1 + rows * columns].reshape(rows, columns),
        }[how]

    a = odd(8, 12, 1) if layout[0] == "n" else odd(12, 8, 1).T
    b = odd(12, 4, 2) if layout[1] == "n" else odd(4, 12, 2).T
    assert numpy.allclose(GemmOperator(dtype="fp32", layout=layout)(a, b), a @ b, atol=1e-5)
    assert finder.asked[0].layout == layout


def test_padded_operands_are_copied_into_the_layout_that_they_do_not_have(finder: Finder) -> None:
    a, b = normal(8, 20)[:, :12], normal(12, 20, seed=1)[:, :4]
    assert numpy.allclose(GemmOperator(dtype="fp32", layout="tt")(a, b), a @ b, atol=1e-5)


def test_batches_and_linear_layers(finder: Finder) -> None:
    x, weight, b = normal(2, 3, 5, 8), normal(6, 8, seed=1), normal(2, 3, 8, 4, seed=2)
    linear, product = GemmOperator(dtype="fp32"), GemmOperator(dtype="fp32", layout="nn")
    assert numpy.allclose(linear(x, weight.T), x @ weight.T, atol=1e-5)
    assert numpy.allclose(product(x, b), x @ b, atol=1e-5)
    assert [(problem.m, problem.batch) for problem in finder.asked] == [(30, 1), (5, 6)]


@pytest.mark.parametrize(
    ("operator", "call", "says"),
    [
        ({"epilogue": "bias"}, {}, "the operator's epilogue is 'bias'; give a bias"),
        ({}, {"bias": True}, "epilogue is '', and this call needs 'bias'; make one"),
        ({"epilogue": "bias+relu"}, {"bias": True, "alpha": 2.0}, "and this call needs 'alpha.bias.relu'"),
        ({"epilogue": "alpha"}, {"beta": 1.0}, "needs 'alpha.beta'"),
        ({"epilogue": "beta"}, {"beta": 1.0}, "beta is 1.0, and there is no out to be added"),
        ({}, {"scale_result": 2.0}, "scale_result is for results of fp8, and C is of fp32"),
        ({"dtype": "fp16"}, {}, "A and B hold fp32, which cannot be taken for fp16"),
        ({"layout": "tt"}, {}, "A is 4 × 8 and lies row by row; the operator's layout, tt, needs it column by column"),
        ({"layout": "nn"}, {}, r"B is 8 × 6 and lies column by column; .* an operator with the layout nt, or store B"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_the_operator_are_refused(
    finder: Finder, operator: dict[str, Any], call: dict[str, Any], says: str
) -> None:
    if "bias" in call:
        call = {**call, "bias": normal(6)}
    with pytest.raises(UsageError, match=says):
        GemmOperator(**{"dtype": "fp32", **operator})(normal(4, 8), normal(6, 8).T, **call)
    assert finder.asked == [], "before a kernel is looked for"


def test_a_batch_that_is_folded_has_rows(finder: Finder) -> None:
    with pytest.raises(UsageError, match=r"A is 2 × 4 × 8 and B has no batch.*use an operator with the layout nt"):
        GemmOperator(dtype="fp32", layout="tt")(normal(2, 4, 8), normal(6, 8).T)


def test_out_of_another_type_is_refused(finder: Finder) -> None:
    with pytest.raises(UsageError, match="out has elements of fp64; C is of fp32"):
        GemmOperator(dtype="fp32")(normal(4, 8), normal(6, 8).T, normal(4, 6, dtype="float64"))


def test_a_stream_that_is_given_is_the_one_used(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    entered: list[Any] = []

    class Current(numpy_gpu.Stream):
        """A stream that can be made the current one."""

        def __enter__(self) -> None:
            entered.append(self)

        def __exit__(self, *_: object) -> None:
            entered.append(None)

    given = Current(77)
    linear, a, b = GemmOperator(dtype="fp32"), normal(4, 8), normal(6, 8).T
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: entered[-1] if entered else numpy_gpu.Stream())
    linear(a, b, stream=given)
    assert entered == [given, None]
    with pytest.raises(UsageError, match="is no stream"):
        linear(a, b, stream="a stream")


def test_statistics_count_calls_and_kernels_of_this_operator_alone(finder: Finder) -> None:
    linear, other = GemmOperator(dtype="fp32", arch="sm_90"), GemmOperator(dtype="fp32", arch="sm_90")
    a, b = normal(4, 8), normal(6, 8).T
    assert linear.statistics() == OperatorStatistics()
    for _ in range(3):
        linear(a, b)
    linear.kernel(5, 6, 8)
    found = linear.statistics()
    assert (found.calls, found.kernels, found.compiles, found.refused) == (3, {"compiled": 2}, 2, 0)
    assert found.compile_ms == 14.0
    assert found.get_ms > 0
    other(a, b)
    assert other.statistics() == OperatorStatistics(calls=1), "its kernel is on the GPU"
    with pytest.raises(UsageError):
        linear(a, a)
    assert linear.statistics().calls == 3


def test_statistics_lose_no_call_of_a_thread(finder: Finder) -> None:
    linear, a, b = GemmOperator(dtype="fp32"), normal(4, 8), normal(6, 8).T
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: linear(a, b), range(200)))
    assert linear.statistics().calls == 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_another_thread_counts_can_count() -> None:
    linear = GemmOperator(dtype="fp32")
    with linear._counts._lock:
        child = os.fork()
        if not child:
            linear._counts.called()
            os._exit(linear.statistics().calls)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.usefixtures("numpy_launches")
@pytest.mark.parametrize("caching", [True, False, "packs"])
def test_a_call_is_the_same_with_caching_on_or_off_and_with_packs_alone(
    tmp_path: Path, caching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = GemmOperator(dtype="fp32", arch="sm_90", cache_dir=tmp_path / "store")
    a, b = normal(64, 80), normal(48, 80).T
    if caching == "packs":
        made.kernel(64, 48, 80)
        made.cache.admin.export(tmp_path / "kernels.gemmpack")
        monkeypatch.setenv("GEMM_CACHE_PACKS", str(tmp_path / "kernels.gemmpack"))
    linear = GemmOperator(dtype="fp32", arch="sm_90", cache_dir=tmp_path / "other", enable_caching=caching)
    assert numpy.allclose(linear(a, b), a @ b, atol=1e-4)
    assert linear.statistics().kernels == {"pack" if caching == "packs" else "compiled": 1}
    assert (linear.statistics().compile_ms > 0) == (caching != "packs")
    multiply._kernels.clear()
    linear(a, b)
    assert linear.statistics().kernels["memory"] == 1
    assert (tmp_path / "other").exists() == (caching is True)


@pytest.mark.usefixtures("numpy_launches")
def test_with_compiling_off_cublas_serves(tmp_path: Path) -> None:
    linear = GemmOperator(dtype="fp32", cache_dir=tmp_path, enable_jit=False)
    a, b = normal(4, 8), normal(6, 8).T
    for _ in range(2):
        assert numpy.allclose(linear(a, b), a @ b, atol=1e-4)
    assert (linear.statistics().calls, sum(linear.statistics().kernels.values())) == (2, 0)
    with open_cache(tmp_path, enable_jit=False) as cache:
        assert numpy.allclose(matmul(a, b, cache=cache), a @ b, atol=1e-4)
        with pytest.raises(NotCached, match="compiling is switched off"):
            matmul(a, b, family="simt", cache=cache)


@pytest.mark.usefixtures("numpy_launches")
def test_with_compiling_off_a_family_that_is_named_is_missing(tmp_path: Path) -> None:
    linear = GemmOperator(dtype="fp32", family="simt", cache_dir=tmp_path, enable_jit=False)
    with pytest.raises(NotCached, match="compiling is switched off"):
        linear(normal(4, 8), normal(6, 8).T)
    assert (linear.statistics().calls, linear.statistics().refused) == (0, 1)


@pytest.mark.usefixtures("numpy_launches")
def test_a_kernel_on_the_gpu_is_shared_with_matmul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path))
    linear, a, b = GemmOperator(dtype="fp32"), normal(4, 8), normal(6, 8).T
    assert numpy.array_equal(linear(a, b), matmul(a, b))
    assert multiply._kernels.count(0) == 1
    with open_cache(tmp_path) as other:
        matmul(a, b, cache=other)
    assert multiply._kernels.count(0) == 2


@pytest.mark.usefixtures("numpy_launches")
@pytest.mark.parametrize("by", ["operator", "matmul"])
def test_misses_and_hits_are_logged(tmp_path: Path, by: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cache_engine")
    a, b = normal(4, 8), normal(6, 8).T
    for _ in range(2):
        multiply._kernels.clear()
        if by == "matmul":
            with open_cache(tmp_path) as cache:
                matmul(a, b, cache=cache)
        else:
            GemmOperator(dtype="fp32", cache_dir=tmp_path)(a, b)
            operator._opened.cache_clear()  # as in another process
    events = [getattr(record, "fields", {}).get("event") for record in caplog.records]
    assert [event for event in events if event in ("miss", "publish", "hit")] == ["miss", "publish", "hit"]
    assert "hit in disk: " in caplog.text


@pytest.mark.skipif(not isinstance(gpu(), str), reason="a GPU is here")
def test_without_a_gpu_a_call_says_that_it_needs_one_and_a_kernel_needs_none(tmp_path: Path) -> None:
    linear = GemmOperator(dtype="fp32", cache_dir=tmp_path)
    with pytest.raises(GpuRequired, match="calling an operator needs an NVIDIA GPU"):
        linear(normal(4, 8), normal(6, 8).T)
    assert linear.kernel(64, 48, 80).tier == "compiled"


@pytest.mark.usefixtures("numpy_launches")
def test_each_launch_counts_as_demand_also_of_a_kernel_that_is_loaded_already(tmp_path: Path) -> None:
    a, b = normal(128, 192, dtype="float16"), normal(256, 192, dtype="float16")
    with open_cache(tmp_path / "store") as cache:
        linear = GemmOperator(dtype="fp16", arch="sm_90a", cache_dir=tmp_path / "store")
        for _ in range(3):
            linear(a, b.T)
        for _ in range(4):
            matmul(a, b.T, cache=cache)
        linear.kernel(16, 256, 192)
        linear.cache.journal.flush()
        ledger = cache.demand.ledger()
    (sketch,) = [sketch for shape, sketch in ledger.sketches.items() if shape.arch == "sm_90a"]
    assert {m: round(one.weight) for m, one in sketch.counters.items()} == {128: 7, 16: 1}
