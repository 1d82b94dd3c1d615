"""The documents of ``toolchains`` and ``coverage``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cli.documents import filled

if TYPE_CHECKING:
    from cache_engine.insight.coverage import Cell
    from cache_engine.insight.toolchains import Made


class ToolchainRow(msgspec.Struct, kw_only=True):
    """Kernels of one toolchain that are in one state; see ``insight.toolchains.Made``."""

    compiler: str
    version: str
    build: str
    state: str
    changed: Sequence[str]
    entries: int
    size_bytes: int
    stored_bytes: int
    compile_ms: float
    hits: int
    first_made_at: float
    last_made_at: float
    archs: list[str]
    families: list[str]
    dtypes: list[str]


class Toolchains(msgspec.Struct, kw_only=True):
    """What ``toolchains`` prints."""

    rows: list[ToolchainRow]


class CoverageRow(msgspec.Struct, kw_only=True):
    """A shape on a target: how many of its kernels are cached, and the keys of those that are not.

    ``refused`` says why no kernel can serve it; else it is empty.
    """

    model: str
    operation: str
    n: int
    k: int
    batch: int
    arch: str
    kernels: int
    cached: int
    missing: list[str]
    refused: str


class Coverage(msgspec.Struct, kw_only=True):
    """What ``coverage`` prints; ``kernels`` and ``cached`` count each kernel once, over all shapes."""

    table: str
    dtype: str
    kernels: int
    cached: int
    rows: list[CoverageRow]


def toolchains(found: Iterable[Made]) -> Toolchains:
    """The document of these toolchains."""
    return Toolchains(rows=[filled(ToolchainRow, made) for made in found])


def coverage(
    table: str, dtype: str, cells: Sequence[Sequence[Cell]], cached: Collection[str], *, only_missing: bool
) -> Coverage:
    """The document of these cells.

    Args:
        cached: the keys that are in the store.
        only_missing: whether to leave out what is cached.
    """
    keys = {kernel.key for row in cells for cell in row for kernel in cell.kernels}
    rows = [_covered(cell, cached) for row in cells for cell in row]
    return Coverage(
        table=table,
        dtype=dtype,
        kernels=len(keys),
        cached=len(keys & set(cached)),
        rows=[row for row in rows if row.missing or row.refused or not only_missing],
    )


def _covered(cell: Cell, cached: Collection[str]) -> CoverageRow:
    missing = [str(kernel.key) for kernel in cell.kernels if kernel.key not in cached]
    return filled(
        CoverageRow,
        cell,
        cell.shape,
        kernels=len(cell.kernels),
        cached=len(cell.kernels) - len(missing),
        missing=missing,
    )
