"""Policies played against traces, with the project's own kernels and predicted times."""

from __future__ import annotations

import math
from array import array
from itertools import accumulate
from random import Random
from statistics import median

import numpy as np
import pytest

from benchmarks import ROOT
from benchmarks.replay import ORACLE
from benchmarks.replay.batching import Limits
from benchmarks.replay.costs import PUBLISHED, cost_of
from benchmarks.replay.kernels import Kernels, gpu_for, kernels_of
from benchmarks.replay.machines import Compiling
from benchmarks.replay.policies import POLICIES, Start
from benchmarks.replay.simulation import COLD, PROFILE, RESTART, STARTS, Outcome, play, runs
from benchmarks.replay.traces import Trace, read_trace
from cache_engine.cache.selection import Selector
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.evaluator.catalogue import ModelShape, model_shapes
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import choice_times_us, latencies_us, parameters_of
from cache_engine.kernels.select import choose
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import GemmProblem, Specialisation
from tests.helpers import make_entry

LIMITS = Limits(1024, 64)
COMPILING = Compiling(0.161, "our benchmark")


def kernels(most: int = LIMITS.tokens, model: str = "Llama-3.1-8B") -> Kernels:
    return kernels_of(model_shapes(model), "sm_90", gpu_for("sm_90", None), Selector(), most, "bf16")


