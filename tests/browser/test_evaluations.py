"""The Evaluations page in a real Chromium: a link shows a colleague the same, and files can be taken away."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from app.presenters.evaluations import chip_text
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.search import evaluate
from cache_engine.store.disk import open_store
from cache_engine.units import human_us
from tests.browser.conftest import served

pytestmark = pytest.mark.browser
WAIT_MS = 60_000
MINE = replace(PRESETS["SG2262"], name="Mine 2.0", num_cores=128)


# Many ways to cut the work, many sizes of tile, the largest sizes: minutes for a search, hours for a heat-map.
ENDLESS = Hardware("Endless", 55_440, 1, 1, 1, 1.767, 2**16, 1.0, 2.07e10, 1, 1, 1.0)
ENDLESS_SHAPE = {"s_m": "1048575", "s_n": "1048575", "s_k": "1048575"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard whose pages may search for ten minutes, so that nothing here is ended by that."""
    store = tmp_path_factory.mktemp("evaluations") / "store"
    problem = EvaluationProblem(64, 7168, 2048)
    with Evaluations(open_store(store), durable=False) as kept:
        for chip in (PRESETS["SG2262"], MINE):
            kept.evaluate(problem, chip)
    with served([sys.executable, "-m", "cache_engine"], store, GEMM_CACHE_PAGE_LIMIT_S="600") as served_at:
        yield served_at


def test_a_link_with_a_chip_of_ones_own_and_the_files(page: Page, address: str, tmp_path: Path) -> None:
    page.set_default_timeout(60_000)
    page.goto(f"{address}/evaluations?e_m=64")
    page.get_by_text("Custom chip").click()
    file = tmp_path / "mine.json"
    file.write_text(chip_text(MINE))
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("Mine 2.0 added").wait_for()
    page.get_by_role("combobox", name="Chip").click()
    page.get_by_role("option", name="Mine 2.0").click()
    latency = human_us(evaluate(EvaluationProblem(64, 7168, 2048), MINE).latency_us)
    expect(page.get_by_test_id("stMetricValue").first).to_have_text(latency)

    colleague = page.context.new_page()
    colleague.goto(page.url)
    expect(colleague.get_by_test_id("stMetricValue").first).to_have_text(latency, timeout=60_000)
    colleague.close()

    page.get_by_text("More", exact=True).first.click()
    page.get_by_text("Saved results", exact=True).click()
    page.get_by_text("2 results, newest first.").wait_for()
    with page.expect_download() as exported:
        page.get_by_role("button", name="Export").click()
    document = json.loads(exported.value.path().read_bytes())
    assert document["architecture"]["name"] in ("Mine 2.0", "SG2262")
    assert len(document["cache_entries"]) == 1
    table = page.get_by_role("table", name="Results")
    assert {tuple(row.split("\t")[:2]) for row in table.inner_text().splitlines()[1:]} == {
        ("Mine 2.0", "64 × 7168 × 2048"), ("SG2262", "64 × 7168 × 2048"),
    }  # fmt: skip


def test_a_search_ends_with_the_tab_that_asked_for_it(page: Page, address: str) -> None:
    link = urlencode({"own": chip_text(ENDLESS), "e_chip": ENDLESS.name, **ENDLESS_SHAPE})
    tab = page.context.new_page()
    tab.goto(f"{address}/evaluations?{link}")
    expect(tab.get_by_text("Searching…")).to_be_visible(timeout=WAIT_MS)
    server = _server_of(address)
    tab.close()
    deadline = time.monotonic() + 60
    idle = 0
    while idle < 2:  # once may be chance on a machine that has much to do
        assert time.monotonic() < deadline, "the search goes on"
        before = _cpu_s(server)
        time.sleep(0.5)
        idle = idle + 1 if _cpu_s(server) - before < 0.1 else 0


def _server_of(address: str) -> int:
    """The process that has the socket open which listens at an address."""
    listening, place = "0A", f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == listening and row[1].endswith(place)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(descriptor.readlink()) in sockets:
                return int(descriptor.parts[2])
    pytest.fail("no process serves this address")


def _cpu_s(process: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
