"""Draws ``images/kernel-grouped.svg``: tiles of C of groups with few, many and no rows, and which block computes each.

Run as ``python docs/draw_groups.py``. Which tiles there are, and whose, follows from the counts as in the kernel.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent / "images" / "kernel-grouped.svg"
_COUNTS, _M = (5, 0, 17, 3), 12  # rows of each group; with masked, each has room for so many
_BLOCK_M, _COLUMNS, _BLOCKS = 8, 3, 4
_COLOURS = ("#1f77b4", "#7f7f7f", "#2ca02c", "#d62728")
_ROW, _TILE_WIDTH, _TOP = 11, 70, 64


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(draw(), encoding="utf-8")


def draw() -> str:
    """The picture as SVG text."""
    starts = [sum(_COUNTS[:group]) for group in range(len(_COUNTS))]
    parts = [
        _text(20, 20, f"counts on the device: {', '.join(map(str, _COUNTS))}; each block takes every {_BLOCKS}th tile")
    ]
    parts += _matrix(20, "grouped: one C of all rows", starts, _COUNTS, sum(_COUNTS))
    masked = tuple(min(count, _M) for count in _COUNTS)
    parts += _matrix(380, f"masked: room for {_M} rows each", [_M * group for group in range(4)], masked, 4 * _M)
    height = _TOP + 4 * _M * _ROW + 20
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {height}" font-family="sans-serif" font-size="13">'
    )
    return "\n".join((head, f'<rect width="740" height="{height}" fill="white"/>', *parts, "</svg>", ""))


def _matrix(left: int, title: str, starts: list[int], counts: tuple[int, ...], rows: int) -> list[str]:
    """One C, with the tiles of each group and, in each, the block that computes it."""
    parts, number = [_text(left, _TOP - 12, title)], 0
    parts.append(_box(left, _TOP, _COLUMNS * _TILE_WIDTH, rows * _ROW, "#f2f2f2", "#999"))
    for group, (start, count) in enumerate(zip(starts, counts, strict=True)):
        middle = _TOP + (start + max(count, 1) / 2) * _ROW + 4
        parts.append(_text(left + _COLUMNS * _TILE_WIDTH + 8, middle, f"group {group}: {count} rows"))
        for column in range(_COLUMNS):
            for first in range(0, count, _BLOCK_M):
                # Tiles go down the rows first, then to the next column, as the kernel numbers them.
                tile = number + column * -(-count // _BLOCK_M) + first // _BLOCK_M
                x, y, held = left + column * _TILE_WIDTH, _TOP + (start + first) * _ROW, min(_BLOCK_M, count - first)
                parts.append(_box(x, y, _TILE_WIDTH, held * _ROW, _COLOURS[group], "white"))
                parts.append(_text(x + 8, y + held * _ROW / 2 + 5, f"block {tile % _BLOCKS}", "white"))
        number += _COLUMNS * -(-count // _BLOCK_M)
    return parts


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{stroke}"/>'


def _text(x: float, y: float, text: str, colour: str = "black") -> str:
    return f'<text x="{x}" y="{y:.0f}" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    main()
