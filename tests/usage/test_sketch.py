"""The sketch of sizes: what it says of each m is within its own bound, and totals by power of two are exact."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.model.gemm import MAX_DIMENSION
from cache_engine.usage import demand as sketches
from cache_engine.usage.demand import BUCKETS, MOST_COUNTERS, PER_BUCKET, Counter, Sketch, bucket, merged, sizes_in

FEW = 6
SIZES = st.integers(1, 20) | st.integers(1, MAX_DIMENSION) | st.sampled_from([1, 2, 3, MAX_DIMENSION])
STREAMS = st.lists(st.tuples(SIZES, st.integers(1, 50)), max_size=60)


@pytest.fixture(autouse=True, scope="module")
def _few_counters() -> Iterator[None]:
    """So that short streams have more sizes than there are counters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketches, "MOST_COUNTERS", FEW)
        yield


def sketch_of(stream: list[tuple[int, int]]) -> Sketch:
    sketch = Sketch()
    for m, weight in stream:
        sketch.add(m, float(weight))
    return sketch


def truth_of(stream: list[tuple[int, int]]) -> Count[int]:
    truth: Count[int] = Count()
    for m, weight in stream:
        truth[m] += weight
    return truth


def broken(sketch: Sketch, truth: Count[int]) -> list[str]:
    """Promises of a sketch that do not hold of what was counted."""
    total = truth.total()
    by_power = [0] * BUCKETS
    for m, weight in truth.items():
        by_power[bucket(m)] += weight
    counters = sketch.counters
    promises = {
        "few counters": len(counters) <= FEW,
        "the total": sketch.total == pytest.approx(total),
        "a low floor": sketch.floor <= total / FEW + 1e-9,
        "bounds of a weight": all(one.certain <= truth[m] <= one.weight for m, one in counters.items()),
        "a small error": all(one.error <= total / FEW + 1e-9 for one in counters.values()),
        "the floor is above what has no counter": all(truth[m] <= sketch.floor for m in truth.keys() - counters.keys()),
        "totals by power of two": sketch.by_power() == pytest.approx(by_power),
        "the spread": sum(weight for _, weight in sketch.spread()) == pytest.approx(total),
    }
    return [name for name, holds in promises.items() if not holds]


@given(STREAMS)
def test_a_weight_is_within_its_error_and_no_error_is_above_the_share_of_a_counter(
    stream: list[tuple[int, int]],
) -> None:
    assert broken(sketch_of(stream), truth_of(stream)) == []


@given(STREAMS, STREAMS)
def test_a_merged_sketch_keeps_the_promises_of_one_that_counted_both(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    assert broken(merged(sketch_of(first), sketch_of(second)), truth_of(first + second)) == []


@given(STREAMS, STREAMS, STREAMS)
def test_a_merged_sketch_that_counts_on_keeps_them_too(
    first: list[tuple[int, int]], second: list[tuple[int, int]], third: list[tuple[int, int]]
) -> None:
    sketch = merged(sketch_of(first), sketch_of(second))
    for m, weight in third:
        sketch.add(m, float(weight))
    assert broken(sketch, truth_of(first + second + third)) == []


def test_a_size_heavier_than_the_share_of_a_counter_is_always_found() -> None:
    sketch = Sketch()
    for number in range(3_000):
        sketch.add(number % 1000 + 100)
        if number % 4 == 0:
            sketch.add(7)
    assert 7 in sketch.counters
    assert sketch.counters[7].certain <= 750 <= sketch.counters[7].weight


@given(st.lists(st.tuples(SIZES, st.integers(1, 50)), max_size=FEW))
def test_few_sizes_are_counted_exactly(stream: list[tuple[int, int]]) -> None:
    assert sketch_of(stream).spread() == sorted((m, float(w)) for m, w in truth_of(stream).items())


@given(st.integers(0, BUCKETS - 1))
def test_the_sizes_that_stand_for_a_bucket_are_in_it_and_lie_evenly(power: int) -> None:
    sizes = sizes_in(power)
    assert {bucket(m) for m in sizes} == {power}
    assert len(set(sizes)) == len(sizes) == min(PER_BUCKET, max(1, (1 << power) // 2))
    assert bucket(1 << power) == power
    assert power == 0 or bucket((1 << (power - 1)) + 1) == power
    gaps = {later - earlier for earlier, later in pairwise(sizes)}
    assert len(gaps) <= 1


@given(STREAMS, st.floats(0, 1))
def test_scaling_keeps_each_bound(stream: list[tuple[int, int]], factor: float) -> None:
    sketch = sketch_of(stream)
    sketch.scale(factor)
    truth = truth_of(stream)
    for m, one in sketch.counters.items():
        assert one.certain <= truth[m] * factor * (1 + 1e-9) + 1e-12
        assert truth[m] * factor <= one.weight * (1 + 1e-9) + 1e-12
    assert sketch.total == pytest.approx(truth.total() * factor)


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"counters": {"0": [1.0, 0.0]}}',
        b'{"counters": {"16777217": [1.0, 0.0]}}',
        b'{"counters": {"5": [-1.0, 0.0]}}',
        b'{"counters": {"5": [1.0, 2.0]}}',
        b'{"counters": {"5": [1e301, 0.0]}}',
        b'{"counters": {"five": [1.0, 0.0]}}',
        b'{"tail": [0.0]}',
        b'{"counters": {' + b", ".join(b'"%d": [1.0]' % m for m in range(1, MOST_COUNTERS + 2)) + b"}}",
    ],
)
def test_a_damaged_sketch_is_refused(damaged: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(damaged, type=Sketch)


def test_a_sketch_is_the_same_after_it_was_written_and_read() -> None:
    sketch = sketch_of([(m, m) for m in range(1, 100)])
    assert msgspec.json.decode(msgspec.json.encode(sketch), type=Sketch) == sketch
    assert sketch.counters[99] == Counter(*msgspec.structs.astuple(sketch.counters[99]))
