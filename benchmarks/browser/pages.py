"""The work that pages wait for: syncing the index, and every query that a page asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.browser.population import FIRST_MADE_AT, add_entries, add_records, settle
from benchmarks.results import Report
from benchmarks.timing import compare
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.index import queries, summaries
from cache_engine.index.queries import KernelFilter
from cache_engine.model.events import DAY_S, HOUR_S
from cache_engine.model.gemm import GemmProblem


def syncing(report: Report, place: Path, entries: int) -> None:
    """Syncs of an index: of all records compared with reading their files; of nothing, with listing a folder."""
    with open_cache(place / "synced", durability="fast") as synced:
        add_entries(synced, entries)
    with open_cache(place / "synced") as cache:
        paths = list(cache.layout.metadata.rglob("*.json"))
        sync = partial(cache.index.sync, rebuild=True)
        goal = 2.0 if entries == 10_000 else None
        read = partial(_read_all, paths)
        name = f"sync of {entries:,} new records"
        report(compare(name, sync, "reading their files", read, goal_seconds=goal, samples=3))
        settle(cache)
        cache.index.sync()
        report(compare("sync with nothing new", cache.index.sync, "listing a folder", _lister(cache), samples=50))


def _read_all(paths: list[Path]) -> None:
    for path in paths:
        path.read_bytes()


def _lister(cache: Cache) -> Callable[[], object]:
    return partial(os.listdir, cache.layout.metadata)


def asking(report: Report, place: Path, rows: int) -> None:
    """Every query that a page asks compared with counting the rows, on an index of ``rows``."""
    with open_cache(place / "mirrored", durability="fast") as cache:
        for number, key in enumerate(add_records(cache, rows)):
            if number % 5 == 0:
                cache.journal.hit(key, "disk", made_at=FIRST_MADE_AT + number, saved_us=100_000)
        for m in range(1, 2001):
            for n in range(1024, 9216, 1024):
                cache.journal.asked(GemmProblem(m, n, 4096, arch="sm_90"))
        cache.journal.flush()
        cache.index.sync()
        with cache.index.read() as connection:
            for name, ask in _questions(connection):
                report(
                    compare(
                        f"{name}, {rows:,} rows",
                        ask,
                        "count(*)",
                        lambda: connection.execute("SELECT count(*) FROM kernels").fetchone(),
                        goal_seconds=0.050 if rows == 100_000 else None,
                        samples=20,
                    )
                )

        def opened() -> None:
            with cache.index.read() as fresh:
                fresh.execute("SELECT 1").fetchone()

        report(compare("opening the index to read", opened, "reading its first page", _page_reader(cache), samples=20))


def _page_reader(cache: Cache) -> Callable[[], object]:
    def read() -> bytes:
        # A file next to it: opening DuckDB's own would drop its lock.
        with cache.layout.marker.open("rb") as file:
            return file.read(4096)

    return read


def _questions(connection: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every query that a page asks."""
    first = queries.kernels(connection, KernelFilter(), limit=1)[0]["key"]
    filters = KernelFilter(archs=("sm_90",), dtypes=("bf16",))
    yield "overview", partial(queries.overview, connection)
    yield "recent events", partial(queries.events, connection)
    yield "busiest", partial(queries.busiest, connection)
    yield "facets", partial(queries.facets, connection)
    yield "how many match a search", partial(queries.count, connection, KernelFilter(text="sm_90 bf16 7168"))
    yield "first page", partial(queries.kernels, connection, KernelFilter(), limit=25)
    yield "last page", partial(queries.kernels, connection, KernelFilter(), limit=25, offset=90_000)
    yield "search", partial(queries.kernels, connection, KernelFilter(text="sm_90 bf16 7168"), limit=25)
    yield "filters", partial(queries.kernels, connection, filters, sort="compile time", limit=25)
    yield "one kernel", partial(queries.kernel, connection, first)
    yield "architectures", partial(queries.architectures, connection)
    yield "toolchains", partial(queries.made_with, connection)
    yield "demand", partial(summaries.ledger, connection, 7.0 * DAY_S, FIRST_MADE_AT)
    yield "history by the hour", partial(queries.history, connection, HOUR_S)
