"""Durations of lookups and of steps of a miss, counted in buckets of fixed bounds.

A bucket's upper bound is the fourth root of two (19 %) above its lower bound. Durations from 1 ns to 2⁴⁸ ns (three
days) fall into 192 buckets. A quantile is the geometric middle of its bucket, at most 9 % off (2^⅛ - 1). The counts of
several processes and days are added without loss, in a few hundred numbers at most.

A span is the name of what is timed, such as ``disk`` or ``compile``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import log2

import msgspec

LOOKUPS = ("memory", "pack", "disk", "remote")
"""Spans of lookups, by the tier that served the kernel: from the key to verified code."""
WORK = ("lock", "select", "queue", "generate", "compile", "publish")
"""Spans of a miss: waiting for the key's lock, choosing a config, waiting for a slot to compile in, making the source,
compiling, and storing the kernel.
"""
MODULE = "module"
"""The span of loading compiled code into a GPU's memory, which the driver does."""
SPANS = (*LOOKUPS, *WORK, MODULE)

BUCKETS = 192
_STEPS = 4
_MIDDLE = 0.5

SpanCounts = dict[str, int]
"""Counts by ``"disk/61"``, a span and a bucket, and by ``"disk/ns"``, the sum of the span's durations in nanoseconds.
"""


def bucket_of(ms: float) -> int:
    """The bucket of a duration in milliseconds: bucket b has 2^(b / 4) to 2^((b + 1) / 4) ns."""
    return min(BUCKETS - 1, int(_STEPS * log2(ms * 1e6))) if ms > 1e-6 else 0


def ceiling_s(bucket: float) -> float:
    """The upper bound of a bucket, in seconds."""
    return float(2 ** ((bucket + 1) / _STEPS)) / 1e9


def known(counts: Mapping[str, int]) -> SpanCounts:
    """The counts whose names this program knows; names of other versions are dropped."""
    return {name: count for name, count in counts.items() if _place(name) is not None}


def _place(name: str) -> tuple[str, str] | None:
    span, _, bucket = name.partition("/")
    is_bucket = bucket == "ns" or (bucket.isascii() and bucket.isdecimal() and int(bucket[:4]) < BUCKETS)
    return (span, bucket) if span in SPANS and is_bucket else None


class Spans:
    """Counts durations in memory until they are written. Safe to use from several threads and in signal handlers."""

    __slots__ = ("_counts", "_lock", "_ns")

    def __init__(self) -> None:
        """Starts without counts."""
        self._lock = threading.RLock()  # a signal handler may count while the interrupted thread does
        self._counts: dict[tuple[str, int], int] = {}
        self._ns: dict[str, float] = {}

    def add(self, span: str, ms: float) -> None:
        """Counts one duration, in milliseconds, of a span in ``SPANS``."""
        ns = ms * 1e6
        place = (span, int(_STEPS * log2(ns)) if ns > 1 else 0)  # ``bucket_of``, inline because every hit runs it
        with self._lock:
            self._counts[place] = self._counts.get(place, 0) + 1
            self._ns[span] = self._ns.get(span, 0.0) + ns

    def add_work(self, stages_ms: Mapping[str, float]) -> None:
        """Counts the durations of a miss's steps, given in milliseconds by span; other names are ignored."""
        for span in WORK:
            if span in stages_ms:
                self.add(span, stages_ms[span])

    def take(self) -> SpanCounts:
        """The counts since the last call, which are then forgotten."""
        with self._lock:
            counts, ns = self._counts, self._ns
            self._counts, self._ns = {}, {}
        taken: SpanCounts = {}
        for (span, bucket), count in counts.items():
            name = f"{span}/{min(bucket, BUCKETS - 1)}"
            taken[name] = taken.get(name, 0) + count
        return taken | {f"{span}/ns": round(sum_ns) for span, sum_ns in ns.items()}


class Distribution(msgspec.Struct, frozen=True):
    """The durations of one span.

    Attributes:
        counts: the number of durations in each bucket.
        total_s: the sum of the durations, in seconds.
    """

    counts: Mapping[int, int]
    total_s: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts.values())

    def quantile_ms(self, share: float) -> float:
        """A quantile of the durations in milliseconds, within 9 %; 0 if there are none.

        Args:
            share: the quantile, such as 0.99 for the duration that 99 % of the durations do not exceed.
        """
        reached = share * self.count
        buckets = sorted(self.counts)
        for bucket, so_far in zip(buckets, accumulate(self.counts[bucket] for bucket in buckets), strict=True):
            if so_far >= reached:
                return ceiling_s(bucket - _MIDDLE) * 1e3
        return 0.0

    def at_most(self, bucket: int) -> int:
        """The number of durations in this bucket and in all lower ones."""
        return sum(count for each, count in self.counts.items() if each <= bucket)


def distributions(counts: Mapping[str, int]) -> dict[str, Distribution]:
    """The distribution of each span that has counts, in the order of ``SPANS``."""
    return dict(_distributions(counts))


def _distributions(counts: Mapping[str, int]) -> Iterator[tuple[str, Distribution]]:
    by_span: dict[str, dict[int, int]] = {}
    for name, count in counts.items():
        place = _place(name)
        if place is not None and place[1] != "ns" and count:
            by_span.setdefault(place[0], {})[int(place[1])] = count
    for span in SPANS:
        if span in by_span:
            yield span, Distribution(by_span[span], counts.get(f"{span}/ns", 0) / 1e9)
