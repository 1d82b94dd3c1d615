"""Demand over time: for each shape a sketch of its sizes per hour; for older times per day, and then per four weeks.

Its counts do not decay, so it can give the demand of any span of time (``after``) and with any half-life (``ledger``).
All requests of a period count as made in its middle. For steady demand, this makes an error of 2 % with a half-life of
an hour, and less with a longer one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Annotated

import msgspec

from cache_engine.model.artifact import Seconds
from cache_engine.model.events import DAY_S, HOUR_S
from cache_engine.model.shapes import Shape
from cache_engine.usage.demand import MOST_SHAPES, MOST_WEIGHT, Ledger, Sketch, Weight, drop_lightest, make_room, merged

_LONGEST_S = 28 * DAY_S
# For each length of a period, the age up to which periods keep it, in seconds. Each length is a multiple of the one
# before.
_KEPT_FOR_S = ((HOUR_S, 2 * DAY_S), (DAY_S, 32 * DAY_S))
_LENGTHS_S = (HOUR_S, DAY_S, _LONGEST_S)

MOST_PERIODS = 120
"""The largest number of periods: hourly ones for two days, daily ones for a month, four-weekly ones for three years."""

MOST_SKETCHES = 4096
"""The largest number of sketches in all periods.

Beyond it, the sketches with the least weight are dropped, and ``dropped`` counts their weight.
"""

LARGEST_BYTES = 32 * 2**20
"""The largest timeline as JSON, in bytes: more than ``MOST_SKETCHES`` full sketches need."""


class _Entry(msgspec.Struct, frozen=True):
    shape: Shape
    sketch: Sketch


class _StoredPeriod(msgspec.Struct, frozen=True, omit_defaults=True):
    start: int
    seconds: int
    entries: Annotated[list[_Entry], msgspec.Meta(max_length=MOST_SKETCHES)] = []
    dropped: Weight = 0.0

    def __post_init__(self) -> None:
        if self.seconds not in _LENGTHS_S or self.start % self.seconds or abs(self.start) > 1e12:
            raise ValueError(f"there is no period of {self.seconds} s from {self.start}")


class Stored(msgspec.Struct, frozen=True):
    """A timeline as stored in JSON; every number is checked when it is read."""

    since: Seconds = 0.0
    periods: Annotated[list[_StoredPeriod], msgspec.Meta(max_length=2 * MOST_PERIODS)] = []


class TimelinePeriod:
    """The demand in a span of time.

    Attributes:
        start: the start, in seconds since 1970, UTC; a multiple of ``seconds``.
        seconds: the length of the period.
        sketches: for each shape, the weight of each m.
        dropped: the sum of the weights of shapes that were dropped.
    """

    __slots__ = ("dropped", "seconds", "sketches", "start")

    def __init__(self, start: int, seconds: int) -> None:
        self.start, self.seconds = start, seconds
        self.sketches: dict[Shape, Sketch] = {}
        self.dropped = 0.0

    @property
    def end(self) -> int:
        """The end of the period: the first second after it."""
        return self.start + self.seconds

    def put(self, shape: Shape, sketch: Sketch) -> None:
        """Adds the weights of ``sketch`` to those of a shape; the sketch must not be used afterwards."""
        known = self.sketches.get(shape)
        self.sketches[shape] = sketch if known is None else merged(known, sketch)


class Timeline:
    """The demand over time. Not safe to change from two threads at once.

    Attributes:
        since: the time of the first request that was counted, in seconds since 1970; 0 if there is none.
    """

    def __init__(self, stored: Stored | None = None) -> None:
        """Starts from a stored timeline, or empty."""
        self.since = 0.0
        self._periods: dict[tuple[int, int], TimelinePeriod] = {}
        if stored is not None:
            self.since = stored.since
            for one in stored.periods:
                period = self._period(one.start, one.seconds)
                period.dropped += one.dropped
                for entry in one.entries:
                    period.put(entry.shape, entry.sketch)

    def add(self, shape: Shape, asked: Mapping[int, float], at: float) -> None:
        """Counts how often each m was asked for, in the hour that contains ``at``."""
        self.since = min(self.since, at) if self._periods else at
        period = self._period(int(at // HOUR_S) * HOUR_S, HOUR_S)
        sketch = period.sketches.get(shape)
        if sketch is None:
            if len(period.sketches) >= MOST_SHAPES:
                period.dropped += make_room(period.sketches, MOST_SHAPES)
            sketch = period.sketches[shape] = Sketch()
        for m, count in asked.items():
            sketch.add(m, count)

    @property
    def periods(self) -> list[TimelinePeriod]:
        """The periods with requests, earliest first."""
        return [self._periods[place] for place in sorted(self._periods)]

    def coarsen(self, now: float) -> None:
        """Merges periods that are far from ``now`` into longer ones, and drops sketches if there are too many.

        This holds for the past and the future: hourly periods from a clock that was ahead must not stay for ever.
        """
        before, self._periods = self.periods, {}
        for one in before:
            age = abs(now - one.start)
            seconds = max(one.seconds, next((length for length, kept_s in _KEPT_FOR_S if age < kept_s), _LONGEST_S))
            longer = self._period(one.start // seconds * seconds, seconds)
            longer.dropped += one.dropped
            for shape, sketch in one.sketches.items():
                longer.put(shape, sketch)
        nearest = heapq.nsmallest(MOST_PERIODS, self._periods.values(), key=lambda one: abs(now - one.start))
        self._periods = {(one.start, one.seconds): one for one in nearest}
        entries = [(sketch.total, one, shape) for one in nearest for shape, sketch in one.sketches.items()]
        for weight, one, shape in heapq.nsmallest(len(entries) - MOST_SKETCHES, entries, key=lambda entry: entry[0]):
            one.dropped += weight
            del one.sketches[shape]

    def ledger(self, half_life_s: float, now: float) -> Ledger:
        """The ledger at the time ``now``: a request at that time counts 1, and one a half-life before it a half.

        A period in the future, from a clock that was ahead, counts as now. With an infinite half-life, all requests
        count 1.
        """
        ledger = Ledger(half_life_s)
        ledger.at, ledger.since = now, min(self.since, now)
        for one in self.periods:
            middle = (one.start + min(one.end, max(now, one.start))) / 2
            factor = 2.0 ** -(max(now - middle, 0.0) / half_life_s)
            ledger.dropped += one.dropped * factor
            for shape, sketch in one.sketches.items():
                part = Sketch(dict(sketch.counters), list(sketch.tail))
                part.scale(factor)
                known = ledger.sketches.get(shape)
                ledger.sketches[shape] = part if known is None else merged(known, part)
        ledger.dropped += drop_lightest(ledger.sketches, MOST_SHAPES)
        return ledger

    def after(self, start: float) -> Timeline:
        """A timeline of the periods that end after ``start``; its first period may begin before ``start``."""
        later = Timeline()
        later._periods = {place: one for place, one in self._periods.items() if one.end > start}
        first = min((one.start for one in later._periods.values()), default=math.inf)
        later.since = max(self.since, first) if later._periods else start
        return later

    def stored(self) -> Stored:
        """The timeline in its stored form."""
        for one in self.periods:
            one.dropped = min(one.dropped, MOST_WEIGHT)
            for sketch in one.sketches.values():
                if sketch.total > MOST_WEIGHT:
                    sketch.scale(0.5 * MOST_WEIGHT / sketch.total)  # half of it, because rounding errors are added
        periods = [
            _StoredPeriod(one.start, one.seconds, [_Entry(*entry) for entry in one.sketches.items()], one.dropped)
            for one in self.periods
        ]
        return Stored(self.since, periods)

    def _period(self, start: int, seconds: int) -> TimelinePeriod:
        period = self._periods.get((start, seconds))
        if period is None:
            period = self._periods[start, seconds] = TimelinePeriod(start, seconds)
        return period
