"""Draws ``images/fleet.svg``: what a fleet asks of a store each second, as ``gemm-cache bench fleet --json`` says.

Run as ``python docs/draw_fleet.py FILE.json``.
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).resolve().parent / "images" / "fleet.svg"
_SHOWN = {
    "cold start, stocked store": "#d62728",
    "cold start over 5 min, stocked store": "#1f77b4",
    "cold start over 5 min, empty store": "#9467bd",
    "cold start over 5 min, a pack each": "#2ca02c",
}
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 380, 70, 90, 40
_SECONDS, _MOST = 320, 5  # the axes end here; powers of ten up


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), encoding="utf-8")


def draw(document: dict[str, Any]) -> str:
    """The picture as SVG text."""
    parts = [_text(_LEFT, 18, f"Requests a second, {document['nodes']:,} machines", "600")]
    for power in range(_MOST + 1):
        y = _y(10**power)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_WIDTH}" y2="{y:.0f}" stroke="#ccc"/>')
        parts.append(_text(8, y + 4, f"{10**power:,}"))
    limit = document["assumed"]["store_requests_per_s"]
    parts.append(f'<line x1="{_LEFT}" y1="{_y(limit):.0f}" x2="{_WIDTH}" y2="{_y(limit):.0f}" stroke="black"/>')
    parts.append(_text(_WIDTH - 250, _y(limit) - 5, f"the store serves {limit:,.0f} a second"))
    parts += [_text(_x(second), _HEIGHT - 12, f"{second} s") for second in range(0, _SECONDS, 60)]
    for number, (name, colour) in enumerate(_SHOWN.items()):
        (found,) = (one for one in document["outcomes"] if one["plan"]["name"] == name)
        asked = {int(second): count for second, count in found["asked"].items() if int(second) < _SECONDS}
        points = " ".join(f"{_x(second):.1f},{_y(asked.get(second, 1)):.1f}" for second in range(max(asked) + 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = _LEFT + 400 * (number % 2), 40 + 20 * (number // 2)
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, y, name))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    back = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    return "\n".join((head, back, *parts, "</svg>", ""))


def _x(second: float) -> float:
    return _LEFT + second * (_WIDTH - _LEFT) / _SECONDS


def _y(count: float) -> float:
    return _HEIGHT - _BOTTOM - math.log10(max(count, 1)) * (_HEIGHT - _TOP - _BOTTOM) / _MOST


def _text(x: float, y: float, words: str, weight: str = "400") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="13" font-weight="{weight}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
