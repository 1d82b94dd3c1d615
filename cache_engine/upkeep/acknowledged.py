"""Failures that a reader has seen: what is counted over time stays counted, and only later failures are warned of."""

from __future__ import annotations

import re
from collections.abc import Mapping

FAILURES = (
    "publish_failures", "corruptions", "tier_failures", "lock_waits", "lock_timeouts", "lock_wait_us",
)  # fmt: skip
"""The sums that a reader can acknowledge, by the names of ``model.events.Totals`` and of the mirror."""

_COUNT = re.compile(r"([a-z_]{1,40}) ([0-9]{1,18})")


def in_words(totals: Mapping[str, int]) -> str:
    """The sums over all time that were seen, as the event's detail has them."""
    return ", ".join(f"{name} {totals[name]}" for name in FAILURES)


def of_words(detail: str) -> dict[str, int]:
    """The sums that an event names; empty where it does not name all of them, which acknowledges nothing."""
    found = {match[1]: int(match[2]) for part in detail.split(", ") if (match := _COUNT.fullmatch(part))}
    return found if set(found) == set(FAILURES) else {}


def since(lately: Mapping[str, int], totals: Mapping[str, int], seen: Mapping[str, int]) -> dict[str, int]:
    """Of the failures counted lately, those that came after the acknowledged ones.

    Args:
        lately: sums of the last days.
        totals: sums over all time, which only grow. Where one is below what was seen, counting has begun again, and
            nothing counts as seen.
    """
    if not seen or any(totals[name] < seen[name] for name in FAILURES):
        return {name: lately[name] for name in FAILURES}
    return {name: min(lately[name], totals[name] - seen[name]) for name in FAILURES}
