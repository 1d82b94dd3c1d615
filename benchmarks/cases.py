"""The benchmarks, in the order in which they run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import farm
from benchmarks.browser import dashboard, pages
from benchmarks.entries import caches, calls, footprint, growth, hits, launcher, opens, peers, publish, remotes, scans
from benchmarks.entries.subjects import PROBLEM
from benchmarks.kernels import compile_time, warm
from benchmarks.results import LeftOut, Report, Result
from benchmarks.timing import medians, processor_seconds
from cache_engine.cache.cache import open_cache
from cache_engine.errors import ExtraMissing
from cache_engine.settings.extras import require

ALL, COMPILE, STORE, PAGES, EVALUATOR, DASHBOARD = "all", "compile", "store", "pages", "evaluator", "dashboard"
FARM = "farm"
SETS = (ALL, COMPILE, STORE, PAGES, EVALUATOR, DASHBOARD, FARM)
"""Everything but the last two, the compilers, the store and its peers, the wait for pages, the evaluator, the dashboard
in a browser, or workers of a compile farm."""

_FIRST_HIT = """
from cache_engine import GemmProblem, open_cache
with open_cache({store!r}) as cache:
    if cache.get_or_compile(GemmProblem({sizes}, arch={arch!r})).tier != "disk":
        raise SystemExit("no hit on disk")
"""
_FIRST_HIT_GOAL = 0.060  # seconds of processor time
_STARTS = 21


def run(report: Report, chosen: str, entries: int, rows: int) -> None:
    """Runs the cases of a set and reports each line as it comes.

    Args:
        chosen: one of ``SETS``.
        entries: how many entries the large store has.
        rows: how many records are in the index for the queries.
    """
    with tempfile.TemporaryDirectory(prefix="gemm-cache-bench-") as folder:
        place = Path(folder)
        if chosen == ALL:
            _entering(report, place / "entering")
            warm.warming(report, place)
        if chosen in (ALL, COMPILE):
            compile_time.compiling(report, place)
        if chosen in (ALL, STORE):
            _store(report, place, entries)
        for name, measure in ((PAGES, partial(_pages, rows=rows)), (EVALUATOR, _evaluator)):
            try:
                if chosen in (ALL, name):
                    measure(report, place, entries)
            except ExtraMissing as error:
                if chosen != ALL:
                    raise
                report(LeftOut(name, str(error)))
        if chosen == FARM:
            farm.farming(report, place / "farm")
        if chosen == DASHBOARD:
            require("dashboard", "the dashboard")
            for indexed in (entries, rows, 10 * rows):
                dashboard.dashboard(report, place / f"dashboard-{indexed}", indexed)


def _store(report: Report, place: Path, entries: int) -> None:
    peers.announce(report)
    with open_cache(place / "one", durability="fast") as cache:
        hits.hits(report, cache, place)
        hits.keys(report, cache)
    calls.calls(report)
    peers.lookups(report, place)
    publish.publishing(report, place)
    remotes.remotes(report, place / "remotes")
    launcher.launcher(report, place / "launcher")
    footprint.footprint(report, place, entries)
    scans.scanning(report, place / "scanning", entries)
    growth.growing(report, place / "growing", entries)
    opens.opening(report, place, entries)  # the last: its many new files keep the disk busy for a while


def _pages(report: Report, place: Path, entries: int, rows: int) -> None:
    pages.syncing(report, place, entries)
    pages.asking(report, place, rows)
    caches.caches(report, place / "caches", entries)


def _evaluator(report: Report, place: Path, entries: int) -> None:
    from benchmarks import evaluator  # which needs NumPy

    evaluator.evaluating(report, place / "evaluator", entries)


def _entering(report: Report, place: Path) -> None:
    """Starting Python and importing, less starting Python, compared with starting Python; and up to a first hit."""
    for statement, goal in (("import cache_engine", 0.080), ("from cache_engine import open_cache", None)):
        bare, entered = medians([partial(_python, "pass"), partial(_python, statement)], samples=15)
        report(Result(f"{statement}, less bare Python", entered - bare, "python -c pass", bare, goal))
    with open_cache(place / "store", durability="fast") as cache:
        cache.get_or_compile(PROBLEM)
    sizes = f"{PROBLEM.m}, {PROBLEM.n}, {PROBLEM.k}"
    hit = _FIRST_HIT.format(store=str(place / "store"), sizes=sizes, arch=PROBLEM.arch)
    # As an installed package is: its modules compiled once, before.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(place / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    starts = [
        [processor_seconds([sys.executable, "-c", code], env) for code in ("pass", hit)] for _ in range(_STARTS + 1)
    ]
    bare, entered = (median(each) for each in zip(*starts[1:], strict=True))
    name = "import, open, first hit and close, less bare Python, processor time"
    report(Result(name, entered - bare, "python -c pass", bare, _FIRST_HIT_GOAL))


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
