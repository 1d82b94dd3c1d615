"""Usage of one entry of a store."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from cache_engine.model.artifact import MOST_COUNT, Count, Seconds

_WEEK_S, _KEPT_WEEKS = 7 * 86_400, 8


class EntryUsage(msgspec.Struct):
    """The usage of one entry: hits by tier, and the last two times (seconds since 1970; 0 is never).

    The second last distinguishes an entry in steady use from one used once.

    An entry is a key and when it was made: one made again after it was evicted is another.
    """

    key: str
    made_at: Seconds
    hits: dict[str, Count] = msgspec.field(default_factory=dict)
    last_used_at: Seconds = 0.0
    previous_used_at: Seconds = 0.0
    # By week since 1970, so that decayed sums are the same in any order of arrival; of the latest weeks alone.
    weeks: dict[Annotated[int, msgspec.Meta(ge=0, le=2_000_000)], Count] = msgspec.field(default_factory=dict)

    def used(self, at: float, count: int) -> None:
        """Records uses at that time. Keeps the two latest, in any order of arrival."""
        times = sorted((self.last_used_at, self.previous_used_at, at, at if count > 1 else 0.0))
        self.previous_used_at, self.last_used_at = times[-2:]
        week = _week(at)
        self.weeks[week] = capped_sum(self.weeks.get(week, 0), count)

    def recent_hits(self, now: float) -> float:
        """Hits, each halved for every week since the end of its week; those of a clock that was ahead count in full."""
        weeks = self._every_week().items()
        return sum(count * math.exp2(-max(0.0, now / _WEEK_S - (week + 1))) for week, count in weeks)

    def without_old_weeks(self, now: float) -> EntryUsage:
        """The same with the hits that have decayed to less than a hundredth, before now or after, in week 0."""
        weeks: dict[int, int] = {}
        for week, count in self._every_week().items():
            kept = week if abs(week - _week(now)) <= _KEPT_WEEKS else 0
            weeks[kept] = capped_sum(weeks.get(kept, 0), count)
        return msgspec.structs.replace(self, weeks=weeks)

    def _every_week(self) -> dict[int, int]:
        """Hits by week; those that an older version counted are as of the week before the earliest that is known."""
        weeks: dict[int, int] = dict(self.weeks)
        unknown = sum(self.hits.values()) - sum(weeks.values())
        if unknown > 0:
            before = min((week for week in weeks if week), default=_week(self.last_used_at) + 1) - 1
            weeks[before] = weeks.get(before, 0) + unknown
        return weeks


def _week(at: float) -> int:
    return max(0, int(at // _WEEK_S))


def capped_sum(one: int, other: int) -> int:
    """Both together, but no more than a file of sums may say: beyond that no reader would accept it."""
    return min(MOST_COUNT, one + other)
