"""The demand ledger: how often each problem was asked for; older requests count less.

A count loses half its weight with each half-life. So a count is also an average of the rate of requests, for any
intervals between them (``rate``).
"""

from __future__ import annotations

import heapq
import math
from typing import Annotated

import msgspec

from cache_engine.errors import UsageError
from cache_engine.model.gemm import MAX_DIMENSION, DType, Mode
from cache_engine.model.shapes import M, Shape

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
"""Seconds after which a request counts half as much: a week."""
BUCKETS = MAX_DIMENSION.bit_length()
"""The number of buckets of the histogram: bucket b has the m from 2**(b-1) + 1 to 2**b, and bucket 0 has m = 1."""

PER_BUCKET = 8
"""The number of values of m by which a bucket is represented (``sizes_in``)."""

MOST_WEIGHT = 1e30
"""The largest weight of an m: a larger one comes from damaged data. Sums of weights are limited to it as well."""

Weight = Annotated[float, msgspec.Meta(ge=0, le=MOST_WEIGHT)]


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """The number of requests for one m; older requests count less.

    Attributes:
        weight: the number of requests, or at most ``error`` more; never less.
        error: the most by which ``weight`` may be too high.
    """

    weight: Weight
    error: Weight = 0.0

    def __post_init__(self) -> None:
        if self.error > self.weight:
            raise ValueError(f"error {self.error} is above the weight {self.weight}")

    @property
    def certain(self) -> float:
        """The part of the weight that certainly belongs to this m."""
        return self.weight - self.error


class Sketch(msgspec.Struct):
    """The weights of the m of a shape, in bounded space: exact counters for the heaviest, a histogram for the others.

    Attributes:
        counters: the counters of the heaviest m.
        tail: the histogram: for each bucket, the weight of all m whose counters were replaced by others.
    """

    counters: Annotated[dict[M, Counter], msgspec.Meta(max_length=MOST_COUNTERS)] = {}
    tail: Annotated[list[Weight], msgspec.Meta(min_length=BUCKETS, max_length=BUCKETS)] = msgspec.field(
        default_factory=lambda: [0.0] * BUCKETS
    )

    def add(self, m: int, weight: float = 1.0) -> None:
        """Adds weight to one m."""
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
        """The sum of all weights, exact except for rounding."""
        return math.fsum(one.certain for one in self.counters.values()) + math.fsum(self.tail)

    @property
    def floor(self) -> float:
        """An upper bound of the weight of every m without a counter."""
        if len(self.counters) < MOST_COUNTERS:
            return 0.0
        return min(one.weight for one in self.counters.values())

    def by_power(self) -> list[float]:
        """The weight of each bucket, exact except for rounding."""
        weights = list(self.tail)
        for m, one in self.counters.items():
            weights[bucket(m)] += one.certain
        return weights

    def spread(self) -> list[tuple[int, float]]:
        """Pairs of an m and a weight, which add up to ``total``.

        The weight that the histogram has in a bucket is divided evenly among a few sizes of the bucket.
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
    """The sum of two sketches; the ``error`` of each counter still bounds its excess over the true weight."""
    floors = first.floor, second.floor
    counters = {}
    for m in {**first.counters, **second.counters}:
        # A size without a counter in one sketch may have had a weight of up to that sketch's ``floor``.
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
    """The bucket of m: the number of the power of two that is at least m."""
    return (m - 1).bit_length()


def sizes_in(power: int) -> list[int]:
    """A few values of m, spread evenly over a bucket; all values if the bucket is small."""
    sizes = range((1 << power) // 2 + 1, (1 << power) + 1) if power else range(1, 2)
    parts = min(len(sizes), PER_BUCKET)
    return [sizes[len(sizes) * (2 * part + 1) // (2 * parts)] for part in range(parts)]


MOST_SHAPES = 1024
"""The largest number of shapes in a ledger; a model has some dozen. Beyond it, the lightest are dropped."""


class Ledger:
    """The demand at one time. Not safe to change from two threads at once.

    Attributes:
        half_life_s: the seconds in which a count loses half its weight; infinite for no decay.
        at: the time for which the weights are valid, in seconds since 1970; 0 for an empty ledger.
        since: the time of the first request that was counted, in seconds since 1970.
        sketches: for each shape, the weight of each m.
        dropped: the sum of the weights of shapes that were dropped.
    """

    def __init__(self, half_life_s: float) -> None:
        if not (1.0 <= half_life_s <= 1e9 or half_life_s == math.inf):
            raise UsageError(f"the half-life is {half_life_s:g} s; it must be from 1 to 1e9 seconds, or infinite")
        self.half_life_s = half_life_s
        self.at = self.since = 0.0
        self.sketches: dict[Shape, Sketch] = {}
        self.dropped = 0.0

    def add(self, shape: Shape, m: int, count: float, at: float) -> None:
        """Counts ``count`` launches of one problem."""
        self.decay(at)
        sketch = self.sketches.get(shape)
        if sketch is None:
            if len(self.sketches) >= MOST_SHAPES:
                self.dropped += make_room(self.sketches, MOST_SHAPES)
            sketch = self.sketches[shape] = Sketch()
        sketch.add(m, count)

    def decay(self, at: float) -> None:
        """Reduces the weights to their values at a later time.

        If the clock was set back, weights stay the same, and time continues from the present value of the clock.
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
        """The sum of all weights, including dropped shapes."""
        return math.fsum(sketch.total for sketch in self.sketches.values()) + self.dropped


