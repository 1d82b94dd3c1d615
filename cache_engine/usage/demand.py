"""The demand ledger: which problems are asked for, and how often, with what is long ago counting less.

Counts halve with each half-life, so a count is also an average of the rate that needs no regular intervals (``rate``).
"""

from __future__ import annotations

import heapq
import math
from typing import Annotated

import msgspec

from cache_engine.errors import UsageError
from cache_engine.model.gemm import MAX_DIMENSION, DType, Mode
from cache_engine.model.shape_counts import M, Shape

# ---- Counts of the requests for each m, in bounded space: the heaviest exactly, the others by power of two ----
#
# Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data Streams",
# ICDT 2005) monitors at most ``MOST_COUNTERS`` sizes. A new size takes the place of the lightest one, and starts with
# its weight, which is also how far the new weight may be too high. Here the part of the lightest that is certain moves
# to a histogram of powers of two. So each unit of weight is counted once, in a counter or in the histogram, and totals
# by power of two are exact.
#
# Two sketches merge with the same bound: Agarwal et al., "Mergeable Summaries", PODS 2012; Cafaro, Pulimeno, Tempesta,
# "A parallel space saving algorithm for frequent items and the Hurwitz zeta distribution", Information Sciences 2016.

MOST_COUNTERS = 64
HALF_LIFE_S = 7 * 86_400.0
"""A request counts half as much after a week."""
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


MOST_SHAPES = 1024
"""Of a ledger; a model has some dozen. Beyond it the lightest are dropped, and their weight is counted as such."""


class Ledger:
    """The demand as of one time. Not safe to change from two threads at once.

    Attributes:
        half_life_s: seconds in which a count loses half its weight; infinite where nothing is to decay.
        at: the time that the weights hold for, seconds since 1970; of an empty ledger 0.
        since: when it began to count.
        sketches: the sizes of each shape.
        dropped: the weight of shapes that had no room.
    """

    def __init__(self, half_life_s: float) -> None:
        if not (1.0 <= half_life_s <= 1e9 or half_life_s == math.inf):
            raise UsageError(f"the half-life is {half_life_s:g} s; it must be from 1 to 1e9 seconds, or infinite")
        self.half_life_s = half_life_s
        self.at = self.since = 0.0
        self.sketches: dict[Shape, Sketch] = {}
        self.dropped = 0.0

    def add(self, shape: Shape, m: int, count: float, at: float) -> None:
        """Counts launches of one problem."""
        self.decay(at)
        sketch = self.sketches.get(shape)
        if sketch is None:
            if len(self.sketches) >= MOST_SHAPES:
                self.dropped += make_room(self.sketches, MOST_SHAPES)
            sketch = self.sketches[shape] = Sketch()
        sketch.add(m, count)

    def decay(self, at: float) -> None:
        """Brings the weights to a time.

        A clock that was set back takes no weight away: time goes on from what it shows now.
        """
        if not self.sketches and not self.dropped:
            self.at = self.since = at
            return
        if at > self.at:
            factor = 2.0 ** -((at - self.at) / self.half_life_s)
            for sketch in self.sketches.values():
                sketch.scale(factor)
            self.dropped *= factor
        elif at < self.at:
            self.since -= self.at - at
        self.at = at

    @property
    def total(self) -> float:
        """All weight, that of dropped shapes included."""
        return math.fsum(sketch.total for sketch in self.sketches.values()) + self.dropped


def make_room(sketches: dict[Shape, Sketch], most: int) -> float:
    """Makes room for a shape where there are ``most``; returns the weight that is dropped.

    An eighth goes at once: to find one takes as long as to find many.
    """
    return drop_lightest(sketches, most - max(1, most // 8))


def drop_lightest(sketches: dict[Shape, Sketch], most: int) -> float:
    """Drops the lightest beyond ``most``; returns their weight."""
    lightest = heapq.nsmallest(len(sketches) - most, sketches, key=lambda shape: sketches[shape].total)
    return math.fsum(sketches.pop(shape).total for shape in lightest)


# ---- What a ledger says ----


def by_flops(shape: Shape, m: int) -> float:
    """Floating-point operations of a launch."""
    return 2.0 * _row_matrices(shape) * m * shape.n * shape.k


def by_bytes(shape: Shape, m: int) -> float:
    """Bytes of A, B and C of a launch; 0 for types that this program does not know."""
    s = shape
    try:
        read, written = DType(s.dtype).itemsize, DType(s.out_dtype).itemsize
    except ValueError:
        return 0.0
    rows = m * (s.k * read + s.n * written)
    return float(_row_matrices(s) * rows + s.batch * s.n * s.k * read)


def _row_matrices(shape: Shape) -> int:
    """As of ``GemmProblem``."""
    return 1 if shape.mode == Mode.GROUPED else shape.batch


def rate(ledger: Ledger, weight: float, at: float) -> float:
    """Launches per second that a decayed weight stands for.

    An exponentially weighted moving average over irregular intervals (Eckner, "Algorithms for Unevenly Spaced Time
    Series: Moving Averages and Other Rolling Operators", 2012). A steady rate r has the weight r · h / ln 2 after a
    long time, and less in a young ledger, which is allowed for. Without decay it is the mean.
    """
    if ledger.half_life_s == math.inf:
        return weight / (at - ledger.since) if at > ledger.since else 0.0
    lifetimes = max(at - ledger.since, 0.0) / ledger.half_life_s
    seen = -math.expm1(-lifetimes * math.log(2))
    return weight * math.log(2) / ledger.half_life_s / seen if seen > 0 else 0.0
