"""The work that the page Caches waits for: a scan behind it, and the index of other frameworks' entries."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from benchmarks.entries.scans import triton_cache
from benchmarks.results import Report, Result
from benchmarks.timing import compare
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.frameworks.registry import EntryFilter, load_sources
from cache_engine.frameworks.values import Place
from cache_engine.index import framework_queries as queries
from cache_engine.index.framework_caches import scan

_LATER_GOAL_S = 0.600
_GOAL_ENTRIES = 50_000
_WORDS = EntryFilter("tile sm_90")


def caches(report: Report, place: Path, entries: int) -> None:
    """Scans a directory in Triton's layout into the index, again without a change, and asks what the page shows."""
    there = triton_cache(place, entries)
    sources = load_sources()
    with open_cache(place / "index") as cache:
        cache.index.sync()
        started = time.perf_counter()
        scan(cache.index, sources, [there])
        first = time.perf_counter() - started
        again = partial(scan, cache.index, sources, [there])
        name = f"scan of {entries:,} entries into the index"
        report(compare(f"{name}, all unchanged", again, "listing them", partial(_list, there), samples=3))
        started = time.perf_counter()
        sum(1 for _ in sources.by_kind["triton"].scan(there, {}))
        report(Result(f"{name}, the first", first, "the same without an index", time.perf_counter() - started))
        goal = _LATER_GOAL_S if entries <= _GOAL_ENTRIES else None
        asked = partial(_ask, cache)
        name = f"all that the page Caches asks, {entries:,} entries"
        report(compare(name, asked, "count(*)", partial(_count, cache), goal_seconds=goal, samples=5))


def _ask(cache: Cache) -> None:
    """The overview, and the first page of a search."""
    with cache.index.read() as connection:
        for question in (
            queries.places, queries.parts, queries.growth, queries.duplicates, queries.duplicated, queries.diagnoses,
        ):  # fmt: skip
            question(connection)
        for column in ("arch", "version", "kind"):
            queries.counted(connection, column)
        queries.count(connection, _WORDS)
        queries.entries(connection, _WORDS, limit=100)


def _count(cache: Cache) -> None:
    with cache.index.read() as connection:
        connection.execute("SELECT count(*) FROM foreign_entries").fetchone()


def _list(place: Place) -> int:
    return sum(1 for _ in place.path.iterdir())