def make_room(sketches: dict[Shape, Sketch], most: int) -> float:
    """Drops the shapes with the least weight if there are ``most``; returns the sum of their weights.

    Drops an eighth of them at once, because finding the lightest shape takes as long as finding many.
    """
    return drop_lightest(sketches, most - max(1, most // 8))


def drop_lightest(sketches: dict[Shape, Sketch], most: int) -> float:
    """Drops the shapes with the least weight until ``most`` are left; returns the sum of the dropped weights."""
    lightest = heapq.nsmallest(len(sketches) - most, sketches, key=lambda shape: sketches[shape].total)
    return math.fsum(sketches.pop(shape).total for shape in lightest)


# ---- Values computed from a ledger ----


_ITEMSIZES = {dtype.value: dtype.itemsize for dtype in DType}


def by_flops(shape: Shape, m: int) -> float:
    """The floating-point operations of one launch for this shape and m."""
    return 2.0 * _row_matrices(shape) * m * shape.n * shape.k


def by_bytes(shape: Shape, m: int) -> float:
    """The bytes of A, B and C for this shape and m; 0 for types that this program does not know."""
    s = shape
    try:
        read, written = _ITEMSIZES[s.dtype], _ITEMSIZES[s.out_dtype]
    except KeyError:
        return 0.0
    rows = m * (s.k * read + s.n * written)
    return float(_row_matrices(s) * rows + s.batch * s.n * s.k * read)


def _row_matrices(shape: Shape) -> int:
    """The number of matrices that A consists of, as ``GemmProblem.row_matrices``."""
    return 1 if shape.mode == Mode.GROUPED else shape.batch


def rate(ledger: Ledger, weight: float, at: float) -> float:
    """The launches per second that a decayed weight represents.

    It is an exponentially weighted moving average over irregular intervals (Eckner, "Algorithms for Unevenly Spaced
    Time Series: Moving Averages and Other Rolling Operators", 2012). A steady rate r has the weight r · h / ln 2 after
    a long time, where h is the half-life. In a young ledger the weight is smaller, which is corrected. Without decay,
    the result is the mean rate.
    """
    if ledger.half_life_s == math.inf:
        return weight / (at - ledger.since) if at > ledger.since else 0.0
    lifetimes = max(at - ledger.since, 0.0) / ledger.half_life_s
    seen = -math.expm1(-lifetimes * math.log(2))
    return weight * math.log(2) / ledger.half_life_s / seen if seen > 0 else 0.0
