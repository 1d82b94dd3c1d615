"""Copies demand, the counts of requests over time, into the index: the sums once, then each new line of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from cache_engine.index import rows
from cache_engine.model.events import HOUR_S
from cache_engine.model.shape_counts import Shape, ShapeCounts
from cache_engine.store.journal.demand import FoldedDemand, demand_generation, read_demand, read_lines
from cache_engine.store.layout import StoreLayout
from cache_engine.usage.demand import bucket
from cache_engine.usage.timeline import Timeline

if TYPE_CHECKING:
    import duckdb

_PLACE = ", ".join(("start", "seconds", *Shape.__struct_fields__, "m", "power"))


def sync_demand(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> int:
    """Adds the demand in new lines of the journal to the index; returns the number of rows added.

    When ``demand.json``, the file of sums, has changed, replaces all rows.
    """
    seen = connection.execute("SELECT generation, since FROM demand_read").fetchone()
    while True:
        generation = demand_generation(layout)
        folded = read_demand(layout)
        starting_over = seen is None or seen[0] != folded.generation
        positions: dict[str, int] = {}
        if not starting_over:
            positions = dict(connection.execute("SELECT * FROM demand_positions").fetchall())
        before = dict(positions)
        lines = list(read_lines(layout.journal, folded, positions))
        # If files were folded meanwhile, their lines may be missing from both.
        if demand_generation(layout) == generation:
            break
    if not starting_over and positions == before:
        return 0
    added: list[rows.Row] = []
    since = None if seen is None or starting_over else seen[1]
    if starting_over:
        for table in ("demand", "demand_dropped"):
            connection.execute(f"DELETE FROM {table}")
        since = _since(folded)
        added += _folded_rows(folded)
        rows.insert(connection, "demand_dropped", list(_dropped_rows(folded)))
    added += [row for line in lines for row in _line_rows(line)]
    rows.insert_or_skip(connection, rows.JOURNAL, "demand", added)
    rows.sum_up(connection, "demand", _PLACE)
    since = min([line.at for line in lines] + ([] if since is None else [since]), default=None)
    for table in ("demand_read", "demand_positions"):
        connection.execute(f"DELETE FROM {table}")
    rows.insert(connection, "demand_read", [(folded.generation, since)])
    rows.insert(connection, "demand_positions", list(positions.items()))
    return len(added)


def _since(folded: FoldedDemand) -> float | None:
    return folded.timeline.since if folded.timeline.periods else None


def _folded_rows(folded: FoldedDemand) -> Iterator[rows.Row]:
    for one in Timeline(folded.timeline).periods:
        for shape, sketch in one.sketches.items():
            place = (one.start, one.seconds, *msgspec.structs.astuple(shape))
            for m, counter in sketch.counters.items():
                yield (*place, m, bucket(m), counter.certain)
            for power, requests in enumerate(sketch.tail):
                if requests:
                    yield (*place, 0, power, requests)


def _dropped_rows(folded: FoldedDemand) -> Iterator[rows.Row]:
    return ((one.start, one.seconds, one.dropped) for one in Timeline(folded.timeline).periods if one.dropped)


def _line_rows(line: ShapeCounts) -> Iterator[rows.Row]:
    start = int(line.at // HOUR_S) * HOUR_S
    for m, count in line.asked.items():
        yield (start, HOUR_S, *msgspec.structs.astuple(line.shape), m, bucket(m), float(count))
