"""Demand: a problem without its m, and the journal line that counts how often each m was asked for."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cache_engine.model.artifact import Count, Seconds
from cache_engine.model.gemm import MAX_BATCH, MAX_DIMENSION, DType, GemmProblem, Layout
from cache_engine.model.gemm.fields import Name, Options

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
