"""A model's shapes by targets: which of the kernels that they ask for there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from app.presenters.shared import Row, kernel_address
from cache_engine.catalogue import TOKENS
from cache_engine.insight.coverage import Cell, WantedKernel
from cache_engine.units import counted

CACHED, MISSING = "✓ cached", "✗ missing"
_ALL, _SOME, _NONE, _REFUSED = "✓", "◐", "✗", "–"
# Dark enough that the white text on them can be read: WCAG's contrast of 4.5.
_COLOURS = {_ALL: "#437a00", _SOME: "#8a6000", _NONE: "#b34700", _REFUSED: "#6b6b6b"}
LEGEND = "✓ all that the shape asks for are cached · ◐ some · ✗ none · – no kernel can serve it"


def matrix_table(cells: Sequence[Sequence[Cell]], cached: Collection[str]) -> list[Row]:
    """A row for each shape, a column for each target; a cell is a list of one, as labels are."""
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
    """A mark, and how many of how many kernels are cached."""
    if not cell.kernels:
        return f"{_REFUSED} not possible"
    asked, missing = len(cell.kernels), cell.missing(cached)
    mark = _NONE if missing == asked else _SOME if missing else _ALL
    return f"{mark} {asked - missing} of {asked}"


def cell_colours(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> dict[str, str]:
    """Every text in the matrix with its colour."""
    texts = dict.fromkeys(cell_text(cell, cached) for row in cells for cell in row)
    return {text: _COLOURS[text[0]] for text in texts}


def kernel_rows(cells: Iterable[Cell], cached: Collection[str]) -> list[Row]:
    """What is behind the matrix: a row for each kernel that is asked for, and for each cell that can have none."""
    rows = []
    for cell in cells:
        if cell.refused:
            rows.append(_line(cell, None, cell.refused, ""))
        rows += [
            _line(
                cell,
                kernel,
                CACHED if kernel.key in cached else MISSING,
                kernel_address(kernel.key) if kernel.key in cached else "",
            )
            for kernel in cell.kernels
        ]
    return rows


def _line(cell: Cell, kernel: WantedKernel | None, state: str, address: str) -> Row:
    return {
        "Operation": cell.shape.operation,
        "Target": cell.arch,
        "State": state,
        "m": "" if kernel is None else ", ".join(f"{m:,}" for m in kernel.ms),
        "Config": "" if kernel is None else str(kernel.selection.config),
        "Kernel": "" if kernel is None else kernel.key[:12],
        "Look into": address,
    }


def covered_words(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> str:
    """How much of all that is asked for is cached."""
    wanted = {kernel.key for row in cells for cell in row for kernel in cell.kernels}
    there = sum(key in cached for key in wanted)
    return f"{there:,} of {counted(len(wanted), 'kernel')} cached, for m of {', '.join(f'{m:,}' for m in TOKENS)}."


def missing_archs(cells: Iterable[Iterable[Cell]], cached: Collection[str]) -> dict[str, int]:
    """How many kernels are missing, for each target that lacks some."""
    missing: dict[str, set[str]] = {}
    for row in cells:
        for cell in row:
            missing.setdefault(cell.arch, set()).update(k.key for k in cell.kernels if k.key not in cached)
    return {arch: len(keys) for arch, keys in missing.items() if keys}


def warm_command(model: str, dtype: str, archs: Iterable[str]) -> list[str]:
    """The command that compiles what is missing of a model on these targets."""
    named = [word for arch in archs for word in ("--arch", arch)]
    return ["warm", model, "--dtype", dtype, "--m", ",".join(map(str, TOKENS)), *named]
