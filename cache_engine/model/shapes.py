"""Shapes, which are problems without their m; the demand for each m; and sets of sizes, as ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.model.artifact import Count, Seconds
from cache_engine.model.gemm import MAX_BATCH, MAX_DIMENSION, DType, GemmProblem, Layout
from cache_engine.model.gemm.fields import Name, Options

# ---- Demand: a problem without its m, and the journal line that counts how often each m was asked for ----

M = Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSION)]


class Shape(Options, frozen=True, omit_defaults=True):
    """A problem without its m, as plain values, so that types and targets of a newer program can be read."""

    n: M
    k: M
    batch: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)] = 1
    dtype: Name = DType.BF16.value
    out_dtype: Name = DType.BF16.value
    layout: Name = Layout.NT.value
    arch: Name = ""

    @classmethod
    def of(cls, problem: GemmProblem) -> Shape:
        """The shape of a problem."""
        return cls(**problem.plain(cls.__struct_fields__))

    def problem(self, m: int) -> GemmProblem:
        """The problem of this shape with the given m.

        Raises:
            InvalidProblem: when this program does not know one of the values.
        """
        return GemmProblem(m, **{**msgspec.structs.asdict(self), "arch": self.arch or None})


class ShapeCounts(msgspec.Struct, frozen=True):
    """A journal line: for each m, how often a shape was asked for since the last such line.

    Attributes:
        kind: always ``use``. Versions that do not count demand read the line as one about use, without counts.
        at: the time of writing, in seconds since 1970, UTC.
        shape: the shape.
        asked: for each m, the number of requests.
    """

    kind: str
    at: Seconds
    shape: Shape
    asked: dict[M, Count]


# ---- Sets of sizes, as ranges: ``1,16,64-512`` ----


Sizes = tuple[range, ...]
"""Disjoint, non-empty ranges."""

_EXAMPLE = "1,16,64-512"


def parse_sizes(text: str) -> Sizes:
    """Reads sizes and ranges of sizes between commas, in any order; returns them ascending, with overlaps joined.

    Raises:
        UsageError: when a part is neither a size nor a range, or a range ends before it starts; the text names the
            part.
        InvalidProblem: when a size is not supported.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,40})\s*(?:-\s*([0-9]{1,40})\s*)?", part)
        if match is None:
            raise UsageError(f"{part.strip()!r} is not a whole number or a range; write sizes as {_EXAMPLE}")
        first, last = int(match[1]), int(match[2] or match[1])
        for size in (first, last):
            if not 1 <= size <= MAX_DIMENSION:
                raise InvalidProblem(f"m is {size:,}; it must be a whole number from 1 to {MAX_DIMENSION:,}")
        if last < first:
            raise UsageError(f"the range {first}-{last} ends before it starts; write it as {last}-{first}")
        found.append(range(first, last + 1))
    return joined_sizes(found)


def sizes_text(sizes: Iterable[range]) -> str:
    """Sizes as text that ``parse_sizes`` can read. A range with a step other than 1 is written as ``8-56 step 16``."""
    return ",".join(
        str(each[0])
        if len(each) == 1
        else f"{each[0]},{each[-1]}"
        if len(each) == 2
        else f"{each[0]}-{each[-1]}"
        if each.step == 1
        else f"{each[0]}-{each[-1]} step {each.step}"
        for each in sizes
    )


def count_sizes(sizes: Iterable[range]) -> int:
    """The number of sizes in all ranges."""
    return sum(map(len, sizes))


def joined_sizes(ranges: Iterable[range]) -> Sizes:
    """The same sizes as ranges of step 1, ascending, with overlaps joined."""
    joined: list[range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        if joined and each.start <= joined[-1].stop:
            before = joined.pop()
            joined.append(range(before.start, max(before.stop, each.stop)))
        else:
            joined.append(each)
    return tuple(joined)
