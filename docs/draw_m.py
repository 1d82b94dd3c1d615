"""Draws ``images/m-and-kernels.svg``: one layer with four numbers of rows, and the kernels that serve them.

Run as ``python docs/draw_m.py``. Configs and ranges are what the cost model chooses; a test fails when the picture is
out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from itertools import groupby
from pathlib import Path

from cache_engine import GemmProblem
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import Specialisation

PICTURE = Path(__file__).resolve().parent / "images" / "m-and-kernels.svg"
_LAYER = GemmProblem(1, 7168, 2048, dtype="bf16", arch="sm_90a")
_MS, _LAST = (1, 16, 128, 4096), 8192
_CONSTANTS = {
    Specialisation.NK: ("nk (default)", "n, k are constants", "m is an argument"),
    Specialisation.BUCKETED: ("bucketed", "as nk, and m is at most", "the next power of two"),
    Specialisation.EXACT: ("exact", "m, n, k are constants", ""),
    Specialisation.DYNAMIC: ("dynamic", "no constants; one kernel", "also for other n and k"),
}
_WIDTH, _LEFT, _COLUMN, _TOP, _ROW, _GAP = 1010, 190, 175, 92, 92, 8


def kernel(specialisation: Specialisation, m: int) -> tuple[str, str]:
    """The name of the kernel that serves the layer with m rows, and its config. Another name is another kernel."""
    problem = replace(_LAYER, m=m, specialisation=specialisation)
    family, config = choose(problem)
    return str(family.constants(problem, config)["KERNEL_NAME"]), str(config)


def served(names: list[str], name: str) -> str:
    """The m that one kernel serves, as text; ``names[0]`` is the kernel of m = 1."""
    ranges = []
    for is_served, members in groupby(range(1, _LAST + 1), key=lambda m: names[m - 1] == name):
        ms = list(members)
        if is_served:
            ranges.append(f"{ms[0]}" if len(ms) == 1 else f"{ms[0]}–{ms[-1]}")
    return "every m" if ranges == [f"1–{_LAST}"] else "m = " + ", ".join(ranges)


def draw() -> str:
    """The picture as SVG text."""
    parts = [_text(_LEFT + column * _COLUMN + 10, 80, f"m = {m}", "name") for column, m in enumerate(_MS)]
    parts.append(_text(_LEFT + 4 * _COLUMN + 10, 80, "m = 1–8192", "name"))
    for row, (specialisation, (title, *lines)) in enumerate(_CONSTANTS.items()):
        y = _TOP + row * (_ROW + _GAP)
        parts.append(_text(20, y + 24, title, "name"))
        parts += [_text(20, y + 44 + 16 * place, line) for place, line in enumerate(lines)]
        names = [kernel(specialisation, m)[0] for m in range(1, _LAST + 1)]
        parts += _cells(specialisation, names, y)
        count = len(set(names))
        parts.append(_text(_LEFT + 4 * _COLUMN + 10, y + 24, f"{count} kernel{'s' * (count > 1)}"))
    return _page("\n".join(parts), _TOP + len(_CONSTANTS) * (_ROW + _GAP) + 6)


def _cells(specialisation: Specialisation, names: list[str], y: int) -> Iterator[str]:
    """One box for each kernel, as wide as the requests that it serves, and the outcome of each request."""
    for name, members in groupby(range(len(_MS)), key=lambda column: names[_MS[column] - 1]):
        columns = list(members)
        x = _LEFT + columns[0] * _COLUMN
        kind = "default" if specialisation is Specialisation.NK else "other"
        yield f'<rect class="{kind}" x="{x}" y="{y}" width="{len(columns) * _COLUMN - _GAP}" height="{_ROW}" rx="6"/>'
        yield _text(x + 10, y + 24, kernel(specialisation, _MS[columns[0]])[1], "config")
        head, *rest = served(names, name).split(", ")
        texts = [head, ", ".join(rest)] if rest else [head]
        yield from (_text(x + 10, y + 43 + 15 * place, text) for place, text in enumerate(texts))
        for place, column in enumerate(columns):
            outcome = "hit" if place else "compiles"
            yield _text(_LEFT + column * _COLUMN + 10, y + 81, outcome, outcome)


def _text(x: float, y: float, text: str, kind: str = "plain") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _page(body: str, height: int) -> str:
    title = f"One layer, n = {_LAYER.n} and k = {_LAYER.k} in bf16 on sm_90a: which kernel serves which m"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="t">
<title id="t">{title}</title>
<style>
text {{ font: 12px system-ui, sans-serif; fill: #27313b; }}
.title {{ font: 600 15px system-ui, sans-serif; }}
.name {{ font: 600 14px system-ui, sans-serif; fill: #0b3d66; }}
.config {{ font: 600 12px ui-monospace, monospace; fill: #0b3d66; }}
.compiles {{ font-weight: 600; fill: #a04000; }}
.hit {{ font-weight: 600; fill: #1c7a3c; }}
rect.default {{ fill: #e2f0e4; stroke: #5fa06c; }}
rect.other {{ fill: #eef4fa; stroke: #7fa3c4; }}
rect.page {{ fill: #ffffff; }}
</style>
<rect class="page" width="{_WIDTH}" height="{height}"/>
<text class="title" x="20" y="30">{title}</text>
<text x="20" y="50">Requests from left to right, into an empty store. A box is one kernel; its config is on top.</text>
{body}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
