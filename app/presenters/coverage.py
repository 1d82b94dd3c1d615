"""Model coverage: which kernels of a model's shapes are cached, by target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from app.presenters.columns import Column
from app.presenters.shared import Row, kernel_address
from cache_engine.batch.warm import Estimate
from cache_engine.evaluator.catalogue import TOKENS
from cache_engine.insight.coverage import Cell, Covering
from cache_engine.model.sizes import sizes_text
from cache_engine.units import counted, human_ms

CACHED, MISSING = "✓ cached", "✗ missing"
_ALL, _SOME, _NONE, _REFUSED = "✓", "◐", "✗", "–"
# Dark enough that the white text on them can be read: WCAG's contrast of 4.5.
_COLOURS = {_ALL: "#437a00", _SOME: "#8a6000", _NONE: "#b34700", _REFUSED: "#6b6b6b"}
LEGEND = "✓ all cached · ◐ some · ✗ none · – unsupported"


def matrix_table(cells: Sequence[Sequence[Cell]], cached: Collection[str]) -> list[Row]:
    """A row for each shape, a column for each target; a cell is a list with the text of its label."""
    return [
        {
            "Operation": row[0].shape.operation,
            "n": row[0].shape.n,
            "k": row[0].shape.k,
            "Batch": row[0].shape.batch,
            **{cell.arch: [cell_text(cell, cached)] for cell in row},
        }
        for row in cells
    ]


def cell_text(cell: Cell, cached: Collection[str]) -> str:
    """The text of a cell: a mark, the number of its kernels that are cached, and the number of all."""
    if not cell.kernels:
        return f"{_REFUSED} unsupported"
    asked, missing = len(cell.kernels), cell.missing(cached)
    mark = _NONE if missing == asked else _SOME if missing else _ALL
    return f"{mark} {asked - missing} of {asked}"


def cell_colours(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> dict[str, str]:
    """The colour of each text in the matrix."""
    texts = dict.fromkeys(cell_text(cell, cached) for row in cells for cell in row)
    return {text: _COLOURS[text[0]] for text in texts}


def with_missing(cells: Iterable[list[Cell]], cached: Collection[str]) -> list[list[Cell]]:
    """The rows of the matrix where a kernel is missing on some target."""
    return [row for row in cells if any(cell.missing(cached) for cell in row)]


def kernels_of(
    cells: Iterable[Cell], cached: Collection[str], *, only_missing: bool = False
) -> list[tuple[Cell, Covering | None]]:
    """The kernels of these cells, each with its cell; an unsupported cell is returned once, with ``None``."""
    return [
        (cell, kernel)
        for cell in cells
        for kernel in (cell.kernels or ([None] if cell.refused else []))
        if not only_missing or (kernel is not None and kernel.key not in cached)
    ]


def kernel_columns(cached: Collection[str]) -> list[Column]:
    """The columns of a table of the pairs from ``kernels_of``."""

    def state(one: tuple[Cell, Covering | None]) -> str:
        cell, kernel = one
        return cell.refused if kernel is None else CACHED if kernel.key in cached else MISSING

    return [
        Column("Operation", lambda one: one[0].shape.operation),
        Column("Target", lambda one: one[0].arch),
        Column("State", state),
        Column("m", lambda one: sizes_text(one[1].ms) if one[1] else ""),
        Column("Config", lambda one: str(one[1].selection.config) if one[1] else ""),
        Column(
            "Kernel",
            lambda one: kernel_address(one[1].key) if one[1] and one[1].key in cached else "",
            "link",
            lambda one: one[1].key[:12] if one[1] else "",
        ),
    ]


def estimate_words(estimate: Estimate) -> str:
    """The estimated time of compiling the missing kernels, and what the estimate is based on, in words."""
    return f"About {human_ms(estimate.seconds * 1e3)} of compiling on this machine, {estimate.by}."


def covered_words(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> str:
    """The number of kernels of the matrix that are cached, and the number of all, in words."""
    wanted = {kernel.key for row in cells for cell in row for kernel in cell.kernels}
    there = sum(key in cached for key in wanted)
    return f"{there:,} of {counted(len(wanted), 'kernel')} cached (m = {TOKENS.replace('-', '–')})."


def missing_archs(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> dict[str, int]:
    """The number of missing kernels, for each target that has any."""
    missing: dict[str, set[str]] = {}
    for row in cells:
        for cell in row:
            missing.setdefault(cell.arch, set()).update(k.key for k in cell.kernels if k.key not in cached)
    return {arch: len(keys) for arch, keys in missing.items() if keys}
