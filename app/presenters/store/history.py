"""Lookups and compile time of a store over time: figures, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, moment
from cache_engine.engine.serving import LONG_WAIT_S
from cache_engine.model.events import DAY_S, HOUR_S, hit_rate
from cache_engine.units import counted, ms_unit


@dataclass(frozen=True, slots=True)
class Span:
    """A time range and the length of its steps, in seconds. A range of 0 goes back to the first event."""

    back_s: int
    step_s: int

    def since(self, now: float) -> int:
        """The start of the earliest step."""
        return max(0, (int(now) - self.back_s) // self.step_s * self.step_s) if self.back_s else 0

    def before(self, now: float) -> tuple[int, int, int]:
        """The range of the same length before: its steps' length, its start, and its end.

        In whole days where it is longer than one: what is older than eight days may be known by days alone.
        """
        step_s = HOUR_S if self.back_s <= DAY_S else DAY_S
        end = self.since(now) // step_s * step_s
        return step_s, max(0, end - self.back_s), end

    @property
    def step(self) -> str:
        """The step in words."""
        hours, days = self.step_s // HOUR_S, self.step_s // DAY_S
        return counted(days, "day") if days else counted(hours, "hour")


SPANS = {
    "24 hours": Span(DAY_S, HOUR_S),
    "7 days": Span(7 * DAY_S, 6 * HOUR_S),
    "90 days": Span(90 * DAY_S, DAY_S),
    "All time": Span(0, 28 * DAY_S),
}

# Colour, and a pattern, so that colour is not the only difference.
_TIERS = (
    ("memory_hits", "Memory", COLOURS[0], ""),
    ("pack_hits", "Packs", COLOURS[4], "x"),
    ("disk_hits", "Disk", COLOURS[1], "/"),
    ("remote_hits", "Remote", COLOURS[3], "+"),
    ("misses", "Miss", GREY, "."),
)
_TIMES = (("compile_us", "Spent", COLOURS[2], "."), ("saved_us", "Saved by disk and pack hits", COLOURS[1], "/"))


def hit_figure(rows: Sequence[Row], span: Span, zone: tzinfo, now: float) -> go.Figure:
    """Lookups by the tier that served them, as shares; steps without a lookup stay empty."""
    asked = [row for row in rows if _lookups(row)]
    figure = go.Figure()
    for column, name, colour, pattern in _TIERS:
        if not any(row[column] for row in asked):
            continue
        figure.add_bar(
            name=name,
            x=[_start(row, span, zone) for row in asked],
            y=[row[column] / _lookups(row) for row in asked],
            customdata=[row[column] for row in asked],
            hovertemplate="%{x|%Y-%m-%d %H:%M}: %{y:.1%}, %{customdata:,} lookups",
            marker=_filled(colour, pattern),
        )
    figure.update_layout(title="Lookups by tier", barmode="stack")
    figure.update_yaxes(title="Share of lookups", tickformat=".0%", range=[0, 1])
    return _over_time(figure, span, zone, now, rows)


def compile_figure(rows: Sequence[Row], span: Span, zone: tzinfo, now: float) -> go.Figure:
    """Compile time spent and saved, side by side."""
    unit, length = ms_unit(max((row[column] / 1e3 for row in rows for column, *_ in _TIMES), default=0.0))
    figure = go.Figure()
    for column, name, colour, pattern in _TIMES:
        figure.add_bar(
            name=name,
            x=[_start(row, span, zone) for row in rows],
            y=[row[column] / 1e3 / length for row in rows],
            hovertemplate=f"%{{x|%Y-%m-%d %H:%M}}: %{{y:,.1f}} {unit}",
            marker=_filled(colour, pattern),
        )
    figure.update_layout(title="Compile time", barmode="group")
    figure.update_yaxes(title=unit, rangemode="tozero")
    return _over_time(figure, span, zone, now, rows)


def history_table(rows: Sequence[Row], span: Span, zone: tzinfo) -> list[Row]:
    """The numbers of the figures, newest first."""
    return [
        {
            "From": moment(row["start"], _zone(span, zone)),
            "Hit rate": hit_rate(_lookups(row) - row["misses"], row["misses"]),
            **{name: row[column] for column, name, _, _ in _TIERS},
            "Compiles": row["compiles"],
            "Spent": row["compile_us"] / 1e3,
            "Saved": row["saved_us"] / 1e3,
            "Save failures": row["publish_failures"],
            "Corrupt": row["corruptions"],
            f"Lock waits > {LONG_WAIT_S:.0f} s": row["lock_waits"],
        }
        for row in reversed(rows)
    ]


def _filled(colour: str, pattern: str) -> dict[str, Any]:
    return {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay", "size": 6, "solidity": 0.3}}


def _lookups(row: Row) -> int:
    return sum(row[column] for column, *_ in _TIERS)


def _zone(span: Span, zone: tzinfo) -> tzinfo:
    """Hours are in the reader's time zone; days are counted in UTC, so they are shown in UTC."""
    return zone if span.step_s < DAY_S else UTC


def _start(row: Row, span: Span, zone: tzinfo) -> datetime | None:
    at = moment(row["start"], _zone(span, zone))
    return None if at is None else at.replace(tzinfo=None)  # Plotly shows a time as it is given


def _over_time(figure: go.Figure, span: Span, zone: tzinfo, now: float, rows: Sequence[Row]) -> go.Figure:
    first = span.since(now) or (rows[0]["start"] if rows else now)
    limits = [_start({"start": at}, span, zone) for at in (first, now // span.step_s * span.step_s + span.step_s)]
    # Each step's bars begin where it does and fill nine tenths of it, in milliseconds: by itself Plotly would make the
    # only bar as wide as the figure.
    together = len(figure.data) if figure.layout.barmode == "group" else 1
    for place, bars in enumerate(figure.data):
        bars.width = span.step_s * 900 / together
        bars.offset = span.step_s * 50 + (place % together) * bars.width
    figure.update_layout(
        margin={"t": 48, "b": 96, "l": 56, "r": 16},
        height=380,
        legend={"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0, "traceorder": "normal"},
        showlegend=True,
    )
    figure.update_xaxes(title=f"1 bar = {span.step}, {_zone(span, zone)}", type="date", range=limits)
    return figure
