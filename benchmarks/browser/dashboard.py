"""The waits of a reader of the dashboard: pages in a real Chromium, on a large index compared with a small one."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.browser.multiply import multiply_rows
from benchmarks.browser.population import add_records, ask, settle
from benchmarks.results import LeftOut, Report, Result, Score, Size
from cache_engine.cache.cache import open_cache
from cache_engine.errors import UsageError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_MAIN, _SLOWEST = "Overview", "Workload"
PAGES = ("Kernels", "Workload", "Compile", "Predict", "Storage", _MAIN)

_FEW = 100
_RECORDS = 10_000
# What pages are to take at so many entries, and what one more letter in the search box is.
_PAGE_GOALS_S = {10_000: 0.300, 1_000_000: 0.600}
_LETTER_GOALS_S = {100_000: 0.250}
_FIRST_GOALS_S = {10_000: 2.0}
_SHIFT_GOAL = 0.1
_MEMORY_GOAL_BYTES = 400e6
# What the server is to compute at most for a page, and for the first visit of Workload, with so many entries.
_CPU_ROWS, _PAGE_GOAL_CPU_S, _FIRST_WORKLOAD_GOAL_CPU_S = 100_000, 0.150, 0.500
_LOAD_GOAL_BYTES = 1.5e6
_SESSIONS = 10
# What is typed in the search. No two begin alike: the server would have the answer already.
_WORDS = ("7168", "4096", "1536", "2048", "5120", "8192", "3072", "6144")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Notes when something is clicked or typed, whether Streamlit has begun to answer, and when the page last changed. What
# stands inside a canvas is never painted: Streamlit writes the words of a table there for screen readers, 200 ms later.
_WATCH = """
() => {
  const now = () => performance.now();
  const start = () => { window.watched = {started: now(), changed: now(), answered: false, shift: 0}; };
  const isPainted = ({target, type}) => {
    const canvas = (target.closest ? target : target.parentElement)?.closest('canvas');
    return !canvas || (target === canvas && type === 'attributes');
  };
  start();
  window.watched.started = 0;  // when the browser was sent here
  new PerformanceObserver(list => {
    for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.watched.shift += shift.value;
  }).observe({type: 'layout-shift', buffered: true});
  for (const kind of ['click', 'keydown']) document.addEventListener(kind, start, {capture: true});
  new MutationObserver(changes => {
    if (changes.some(isPainted)) window.watched.changed = now();
    window.watched.answered ||= changes.some(change => change.attributeName === 'data-test-script-state');
  }).observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true});
}
"""
# The bytes that the browser has fetched for the page, without those over its web socket.
_FETCHED = """
() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .reduce((bytes, entry) => bytes + entry.transferSize, 0)
"""
# Milliseconds from there to the last change, once Streamlit has answered and a quarter of a second brings no other.
# The start of a quick answer may go unseen; then a second without a change means the same.
_AT_REST = """
title => {
  const app = document.querySelector('[data-testid=stApp]');
  const idle = app?.dataset.testScriptState === 'notRunning' && !document.querySelector('[data-stale=true]');
  const there = document.querySelector('h1')?.innerText === title;
  const {started, changed, answered} = window.watched;
  const quiet = performance.now() - changed;
  return idle && there && quiet > (answered ? 250 : 1000) ? changed - started + 0.001 : 0;
}
"""


@dataclass(frozen=True, slots=True)
class _Dashboard:
    """A tab on a dashboard.

    Attributes:
        address: of the dashboard.
        pid: its process.
        first_s: the seconds that the first visit of all took.
        first_bytes: what the browser fetched for that visit.
        first_cpu_s: for each page, what the server computed for the first visit of it.
    """

    tab: Page
    address: str
    pid: int
    first_s: float
    first_bytes: int
    first_cpu_s: dict[str, float]


def dashboard(report: Report, place: Path, rows: int, titles: Sequence[str] = PAGES, samples: int = 5) -> None:
    """The first visit, pages, and a letter more in the search box, with ``rows`` kernels, compared with a hundred.

    And how far what is shown moves while a page is drawn.

    Args:
        titles: of the pages.
        samples: how often each is looked at.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        report(LeftOut("the dashboard in a browser", "run: pip install playwright"))
        return
    executable = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    with ExitStack() as stack:
        chromium = stack.enter_context(sync_playwright()).chromium
        browser = chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        small = stack.enter_context(_opened(browser, place / "few", _FEW))
        large = stack.enter_context(_opened(browser, place / "many", rows))
        firsts = (small.first_s, large.first_s)
        _report(report, f"first visit of a cold server, {rows:,} kernels", firsts, _FIRST_GOALS_S.get(rows))
        for title in titles:
            seconds = _medians(small, large, partial(_visit, title=title), samples)
            _report(report, f"{title}, {rows:,} kernels", seconds, _PAGE_GOALS_S.get(rows))
            cpu_s = (_visit_cpu_s(small, title, samples), _visit_cpu_s(large, title, samples))
            goal = _PAGE_GOAL_CPU_S if rows == _CPU_ROWS else None
            _report(report, f"CPU of the server for {title}, {rows:,} kernels", cpu_s, goal)
        first_cpu_s = (small.first_cpu_s[_SLOWEST], large.first_cpu_s[_SLOWEST])
        goal = _FIRST_WORKLOAD_GOAL_CPU_S if rows == _CPU_ROWS else None
        _report(report, f"CPU of the server for the first visit of {_SLOWEST}, {rows:,} kernels", first_cpu_s, goal)
        for title in titles:
            shift = _shift(large, title)
            report(Score(f"layout shift of {title}, {rows:,} kernels", shift, "opened by its address", _SHIFT_GOAL))
        for each in (small, large):
            _visit(each.tab, "Kernels")
        seconds = _medians(small, large, _type_letter, samples)
        _report(report, f"a letter typed in the search, {rows:,} kernels", seconds, _LETTER_GOALS_S.get(rows))
        load = Size("fetched by a first visit", large.first_bytes, f"{_FEW} kernels", small.first_bytes)
        report(replace(load, goal_ratio=_LOAD_GOAL_BYTES / small.first_bytes))
        few_bytes, many_bytes = (_memory_bytes(each.pid) for each in (small, large))
        name = f"memory of the dashboard, {rows:,} kernels"
        goal = _MEMORY_GOAL_BYTES / few_bytes if rows >= 1_000_000 else None
        report(Size(name, many_bytes, f"{_FEW} kernels", few_bytes, goal))
        for _ in range(_SESSIONS - 1):
            tab = _new_tab(browser)
            for title in (_MAIN, "Kernels", _SLOWEST):
                _arrive(tab, large.address, title)
        ten_bytes, name = _memory_bytes(large.pid), f"memory of the dashboard, {_SESSIONS} sessions"
        report(Size(name, ten_bytes, "one session", many_bytes, _MEMORY_GOAL_BYTES / many_bytes))


