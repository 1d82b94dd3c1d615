"""Figures as SVG, without a library: bars, columns of several series, points under rooflines, and tiles to scale.

Colours are variables of the report's styles, so a figure follows light mode, dark mode and paper. Each mark has its
number as a title, which a pointer shows and a screen reader reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from cache_engine.insight.inspection import Level, Roles, Walk, levels, plain, roles, scale_blocks, walk
from cache_engine.insight.passes import Priced
from cache_engine.insight.report.page import COLOURS, Figure, Table, safe
from cache_engine.model.artifact import Record
from cache_engine.units import counted

WIDTH = 640
_LABEL, _ROW, _TALL, _WIDEST = 150, 22, 240, 90
_COLOURS = tuple(f"var(--c{number})" for number in range(6))
_MUTED = "var(--muted)"
_MOST_PARTS, _MOST_STAGES, _MOST_IN_RING, _MOST_OF_A_GROUP = 64, 6, 16, 8
_MOST_SCALES = 16  # whose borders are drawn; more would hide the tile
_RING = 440


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar: its name, the number that its length shows, that number as text, and whether it is muted."""

    name: str
    value: float
    words: str
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a figure: its name, and one value for each group of columns."""

    name: str
    values: Sequence[float]
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class Point:
    """A point on logarithmic axes; both numbers are positive."""

    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Roof:
    """The roofline of a chip: ``slope`` times x, but at most ``top``; and the points drawn below that line."""

    name: str
    slope: float
    top: float
    points: Sequence[Point]


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars, one below the other."""
    longest = max((row.value for row in rows), default=0) or 1
    room = WIDTH - _LABEL - 90
    drawn = []
    for place, row in enumerate(rows):
        top, length = place * _ROW, room * row.value / longest
        colour = _MUTED if row.muted else _COLOURS[0]
        drawn += [
            _text(_LABEL - 8, top + 15, row.name, "end"),
            _rectangle(_LABEL, top + 3, length, _ROW - 6, colour, f"{row.name}: {row.words}"),
            _text(_LABEL + length + 6, top + 15, row.words),
        ]
    return _drawing(_ROW * len(rows), drawn)


def columns(names: Sequence[str], series: Sequence[Series], *, stacked: bool = False) -> str:
    """Columns of several series, grouped by name, side by side or stacked."""
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    highest = max(sums if stacked else [value for one in series for value in one.values], default=0) or 1
    step = min(_WIDEST, (WIDTH - 20) / max(1, len(names)))
    breadth = step * 0.85 if stacked else step * 0.85 / max(1, len(series))
    drawn, bottom = [], _TALL - 20
    for place, name in enumerate(names):
        left, height = 10 + place * step, 0.0
        for number, one in enumerate(series):
            tall = (bottom - 30) * one.values[place] / highest
            x = left if stacked else left + number * breadth
            words = f"{name}, {one.name}: {one.words[place]}"
            drawn.append(_rectangle(x, bottom - height - tall, breadth, tall, _COLOURS[number % len(_COLOURS)], words))
            height += tall if stacked else 0
    every = math.ceil(len(names) / 8)
    drawn += [
        _text(10 + (place + 0.42) * step, _TALL - 4, name, "middle")
        for place, name in enumerate(names)
        if place % every == 0
    ]
    return _drawing(_TALL, [*_legend([one.name for one in series]), *drawn])


def roofs(shown: Sequence[Roof], across: str, up: str) -> str:
    """Points under the rooflines of their chips; both axes are logarithmic."""
    points = [point for roof in shown for point in roof.points]
    ridges = [roof.top / roof.slope for roof in shown]
    low, high = min(*ridges, *(point.x for point in points)) / 4, max(*ridges, *(point.x for point in points)) * 4
    tops = [roof.top for roof in shown]
    bottom = min(*(point.y for point in points), *(min(roof.top, roof.slope * low) for roof in shown)) / 2
    left, base, right, ceiling = 60, 260, WIDTH - 20, 40

    def at(x: float, y: float) -> tuple[float, float]:
        across_share = math.log(x / low) / math.log(high / low)
        up_share = math.log(y / bottom) / math.log(max(tops) * 2 / bottom)
        return left + (right - left) * across_share, base - (base - ceiling) * up_share

    drawn = _legend([roof.name for roof in shown])
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        x, _ = at(10.0**power, bottom)
        drawn += [_line([(x, ceiling), (x, base)], "var(--line)", 1), _text(x, base + 16, f"{10.0**power:g}", "middle")]
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(max(tops) * 2)) + 1):
        _, y = at(low, 10.0**power)
        drawn += [_line([(left, y), (right, y)], "var(--line)", 1), _text(left - 6, y + 4, f"{10.0**power:g}", "end")]
    drawn += [_text((left + right) / 2, base + 34, across, "middle"), _text(4, ceiling - 6, up)]
    for number, roof in enumerate(shown):
        colour = _COLOURS[number % len(_COLOURS)]
        corners = [at(x, min(roof.top, roof.slope * x)) for x in (low, roof.top / roof.slope, high)]
        drawn.append(_line(corners, colour, 2, "6 4" if number else ""))
        for point in roof.points:
            x, y = at(point.x, point.y)
            drawn.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"><title>{safe(point.name)}: '
                f"{point.y:,.1f} at {point.x:,.1f}</title></circle>"
            )
    return _drawing(base + 44, drawn)


