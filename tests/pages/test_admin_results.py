"""Stored results on the admin page: what pruning would delete is shown first, and imports say what was refused."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.model.events import ACTS, IMPORT, PRUNE, Event
from cache_engine.store.disk import open_store
from cache_engine.store.journal import read_journal
from tests.pages.opening import Open, frames, sound
from tests.pages.test_admin import _button, _press, _said

CHIP = PRESETS["SG2262"]
PROBLEM = EvaluationProblem(64, 2112, 7168)


def fill(root: Path, days: float, *sizes: int) -> None:
    with Evaluations(open_store(root), now=lambda: time.time() - days * 86_400) as kept:
        for m in sizes:
            kept.evaluate(replace(PROBLEM, m=m), CHIP)


def stored(root: Path) -> list[int]:
    with Evaluations(open_store(root)) as kept:
        return sorted(entry.shape.M for _, entry in kept.entries(CHIP.fingerprint()))


def acts(root: Path) -> list[Event]:
    return [event for event in read_journal(open_store(root).journal).recent if event.kind in ACTS]


def test_what_pruning_deletes_is_shown_first(open_page: Open, tmp_path: Path) -> None:
    fill(tmp_path, 100, 1, 2)
    fill(tmp_path, 1, 3)
    app = sound(open_page(tmp_path, "admin", tab="Results"))
    assert "Every 24 hours" in _said(app)
    assert stored(tmp_path) == [1, 2, 3]
    assert _button(app, "Delete 2 results")
    (plan,) = (one for one in frames(app) if "Reason" in one.columns)
    assert set(plan["Chip"]) == {f"SG2262 ({CHIP.fingerprint()[:8]})"}
    assert [time.time() - used > 99 * 86_400 for used in plan["Last used"]] == [True, True]
    app.number_input(key="prune-days").set_value(200.0).run()
    assert "Nothing to prune." in [info.value for info in sound(app).info]
    app.number_input(key="prune-days").set_value(90.0).run()
    _press(app, "Delete 2 results")
    assert "Deleted 2 results." in _said(sound(app))
    assert stored(tmp_path) == [3]
    (event,) = acts(tmp_path)
    assert (event.kind, event.detail) == (PRUNE, "2 results of SG2262")
    assert event.by.endswith("(dashboard)")


def test_results_of_another_store_in_place_of_the_one_that_was_shown_stay(open_page: Open, tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, 100, 1, 2)
    app = sound(open_page(root, "admin", tab="Results"))
    button = _button(app, "Delete 2 results")
    shutil.copytree(root, tmp_path / "other")
    root.rename(tmp_path / "moved")
    root.symlink_to(tmp_path / "other")
    button.click().run()
    assert stored(tmp_path / "other") == [1, 2]


def test_results_are_imported_and_refusals_said(open_page: Open, tmp_path: Path) -> None:
    other, root = tmp_path / "other", tmp_path / "store"
    fill(other, 0, 1, 2, 3)
    with Evaluations(open_store(other)) as kept:
        file = json.loads(kept.export(CHIP.fingerprint()))
    first = next(iter(file["cache_entries"].values()))
    first["result"]["latency_us"] += 1  # no longer what its checksum was made of
    app = sound(open_page(root, "admin", tab="Results"))
    app.file_uploader[0].set_value(("results.json", json.dumps(file).encode(), "application/json")).run()
    _press(app, "Import")
    assert "Imported 2 results; 0 already in the store." in _said(sound(app))
    assert any(text.value == f"Chip: SG2262 ({CHIP.fingerprint()[:12]})" for text in app.text)
    assert any("checksum" in text.value for text in app.text)
    assert stored(root) == [2, 3]
    (event,) = acts(root)
    assert (event.kind, event.detail) == (IMPORT, "2 results of SG2262")
    assert event.by.endswith("(dashboard)")
    app.file_uploader[0].set_value(("results.json", b"{}", "application/json")).run()
    _press(app, "Import")
    assert [error.value for error in app.error] == ["Import failed."]


def test_imported_results_of_a_chip_of_ones_own_name_it(open_page: Open, tmp_path: Path) -> None:
    mine = replace(CHIP, name="Mine <b>2.0", num_cores=128)
    with Evaluations(open_store(tmp_path / "other")) as kept:
        kept.evaluate(EvaluationProblem(1, 64, 64), mine)
        file = kept.export(mine.fingerprint())
    app = sound(open_page(tmp_path / "store", "admin", tab="Results"))
    app.file_uploader[0].set_value(("results.json", file, "application/json")).run()
    _press(app, "Import")
    assert any(text.value.startswith("Chip: Mine <b>2.0 (") for text in sound(app).text)
