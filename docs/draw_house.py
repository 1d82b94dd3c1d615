"""Draws ``images/house.svg``: the rooms of the project on their floors, as ``pyproject.toml`` states them.

Run as ``python docs/draw_house.py``. What each room is for comes from the map in ``cache_engine/__init__.py``; a test
fails when the picture is out of date.
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "house.svg"
_WIDTH, _MARGIN, _GAP, _TOP, _LINE = 1120, 24, 10, 54, 15
_DASHBOARD = {"pages": "one short script for each page", "app": "presenters, widgets, server: the dashboard's frame"}
_SKIPPED = {"cache_engine.__main__", "benchmarks"}  # the house is what users install


def purposes() -> dict[str, str]:
    """What each room of the engine is for, by its name."""
    text = (ROOT / "cache_engine" / "__init__.py").read_text(encoding="utf-8")
    found = dict(_DASHBOARD)
    for entry in re.split(r"\n- ", text.partition("The rooms")[2].partition('"""')[0])[1:]:
        names, _, purpose = " ".join(entry.split()).partition(" -- ")
        rooms = re.findall(r"``(\w+)``", names)
        parts = purpose.split(";") if len(rooms) > 1 else [purpose]
        for room, part in zip(rooms, parts, strict=True):
            found[room] = part.strip().replace("`", "")
    return found


def floors() -> list[list[str]]:
    """The rooms on each floor, top floor first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [[room.strip() for room in layer.split("|")] for layer in contracts[0]["layers"]]
    return [[room.rpartition(".")[2] for room in layer] for layer in layers if not set(layer) <= _SKIPPED]


def draw() -> str:
    """The picture as SVG text."""
    purpose = purposes()
    parts, y = [], _TOP
    for floor in floors():
        width = (_WIDTH - 2 * _MARGIN - _GAP * (len(floor) - 1)) / len(floor)
        texts = [wrap(purpose[room], max(12, int(width / 7.2))) for room in floor]
        height = 30 + _LINE * max(map(len, texts))
        for place, (room, lines) in enumerate(zip(floor, texts, strict=True)):
            x = _MARGIN + place * (width + _GAP)
            kind = "dashboard" if room in _DASHBOARD else "room"
            parts.append(f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6"/>')
            parts.append(f'<text class="name" x="{x + 10:.0f}" y="{y + 19}">{escape(room)}</text>')
            parts += [
                f'<text x="{x + 10:.0f}" y="{y + 19 + _LINE * (line + 1)}">{escape(text)}</text>'
                for line, text in enumerate(lines)
            ]
        y += height + _GAP
    return _page("\n".join(parts), y + _MARGIN - _GAP)


def _page(body: str, height: int) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="t">
<title id="t">The rooms of gemm-cache on their floors; each imports only from floors below it</title>
<style>
text {{ font: 12px system-ui, sans-serif; fill: #27313b; }}
.name {{ font: 600 14px ui-monospace, monospace; fill: #0b3d66; }}
.title {{ font: 600 15px system-ui, sans-serif; }}
rect.room {{ fill: #eef4fa; stroke: #7fa3c4; }}
rect.dashboard {{ fill: #f3effa; stroke: #9d86c4; }}
rect.page {{ fill: #ffffff; }}
</style>
<rect class="page" width="{_WIDTH}" height="{height}"/>
<text class="title" x="{_MARGIN}" y="34">The house: each room imports only from floors below it</text>
{body}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
