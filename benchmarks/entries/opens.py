"""Opening a store: how little it matters how much is in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.browser.population import add_records
from benchmarks.results import Report
from benchmarks.timing import compare
from cache_engine.cache.cache import open_cache

_FEW = 10
_GOAL = 1.5


def opening(report: Report, place: Path, entries: int) -> None:
    """Opens a store that grows to ten times ``entries``, each time compared with one of 10 entries.

    Entries are records without compiled code: a record is what makes an entry exist.
    """
    few, many = place / "few", place / "many"
    _grow(few, 0, _FEW)
    there = 0
    for size in (entries // 100, entries // 10, entries, entries * 10):
        if size <= _FEW:
            continue
        _grow(many, there, size)
        there = size
        name, beside = f"open a store of {size:,}", f"open a store of {_FEW}"
        report(compare(name, partial(_open, many), beside, partial(_open, few), goal_ratio=_GOAL, calls=10))


def _grow(folder: Path, there: int, size: int) -> None:
    with open_cache(folder, durability="fast") as cache:
        add_records(cache, size - there, first=there)


def _open(folder: Path) -> None:
    with open_cache(folder):
        pass
