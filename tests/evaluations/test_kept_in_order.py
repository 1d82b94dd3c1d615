"""Stored results are pruned by the same housekeeping as kernels; those of another minor version are searched again."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from cache_engine import open_cache
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import is_to_validate
from cache_engine.model.events import AUTOMATIC, PRUNE
from cache_engine.store.disk import open_store
from cache_engine.store.journal import read_journal
from cache_engine.store.layout import StoreLayout

CHIP = PRESETS["SG2262"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
DAY_S = 86_400


def old_results(layout: StoreLayout, days: float, count: int = 3) -> None:
    """Results made and last used so many days ago."""
    with Evaluations(layout, now=lambda: time.time() - days * DAY_S) as results:
        for m in range(1, count + 1):
            results.evaluate(replace(PROBLEM, m=m), CHIP)


def let_cleaning_be_due(layout: StoreLayout) -> None:
    layout.cleaned.touch()
    os.utime(layout.cleaned, (1e9, 1e9))


def sizes(layout: StoreLayout) -> list[int]:
    with Evaluations(layout) as results:
        return sorted(entry.shape.M for _, entry in results.entries(CHIP.fingerprint()))


def store_one(directory: Path, cleanup_interval_h: float = 24.0) -> None:
    with open_cache(directory, cleanup_interval_h=cleanup_interval_h) as cache:
        cache.evaluations.evaluate(replace(PROBLEM, m=1000), CHIP)


def test_storing_a_result_prunes_unused_ones_when_cleaning_is_due(tmp_path: Path) -> None:
    layout = open_store(tmp_path)
    old_results(layout, 91)
    store_one(tmp_path)
    assert sizes(layout) == [1, 2, 3, 1000], "a new store is not due"
    let_cleaning_be_due(layout)
    store_one(tmp_path)
    assert sizes(layout) == [1, 2, 3, 1000], "a result that is there already is not stored"
    with open_cache(tmp_path) as cache:
        cache.evaluations.evaluate(replace(PROBLEM, m=2000), CHIP)
    assert sizes(layout) == [1000, 2000]
    (act,) = [event for event in read_journal(layout.journal).recent if event.kind == PRUNE]
    assert (act.detail, act.by) == ("3 results of SG2262", AUTOMATIC)
    assert time.time() - layout.cleaned.stat().st_mtime < 60


def test_an_import_counts_as_a_use_of_new_and_of_stored_results(tmp_path: Path) -> None:
    """Results of long ago, imported to be used: the next cleaning is minutes away."""
    theirs, layout = open_store(tmp_path / "theirs"), open_store(tmp_path / "ours")
    old_results(theirs, 91, count=3)
    old_results(layout, 91, count=1)
    with Evaluations(theirs) as results:
        data = results.export(CHIP.fingerprint())
    for there, taken in ((layout, 2), (layout, 0), (open_store(tmp_path / "new"), 3)):
        with Evaluations(there) as results:
            assert results.import_file(data).taken == taken
            assert results.plan_pruning() == []
    with Evaluations(layout, now=lambda: time.time() + 91 * DAY_S) as results:
        assert len(results.plan_pruning()) == 3


def test_results_used_within_90_days_stay_and_off_is_off(tmp_path: Path) -> None:
    layout = open_store(tmp_path)
    old_results(layout, 89)
    let_cleaning_be_due(layout)
    store_one(tmp_path)
    assert sizes(layout) == [1, 2, 3, 1000]
    off = open_store(tmp_path / "off")
    old_results(off, 91)
    let_cleaning_be_due(off)
    store_one(tmp_path / "off", cleanup_interval_h=0)
    assert sizes(off) == [1, 2, 3, 1000]


def test_a_result_of_another_minor_version_is_marked_and_said_when_searched_again(tmp_path: Path) -> None:
    layout = open_store(tmp_path)
    with Evaluations(layout) as results:
        now = results.evaluate(PROBLEM, CHIP).evaluation
    path = layout.results_file(CHIP.fingerprint())
    with Evaluations(layout) as results:
        exported = json.loads(results.export(CHIP.fingerprint()))
    (entry,) = exported["cache_entries"].values()
    entry["metadata"] |= {"model_version": "1.9.0", "checksum": ""}
    entry["result"]["latency_us"] = 5.0
    other = open_store(tmp_path / "other")
    (other.evaluations / path.name).write_text(json.dumps(exported))
    with Evaluations(other) as results:
        ((_, stored),) = results.entries(CHIP.fingerprint())
        assert is_to_validate(stored)
        answer = results.evaluate(PROBLEM, CHIP)
        assert (answer.cached, answer.evaluation) == (False, now)
        assert answer.older is not None
        assert (answer.older.model_version, answer.older.latency_us) == ("1.9.0", 5.0)
        again = results.evaluate(PROBLEM, CHIP)
        assert (again.cached, again.older) == (True, None)
        ((_, stored),) = results.entries(CHIP.fingerprint())
        assert not is_to_validate(stored)