def alone(svg: str, scheme: str) -> str:
    """A figure as an SVG file with the colours of the report; ``scheme`` is ``light`` or ``dark``."""
    style = (
        f"{COLOURS} :root {{ color-scheme: {scheme} }} text {{ fill: var(--ink); font: 12px system-ui, sans-serif }}"
    )
    return svg.replace(">", f"><style>{style}</style>", 1)


def roofline(points: Sequence[Priced], table: Table) -> Figure:
    """Predicted rates of problems on chips, under the rooflines of the chips."""
    shown = [
        Roof(
            chip.name,
            chip.dram_bandwidth / 1e12,
            peak / 1e12,
            [
                Point(f"{one.operation.name}, {chip.name}", one.intensity, one.rate / 1e12)
                for one in points
                if (one.chip, one.peak) == (chip, peak)
            ],
        )
        for chip, peak in dict.fromkeys((point.chip, point.peak) for point in points)
    ]
    return Figure("Predicted rate under the roofline", roofs(shown, "FLOP/byte", "TFLOP/s, predicted"), table)


def tiles(record: Record) -> str:
    """A kernel's tile of C with its warps, one warp's instructions, and the stages of A and B next to it, to scale.

    Below, not to scale: the warps that fill the stages and those that empty them, where not every warp does both; and
    the groups of rows that blocks go through.
    """
    config, chain = record.config, levels(record)
    parts, scales, groups = roles(record), scale_blocks(record), walk(record)
    m, n, k = config.block_m, config.block_n, config.block_k
    scale = 300 / max(m, n)
    gap = 28.0
    left, top = k * scale + 2 * gap, k * scale + 2 * gap
    drawn = []
    for stage in reversed(range(min(config.stages, _MOST_STAGES))):
        back = stage * 4.0
        opacity = 0.12 if stage else 0.4
        a = _rectangle(left - gap - k * scale - back, top - back, k * scale, m * scale, _COLOURS[1], f"A {m} × {k}")
        b = _rectangle(left - back, top - gap - k * scale - back, n * scale, k * scale, _COLOURS[2], f"B {k} × {n}")
        drawn += [f'<g opacity="{opacity}">{a}{b}</g>']
    of_a = of_b = ""
    if scales is not None:
        of_a, of_b = f", scales {scales.a_rows} × {scales.k}", f", scales {scales.k} × {scales.b_columns}"
        drawn += [
            _rectangle(left - gap - 6, top, 6, m * scale, _COLOURS[4], f"A{of_a}"),
            _rectangle(left, top - gap - 6, n * scale, 6, _COLOURS[4], f"B{of_b}"),
        ]
        edge_a, edge_b = left - gap - k * scale, top - gap - k * scale
        rows = [top + row * scale for row in range(0, m, scales.a_rows)]
        sides = [left + column * scale for column in range(0, n, scales.b_columns)]
        borders = [((edge_a, y), (left - gap, y)) for y in rows if len(rows) <= _MOST_SCALES]
        borders += [((x, edge_b), (x, top - gap)) for x in sides if len(sides) <= _MOST_SCALES]
        drawn += [_line(border, _COLOURS[4], 1) for border in borders]
    block = _rectangle(left, top, n * scale, m * scale, _COLOURS[0], f"Block {m} × {n}")
    drawn.append(f'<g opacity=".25">{block}</g>')
    drawn += _grids(chain[1:], left, top, scale)
    stages = f"{config.stages} stages" if config.stages > 1 else "1 stage"
    drawn += [
        _text(left, 14, f"B {k} × {n}, {stages}{of_b}"),
        _text(4, top + m * scale + 18, f"A {m} × {k}, {stages}{of_a}"),
    ]
    below = [" · ".join(f"{level.name} {plain(level.m)} × {plain(level.n)}" for level in chain)]
    below += [f"split-k over {config.split_k} blocks"] if config.split_k > 1 else []
    below += [f"cluster of {config.cluster} blocks, one below the other, shares B"] if config.cluster > 1 else []
    drawn += [_text(4, top + m * scale + 18 * line, words) for line, words in enumerate(below, 2)]
    bottom, right = top + m * scale + 26 + 18 * len(below), max(left + n * scale + 8, 0.8 * _RING)
    if parts is not None:
        drawn += [*_consumers(chain[1], parts, left, top, scale), *_ring(parts, config.stages, bottom + 10)]
        bottom, right = bottom + 60, max(right, _RING)
    if groups is not None:
        drawn += _groups(groups, bottom + 10)
        bottom, right = bottom + 76, max(right, _RING)
    return _drawing(bottom, drawn, right)


