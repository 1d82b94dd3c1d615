"""Counts of the requests for each m, in bounded space: the heaviest exactly, the others by power of two.

Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data Streams",
ICDT 2005) monitors at most ``MOST_COUNTERS`` sizes. A new size takes the place of the lightest one, and starts with its
weight, which is also how far the new weight may be too high. Here the part of the lightest that is certain moves to a
histogram of powers of two. So each unit of weight is counted once, in a counter or in the histogram, and totals by
power of two are exact.

Two sketches merge with the same bound: Agarwal et al., "Mergeable Summaries", PODS 2012; Cafaro, Pulimeno, Tempesta,
"A parallel space saving algorithm for frequent items and the Hurwitz zeta distribution", Information Sciences 2016.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from cache_engine.model.asked import M
from cache_engine.model.gemm import MAX_DIMENSION

MOST_COUNTERS = 64
BUCKETS = MAX_DIMENSION.bit_length()
"""Of the histogram: bucket b has the m from 2**(b-1) + 1 to 2**b, and bucket 0 has m = 1."""

PER_BUCKET = 8
"""Sizes that stand for all of a bucket."""

MOST_WEIGHT = 1e30
"""A weight beyond this is damage, not demand; sums of weights stop here."""

Weight = Annotated[float, msgspec.Meta(ge=0, le=MOST_WEIGHT)]


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """The weight of one m.

    Attributes:
        weight: no less than the true weight, and at most ``error`` more.
    """

    weight: Weight
    error: Weight = 0.0

    def __post_init__(self) -> None:
        if self.error > self.weight:
            raise ValueError(f"error {self.error} is above the weight {self.weight}")

    @property
    def certain(self) -> float:
        """The part of the weight that is this size's without doubt."""
        return self.weight - self.error


class Sketch(msgspec.Struct):
    """The weights of sizes.

    Attributes:
        counters: of the heaviest m.
        tail: what counters that were replaced had for certain, by power of two.
    """

    counters: Annotated[dict[M, Counter], msgspec.Meta(max_length=MOST_COUNTERS)] = {}
    tail: Annotated[list[Weight], msgspec.Meta(min_length=BUCKETS, max_length=BUCKETS)] = msgspec.field(
        default_factory=lambda: [0.0] * BUCKETS
    )

    def add(self, m: int, weight: float = 1.0) -> None:
        """Counts one m."""
        there = self.counters.get(m)
        if there is not None:
            self.counters[m] = Counter(there.weight + weight, there.error)
            return
        error = 0.0
        if len(self.counters) >= MOST_COUNTERS:
            error = self._replace_lightest()
        self.counters[m] = Counter(weight + error, error)

    def scale(self, factor: float) -> None:
        """Multiplies all weights."""
        self.counters = {m: Counter(one.weight * factor, one.error * factor) for m, one in self.counters.items()}
        self.tail = [weight * factor for weight in self.tail]

    @property
    def total(self) -> float:
        """All weight, exact but for rounding."""
        return math.fsum(one.certain for one in self.counters.values()) + math.fsum(self.tail)

    @property
    def floor(self) -> float:
        """No m without a counter weighs more."""
        if len(self.counters) < MOST_COUNTERS:
            return 0.0
        return min(one.weight for one in self.counters.values())

    def by_power(self) -> list[float]:
        """The weight of each bucket, exact but for rounding."""
        weights = list(self.tail)
        for m, one in self.counters.items():
            weights[bucket(m)] += one.certain
        return weights

    def spread(self) -> list[tuple[int, float]]:
        """The weight as pairs of an m and a weight that add up to ``total``.

        What the histogram has of a bucket stands evenly at a few of its sizes.
        """
        pairs = {m: one.certain for m, one in self.counters.items()}
        for power, weight in enumerate(self.tail):
            if weight:
                sizes = sizes_in(power)
                for m in sizes:
                    pairs[m] = pairs.get(m, 0.0) + weight / len(sizes)
        return sorted(pairs.items())

    def _replace_lightest(self) -> float:
        m = min(self.counters, key=lambda m: (self.counters[m].weight, m))
        lightest = self.counters.pop(m)
        self.tail[bucket(m)] += lightest.certain
        return lightest.weight


def merged(first: Sketch, second: Sketch) -> Sketch:
    """Both in one; the result's ``error`` still bounds how far a weight is too high."""
    floors = first.floor, second.floor
    counters = {}
    for m in {**first.counters, **second.counters}:
        # Where one has no counter, it may have had up to its floor.
        ours, theirs = first.counters.get(m), second.counters.get(m)
        a = ours or Counter(floors[0], floors[0])
        b = theirs or Counter(floors[1], floors[1])
        counters[m] = Counter(a.weight + b.weight, a.error + b.error)
    tail = [a + b for a, b in zip(first.tail, second.tail, strict=True)]
    heaviest = sorted(counters, key=lambda m: (-counters[m].weight, m))
    for m in heaviest[MOST_COUNTERS:]:
        tail[bucket(m)] += counters[m].certain
    return Sketch({m: counters[m] for m in heaviest[:MOST_COUNTERS]}, tail)


def bucket(m: int) -> int:
    """The bucket of m."""
    return (m - 1).bit_length()


def sizes_in(power: int) -> list[int]:
    """A few sizes, evenly over a bucket; all of a bucket with few."""
    sizes = range((1 << power) // 2 + 1, (1 << power) + 1) if power else range(1, 2)
    parts = min(len(sizes), PER_BUCKET)
    return [sizes[len(sizes) * (2 * part + 1) // (2 * parts)] for part in range(parts)]