@pytest.fixture(scope="module")
def llama() -> Kernels:
    return kernels()


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Some hundred invented requests in a minute."""
    chance = Random(14)
    count = 300
    return Trace(
        array("d", sorted(chance.uniform(0, 60) for _ in range(count))),
        array("l", (round(chance.lognormvariate(5, 1)) + 1 for _ in range(count))),
        array("l", (round(chance.lognormvariate(4, 1)) + 1 for _ in range(count))),
    )


@pytest.fixture(scope="module")
def played(llama: Kernels, trace: Trace) -> dict[tuple[str, str], Outcome]:
    outcomes = play(llama, trace, LIMITS, COMPILING, list(POLICIES.values()), STARTS)
    assert len(outcomes) == runs(list(POLICIES.values()), STARTS)
    return {(one.start, one.policy): one for one in outcomes}


def test_a_kernel_takes_what_the_gpu_model_predicts_for_its_tile(llama: Kernels) -> None:
    for shape, operation in zip(model_shapes("Llama-3.1-8B"), llama.operations, strict=True):
        for m in (1, 17, 100, 777, LIMITS.tokens):
            problem = GemmProblem(m, shape.n, shape.k, arch="sm_90")
            config = choose(problem)[1]
            assert operation.tiles[operation.chosen[m]] == (config.block_m, config.block_n, config.split_k)
            bucketed = choose(GemmProblem(m, shape.n, shape.k, arch="sm_90", specialisation=Specialisation.BUCKETED))[1]
            assert operation.tiles[operation.bucketed[m]][:2] == (bucketed.block_m, bucketed.block_n)
            m_, n, k, one = (np.array([float(size)]) for size in (m, shape.n, shape.k, 1))
            h100, (_, parameters) = GPUS["H100"], parameters_of(GPUS["H100"])
            predicted_s = choice_times_us(parameters, h100, m_, n, k, one, operation.tiles)[:, 0] / 1e6
            seconds = operation.seconds[:, m] / shape.layers
            assert len(operation.tiles) > 2
            assert seconds == pytest.approx(predicted_s)
            library_s = latencies_us(parameters, h100, m_, n, k)[0] / 1e6
            assert seconds[operation.best[m]] == seconds.min() == pytest.approx(library_s, rel=0.1)


def test_no_policy_costs_less_than_the_optimum_of_its_own_steps(played: dict[tuple[str, str], Outcome]) -> None:
    for one in played.values():
        assert one.cost_s >= one.optimum_s * (1 - 1e-9), one
        assert one.ratio >= 1 - 1e-9
        assert one.best + one.other + one.late == pytest.approx(1)
        assert one.compile_s == pytest.approx((one.before + one.waited + one.behind) * COMPILING.seconds)
        assert one.first_token_p50_s <= one.first_token_p99_s


def test_the_oracle_is_at_the_bound(played: dict[tuple[str, str], Outcome]) -> None:
    assert played[COLD, ORACLE].ratio < 1.05


def test_only_exact_makes_requests_wait_and_it_waits_for_each_compile(
    played: dict[tuple[str, str], Outcome], llama: Kernels
) -> None:
    for (start, name), one in played.items():
        if name == "exact":
            assert one.stall_s == pytest.approx(one.waited * COMPILING.seconds)
            assert one.request_stall_s >= one.stall_s
        else:
            assert (one.waited, one.stall_s, one.late) == (0, 0, 0), (start, name)
    exact = played[COLD, "exact"]
    assert exact.waited == exact.distinct_m * len(llama.operations)
    assert exact.first_token_p99_s > 10 * played[COLD, "ours"].first_token_p99_s


def test_ours_compiles_nothing_after_the_server_is_ready(played: dict[tuple[str, str], Outcome]) -> None:
    for start in STARTS:
        ours = played[start, "ours"]
        assert (ours.waited, ours.behind) == (0, 0), start
        assert ours.after_s <= 1.25 * ours.optimum_s or ours.after_s < 0.01
    assert played[PROFILE, "ours"].ratio <= 1.25
    assert played[COLD, "warm"].after_ratio > played[COLD, "ours"].after_ratio


def test_a_restart_finds_every_kernel_that_was_compiled(played: dict[tuple[str, str], Outcome]) -> None:
    for name in ("warm", "warm-best", "capture", "powers", "ours"):
        cold, again = played[COLD, name], played[RESTART, name]
        assert (again.before, again.waited) == (0, 0), name
        assert again.kernels >= cold.kernels
    assert played[RESTART, "exact"].waited < played[COLD, "exact"].waited


def test_without_a_horizon_ours_rents_and_no_one_waits(llama: Kernels, trace: Trace) -> None:
    ours = POLICIES["ours"]
    (one, _) = play(llama, trace, LIMITS, COMPILING, [ours], start=Start(horizon_s=0.0))
    assert (one.before, one.waited) == (0, 0)
    assert one.behind > 0
    assert one.ratio < 2.2, "2, and what is lost while compiles are under way"


@pytest.mark.parametrize(("seed", "rate", "prompt", "output"), [(1, 2.0, 5.0, 4.0), (2, 8.0, 3.0, 5.0)])
def test_believing_in_the_rates_seen_costs_less_than_ski_rental_alone(
    llama: Kernels, seed: int, rate: float, prompt: float, output: float
) -> None:
    """Traces of other shapes than those that come along: Poisson arrivals, lognormal lengths."""
    chance = Random(seed)
    arrivals = list(accumulate(chance.expovariate(rate) for _ in range(round(rate * 600))))
    trace = Trace(
        array("d", arrivals),
        array("l", (round(chance.lognormvariate(prompt, 1)) + 1 for _ in arrivals)),
        array("l", (round(chance.lognormvariate(output, 1)) + 1 for _ in arrivals)),
    )
    ours = POLICIES["ours"]
    alone, _ = play(llama, trace, LIMITS, COMPILING, [ours], start=Start(horizon_s=0.0))
    believing, _ = play(llama, trace, LIMITS, COMPILING, [ours], start=Start(budget_s=0.0))
    assert believing.before == believing.waited == 0
    assert believing.behind > 0
    assert believing.ratio < alone.ratio


def test_a_profile_of_another_trace_is_used(llama: Kernels, trace: Trace) -> None:
    short = Trace(trace.arrivals_s[:1], trace.prompts[:1], trace.outputs[:1])
    known = play(llama, trace, LIMITS, COMPILING, [POLICIES["ours"]], (PROFILE,))[0]
    unknown = play(llama, trace, LIMITS, COMPILING, [POLICIES["ours"]], (PROFILE,), learnt_from=short)[0]
    assert unknown.before < known.before
    assert unknown.behind > known.behind


def test_every_request_of_every_run_is_reported(llama: Kernels, trace: Trace) -> None:
    seen: list[int] = []
    chosen = [POLICIES["warm"], POLICIES["ours"]]
    play(llama, trace, LIMITS, COMPILING, chosen, STARTS, on_run=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == len(trace) * runs(chosen, STARTS)


def test_a_step_multiplies_in_one_of_two_ways() -> None:
    names = [shape.operation for shape in model_shapes("DeepSeek-V3") if shape.alternative in ("fused", "separate")]
    assert len(names) == 3
    played = kernels_of(model_shapes("DeepSeek-V3"), "sm_90", GPUS["H100"], Selector(), 2, "bf16")
    assert [each.name for each in played.operations if each.name in names] == [names[0]]


def test_shapes_whose_rows_a_trace_does_not_say_are_left_out() -> None:
    found = kernels(64, "Mixtral-8x7B")
    assert [text.split(":")[0] for text in found.left_out] == [
        shape.operation for shape in model_shapes("Mixtral-8x7B") if shape.batch > 1
    ]
    assert found.left_out
    with pytest.raises(UsageError, match="use a model with plain layers"):
        kernels_of([ModelShape("x", "experts", 8, 64, 64, 1)], "sm_90", GPUS["H100"], Selector(), 8, "bf16")


@pytest.mark.parametrize(
    ("arch", "name", "said"),
    [("sm_75", None, "no GPU of the evaluator runs sm_75"), ("sm_90", "B200", "use one of: H100, H200")],
)
def test_a_gpu_that_does_not_run_the_target_is_refused(arch: str, name: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gpu_for(arch, name)


def test_the_gpu_is_the_one_named_and_the_type_one_that_is_calibrated() -> None:
    assert gpu_for("sm_90a", "h200").name == "H200"
    with pytest.raises(InvalidProblem, match="fp32 are not calibrated"):
        kernels_of(model_shapes("Llama-3.1-8B"), "sm_90", GPUS["H100"], Selector(), 8, "fp32")


def test_the_cost_of_a_compile_is_the_median_of_the_stores_own_records() -> None:
    records: list[Record] = []
    from cache_engine.store.codec import encode_blob

    for number in range(40):
        key, artifact, describe = make_entry(number)
        records.append(describe(encode_blob(key, artifact, compress=True)[1]))
    first = records[0]
    alike = [one for one in records if (one.family, one.arch) == (first.family, first.arch)]
    assert 1 < len(alike) < len(records)
    found = cost_of(records, first.family, first.compiler, first.arch)
    assert found.compile_s == median(one.compile_ms for one in alike) / 1e3
    assert found.source.startswith(f"the median of {len(alike)} ")
    assert cost_of(records, first.family, first.compiler, "sm_121") is PUBLISHED


def test_a_percentile_counts_the_steps_that_did_not_stall() -> None:
    from benchmarks.replay.simulation import _percentile

    assert _percentile(array("d", [5.0, 7.0]), 99, 200) == 0.0
    assert _percentile(array("d", [7.0, 5.0, 6.0]), 99, 200) == 5.0
    assert _percentile(array("d", range(1, 101)), 99, 100) == 99.0
    assert _percentile(array("d", [3.0]), 50, 1) == 3.0


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("azure2023_code", 1),
        ("azure2023_code", 4),
        *(pytest.param("azure2023_conv", load, marks=pytest.mark.soak) for load in (1, 4)),
    ],
)
def test_the_goal_on_the_traces_that_come_along(name: str, load: float) -> None:
    """No compile after the server is ready. With the demand known, at most 1.25 times the optimum."""
    found = play(
        kernels(8192),
        read_trace(ROOT / "sample_data" / "traces" / f"{name}.csv.gz").at_load(load),
        Limits(),
        COMPILING,
        [POLICIES["ours"]],
        (COLD, PROFILE),
    )
    by_start = {one.start: one for one in found if one.policy == "ours"}
    assert [one.waited + one.behind for one in by_start.values()] == [0, 0]
    assert by_start[PROFILE].ratio <= 1.25
    assert by_start[COLD].after_ratio <= 1.25


def test_steps_are_the_same_number_whoever_counts(played: dict[tuple[str, str], Outcome], trace: Trace) -> None:
    tokens = sum(trace.prompts) + sum(trace.outputs) - len(trace)
    for one in played.values():
        assert tokens / LIMITS.tokens <= one.steps <= tokens
        assert 0 < one.busy_s <= one.end_s
        assert math.isfinite(one.cost_s)
    assert np.isfinite([one.lost_s for one in played.values()]).all()
