"""The timeline: it loses no count, whatever the order and the clock, and its ledger is near the exact one."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.model.shapes import Shape
from cache_engine.usage import timeline as module
from cache_engine.usage.timeline import MOST_PERIODS, Stored, Timeline

HOUR_S, DAY_S = 3600, 86_400
NOW = 1_800_000_000.0  # the first second of an hour
SHAPES = [Shape(n=4096, k=4096), Shape(n=6144, k=4096), Shape(n=4096, k=4096, arch="sm_90")]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(SHAPES),
        st.dictionaries(st.integers(1, 200), st.integers(1, 9), min_size=1, max_size=5),
        st.floats(-500 * DAY_S, 2 * DAY_S),
    ),
    max_size=60,
)
DECODE = msgspec.json.Decoder(Stored).decode
Events = list[tuple[Shape, dict[int, int], float]]


def timeline_of(events: Events) -> Timeline:
    timeline = Timeline()
    for shape, asked, after_s in events:
        timeline.add(shape, asked, NOW + after_s)
    return timeline


def counted(events: Events) -> dict[Shape, float]:
    return {
        shape: float(sum(sum(asked.values()) for one, asked, _ in events if one == shape)) for shape, _, _ in events
    }


def totals(timeline: Timeline) -> dict[Shape, float]:
    ledger = timeline.ledger(math.inf, NOW)
    return {shape: sketch.total for shape, sketch in ledger.sketches.items()}


@given(EVENTS, st.lists(st.floats(-1000 * DAY_S, 1000 * DAY_S), max_size=4))
def test_no_count_is_lost_however_often_it_is_coarsened_and_whatever_the_clock_says(
    events: Events, clocks: list[float]
) -> None:
    timeline = timeline_of(events)
    for clock in clocks:
        timeline.coarsen(NOW + clock)
    assert totals(timeline) == pytest.approx(counted(events))
    for m in range(1, 9):
        exact = sum(asked.get(m, 0) for shape, asked, _ in events if shape == SHAPES[0])
        sketch = timeline.ledger(math.inf, NOW).sketches.get(SHAPES[0])
        if sketch is not None and len(sketch.counters) < 64:
            assert (sketch.counters[m].weight if m in sketch.counters else 0) == exact


@given(EVENTS, st.randoms())
def test_the_order_of_lines_does_not_matter(events: Events, random: object) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = timeline_of(events), timeline_of(shuffled)
    assert totals(one) == totals(other)
    assert (one.since, [(p.start, p.seconds) for p in one.periods]) == (
        other.since, [(p.start, p.seconds) for p in other.periods]
    )  # fmt: skip


@given(EVENTS)
def test_what_is_written_is_read_again(events: Events) -> None:
    timeline = timeline_of(events)
    timeline.coarsen(NOW)
    data = msgspec.json.encode(timeline.stored())
    again = Timeline(DECODE(data))
    assert msgspec.json.encode(again.stored()) == data
    assert totals(again) == totals(timeline)


@pytest.mark.parametrize("half_life_s", [HOUR_S, DAY_S, 7 * DAY_S])
def test_the_ledger_of_steady_demand_is_that_of_exact_decay(half_life_s: float) -> None:
    """Ten requests a minute for three days; exact decay is the sum over each."""
    timeline, minutes = Timeline(), 3 * 24 * 60
    for minute in range(minutes):
        timeline.add(SHAPES[0], {16: 10}, NOW - 60 * (minute + 0.5))
    timeline.coarsen(NOW)
    exact = sum(10 * 2 ** -(60 * (minute + 0.5) / half_life_s) for minute in range(minutes))
    ledger = timeline.ledger(half_life_s, NOW)
    assert ledger.total == pytest.approx(exact, rel=0.021)
    assert ledger.sketches[SHAPES[0]].counters[16].weight == pytest.approx(ledger.total)
    assert (ledger.at, ledger.half_life_s) == (NOW, half_life_s)


def test_periods_are_hours_for_two_days_days_for_a_month_and_four_weeks_beyond() -> None:
    timeline = Timeline()
    for hours in range(1, 60 * 24):
        timeline.add(SHAPES[0], {1: 1}, NOW - hours * HOUR_S)
    timeline.coarsen(NOW)
    lengths = {period.seconds for period in timeline.periods}
    assert lengths == {HOUR_S, DAY_S, 28 * DAY_S}
    assert sum(period.seconds == HOUR_S for period in timeline.periods) == 47
    assert sum(period.seconds == DAY_S for period in timeline.periods) in (30, 31)
    assert totals(timeline) == {SHAPES[0]: 60 * 24 - 1}


def test_after_has_whole_periods_and_says_from_when() -> None:
    timeline = Timeline()
    for hours in (1, 2, 3, 30):
        timeline.add(SHAPES[0], {hours: 1}, NOW - hours * HOUR_S + 1800)
    recent = timeline.after(NOW - 2.5 * HOUR_S)
    assert totals(recent) == {SHAPES[0]: 3}
    assert recent.since == NOW - 3 * HOUR_S
    assert recent.ledger(math.inf, NOW).since == NOW - 3 * HOUR_S
    assert timeline.after(0).since == timeline.since == NOW - 30 * HOUR_S + 1800
    assert totals(timeline.after(NOW)) == {}
    assert timeline.after(NOW).since == NOW


def test_what_a_clock_that_was_ahead_has_written_counts_as_now_and_goes_coarse() -> None:
    timeline = Timeline()
    timeline.add(SHAPES[0], {1: 4}, NOW + 400 * DAY_S)
    assert timeline.ledger(HOUR_S, NOW).total == pytest.approx(4)
    timeline.coarsen(NOW)
    assert [period.seconds for period in timeline.periods] == [28 * DAY_S]
    assert timeline.ledger(HOUR_S, NOW).total == pytest.approx(4)


def test_what_is_a_year_old_counts_for_nothing_but_is_there() -> None:
    timeline = Timeline()
    timeline.add(SHAPES[0], {1: 10**6}, NOW - 365 * DAY_S)
    timeline.add(SHAPES[1], {1: 1}, NOW)
    lately = timeline.ledger(7 * DAY_S, NOW).sketches
    assert lately[SHAPES[1]].total > lately[SHAPES[0]].total
    assert totals(timeline) == {SHAPES[0]: 10**6, SHAPES[1]: 1}


def test_periods_are_bounded_the_nearest_stay() -> None:
    timeline = Timeline()
    for weeks in range(3 * MOST_PERIODS):
        timeline.add(SHAPES[0], {1: 1}, NOW - weeks * 28 * DAY_S)
    timeline.coarsen(NOW)
    assert len(timeline.periods) == MOST_PERIODS
    assert timeline.periods[-1].end >= NOW


def test_sketches_are_bounded_the_lightest_go_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SKETCHES", 3)
    timeline = Timeline()
    for n, count in ((1, 5), (2, 1), (3, 7), (4, 2), (5, 9)):
        timeline.add(Shape(n=n, k=1), {1: count}, NOW - n * HOUR_S)
    timeline.coarsen(NOW)
    ledger = timeline.ledger(math.inf, NOW)
    assert sorted(shape.n for shape in ledger.sketches) == [1, 3, 5]
    assert (ledger.total, ledger.dropped) == (24, 3)
    again = Timeline(timeline.stored()).ledger(math.inf, NOW)
    assert (again.total, again.dropped) == (24, 3)


def test_shapes_of_a_period_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHAPES", 2)
    timeline = Timeline()
    for n, count in ((1, 5), (2, 1), (3, 7)):
        timeline.add(Shape(n=n, k=1), {1: count}, NOW)
    ledger = timeline.ledger(math.inf, NOW)
    assert sorted(shape.n for shape in ledger.sketches) == [1, 3]
    assert (ledger.total, ledger.dropped) == (13, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seconds":3600', '"seconds":3601'),
        ('"seconds":3600', '"seconds":-3600'),
        ('"start":1800000000', '"start":1800000001'),
        ('"start":1800000000', '"start":36000000000000000'),
        ('"n":4096', '"n":0'),
        ('"n":4096', '"n":99999999999'),
        ('"16":[3.0,0.0]', '"0":[3.0,0.0]'),
        ('"16":[3.0,0.0]', '"16":[-3.0,0.0]'),
        ('"16":[3.0,0.0]', '"16":[1e301,0.0]'),
        ('"16":[3.0,0.0]', '"16":[3.0,4.0]'),
        ('"since":1800000000.0', '"since":1e300'),
    ],
)
def test_damage_is_seen(old: str, new: str) -> None:
    timeline = Timeline()
    timeline.add(SHAPES[0], {16: 3}, NOW)
    text = msgspec.json.encode(timeline.stored()).decode()
    assert old in text
    with pytest.raises(msgspec.ValidationError):
        DECODE(text.replace(old, new))


def test_types_and_targets_of_a_newer_program_are_read() -> None:
    shape = Shape(n=1, k=2, dtype="fp4", out_dtype="fp3", arch="sm_999", layout="xy")
    timeline = Timeline()
    timeline.add(shape, {16: 3}, NOW)
    again = Timeline(DECODE(msgspec.json.encode(timeline.stored())))
    assert totals(again) == {shape: 3}
