"""Demand: a problem without its m, and a line of the journal that says how often each m was asked for."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cache_engine.model.artifact import Count, Seconds
from cache_engine.model.gemm import (
    MAX_BATCH,
    MAX_DIMENSION,
    OPT_LEVELS,
    DType,
    Epilogue,
    GemmProblem,
    Layout,
    Specialisation,
)

M = Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSION)]
_Name = Annotated[str, msgspec.Meta(max_length=40)]


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem without its m, as plain values: one of a program that knows more types or targets can be read too."""

    n: M
    k: M
    batch: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)] = 1
    dtype: _Name = DType.BF16.value
    out_dtype: _Name = DType.BF16.value
    layout: _Name = Layout.NT.value
    epilogue: _Name = ""
    specialisation: _Name = Specialisation.NK.value
    opt_level: Annotated[int, msgspec.Meta(ge=0, le=99)] = OPT_LEVELS[-1]
    arch: _Name = ""
    scales: _Name = ""
    mode: _Name = ""

    @classmethod
    def of(cls, problem: GemmProblem) -> Shape:
        """The shape of a problem."""
        p = problem
        return cls(
            n=p.n, k=p.k, batch=p.batch, dtype=p.dtype.value, out_dtype=p.output.value, layout=p.layout.value,
            epilogue=str(p.epilogue), specialisation=p.specialisation.value, opt_level=p.opt_level, arch=p.arch or "",
            scales=p.scales.value, mode=p.mode.value,
        )  # fmt: skip

    def problem(self, m: int) -> GemmProblem:
        """The problem with this m.

        Raises:
            InvalidProblem: when the values make none that this program knows.
        """
        return GemmProblem(
            m, self.n, self.k, batch=self.batch, dtype=self.dtype, out_dtype=self.out_dtype, layout=self.layout,  # type: ignore[arg-type]  # checked there
            epilogue=Epilogue.parse(self.epilogue), specialisation=self.specialisation,  # type: ignore[arg-type]
            opt_level=self.opt_level, arch=self.arch or None, scales=self.scales,  # type: ignore[arg-type]
            mode=self.mode,  # type: ignore[arg-type]
        )  # fmt: skip


class Asked(msgspec.Struct, frozen=True):
    """A line of a journal: how often a shape was asked for since the last such line, by m.

    Attributes:
        kind: ``use``. Versions that do not count demand read a line about use that counts nothing.
        at: seconds since 1970, UTC, when it was written.
        shape: what was asked for.
        asked: how often, by m.
    """

    kind: str
    at: Seconds
    shape: Shape
    asked: dict[M, Count]
