"""Figures over time."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from app.presenters.columns import rows_of
from app.presenters.history import (
    SPANS,
    Span,
    compile_figure,
    history_columns,
    hit_figure,
    length_figure,
    lookup_figure,
    starts,
    within,
)
from cache_engine.model.events import DAY_S, HOUR_S

NOW = 1_800_000_000.0
ZONE = ZoneInfo("Asia/Kolkata")
NOTHING = dict.fromkeys(
    (
        "memory_hits",
        "pack_hits",
        "disk_hits",
        "remote_hits",
        "misses",
        "saved_us",
        "compiles",
        "compile_us",
        "publish_failures",
    ),
    0,
)
ROWS = [
    {**NOTHING, "start": 1_799_971_200, "memory_hits": 6, "disk_hits": 2, "misses": 2, "saved_us": 3_000_000},
    {**NOTHING, "start": 1_799_985_600, "compiles": 1, "compile_us": 500_000},
]
for row in ROWS:
    row.update({"corruptions": 0, "lock_waits": 0})


def test_lookups_are_counted_by_tier_and_say_their_share_and_steps_without_one_are_empty() -> None:
    figure = hit_figure(ROWS, starts(ROWS, SPANS["24 hours"], NOW), SPANS["24 hours"], ZONE)
    assert [bars.name for bars in figure.series] == ["Memory", "Disk", "Miss"]
    assert [[one for one in bars.values if one is not None] for bars in figure.series] == [[6], [2], [2]]
    assert len({bars.pattern for bars in figure.series}) == 3, "colour must not be the only signal"
    assert (figure.unit, figure.stacked) == ("Lookups", True)
    place = figure.groups.index("2027-01-15 05:30")
    assert figure.series[0].words[place] == "2027-01-15 05:30\nMemory: 6 lookups, 60.0%"
    assert figure.series[0].values[place] == 6, "the bar stands at its step"
    assert len(figure.groups) == len(figure.series[0].values) == 25, "every step of the time range has a place"


def test_the_time_axis_names_hours_in_a_day_and_days_in_a_week_without_repeating_the_year() -> None:
    names = {
        name: [one for one in hit_figure(ROWS, starts(ROWS, span, NOW), span, ZONE).names if one]
        for name, span in SPANS.items()
    }
    assert names["24 hours"] == ["15:30", "18:30", "21:30", "15 Jan", "03:30", "06:30", "09:30", "12:30"]
    assert names["7 days"] == ["09 Jan", "10 Jan", "11 Jan", "12 Jan", "13 Jan", "14 Jan", "15 Jan"]
    assert (len(names["90 days"]), names["90 days"][0]) == (91, "17 Oct")
    assert hit_figure([], starts([], SPANS["All time"], NOW), SPANS["All time"], ZONE).names == ["2027-01-14"]


def test_compile_times_are_compared_in_seconds() -> None:
    figure = compile_figure(ROWS, starts(ROWS, SPANS["24 hours"], NOW), SPANS["24 hours"], ZONE)
    assert [[one for one in bars.values if one is not None] for bars in figure.series] == [[0.0, 0.5], [3.0, 0.0]]
    assert (figure.unit, figure.stacked) == ("s", False)


def test_hours_are_the_readers_and_days_are_those_they_were_counted_in() -> None:
    midnight = [{**ROWS[0], "start": 1_799_971_200}]
    hours, days = (
        hit_figure(midnight, starts(midnight, SPANS[name], NOW), SPANS[name], ZONE) for name in ("24 hours", "90 days")
    )
    shown = [
        [group for group, value in zip(figure.groups, figure.series[0].values, strict=True) if value]
        for figure in (hours, days)
    ]
    assert shown == [["2027-01-15 05:30"], ["2027-01-15 00:00"]]
    assert "Asia/Kolkata" in hit_figure(ROWS, starts(ROWS, SPANS["7 days"], NOW), SPANS["7 days"], ZONE).across
    assert "UTC" in hit_figure(ROWS, starts(ROWS, SPANS["90 days"], NOW), SPANS["90 days"], ZONE).across


def test_the_table_has_the_values_of_the_figures_newest_first() -> None:
    late, early = rows_of(reversed(ROWS), history_columns(SPANS["24 hours"], ZONE), ZONE)
    assert (late["Hit rate"], late["Spent"], early["Hit rate"], early["Saved"]) == (None, 500.0, 0.8, 3_000.0)


@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_a_span_starts_with_a_whole_step_and_reaches_back_far_enough(span: Span) -> None:
    since = span.since(NOW)
    assert since % span.step_s == 0
    assert since == 0 if not span.back_s else NOW - span.back_s - span.step_s < since <= NOW - span.back_s
    assert span.step_s % HOUR_S == 0


def test_nothing_at_all_and_clocks_far_off_make_a_figure() -> None:
    far_off = {**ROWS[0], "start": 10**15}
    for rows in ([], [far_off]):
        for figure in (hit_figure, compile_figure):
            figure(rows, starts(rows, SPANS["All time"], NOW), SPANS["All time"], ZONE)
    assert rows_of([far_off], history_columns(Span(0, DAY_S), ZONE), ZONE)[0]["From"] is None


def test_compiles_are_counted_by_how_long_they_took_and_when() -> None:
    start = 1_799_971_200
    rows = [{"start": start, "class": 0, "kernels": 3}, {"start": start, "class": 5, "kernels": 1}]
    span = SPANS["24 hours"]
    figure = length_figure(rows, starts([], span, NOW), span, ZONE)
    assert [(bars.name, [one for one in bars.values if one]) for bars in figure.series] == [
        ("< 0.1 s", [3]),
        ("> 10 s", [1]),
    ]
    assert figure.series[0].words[figure.groups.index("2027-01-15 05:30")] == "2027-01-15 05:30\n< 0.1 s: 3 kernels"


def test_lookups_are_counted_by_how_long_they_took_and_when() -> None:
    span = SPANS["24 hours"]
    rows = [{"start": 1_799_971_200, **{f"lookups_{place}": 0 for place in range(6)}, "lookups_1": 4, "lookups_5": 1}]
    figure = lookup_figure(rows, starts([], span, NOW), span, ZONE)
    assert [(bars.name, [one for one in bars.values if one]) for bars in figure.series] == [
        ("4–66 µs", [4]),
        ("> 268 ms", [1]),
    ]
    assert figure.series[0].words[figure.groups.index("2027-01-15 05:30")] == "2027-01-15 05:30\n4–66 µs: 4 lookups"
    assert (figure.title, figure.unit, figure.stacked) == ("Lookups by duration", "Lookups", True)


@pytest.mark.parametrize(
    ("first", "last", "part"),
    [
        ("", "", (10, 40)),
        ("15", "", (20, 40)),
        ("", "39", (10, 30)),
        ("20", "20", (20, 20)),
        ("30", "20", (10, 40)),
        ("50", "", (10, 40)),
        ("-5", "1e3", (10, 40)),
        ("9" * 200, "<script>", (10, 40)),
        ("\u0662\u0660", "٣", (10, 40)),
    ],
)
def test_a_part_of_the_time_range_is_in_the_address_and_nonsense_is_all_of_it(
    first: str, last: str, part: tuple[int, int]
) -> None:
    assert within([10, 20, 30, 40], first, last) == part
