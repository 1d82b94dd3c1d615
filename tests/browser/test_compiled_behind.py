"""Cold shapes that two processes ask for: served at once, compiled behind, and seen in the dashboard and the log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from cache_engine import GemmProblem, open_cache
from cache_engine.cache.queue import queue_state
from cache_engine.model.gemm import Specialisation
from cache_engine.store.lock import file_lock
from tests.browser.conftest import served
from tests.cli.test_cli import document

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
THREADS, SLOTS = 12, 1
COLD = GemmProblem(40, 192, 128, arch="sm_80")
LATER = replace(COLD, n=4096)

# Asks with as many threads at once, each for a shape of its own; prints what served each, and what was compiled for it.
_PROGRAM = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from cache_engine import open_cache
from tests.browser.test_compiled_behind import COLD, SLOTS, THREADS

together = threading.Barrier(THREADS)

def ask(number):
    together.wait()
    kernel = cache.get_or_compile(replace(COLD, n=64 * (number + 1)), wait_ms=0)
    wanted = kernel.better
    return kernel.key, wanted and wanted.key, wanted is None or wanted.wait(120)

with open_cache(sys.argv[1], compile_slots=SLOTS) as cache, ThreadPoolExecutor(THREADS) as callers:
    print(json.dumps(list(callers.map(ask, range(THREADS)))))
"""


def _cell(page: Page, text: str | re.Pattern[str]) -> Any:
    """A cell of a table."""
    return page.get_by_role("cell", name=text, include_hidden=True).first


def _ask_from_two_processes(store: Path) -> tuple[set[str], set[str], int]:
    """The keys of what served, those of what was compiled behind, and the most compiles at any time."""
    command, ended, most = [sys.executable, "-c", _PROGRAM, str(store)], threading.Event(), [0]
    layout = open_cache(store).layout

    def watch() -> None:
        before: set[str] = set()
        while not ended.wait(0.005):
            # Seen twice: a look reads one file after the other, while a compile ends and the next begins.
            now = {str(one.key) for one in queue_state(layout, SLOTS).compiling}
            most.append(len(now & before))
            before = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    root = Path(__file__).parents[2]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]
    answers = [answer for process in processes for answer in json.loads(process.communicate(timeout=120)[0])]
    ended.set()
    watcher.join()
    assert all(is_ready for *_, is_ready in answers)
    return {key for key, *_ in answers}, {wanted for _, wanted, _ in answers if wanted}, max(most)


def test_two_processes_with_cold_shapes_are_served_at_once_and_the_dashboard_shows_what_was_compiled_behind(
    page: Page, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with open_cache(store, compile_slots=SLOTS) as cache:
        floor = cache.get_or_compile(replace(COLD, specialisation=Specialisation.DYNAMIC)).key
        cold = {cache.select(replace(COLD, n=64 * (number + 1))).key for number in range(THREADS)}
        served_by, behind, most_compiles = _ask_from_two_processes(store)
        assert floor in served_by <= {floor, *cold}
        assert behind <= cold
        assert {cache.get_or_compile(replace(COLD, n=64 * (number + 1))).tier for number in range(THREADS)} == {"disk"}
        assert most_compiles == SLOTS
        for kind in ("miss", "choice"):
            decided = document("log", "--kind", kind, "--limit", 100, store=store)["rows"]
            assert sorted(one["key"] for one in decided) == sorted({floor, *cold})  # each once, whoever asked

        cache.tally()  # writes what this process has counted
        with served([sys.executable, "-m", "cache_engine"], store) as address:
            one = replace(COLD, n=768)
            page.goto(f"{address}/demand?shape=m+×+768+×+128+bf16+sm_80")
            expect(page.get_by_text("GPU times of sm_80: predicted for A100")).to_be_visible(timeout=WAIT_MS)
            expect(page.get_by_role("link", name=cache.select(one).key[:12]).first).to_be_visible(timeout=WAIT_MS)
            expect(_cell(page, re.compile(r"8\.1%"))).to_be_attached(timeout=WAIT_MS)  # its share: 3 of 37
            expect(_cell(page, "m × 768 × 128 bf16").first).to_be_visible()

            page.goto(f"{address}/kernel?key={cache.select(one).key}&part=History")
            for text in ("miss", "not in the log before", "choice", "cost model"):
                expect(_cell(page, text)).to_be_attached(timeout=WAIT_MS)

            with file_lock(cache.layout.slot_lock(0), 1):
                better = cache.get_or_compile(LATER, wait_ms=0).better
                assert better is not None
                page.goto(address)
                queue = page.get_by_text(re.compile("1 slot in use; 1 waiting, 0 callers among them"))
                expect(queue).to_be_visible(timeout=WAIT_MS)
            assert better.wait(60)
            page.goto(f"{address}/kernel?key={better.key}&part=History")
            expect(_cell(page, "not in the log before")).to_be_attached(timeout=WAIT_MS)
            expect(page.get_by_test_id("stException")).to_have_count(0)
