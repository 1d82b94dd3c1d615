"""Saved results on the page are those of the files: searched, sorted and paged, damaged ones counted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from app.presenters.columns import rows_of
from app.presenters.saved_results import ACCELERATORS, RESULTS, matching, saved_results
from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import key_of
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout
from tests.pages.opening import Open, frames, sound
from tests.pages.test_all_pages import HOLD_MIRROR

CHIP, OTHER = PRESETS["SG2262"], PRESETS["SG2261"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
FOUND = search.evaluate(PROBLEM, CHIP)


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return open_store(tmp_path / "store")


def keep(layout: StoreLayout, count: int) -> None:
    with Evaluations(layout, durable=False) as kept:
        for m in range(1, count + 1):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), FOUND, 0.1 * m) is None


def read(layout: StoreLayout) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    with Evaluations(layout, durable=False) as kept:
        return saved_results(kept)


def test_a_row_says_what_the_file_says(layout: StoreLayout) -> None:
    with Evaluations(layout) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        kept.evaluate(PROBLEM, CHIP)
    chips, (row,) = read(layout)
    assert (row["m"], row["n"], row["k"], row["batch"], row["dtype"]) == (64, 2112, 7168, 1, "bf16")
    assert (row["key"], row["latency_us"]) == (answer.key, FOUND.latency_us)
    assert (row["tile"], row["partition"]) == ("×".join(map(str, FOUND.tile)), "×".join(map(str, FOUND.partition)))
    assert row["last_used_at"] > row["made_at"]
    (chip,) = rows_of(chips, ACCELERATORS, UTC)
    assert (chip["Chip"], chip["Results"], chip["Corrupt"], chip["Hits"], chip["Misses"]) == ("SG2262", 1, 0, 1, 1)
    (shown,) = rows_of([row | {"reduce_partial_sums": True, "compute_rate": 2.0}], RESULTS, UTC)
    assert shown["Search mode"] == "tile and partition, partial sums, rate × 2"


@pytest.mark.parametrize("change", [{"flops": 10**400}, {"order": "kmn"}, {"tile": {"m": 1}}])
def test_a_damaged_result_is_counted_and_does_not_stop_the_rest(layout: StoreLayout, change: dict[str, Any]) -> None:
    keep(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    stored = json.loads(path.read_bytes())
    entry = stored["cache_entries"][key_of(replace(PROBLEM, m=2), SearchMode())]
    entry["result"].update(change)
    entry["metadata"]["checksum"] = ""
    stored["statistics"]["corrupt_lines"] = 2
    path.write_text(json.dumps(stored))
    chips, rows = read(layout)
    assert len(rows) == 4
    (chip,) = rows_of(chips, ACCELERATORS, UTC)
    assert (chip["Results"], chip["Corrupt"]) == (4, 3)


def test_results_of_another_format_are_a_line_of_their_own(layout: StoreLayout) -> None:
    keep(layout, 2)
    path = layout.results_file(CHIP.fingerprint())
    path.write_text(path.read_text().replace('"cache_format_version":"1.0"', '"cache_format_version":"9.0"'))
    with Evaluations(layout) as kept:
        kept.evaluate(PROBLEM, OTHER)
    chips, rows = read(layout)
    assert [row["chip"] for row in rows] == ["SG2261"]
    unknown, known = rows_of(chips, ACCELERATORS, UTC)
    assert "9.0" in unknown["Chip"]
    assert (unknown["Results"], unknown["Last added"]) == (0, None)
    assert (known["Chip"], known["Results"]) == ("SG2261", 1)


def test_results_are_searched_and_the_newest_comes_first(layout: StoreLayout) -> None:
    with Evaluations(layout, durable=False) as kept:
        for m in (16, 64, 7168):
            for hardware in (CHIP, OTHER):
                kept.evaluate(EvaluationProblem(m, 2112, 7168), hardware)
        kept.evaluate(EvaluationProblem(16, 512, 1024, dtype="fp8"), CHIP)
    _, rows = read(layout)
    words = (
        ("7168", 6), ("7168x*", 2), ("16x512x1024", 1), ("16×512", 1), ("word", 0), ("", 7), ("16 512", 1),
        ("sg2261", 3), (f"{OTHER.fingerprint()[:8]} 64", 1), ("16 fp8", 1), ("²x", 0),
    )  # fmt: skip
    for text, count in words:
        assert len(matching(rows, text)) == count, text
    listed = [row["made_at"] for row in matching(rows, "")]
    assert listed == sorted(listed, reverse=True)


def test_accelerators_are_listed_by_name(layout: StoreLayout) -> None:
    chips = [replace(CHIP, name=name) for name in ("b 1", "A 2", "c 3", "a 4", "B 5", "C 6")]
    with Evaluations(layout, durable=False) as kept:
        for chip in chips:
            assert kept.put(PROBLEM, chip, SearchMode(), FOUND) is None
    assert [chip["chip"] for chip in read(layout)[0]] == ["A 2", "a 4", "b 1", "B 5", "c 3", "C 6"]


def test_results_are_listed_while_the_index_is_busy_and_as_they_are_now(open_page: Open, layout: StoreLayout) -> None:
    keep(layout, 3)
    sound(open_page(layout.root, "evaluations"))
    index = layout.index
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_MIRROR, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        app = sound(open_page(layout.root, "evaluations", e_kind="Saved results"))
        assert CHIP.fingerprint()[:12] in str(app.selectbox(key="e_export").value)
        assert [len(table) for table in frames(app) if "Tile" in table] == [3]
        keep(layout, 5)  # as another process
        app = sound(app.run())
        assert [len(table) for table in frames(app) if "Tile" in table] == [5]
        holder.communicate()
