"""The demand ledger: which problems are asked for, and how often, with what is long ago counting less.

Counts halve with each half-life, so a count is also an average of the rate that needs no regular intervals (``rate``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from cache_engine.errors import UsageError
from cache_engine.model.asked import Shape
from cache_engine.model.gemm import DType, Mode
from cache_engine.usage.sketch import Sketch, merged

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


def merge(first: Ledger, second: Ledger) -> Ledger:
    """Both in one, as of the later time. Totals are those of one ledger that counted everything.

    Raises:
        UsageError: when their half-lives differ: their weights do not compare.
    """
    if first.half_life_s != second.half_life_s:
        raise UsageError(
            f"ledgers with half-lives of {first.half_life_s:g} s and {second.half_life_s:g} s do not merge; "
            "use one half-life"
        )
    both = [ledger for ledger in map(_copy, (first, second)) if ledger.sketches or ledger.dropped]
    if len(both) < 2:
        return both[0] if both else Ledger(first.half_life_s)
    one, other = both
    at = max(one.at, other.at)
    one.decay(at)
    other.decay(at)
    one.since = min(one.since, other.since)
    one.dropped += other.dropped
    for shape, sketch in other.sketches.items():
        known = one.sketches.get(shape)
        one.sketches[shape] = sketch if known is None else merged(known, sketch)
    one.dropped += drop_lightest(one.sketches, MOST_SHAPES)
    return one


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


def shares(ledger: Ledger, weigh: Callable[[Shape, int], float]) -> dict[Shape, float]:
    """The share of each shape, heaviest first.

    Args:
        weigh: what one launch with this m counts: ``by_count``, ``by_flops``, ``by_bytes``, or its time.
    """
    weights = {
        shape: math.fsum(weigh(shape, m) * w for m, w in sketch.spread()) for shape, sketch in ledger.sketches.items()
    }
    total = math.fsum(weights.values())
    ordered = sorted(weights, key=lambda shape: -weights[shape])
    return {shape: weights[shape] / total if total else 0.0 for shape in ordered}


def by_count(shape: Shape, m: int) -> float:  # noqa: ARG001 (as shares calls it)
    """Each launch counts 1."""
    return 1.0


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


def _copy(ledger: Ledger) -> Ledger:
    copy = Ledger(ledger.half_life_s)
    copy.at, copy.since, copy.dropped = ledger.at, ledger.since, ledger.dropped
    copy.sketches = {shape: Sketch(dict(one.counters), list(one.tail)) for shape, one in ledger.sketches.items()}
    return copy
