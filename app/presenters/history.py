"""A store's lookups and compile time, step by step over a time range: as figures and as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from app.presenters.columns import Column
from app.presenters.figure import Bars, Pattern, Series
from app.presenters.shared import COLOURS, GREY, Row, moment, when
from cache_engine.cache.serving import LONG_WAIT_S
from cache_engine.model.events import DAY_S, HOUR_S, hit_rate
from cache_engine.units import counted, ms_unit


@dataclass(frozen=True, slots=True)
class Span:
    """A time range and the length of its steps, in seconds. A range of 0 goes back to the first event."""

    back_s: int
    step_s: int

    def since(self, now: float) -> int:
        """The start of the range's earliest step, in seconds since 1970; 0 for all time."""
        return max(0, (int(now) - self.back_s) // self.step_s * self.step_s) if self.back_s else 0

    def before(self, now: float) -> tuple[int, int, int]:
        """The range of the same length before this range: the length of its steps, its start and its end, in seconds.

        If it is longer than a day, its steps are whole days: events older than eight days may be known only by day.
        """
        step_s = HOUR_S if self.back_s <= DAY_S else DAY_S
        end = self.since(now) // step_s * step_s
        return step_s, max(0, end - self.back_s), end

    @property
    def step(self) -> str:
        """The length of a step in words, such as ``"6 hours"``."""
        hours, days = self.step_s // HOUR_S, self.step_s // DAY_S
        return counted(days, "day") if days else counted(hours, "hour")


SPANS = {
    "24 hours": Span(DAY_S, HOUR_S),
    "7 days": Span(7 * DAY_S, 6 * HOUR_S),
    "90 days": Span(90 * DAY_S, DAY_S),
    "All time": Span(0, 28 * DAY_S),
}

# Colour, and a pattern, so that colour is not the only difference.
_TIERS: tuple[tuple[str, str, str, Pattern], ...] = (
    ("memory_hits", "Memory", COLOURS[0], ""),
    ("pack_hits", "Packs", COLOURS[4], "x"),
    ("disk_hits", "Disk", COLOURS[1], "/"),
    ("remote_hits", "Remote", COLOURS[3], "+"),
    ("misses", "Miss", GREY, "."),
)
_TIMES: tuple[tuple[str, str, str, Pattern], ...] = (
    ("compile_us", "Spent", COLOURS[2], "."),
    ("saved_us", "Saved by disk and pack hits", COLOURS[1], "/"),
)
_LENGTHS = ("< 0.1 s", "0.1–0.3 s", "0.3–1 s", "1–3 s", "3–10 s", "> 10 s")
_LOOKUP_LENGTHS = ("< 4 µs", "4–66 µs", "66 µs–1 ms", "1–17 ms", "17–268 ms", "> 268 ms")
_OF_LENGTHS: tuple[tuple[str, Pattern], ...] = (
    (COLOURS[1], ""), (COLOURS[5], "/"), (COLOURS[0], "."), (COLOURS[4], "x"), (COLOURS[2], "+"), (COLOURS[3], "/"),
)  # fmt: skip
_MOST_STEPS = 1000  # a clock far off would make more


def hit_figure(rows: Sequence[Row], steps: Sequence[int], span: Span, zone: tzinfo) -> Bars:
    """Lookups by the tier that served them; each bar also says its share of the lookups of its step."""
    named = named_steps(steps, span, zone)
    asked = {row["start"]: row for row in rows if _lookups(row)}
    series = []
    for column, name, colour, pattern in _TIERS:
        if not any(row[column] for row in asked.values()):
            continue
        counts = [asked[start][column] if start in asked else None for start in steps]
        words = [
            "" if count is None else f"{step}\n{name}: {counted(count, 'lookup')}, {count / _lookups(asked[start]):.1%}"
            for (start, step), count in zip(named.items(), counts, strict=True)
        ]
        series.append(Series(name, counts, words, colour, pattern))
    return _over_time("Lookups by tier", "Lookups", named, series, span, zone, stacked=True)


def compile_figure(rows: Sequence[Row], steps: Sequence[int], span: Span, zone: tzinfo) -> Bars:
    """Compile time spent, and compile time saved by hits, as two bars for each step."""
    named = named_steps(steps, span, zone)
    unit, length = ms_unit(max((row[column] / 1e3 for row in rows for column, *_ in _TIMES), default=0.0))
    found = {row["start"]: row for row in rows}
    series = []
    for column, name, colour, pattern in _TIMES:
        times = [found[start][column] / 1e3 / length if start in found else None for start in steps]
        words = [f"{step}\n{name}: {time or 0:,.1f} {unit}" for step, time in zip(named.values(), times, strict=True)]
        series.append(Series(name, times, words, colour, pattern))
    return _over_time("Compile time", unit, named, series, span, zone, stacked=False)


def length_figure(rows: Sequence[Row], steps: Sequence[int], span: Span, zone: tzinfo) -> Bars:
    """The number of stored kernels by step and by compile time, from rows of ``summaries.compile_spread``."""
    counts = {(row["start"], row["class"]): row["kernels"] for row in rows}
    return _by_length("Compiles by duration", "kernel", _LENGTHS, counts, named_steps(steps, span, zone), span, zone)


def lookup_figure(rows: Sequence[Row], steps: Sequence[int], span: Span, zone: tzinfo) -> Bars:
    """The number of lookups that a tier served, by step and by duration."""
    counts = {(row["start"], place): row[f"lookups_{place}"] for row in rows for place in range(len(_LOOKUP_LENGTHS))}
    named = named_steps(steps, span, zone)
    return _by_length("Lookups by duration", "lookup", _LOOKUP_LENGTHS, counts, named, span, zone)


def _by_length(
    title: str, what: str, lengths: Sequence[str], counts: Mapping[tuple[int, int], int], named: dict[int, str],
    span: Span, zone: tzinfo,
) -> Bars:  # fmt: skip
    series = []
    for place, (name, (colour, pattern)) in enumerate(zip(lengths, _OF_LENGTHS, strict=True)):
        values = [counts.get((start, place)) for start in named]
        if any(values):
            words = [
                f"{step}\n{name}: {counted(count or 0, what)}"
                for step, count in zip(named.values(), values, strict=True)
            ]
            series.append(Series(name, values, words, colour, pattern))
    return _over_time(title, f"{what.capitalize()}s", named, series, span, zone, stacked=True)


def history_columns(span: Span, zone: tzinfo) -> list[Column]:
    """The columns of a table with the numbers of the figures, a row for each step."""
    return [
        Column("From", lambda row: moment(row["start"], _zone(span, zone)), "when"),
        Column("Hit rate", lambda row: hit_rate(_lookups(row) - row["misses"], row["misses"]), "share"),
        *(Column(name, column, "count") for column, name, _, _ in _TIERS),
        Column("Compiles", "compiles", "count"),
        Column("Spent", lambda row: row["compile_us"] / 1e3, "ms"),
        Column("Saved", lambda row: row["saved_us"] / 1e3, "ms"),
        Column("Save failures", "publish_failures", "count"),
        Column("Corrupt", "corruptions", "count"),
        Column(f"Lock waits > {LONG_WAIT_S:.0f} s", "lock_waits", "count"),
    ]


def _lookups(row: Row) -> int:
    return sum(row[column] for column, *_ in _TIERS)


def _zone(span: Span, zone: tzinfo) -> tzinfo:
    """The time zone to show steps in: the reader's for hours, but UTC for days, which are counted in UTC."""
    return zone if span.step_s < DAY_S else UTC


def starts(rows: Sequence[Row], span: Span, now: float) -> Sequence[int]:
    """The start of each step of the time range, also of those without a row, in seconds since 1970."""
    first = span.since(now) or (rows[0]["start"] if rows else int(now) // span.step_s * span.step_s)
    return range(first, int(now) // span.step_s * span.step_s + 1, span.step_s)[-_MOST_STEPS:]


def within(steps: Sequence[int], first: str, last: str) -> tuple[int, int]:
    """The first and the last step between two times of an address; of all steps if no step is between.

    Args:
        first, last: seconds since 1970, as text from the address; any other text is no limit.
    """
    low, high = (int(text) if re.fullmatch("[0-9]{1,12}", text) else None for text in (first, last))
    found = [at for at in steps if (low is None or low <= at) and (high is None or at <= high)] or steps
    return found[0], found[-1]


def named_steps(steps: Sequence[int], span: Span, zone: tzinfo) -> dict[int, str]:
    """For the start of each step, in seconds since 1970: its text on the reader's clock or, for days, in UTC."""
    return {start: when(start, _zone(span, zone)) for start in steps}


def _over_time(
    title: str, unit: str, steps: dict[int, str], series: list[Series], span: Span, zone: tzinfo, *, stacked: bool
) -> Bars:
    across = f"1 bar = {span.step}, {_zone(span, zone)}"
    groups = list(steps.values())
    names = _names([moment(start, _zone(span, zone)) for start in steps], span)
    return Bars(title, groups, series, unit, across, stacked, names=names, height=220)


def _names(starts: Sequence[datetime | None], span: Span) -> list[str]:
    """The labels of the axis: for hours every third one, and the date at midnight; for longer steps the date."""
    if span.step_s > DAY_S:
        return ["" if at is None else f"{at:%Y-%m-%d}" for at in starts]
    if span.step_s == HOUR_S:
        return ["" if at is None or at.hour % 3 else f"{at:%H:%M}" if at.hour else f"{at:%d %b}" for at in starts]
    return ["" if at is None or at.hour * HOUR_S >= span.step_s else f"{at:%d %b}" for at in starts]
