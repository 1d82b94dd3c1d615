"""The predicted costs of one pass of a whole model, as tables and as the dashboard's number tiles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.presenters.evaluations import error_words, slower_words
from app.presenters.shared import Row, Tile, total
from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import ModelShape
from cache_engine.evaluator.catalogue.layers import Parallel, layers_named, layers_of
from cache_engine.evaluator.catalogue.model_configs import LARGEST_CONFIG_BYTES, published
from cache_engine.evaluator.chips import Gpu
from cache_engine.insight.passes import ModelPass
from cache_engine.units import human_us


def shapes_on_one_chip(model: str, config: bytes | None, name: str, parallel: Parallel) -> list[ModelShape]:
    """The shapes of a model of the catalogue, or of an uploaded config.json.

    Raises:
        UsageError: naming the field that is wrong, or that a parallel size does not divide.
    """
    if config is None:
        return layers_named(model, parallel)
    if len(config) > LARGEST_CONFIG_BYTES:
        raise UsageError(f"{name} is larger than {LARGEST_CONFIG_BYTES:,} bytes; a model's config.json is small")
    try:
        described = msgspec.json.decode(config)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    return layers_of(published(described, name, name), parallel)


def pass_table(passes: Sequence[ModelPass]) -> list[Row]:
    """A row for each operation with its costs on every chip, and their totals."""
    table = [
        {
            "Operation": first.operation.name,
            "m × n × k": first.operation.shape_text,
            "Batch": first.operation.work.batch,
            "Calls per pass": first.operation.calls,
            "GFLOP": first.flops / 1e9,
            **{f"{one.chip.name}, µs": one.rows[index].cost.latency_us for one in passes},
            **{f"{one.chip.name}, ms per pass": one.rows[index].pass_us / 1e3 for one in passes},
            **{f"{one.chip.name}, share": one.rows[index].pass_us / one.pass_us for one in passes},
            **{f"{one.chip.name}, bound by": one.rows[index].bound_by for one in passes},
            **{f"{one.chip.name}, % of peak": one.rows[index].utilization for one in passes},
            **{f"{one.chip.name}, MB": one.rows[index].moved_bytes / 1e6 for one in passes},
        }
        for index, first in enumerate(passes[0].rows)
    ]
    added = [name for name in table[0] if name == "GFLOP" or name.endswith((", MB", ", share", "per pass"))]
    sums = {name: total(table, name) for name in added if name != "Calls per pass"}
    peak = {f"{one.chip.name}, % of peak": one.utilization for one in passes}
    return [*table, {**dict.fromkeys(table[0]), "Operation": "Total", **sums, **peak}]


def pass_tiles(one: ModelPass) -> list[Tile]:
    """The time of a pass on a chip, and of one layer of each kind, as tiles."""
    return [
        Tile(
            "Pass",
            human_us(one.pass_us),
            f"All products with weights, predicted for {one.chip.name}. The error is that of one product.",
            change=error_words(one.rows[0]) if isinstance(one.chip, Gpu) else "",
        ),
        Tile("% of peak", f"{one.utilization:.1%}", "Achieved ÷ peak FLOP/s, over the pass."),
        *(
            Tile(f"One {kind}", human_us(latency), "All its products, once each.")
            for kind, latency in one.layers().items()
        ),
    ]


def slower_operations(passes: Sequence[ModelPass]) -> str:
    """The reason why a GPU is predicted slower, in some operation, than one that has no higher rates; else empty."""
    said = (slower_words(rows) for rows in zip(*(one.rows for one in passes), strict=True))
    return next(filter(None, said), "")
