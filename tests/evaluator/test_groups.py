"""Grouped launches: how tokens are spread over experts, and what their products cost together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cache_engine.errors import InvalidProblem, SearchStopped
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.cost import SearchMode, ceil_div
from cache_engine.evaluator.gpu import predict
from cache_engine.evaluator.grouped import (
    GroupedProblem,
    _dealt,
    _GroupSearch,
    busiest,
    evaluate_work,
    grouped,
    predict_work,
    routed,
    work_of,
    zipf,
)
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.search import evaluate, partitions_of
from cache_engine.model.gemm import GemmProblem
from tests.evaluator.test_search import random_case

CHIP = PRESETS["SG2262"]


@pytest.mark.parametrize("skew", [0, 0.3, 1, 3, 10])
@pytest.mark.parametrize(("tokens", "per_token", "experts"), [(1, 8, 256), (100, 8, 256), (4096, 2, 8), (7, 4, 4)])
def test_every_token_goes_to_as_many_experts_as_it_should(
    tokens: int, per_token: int, experts: int, skew: float
) -> None:
    rows = routed(tokens, per_token, zipf(experts, skew))
    assert sum(rows) == tokens * per_token
    assert max(rows) <= tokens, "no expert gets a token twice"
    assert rows == sorted(rows, reverse=True)


def test_tokens_are_spread_as_the_weights_say() -> None:
    assert routed(100, 2, [1.0] * 8) == [25] * 8
    assert routed(16, 8, [1.0] * 256) == [1] * 128 + [0] * 128
    assert routed(100, 1, [3, 1, 0, 0]) == [75, 25, 0, 0]
    assert routed(100, 2, [98, 1, 1]) == [100, 50, 50], "what a full expert leaves goes to the others"
    first, second, *_ = routed(1000, 1, zipf(64, 1))
    assert first == pytest.approx(2 * second, abs=1)


def test_a_spread_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="a token goes to 2 experts, and only 1 get any"):
        routed(10, 2, [1, 0, 0])
    for skew in (-1, 11, float("nan")):
        with pytest.raises(InvalidProblem, match="skew is"):
            zipf(4, skew)


def test_equal_products_are_a_batch_and_unequal_ones_a_group() -> None:
    assert grouped([4, 4, 0, 4], 64, 32) == EvaluationProblem(4, 64, 32, 3)
    assert grouped([0, 0], 64, 32) is None
    work = grouped([4, 1, 0, 4], 64, 32)
    assert isinstance(work, GroupedProblem)
    assert (work.groups, work.m, work.batch, work.rows) == (((4, 2), (1, 1)), 4, 3, 9)
    assert work.flops == 2 * 9 * 64 * 32
    assert work.moved_bytes == 2 * (9 * 32 + 3 * 64 * 32 + 9 * 64)
    assert busiest([[1, 2], [3, 0], [2, 1]]) == [1, 2]


def sizes(generator: random.Random) -> tuple[tuple[int, int], ...]:
    rows = generator.sample(range(1, 60), generator.randint(2, 4))
    return tuple((one, generator.randint(1, 5)) for one in sorted(rows, reverse=True))


def cases(count: int) -> list[tuple[GroupedProblem, Hardware, SearchMode]]:
    generator = random.Random(15)
    found: list[tuple[GroupedProblem, Hardware, SearchMode]] = []
    while len(found) < count:
        problem, hardware, mode = random_case(generator)
        work = GroupedProblem(sizes(generator), problem.n, problem.k, problem.dtype, problem.out_dtype)
        found.append((work, hardware, mode))
    return found


def test_equal_products_cost_as_a_batch_does() -> None:
    generator = random.Random(3)
    for _ in range(100):
        problem, hardware, mode = random_case(generator)
        alike = GroupedProblem(((problem.m, problem.batch),), problem.n, problem.k, problem.dtype, problem.out_dtype)
        batch, group = evaluate(problem, hardware, mode), evaluate_work(alike, hardware, mode)
        assert group.latency_us == pytest.approx(batch.latency_us, rel=1e-12)
        assert group.traffic_bytes == batch.traffic_bytes or group.partition != batch.partition
        assert group.effective_utilization == pytest.approx(batch.effective_utilization, rel=1e-12)


def test_the_search_finds_what_trying_every_partition_finds() -> None:
    for work, hardware, mode in cases(150):
        found = evaluate_work(work, hardware, mode)
        if mode.partition_search:
            search = _GroupSearch(work, hardware, mode)
            partitions, _ = partitions_of(hardware.num_cores)
            latencies = [search.slowest(partition).latency for partition in partitions]
            assert found.latency_us == min(latencies)
            assert found.partition == partitions[latencies.index(min(latencies))]
        assert found.flops == work.flops
        assert 0 < found.alignment_efficiency <= 1


def test_a_launch_costs_no_less_than_all_cores_busy_and_no_more_than_products_of_the_largest_size() -> None:
    for work, hardware, mode in cases(150):
        found = evaluate_work(work, hardware, mode)
        cycles = sum(
            count
            * ceil_div(rows, hardware.cube_m)
            * ceil_div(work.n, hardware.cube_n)
            * ceil_div(work.k, hardware.cube_k)
            for rows, count in work.groups
        )
        compute = cycles / hardware.num_cores / hardware.freq_ghz / 1e3 / mode.compute_rate
        memory = work.moved_bytes / hardware.dram_bandwidth * 1e6
        assert found.latency_us >= max(compute, memory) * (1 - 1e-9)
        largest = EvaluationProblem(work.m, work.n, work.k, work.batch, work.dtype, work.out_dtype)
        assert found.latency_us <= evaluate(largest, hardware, mode).latency_us * (1 + 1e-9)


def test_skewed_experts_together_cost_less_than_alone_and_hardly_more_than_all_cores_busy() -> None:
    work = grouped(routed(1000, 8, zipf(64, 1.0)), 512, 1024)
    assert isinstance(work, GroupedProblem)
    found = evaluate_work(work, CHIP)
    alone = sum(count * evaluate(replace(part, batch=1), CHIP).latency_us for part, (_, count) in _parts(work))
    assert found.latency_us < alone
    assert found.traffic_bytes >= work.moved_bytes


def _parts(work: GroupedProblem) -> list[tuple[EvaluationProblem, tuple[int, int]]]:
    return list(zip(work.parts, work.groups, strict=True))


def test_products_are_dealt_the_longest_first_to_the_set_that_is_free() -> None:
    assert _dealt([5.0, 3.0, 1.0], [1, 2, 3], 2) == [[1, 0, 2], [0, 2, 1]]
    assert _dealt([1.0], [7], 3) == [[3], [2], [2]]


def test_a_grouped_search_goes_on_for_as_long_as_it_may() -> None:
    work = GroupedProblem(((64, 3), (5, 2)), 128, 128)
    with pytest.raises(SearchStopped, match="5 grouped products on SG2262 was stopped"):
        evaluate_work(work, CHIP, may_go_on=lambda: False)


@pytest.mark.parametrize("name", GPUS)
def test_on_a_gpu_a_launch_is_between_equal_products_and_lone_ones(name: str) -> None:
    """But for a few percent: lone products choose a tile each, and the equal ones are rounded down."""
    gpu = GPUS[name]
    for tokens, skew in ((16, 0.5), (100, 1.0), (4096, 1.0)):
        work = grouped(routed(tokens, 8, zipf(256, skew)), 4096, 7168)
        assert isinstance(work, GroupedProblem)
        found = predict_work(work, gpu).latency_us
        lone = sum(count * predict(replace(part, batch=1), gpu).latency_us for part, (_, count) in _parts(work))
        equal = predict(EvaluationProblem(work.rows // work.batch, work.n, work.k, work.batch), gpu).latency_us
        assert equal * 0.95 <= found < lone * 1.05
    alike = GroupedProblem(((128, 256),), 4096, 7168)
    batch = EvaluationProblem(128, 4096, 7168, 256)
    assert predict_work(alike, gpu).latency_us == pytest.approx(predict(batch, gpu).latency_us, rel=1e-9)
    assert predict_work(batch, gpu) == predict(batch, gpu)


def test_groups_of_a_kernel_have_even_rows_and_masked_ones_all_of_theirs() -> None:
    """DeepSeek-V3's experts: of 100 rows 256 groups get one or none; a kernel's groups are no products of all rows."""
    few = work_of(GemmProblem(100, 4096, 7168, batch=256, mode="grouped"))
    assert few == EvaluationProblem(1, 4096, 7168, 100, "bf16", "bf16")
    uneven = work_of(GemmProblem(1000, 4096, 7168, batch=256, mode="grouped", dtype="fp8_e4m3", scales="1x128,128x128"))
    assert isinstance(uneven, GroupedProblem)
    assert (uneven.groups, uneven.rows, uneven.dtype, uneven.scales) == (
        ((4, 232), (3, 24)), 1000, "fp8", "1x128,128x128",
    )  # fmt: skip
    masked = work_of(GemmProblem(100, 4096, 7168, batch=8, mode="masked", dtype="fp16"))
    assert masked == EvaluationProblem(100, 4096, 7168, 8, "fp16", "fp16")
    assert work_of(GemmProblem(100, 64, 64, batch=8)) == EvaluationProblem(100, 64, 64, 8, "bf16", "bf16")
    for problem in (
        GemmProblem(512, 4096, 7168, batch=256, mode="grouped"),
        GemmProblem(300, 4096, 7168, batch=7, dtype="fp8_e5m2", scales="1x128,1x128,e8m0"),
    ):
        work = work_of(problem)
        assert (work.flops, work.moved_bytes) == (problem.flops, problem.moved_bytes), "as the problem itself says"


def test_bytes_of_scales_count_on_a_gpu_and_a_core_grid_takes_none() -> None:
    plain = EvaluationProblem(1, 7168, 16384, 16, "fp8")
    times = [predict(replace(plain, scales=scales), GPUS["H100"]) for scales in ("", "1x128,128x128", "1x128,1x128")]
    assert times[0].latency_us < times[1].latency_us < times[2].latency_us
    assert times[2].roofline_us / times[0].roofline_us == pytest.approx(1 + 4 / 128, rel=1e-3), "of B, nearly all"
    uneven = GroupedProblem(((40, 3), (39, 2)), 7168, 2048, "fp8", "bf16", "1x128,1x128")
    with_scales, without = (predict_work(one, GPUS["H100"]) for one in (uneven, replace(uneven, scales="")))
    assert with_scales.latency_us > without.latency_us
    for work in (replace(plain, scales="1x128,128x128"), uneven):
        with pytest.raises(InvalidProblem, match="core-grid model counts no scales"):
            evaluate_work(work, CHIP)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"scales": "1x64"}, "unknown scales '1x64'"),
        ({"scales": "1x128,1x128", "dtype": "bf16"}, "dtype is bf16"),
        ({"scales": "1x128,1x128", "k": 200}, "k 200"),
    ],
)
def test_scales_that_no_kernel_has_are_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidProblem, match=why):
        replace(EvaluationProblem(16, 64, 256, dtype="fp8"), **asked)
