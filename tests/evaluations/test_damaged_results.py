"""Damaged files of results, and folding cut short: all that is sound is read."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import key_of
from cache_engine.store import results
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from cache_engine.upkeep import cleanup as housekeeping
from cache_engine.upkeep import integrity, quarantine
from cache_engine.upkeep.findings import FindingKind
from tests.evaluations.test_evaluations import CHIP, DAY, OTHER, PROBLEM, document, fill, keys


def test_a_write_cut_short_loses_and_doubles_nothing(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = set(fill(layout, 10))
    kept = Evaluations(layout, durable=False)
    kept.evaluate(replace(PROBLEM, m=1), CHIP)

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(results, "publish_file", cut)
        with pytest.raises(KeyboardInterrupt):
            kept.put(replace(PROBLEM, m=1000), CHIP, SearchMode(), search.evaluate(PROBLEM, CHIP))
    assert keys(layout) == expected
    kept.flush()
    assert keys(layout) == {*expected, key_of(replace(PROBLEM, m=1000), SearchMode())}
    assert document(layout)["statistics"]["cache_hits"] == 1


def test_a_damaged_entry_is_no_hit_and_made_again(layout: StoreLayout) -> None:
    fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    stored = json.loads(path.read_text())
    damaged = key_of(replace(PROBLEM, m=2), SearchMode())
    stored["cache_entries"][damaged]["result"]["latency_us"] *= 2
    path.write_text(json.dumps(stored))
    with Evaluations(layout) as fresh:
        answer = fresh.evaluate(replace(PROBLEM, m=2), CHIP)
        assert not answer.cached
        assert answer.evaluation == search.evaluate(replace(PROBLEM, m=2), CHIP)
    with Evaluations(layout) as fresh:
        assert fresh.evaluate(replace(PROBLEM, m=2), CHIP).cached


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', "\x00" * 100, "[" * 10_000])
def test_a_damaged_file_is_quarantined_and_never_overwritten(
    layout: StoreLayout, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    path.write_text(content)
    assert keys(layout) == set()
    assert path.read_text() == content, "reading changes nothing"
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=77), CHIP).unkept
    (copied,) = layout.quarantine.iterdir()
    assert copied.read_text() == content
    assert "quarantine" in caplog.text
    assert keys(layout) == {key_of(replace(PROBLEM, m=77), SearchMode())}
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP


def test_pruning_after_damage_keeps_the_accelerator(layout: StoreLayout) -> None:
    fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    path.write_bytes(path.read_bytes()[:-30])
    with Evaluations(layout) as kept:
        assert kept.prune(kept.plan_pruning(max_entries=3, unused_days=10**6)) == 2
    with Evaluations(layout) as kept:
        kept.evaluate(replace(PROBLEM, m=99), CHIP)
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP
    assert len(keys(layout)) == 4


def test_an_unknown_format_is_left_alone(layout: StoreLayout) -> None:
    fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    stored = {**json.loads(path.read_text()), "cache_format_version": "9.0", "cache_entries": "elsewhere"}
    path.write_text(json.dumps(stored))
    before = path.read_bytes()
    with Evaluations(layout) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        assert "9.0" in str(answer.unkept)
        assert answer.evaluation == search.evaluate(PROBLEM, CHIP)
        assert kept.plan_pruning(max_entries=0) == []
        assert "9.0" in kept.summaries()[0]["error"]
    assert path.read_bytes() == before
    assert list(layout.quarantine.iterdir()) == []


@pytest.mark.parametrize("torn", ["cut", "flipped"])
def test_a_damaged_file_keeps_each_result_whose_own_checksum_is_right(layout: StoreLayout, torn: str) -> None:
    """One line is still JSON and says another time; another is cut, and the rest with it, or has a byte of no text."""
    expected = fill(layout, 100)
    path = layout.results_file(CHIP.fingerprint())
    data = path.read_bytes()
    changed = data.index(b'"latency_us":', data.index(expected[9].encode())) + len(b'"latency_us":')
    middle = data.index(expected[49].encode()) + 200
    data = data[:changed] + b"9" + data[changed + 1 : middle] + (b"" if torn == "cut" else b"\0" + data[middle + 1 :])
    path.write_bytes(data)
    sound = {*expected[:9], *expected[10:49]} if torn == "cut" else {*expected[:9], *expected[10:49], *expected[50:]}
    assert keys(layout) == sound
    store = DiskStore(layout)
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_EVALUATIONS]
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=1000), CHIP).unkept
    assert keys(layout) == {*sound, key_of(replace(PROBLEM, m=1000), SearchMode())}
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP
    assert list(integrity.check(store)) == []
    (item,) = quarantine.items(store)
    assert (item.files[0].original, item.files[0].stored_bytes) == (path.name, len(data))
    late = time.time() + 31 * DAY
    assert [leftover.path for leftover in housekeeping.find_leftovers(store, late)] == [f"quarantine/{item.name}"]


def test_results_of_another_accelerator_are_never_salvaged(layout: StoreLayout) -> None:
    fill(layout, 5, OTHER)
    other = layout.results_file(OTHER.fingerprint())
    layout.results_file(CHIP.fingerprint()).write_bytes(other.read_bytes()[:-20])
    assert keys(layout) == set()
