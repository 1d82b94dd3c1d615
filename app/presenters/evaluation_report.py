"""Evaluations as a report to send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from app.presenters.evaluations import (
    comparison_table,
    evaluation_tiles,
    heat_table,
    pass_table,
    pass_tiles,
    roofline_table,
)
from app.presenters.shared import Row, Tile
from cache_engine.insight.passes import ModelPass, Priced
from cache_engine.insight.report.drawing import roofline
from cache_engine.insight.report.page import Facts, Figure, Report, Section, Table

Shares = Sequence[Sequence[float | None]]


def shape_report(evaluated: Sequence[Priced], shares: Sequence[Shares], command: str) -> Report:
    """A shape on one chip or two: its numbers, the roofline and the heat map.

    Args:
        shares: the heat map for each chip.
        command: the command that prints the same numbers.
    """
    sections = [Section(one.chip.name, (_facts(evaluation_tiles(one)),)) for one in evaluated]
    if len(evaluated) == 2:
        sections.append(Section("Comparison", (_table(comparison_table(evaluated)),)))
    sections.append(Section("Roofline", (_roofline(evaluated),)))
    sections += [
        Section(f"% of peak over m (columns) and n (rows), {one.chip.name}", (_table(heat_table(share)),))
        for one, share in zip(evaluated, shares, strict=True)
    ]
    chips = " and ".join(one.chip.name for one in evaluated)
    problem = evaluated[0].operation.work
    types = f"{problem.dtype} in, {problem.out_dtype} out, batch {problem.batch}"
    return Report(f"{evaluated[0].operation.name} on {chips}, predicted", types, command, tuple(sections))


def model_report(name: str, passes: Sequence[ModelPass], command: str) -> Report:
    """A pass of a model on one chip or two: the totals, each operation with its share of the time, and the roofline."""
    sections = [Section(one.chip.name, (_facts(pass_tiles(one)),)) for one in passes]
    sections += [
        Section("Operations", (_table(pass_table(passes)),)),
        Section("Roofline", (_roofline([row for one in passes for row in one.rows]),)),
    ]
    chips = " and ".join(one.chip.name for one in passes)
    return Report(f"{name} on {chips}, predicted", "All products with weights, on one chip", command, tuple(sections))


def _facts(tiles: Iterable[Tile]) -> Facts:
    return Facts({tile.label: f"{tile.value}. {tile.help}" for tile in tiles})


def _roofline(points: Sequence[Priced]) -> Figure:
    return roofline(points, _table(roofline_table(points)))


def _table(rows: Sequence[Row]) -> Table:
    """A table of rows as they are on the page, with columns of words aligned to the left."""
    words = len(list(takewhile(lambda value: isinstance(value, str), rows[0].values())))
    return Table(tuple(rows[0]), tuple(tuple(map(_cell, row.values())) for row in rows), max(1, words))


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
