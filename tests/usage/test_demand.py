"""The demand ledger: decay has no memory of how it was done, and what is dropped is counted."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout, Specialisation
from cache_engine.model.shapes import Shape
from cache_engine.usage import demand
from cache_engine.usage.demand import MOST_SHAPES, Ledger, by_bytes, by_flops, rate
from cache_engine.usage.timeline import Timeline

START, HALF_LIFE_S = 1_800_000_000.0, 3600.0
SHAPES = [Shape(n=4096, k=4096), Shape(n=6144, k=4096), Shape(n=4096, k=4096, arch="sm_90")]
EVENTS = st.lists(
    st.tuples(st.sampled_from(SHAPES), st.integers(1, 200), st.integers(1, 9), st.floats(0, 20_000)), max_size=80
).map(lambda events: sorted(events, key=lambda event: event[3]))
Events = list[tuple[Shape, int, int, float]]


def ledger_of(events: Events) -> Ledger:
    ledger = Ledger(HALF_LIFE_S)
    for shape, m, count, after_s in events:
        ledger.add(shape, m, count, START + after_s)
    return ledger


def totals(ledger: Ledger) -> dict[Shape, float]:
    return {shape: sketch.total for shape, sketch in ledger.sketches.items()}


@given(EVENTS, st.lists(st.floats(0, 50_000), max_size=5).map(sorted))
def test_decay_in_steps_is_decay_at_once(events: Events, steps: list[float]) -> None:
    once, in_steps = ledger_of(events), ledger_of(events)
    last = START + 20_000
    for step in steps:
        in_steps.decay(last + step)
    in_steps.decay(last + 50_000)
    once.decay(last + 50_000)
    assert totals(in_steps) == pytest.approx(totals(once), rel=1e-9)


@given(EVENTS)
def test_each_count_halves_with_each_half_life(events: Events) -> None:
    ledger = ledger_of(events)
    ledger.decay(START + 30_000)
    expected = math.fsum(count * 2 ** -((30_000 - after_s) / HALF_LIFE_S) for _, _, count, after_s in events)
    assert ledger.total == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("half_life_s", [0.0, -1.0, math.nan, -math.inf, 1e10])
def test_a_half_life_out_of_range_is_refused(half_life_s: float) -> None:
    with pytest.raises(UsageError, match="from 1 to 1e9 seconds"):
        Ledger(half_life_s)


def test_a_clock_set_back_takes_no_weight_and_decay_goes_on_from_there() -> None:
    ledger = Ledger(HALF_LIFE_S)
    ledger.add(SHAPES[0], 1, 8, START)
    ledger.add(SHAPES[0], 1, 8, START - 365 * 86_400)
    assert ledger.total == pytest.approx(16)
    assert ledger.since == ledger.at
    ledger.decay(ledger.at + HALF_LIFE_S)
    assert ledger.total == pytest.approx(8)


def test_what_is_a_year_old_counts_for_nothing() -> None:
    ledger = Ledger(HALF_LIFE_S)
    ledger.add(SHAPES[0], 1, 1e6, START)
    ledger.add(SHAPES[1], 1, 1, START + 365 * 86_400)
    assert totals(ledger)[SHAPES[1]] > totals(ledger)[SHAPES[0]]
    assert ledger.total == pytest.approx(1)


@given(st.floats(0.01, 100), st.floats(0.5, 20))
@example(1.0, 0.5)
def test_the_rate_of_steady_demand_is_found_also_by_a_young_ledger(per_s: float, lifetimes: float) -> None:
    """Launches at irregular times; the weight stands for the rate, whatever the age."""
    seconds = lifetimes * HALF_LIFE_S
    assume(per_s * seconds > 100)
    ledger = Ledger(HALF_LIFE_S)
    steps = 1000
    for step in range(steps + 1):
        moment = seconds * (step / steps) ** 1.5
        before = seconds * ((step - 1) / steps) ** 1.5 if step else 0.0
        ledger.add(SHAPES[0], 1, per_s * (moment - before), START + moment)
    found = rate(ledger, ledger.total, ledger.at)
    assert found == pytest.approx(per_s, rel=0.05)


def test_a_ledger_of_no_age_has_no_rate() -> None:
    ledger = ledger_of([(SHAPES[0], 1, 5, 0.0)])
    assert rate(ledger, ledger.total, ledger.at) == 0
    without_decay = Ledger(math.inf)
    without_decay.add(SHAPES[0], 1, 5, START)
    assert rate(without_decay, without_decay.total, without_decay.at) == 0


def test_a_launch_weighs_its_operations_and_its_bytes() -> None:
    problem = GemmProblem(8, SHAPES[0].n, SHAPES[0].k)
    assert (by_flops(SHAPES[0], 8), by_bytes(SHAPES[0], 8)) == (problem.flops, problem.moved_bytes)


def test_shapes_beyond_the_most_are_dropped_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the lightest takes a look at all, which must not be taken for each shape that comes."""
    look = Mock(side_effect=heapq.nsmallest)
    monkeypatch.setattr(heapq, "nsmallest", look)
    ledger, timeline = Ledger(HALF_LIFE_S), Timeline()
    for n in range(1, 2001):
        ledger.add(Shape(n=n, k=1), 1, n, START)
        timeline.add(Shape(n=n, k=1), {1: n}, START)
    summed = timeline.ledger(math.inf, START)
    assert 0 < look.call_count <= 2 * 8 + 1
    for one in (ledger, summed):
        assert len(one.sketches) <= MOST_SHAPES
        assert max(shape.n for shape in one.sketches) == 2000
        assert one.total == pytest.approx(2000 * 2001 / 2)


def test_shapes_beyond_the_most_are_dropped_lightest_first_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "MOST_SHAPES", 3)
    ledger = Ledger(HALF_LIFE_S)
    for n, count in ((1, 5), (2, 1), (3, 7), (4, 2)):
        ledger.add(Shape(n=n, k=1), 1, count, START)
    assert [shape.n for shape in ledger.sketches] == [1, 3, 4]
    assert (ledger.total, ledger.dropped) == (15, 1)


@given(
    st.builds(
        GemmProblem,
        m=st.integers(1, 100),
        n=st.integers(1, 100),
        k=st.integers(1, 100),
        dtype=st.sampled_from([DType.BF16, DType.FP32]),
        layout=st.sampled_from(Layout),
        arch=st.sampled_from([None, "sm_90"]),
        epilogue=st.sampled_from([Epilogue(), Epilogue(bias=True)]),
        specialisation=st.sampled_from(Specialisation),
        opt_level=st.integers(0, 3),
        fast_math=st.sampled_from([None, False, True]),
    )
)
def test_a_shape_makes_the_problem_it_was_made_of(problem: GemmProblem) -> None:
    again = Shape.of(problem).problem(problem.m)
    assert replace(again, out_dtype=problem.out_dtype) == problem
    assert again.output == problem.output