def _report(report: Report, name: str, seconds: tuple[float, float], goal: float | None) -> None:
    report(Result(name, seconds[1], f"{_FEW} kernels", seconds[0], goal_seconds=goal))


def _medians(small: _Dashboard, large: _Dashboard, act: Callable[[Page], float], samples: int) -> tuple[float, float]:
    times = [(act(small.tab), act(large.tab)) for _ in range(samples + 1)][1:]
    few, many = zip(*times, strict=True)
    return statistics.median(few), statistics.median(many)


def _visit(tab: Page, title: str) -> float:
    """Seconds that a click in the navigation takes, coming from another page."""
    _go(tab, _elsewhere(title))
    return _go(tab, title)


def _visit_cpu_s(opened: _Dashboard, title: str, samples: int) -> float:
    """Seconds that the server computes for a page, coming from another page: the median of some visits."""
    taken = []
    for _ in range(samples):
        _go(opened.tab, _elsewhere(title))
        before_s = _cpu_s(opened.pid)
        _go(opened.tab, title)
        taken.append(_cpu_s(opened.pid) - before_s)
    return statistics.median(taken)


def _elsewhere(title: str) -> str:
    return "Compile" if title != "Compile" else "Storage"


def _go(tab: Page, title: str) -> float:
    tab.get_by_role("link", name=title, exact=True).click()
    return _rest(tab, title)


def _shift(opened: _Dashboard, title: str) -> float:
    """The shift of a page's content while it is drawn, as Chromium's ``layout-shift`` entries add up.

    By its address: in the half second after a click, none counts.
    """
    _arrive(opened.tab, opened.address, title)
    moved: float = opened.tab.evaluate("window.watched.shift")
    return moved


def _arrive(tab: Page, address: str, title: str) -> float:
    """Seconds from sending the browser to a page's address to its rest."""
    tab.goto(address if title == _MAIN else f"{address}/{title.lower()}")
    return _rest(tab, title)


def _type_letter(tab: Page) -> float:
    """Seconds that one more letter of ``_WORDS`` takes."""
    box = tab.get_by_test_id("stTextInput").locator("input").first
    typed = box.input_value()
    at = next((at for at, word in enumerate(_WORDS) if typed and word.startswith(typed)), 0)
    if typed == _WORDS[at]:
        box.fill(typed := "")
        _rest(tab, "Kernels")
        at = (at + 1) % len(_WORDS)
    box.press(_WORDS[at][len(typed)])
    return _rest(tab, "Kernels")


def _rest(tab: Page, title: str) -> float:
    milliseconds: float = tab.wait_for_function(_AT_REST, arg=title, polling=20).json_value()
    return milliseconds / 1e3


@contextmanager
def _opened(browser: Browser, store: Path, rows: int) -> Iterator[_Dashboard]:
    """A dashboard of a store with so many kernels in the index, whose pages were all visited once."""
    with open_cache(store, durability="fast") as cache:
        add_records(cache, min(rows, _RECORDS))
        ask(cache, min(rows, _RECORDS))
        settle(cache)
        cache.index.sync()
        multiply_rows(cache.layout, rows)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cache_engine", "--store", str(store), "dashboard", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        tab = _new_tab(browser)
        address = f"http://127.0.0.1:{port}"
        _wait_until_served(address, server)
        first_s = _arrive(tab, address, _MAIN)
        first_bytes: int = tab.evaluate(_FETCHED)
        first_cpu_s = {}
        for title in PAGES:  # the first time, a page's modules are loaded
            before_s = _cpu_s(server.pid)
            _go(tab, title)
            first_cpu_s[title] = _cpu_s(server.pid) - before_s
        yield _Dashboard(tab, address, server.pid, first_s, first_bytes, first_cpu_s)
    finally:
        server.terminate()
        server.wait(timeout=20)


def _new_tab(browser: Browser) -> Page:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.add_init_script(f"document.addEventListener('DOMContentLoaded', {_WATCH})")
    return tab


def _wait_until_served(address: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):  # noqa: S310 (our own server)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise UsageError("the dashboard ended before it served a page; gemm-cache dashboard says why")


def _cpu_s(pid: int) -> float:
    """Seconds of processor time that a process and its ended children have used."""
    ticks = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]
    return max(sum(map(int, ticks)), 1) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise UsageError(f"process {pid} has ended")
