"""The search finds the model's optimum: that of the published evaluations, and that of trying everything."""

from __future__ import annotations

import csv
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import InvalidHardware, InvalidProblem, SearchStopped, UsageError
from cache_engine.evaluator import search
from cache_engine.evaluator.cost import Evaluation, SearchMode
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import ITEMSIZE, MAX_DIMENSION, EvaluationProblem
from cache_engine.evaluator.search import evaluate
from tests.evaluator.reference import brute_force

HERE = Path(__file__).parent
RANDOM_CASES = 2500


ROUNDED = ("effective_utilization", "alignment_efficiency")


def agrees(evaluation: Evaluation, expected: dict[str, Any]) -> bool:
    """Shares of the peak to 1e-9; all else exactly, times to the last bit: rounding decides among equal partitions."""
    found = asdict(evaluation)
    return all(
        math.isclose(found[name], value, rel_tol=1e-9) if name in ROUNDED else found[name] == value
        for name, value in expected.items()
    )


def published_hardware() -> dict[str, Hardware]:
    with (HERE / "published_hardware.csv").open(newline="") as file:
        return {
            row["name"]: Hardware.from_dict(
                {name: value if name == "name" else float(value) for name, value in row.items()}
            )
            for row in csv.DictReader(file)
        }


def test_all_published_evaluations_are_reproduced() -> None:
    """Carried over as facts from 400 runs of the public reference evaluator, whose cost model ours restates."""
    hardware = published_hardware()
    with (HERE / "published_evaluations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 400
    wrong = []
    for row in rows:
        problem = EvaluationProblem(
            int(row["m"]), int(row["n"]), int(row["k"]), int(row["batch"]), row["dtype"], row["out_dtype"]
        )
        mode = SearchMode(partition_search=row["partition_search"] == "1")
        expected: dict[str, Any] = {
            **{name: float(row[name]) for name in row if name.endswith(("_us", "_utilization"))},
            **{name: int(row[name]) for name in ("flops", "traffic_bytes")},
            **{name: tuple(map(int, row[name].split())) for name in ("tile", "partition")},
            "order": row["order"],
        }
        if not agrees(evaluate(problem, hardware[row["hardware"]], mode), expected):
            wrong.append(row)
    assert wrong == []


def test_rounding_decides_among_equal_partitions_as_in_the_published_evaluator() -> None:
    """One more run of it. In exact arithmetic 1 4 4 4 and an earlier partition cost the same."""
    found = evaluate(EvaluationProblem(128, 576, 128, dtype="fp8"), published_hardware()["DOC"])
    assert (found.tile, found.order, found.partition) == ((32, 144, 32), "mnk", (1, 4, 4, 4))
    assert found.latency_us == 0.09393493333333333


def random_case(generator: random.Random) -> tuple[EvaluationProblem, Hardware, SearchMode]:
    """Small enough to try everything, odd enough to leave every path of the search behind."""
    pick = generator.choice
    hardware = Hardware(
        name="random",
        num_cores=pick((1, 2, 3, 4, 6, 8, 9, 12, 16)),
        cube_m=pick((1, 2, 3, 4, 8, 16)),
        cube_k=pick((1, 2, 4, 8, 16, 32)),
        cube_n=pick((1, 2, 3, 4, 8, 16)),
        freq_ghz=pick((0.1, 0.7, 1.0)),
        sram_bytes=pick((16, 64, 300, 1000, 4096, 10_000, 65_536)),
        sram_utilization=pick((0.3, 0.45, 0.7, 1.0)),
        dram_bandwidth=pick((1e9, 1e10, 1e11, 1e12)),
        lane_num=pick((1, 2, 5, 8, 16, 32)),
        align_bytes=pick((1, 4, 32, 64)),
        compute_dma_overlap=pick((0.0, 0.3, 0.8, 1.0)),
    )
    m, n, k = (pick((1, 2, 5, generator.randint(1, 40), generator.randint(1, 150))) for _ in range(3))
    types = sorted(ITEMSIZE)
    problem = EvaluationProblem(m, n, pick((k, 4 * k)), pick((1, 1, 2, 3, 8, 17)), pick(types), pick(types))
    mode = SearchMode(tile_search=generator.random() < 0.85, partition_search=generator.random() < 0.7)
    return problem, hardware, mode


def test_trying_everything_finds_the_same_on_random_cases() -> None:
    generator = random.Random(20_261_121)
    wrong, orders = [], Counter[str]()
    for _ in range(RANDOM_CASES):
        problem, hardware, mode = random_case(generator)
        expected = brute_force(problem, hardware, tile_search=mode.tile_search, partition_search=mode.partition_search)
        orders[expected["order"]] += 1
        if not agrees(evaluate(problem, hardware, mode), expected):
            wrong.append((problem, hardware, mode, expected))
    assert wrong == []
    assert min(orders[order] for order in ("mnk", "nkm", "mkn")) > 50, "every loop order is to be exercised"


def test_sizes_that_64_bits_do_not_hold_are_exact() -> None:
    problem = EvaluationProblem(MAX_DIMENSION, MAX_DIMENSION, MAX_DIMENSION, MAX_DIMENSION)
    evaluation = evaluate(problem, PRESETS["SG2262"])
    assert evaluation.flops == 2 * 10**48
    assert evaluation.traffic_bytes > 10**36
    assert 0 < evaluation.effective_utilization <= 1
    one, many = EvaluationProblem(3000, 5000, 777), EvaluationProblem(3000, 5000, 777, 10**12)
    mode = SearchMode(partition_search=False)
    small, large = (evaluate(asked, PRESETS["SG2262"], mode) for asked in (one, many))
    assert (small.tile, small.order, small.traffic_bytes * 10**12) == (large.tile, large.order, large.traffic_bytes)


def test_counting_in_64_bits_and_in_whole_numbers_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(64)
    cases = [random_case(generator) for _ in range(200)]
    found = [evaluate(*case) for case in cases]
    monkeypatch.setattr(search, "_EXACT", 0)
    assert [evaluate(*case) for case in cases] == found


def test_searching_less_is_never_better_and_really_is_less() -> None:
    problem, hardware = EvaluationProblem(4096, 7168, 2048, dtype="fp8"), PRESETS["SG2262"]
    full = evaluate(problem, hardware)
    no_tiles = evaluate(problem, hardware, SearchMode(tile_search=False))
    no_partitions = evaluate(problem, hardware, SearchMode(partition_search=False))
    neither = evaluate(problem, hardware, SearchMode(tile_search=False, partition_search=False))
    assert full.latency_us <= min(no_tiles.latency_us, no_partitions.latency_us)
    assert neither.latency_us >= max(no_tiles.latency_us, no_partitions.latency_us)
    assert no_tiles.tile == neither.tile == (16, 8, 32)
    assert no_tiles.latency_us > full.latency_us
    assert no_partitions.partition == neither.partition == (1, 8, 8, 1)
    assert (neither.searched_partitions, neither.searched_tiles) == (1, 1)


def test_optional_costs_add_the_documented_amounts() -> None:
    problem, hardware = EvaluationProblem(64, 32, 65_536), PRESETS["SG2262"]
    plain = evaluate(problem, hardware)
    assert plain.partition.k == 64
    reduced = evaluate(problem, hardware, SearchMode(reduce_partial_sums=True))
    assert reduced.latency_us > plain.latency_us
    fixed = SearchMode(partition_search=False, reduce_partial_sums=True)
    assert evaluate(problem, hardware, fixed) == evaluate(problem, hardware, SearchMode(partition_search=False)), (
        "without cutting k there is nothing to add up"
    )
    if reduced.partition.k > 1:
        base = 64 * 32 * 8 * (reduced.partition.k - 1)
        assert reduced.traffic_bytes > base
    twice = evaluate(problem, hardware, SearchMode(partition_search=False, compute_rate=2))
    once = evaluate(problem, hardware, SearchMode(partition_search=False))
    assert twice.compute_us == once.compute_us / 2
    assert twice.memory_us == once.memory_us


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), True, "2"])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(UsageError, match="compute_rate"):
        SearchMode(compute_rate=rate)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"m": 0}, "m is 0"),
        ({"n": -5}, "n is -5"),
        ({"k": 10**12 + 1}, "k is 1,000,000,000,001"),
        ({"batch": True}, "batch is True"),
        ({"m": 2.5}, "m is 2.5"),
        ({"dtype": "fp7"}, "unknown dtype 'fp7'"),
        ({"out_dtype": "bf61"}, "unknown out dtype"),
        ({"dtype": None}, "unknown dtype"),
    ],
)
def test_a_problem_that_cannot_be_right_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidProblem, match=named):
        EvaluationProblem(**{"m": 1, "n": 1, "k": 1, **fields})


def test_tiles_too_many_to_search_are_refused() -> None:
    huge = Hardware("huge", 1, 1, 1, 1, 1.0, 2**39, 1.0, 1e12, 1, 1, 0.5)
    with pytest.raises(InvalidHardware, match="sram_bytes"):
        evaluate(EvaluationProblem(8, 8, 8), huge)


def test_a_search_goes_on_for_as_long_as_it_may() -> None:
    """Asked before each partition, so that it ends soon; what it finds is the same."""
    problem, hardware = EvaluationProblem(4096, 7168, 2048), PRESETS["SG2262"]
    whole = evaluate(problem, hardware)
    asked: list[int] = []

    def at_most(count: int) -> Callable[[], bool]:
        asked.clear()
        return lambda: asked.append(1) or len(asked) <= count  # type: ignore[func-returns-value]

    assert evaluate(problem, hardware, may_go_on=at_most(10**9)) == whole
    assert len(asked) == whole.searched_partitions > 1
    with pytest.raises(SearchStopped, match=r"4096 × 7168 × 2048 on SG2262 was stopped after 1 of 84 partitions"):
        evaluate(problem, hardware, may_go_on=at_most(1))
    assert len(asked) == 2
