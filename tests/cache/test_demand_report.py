"""Shares of demand: measured times before predicted ones, and nothing invented where there is neither."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine import GemmProblem, UsageError, model_shapes, open_cache
from cache_engine.cache.cache import Cache
from cache_engine.cache.demand import DemandReport, DemandShare
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.model.gemm import DType
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.shapes import Shape, ShapeCounts
from cache_engine.store.journal import Journal
from tests.helpers import INVENTED_GPU, invented_timing

ONE = GemmProblem(16, 7168, 2048, arch="sm_90a")
TWO = GemmProblem(64, 4096, 7168, arch="sm_80")
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with open_cache(tmp_path / "store") as cache:
        yield cache


def ask(cache: Cache, *problems: GemmProblem, ago_s: float = 0.0) -> None:
    """Has been asked for these, so long ago."""
    journal = Journal(cache.layout.journal, 3600.0, now=lambda: time.time() - ago_s)
    for problem in problems:
        journal.asked(problem)
    journal.close()


def shares(report: DemandReport) -> dict[str, DemandShare]:
    return {share.name: share for share in report.shares}


def test_shares_are_of_launches_time_bytes_and_flops(cache: Cache) -> None:
    ask(cache, ONE, ONE, ONE, TWO)
    report = cache.demand(since_s=3600)
    assert [share.shape for share in report.shares] == [Shape.of(TWO), Shape.of(ONE)]
    two, one = report.shares
    assert (one.launches, two.launches) == (3, 1)
    assert (one.launch_share, two.launch_share) == (0.75, 0.25)
    assert one.flops_share == pytest.approx(3 * ONE.flops / (3 * ONE.flops + TWO.flops))
    assert two.bytes_share == pytest.approx(TWO.moved_bytes / (3 * ONE.moved_bytes + TWO.moved_bytes))
    alone = predict(EvaluationProblem(16, 7168, 2048), GPUS["H100"]).latency_us
    assert one.gpu_s == pytest.approx(3 * alone / 1e6)
    assert one.time_share + two.time_share == pytest.approx(1)
    assert report.gpus == {"sm_90a": {"predicted": "H100"}, "sm_80": {"predicted": "A100"}}
    assert (report.total.launches, report.half_life_s, report.unpredicted) == (4, math.inf, "")
    assert {share.time_from for share in report.shares} == {"predicted"}


def test_a_ledger_of_a_minute_knows_no_rate_of_an_hour(cache: Cache) -> None:
    ask(cache, *[ONE] * 30, ago_s=60)
    report = cache.demand(since_s=60)
    assert report.at - report.since < 3600
    assert report.total.per_hour == pytest.approx(30)


def test_what_was_measured_comes_before_what_is_predicted(cache: Cache) -> None:
    """The fastest config counts, of the latest timing of each; another m is predicted, and said so."""
    slow, fast = (invented_timing(ONE, replace(CONFIG, stages=stages), us) for stages, us in ((2, 99.0), (3, 70.0)))
    cache.timings.add([slow, fast])
    ask(cache, ONE, ONE, replace(ONE, m=17))
    (share,) = cache.demand(since_s=3600).shares
    predicted = predict(EvaluationProblem(17, 7168, 2048), GPUS["H100"]).latency_us
    assert share.gpu_s == pytest.approx((2 * 70 + predicted) / 1e6)
    assert (share.measured, share.timed, share.time_from) == (2, 3, "measured, predicted")
    assert cache.demand().gpus == {"sm_90a": {"measured": INVENTED_GPU.name, "predicted": "H100"}}


def test_times_that_are_predicted_together_are_those_of_each_shape_alone(cache: Cache) -> None:
    cache.timings.add([invented_timing(ONE, CONFIG, 70.0)])
    sizes = {Shape.of(ONE): [1, 16, 4096], Shape.of(TWO): [5], Shape.of(replace(ONE, dtype=DType.FP8_E4M3)): [2]}
    alone, together = cache.demand.times(), cache.demand.times()
    together.predict_ahead(sizes)
    for shape, asked in sizes.items():
        assert together.of(shape, asked) == alone.of(shape, asked)
    assert together.gpus == alone.gpus


def test_a_type_or_target_without_a_model_has_no_time_and_no_share_of_it(cache: Cache) -> None:
    strange = replace(ONE, dtype=DType.FP8_E4M3)
    ask(cache, strange, strange, ONE)
    found = shares(cache.demand(since_s=3600))
    other = found["m × 7168 × 2048 fp8_e4m3→bf16 sm_90a"]
    assert (other.gpu_s, other.time_share, other.timed, other.time_from) == (0, 0, 0, "unknown")
    assert other.launch_share == pytest.approx(2 / 3)
    assert found["m × 7168 × 2048 bf16 sm_90a"].time_share == 1


def test_without_the_extra_nothing_is_predicted_and_the_reason_is_said(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    ask(cache, ONE)
    report = cache.demand()
    assert report.total.gpu_s == 0
    assert "numpy" in report.unpredicted


def test_kernels_are_those_that_serve_today_and_share_what_they_serve(cache: Cache) -> None:
    sizes = (1, 2, 3, 4096)
    ask(cache, *(replace(ONE, m=m) for m in sizes))
    report = cache.demand("kernel", since_s=3600)
    keys = {m: cache.select(replace(ONE, m=m)).key for m in sizes}
    assert len(set(keys.values())) == 2
    by_key = {share.key: share.launches for share in report.shares}
    assert by_key == {keys[1]: 3, keys[4096]: 1}
    assert {share.name for share in report.shares} == {cache.select(replace(ONE, m=m)).name for m in sizes}


def test_models_are_found_by_their_shapes_the_most_alike_first(cache: Cache) -> None:
    for shape in model_shapes("Llama-3.1-8B"):
        ask(cache, shape.problem(16, DType.BF16).on("sm_90"))
    report = cache.demand("model", since_s=3600)
    first = report.shares[0]
    assert (first.name, first.launch_share, first.asked_shapes == first.all_shapes) == ("Llama-3.1-8B", 1, True)
    assert any(share.asked_shapes < share.all_shapes for share in report.shares[1:])
    ask(cache, *[GemmProblem(1, 8, 24, arch="sm_90")] * 5)
    assert cache.demand("model", since_s=3600).shares[0].launch_share == pytest.approx(0.5)


def test_since_counts_whole_hours_that_end_in_it_and_says_from_when(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(cache, TWO, ago_s=5 * 3600)
    ask(cache, ONE)
    report = cache.demand("arch", since_s=2 * 3600)
    assert {share.name: share.launches for share in report.shares} == {"sm_90a": 1}
    assert report.since % 3600 == 0 or report.at - report.since < 3600
    assert cache.demand("arch", since_s=86_400).total.launches == 2
    # With a half-life of an hour, what is five hours old counts next to nothing.
    monkeypatch.setattr("cache_engine.cache.demand.HALF_LIFE_S", 3600.0)
    decayed = {share.name: share.launches for share in cache.demand("arch").shares}
    assert decayed["sm_80"] == pytest.approx(2**-5, rel=0.5)
    assert decayed["sm_90a"] > 0.6


def test_lines_of_a_newer_program_are_counted_without_a_time(cache: Cache) -> None:
    import msgspec

    shape = Shape(n=64, k=32, dtype="fp4", out_dtype="fp4", arch="sm_999", epilogue="swish")
    line = msgspec.json.encode(ShapeCounts("use", time.time(), shape, {16: 3}))
    (cache.layout.journal / "0001-1-x.jsonl").write_bytes(line + b"\n")
    for by in ("shape", "kernel", "model", "arch"):
        report = cache.demand(by, since_s=3600)
        assert (report.total.launches, report.total.gpu_s, report.total.moved_bytes) == (3, 0, 0)
    assert cache.demand("kernel").shares[0].key == ""


@pytest.mark.parametrize("since_s", [0.0, -1.0, math.inf, math.nan])
def test_a_span_out_of_range_is_refused(cache: Cache, since_s: float) -> None:
    with pytest.raises(UsageError, match="positive number of seconds"):
        cache.demand(since_s=since_s)


def test_what_shares_are_of_is_one_of_four(cache: Cache) -> None:
    with pytest.raises(UsageError, match="use one of: shape, kernel, model, arch"):
        cache.demand("chip")


def test_an_empty_ledger_has_no_shares(cache: Cache) -> None:
    report = cache.demand()
    assert (report.shares, report.total.launches, report.total.time_share) == ((), 0, 0)


def test_a_shape_in_words_says_what_is_not_the_default(cache: Cache) -> None:
    ask(
        cache,
        GemmProblem(
            16, 7168, 2048, batch=4, epilogue="bias", specialisation="exact", opt_level=1, layout="nn", arch="sm_90a"
        ),
    )
    assert [*shares(cache.demand())] == ["4 × m × 7168 × 2048 bf16 nn bias exact O1 sm_90a"]