def _grids(levels: Sequence[Level], left: float, top: float, scale: float) -> list[str]:
    """Draws the warps over the block's tile, and in the first warp its instructions or lanes."""
    drawn = []
    for number, level in enumerate(levels):
        if max(level.along_m, level.along_n) > _MOST_PARTS:
            continue
        high, broad = float(level.m * level.along_m) * scale, float(level.n * level.along_n) * scale
        colour, thick = ("var(--c0)", 2.0) if number == 0 else ("var(--grey)", 0.5)
        for row in range(int(level.along_m) + 1):
            y = top + row * float(level.m) * scale
            drawn.append(_line([(left, y), (left + broad, y)], colour, thick))
        for column in range(int(level.along_n) + 1):
            x = left + column * float(level.n) * scale
            drawn.append(_line([(x, top), (x, top + high)], colour, thick))
    return drawn


def _consumers(group: Level, parts: Roles, left: float, top: float, scale: float) -> list[str]:
    """Names each group of warps that multiplies, in the part of the tile that it computes."""
    if not group.along_m * group.along_n == parts.consumers <= _MOST_IN_RING:
        return []
    high, broad = float(group.m) * scale, float(group.n) * scale
    places = product(range(int(group.along_m)), range(int(group.along_n)))
    return [
        _text(left + (column + 0.5) * broad, top + (row + 0.5) * high, f"Consumer {number}", "middle")
        for number, (row, column) in enumerate(places, 1)
    ]


def _ring(roles: Roles, stages: int, top: float) -> list[str]:
    """Draws the ring of stages, from the warps that copy to the warps that multiply."""
    side, shown = 110.0, min(stages, _MOST_IN_RING)
    step = (_RING - 2 * side - 40) / shown
    drawn = [
        _rectangle(4, top, side, 20, _COLOURS[3], f"{roles.producers} × {roles.produce}"),
        *(
            _rectangle(side + 20 + stage * step, top, 0.85 * step, 20, _COLOURS[1], f"Stage {stage + 1}")
            for stage in range(shown)
        ),
        _rectangle(_RING - side - 4, top, side, 20, _COLOURS[0], f"{roles.consumers} × {roles.consume}"),
    ]
    words = (
        (4.0, f"{counted(roles.producers, 'producer')}, {roles.produce}", "start"),
        (_RING / 2, f"→ {stages} stages →", "middle"),
        (_RING - 4, f"{counted(roles.consumers, 'consumer')}, {roles.consume}", "end"),
    )
    return [*drawn, *(_text(x, top + 36, text, anchor) for x, text, anchor in words)]


def _groups(walk: Walk, top: float) -> list[str]:
    """Draws the first three groups of rows and the last; the colour of a tile shows the block that computes it."""
    numbers = [*range(1, min(walk.groups, 3) + 1), *([walk.groups] if walk.groups > 3 else [])]
    shown, step, drawn = max(1, min(walk.tiles, _MOST_OF_A_GROUP)), (_RING - 8) / 4, []
    wide = 0.85 * step / shown
    for place, number in enumerate(numbers):
        left = 4 + place * step
        for tile in range(shown):
            block = ((number - 1) * walk.tiles + tile) % 3
            words = f"Group {number:,}, tile {tile + 1}"
            drawn.append(_rectangle(left + tile * wide, top, wide - 1, 20, _COLOURS[block], words))
        drawn.append(_text(left, top + 36, f"{'… ' if number > place + 1 else ''}Group {number:,}"))
    words = f"{counted(walk.tiles, 'tile')} each, if rows are even; colours: which block computes it"
    return [*drawn, _text(4, top + 54, words)]


def _legend(names: Sequence[str]) -> list[str]:
    drawn, x = [], 10.0
    for number, name in enumerate(names):
        drawn += [_rectangle(x, 4, 12, 12, _COLOURS[number % len(_COLOURS)], name), _text(x + 17, 14, name)]
        x += 36 + 7 * len(name)
    return drawn


def _drawing(height: float, drawn: Sequence[str], width: float = WIDTH) -> str:
    kind = "chart" if width == WIDTH else "picture"
    return f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">{"".join(drawn)}</svg>\n'


def _rectangle(x: float, y: float, width: float, height: float, colour: str, words: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
        f"<title>{safe(words)}</title></rect>"
    )


def _line(corners: Sequence[tuple[float, float]], colour: str, thick: float, dash: str = "") -> str:
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{through}" fill="none" stroke="{colour}" stroke-width="{thick}"{dashed}/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(words)}</text>'
