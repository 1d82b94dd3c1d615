"""Sizes and ranges of them, as text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.model.gemm import MAX_DIMENSION
from cache_engine.model.shapes import count_sizes, parse_sizes, sizes_text

PARTS = st.tuples(st.integers(1, 300), st.integers(0, 40))


@given(st.lists(PARTS, min_size=1, max_size=12))
def test_sizes_are_disjoint_ascending_and_those_that_were_written(parts: list[tuple[int, int]]) -> None:
    text = ", ".join(str(first) if not more else f"{first} - {first + more}" for first, more in parts)
    sizes = parse_sizes(text)
    listed = [size for each in sizes for size in each]
    assert listed == sorted({first + step for first, more in parts for step in range(more + 1)})
    assert count_sizes(sizes) == len(listed)
    assert all(before.stop < after.start for before, after in pairwise(sizes))
    assert parse_sizes(sizes_text(sizes)) == sizes


def test_sizes_are_written_short() -> None:
    assert sizes_text(parse_sizes("64-512,16,1,1,2,100-600")) == "1,2,16,64-600"
    assert sizes_text((range(8, 60, 16), range(5, 6, 2), range(4, 20, 8))) == "8-56 step 16,5,4,12"


@pytest.mark.parametrize("text", ["", ",", "1,", "16,many", "-1", "1-", "1_000", "²", "1-2-3", "1.5", "9" * 41])
def test_an_invalid_size_is_refused_and_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number or a range; write sizes as 1,16,64-512"):
        parse_sizes(text)


@pytest.mark.parametrize("text", ["0", "0-4", f"1-{MAX_DIMENSION + 1}", "9" * 40])
def test_unsupported_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidProblem, match="it must be a whole number from 1 to 16,777,216"):
        parse_sizes(text)


def test_a_range_the_wrong_way_round_is_refused_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="the range 64-16 ends before it starts; write it as 16-64"):
        parse_sizes("1,64-16")
