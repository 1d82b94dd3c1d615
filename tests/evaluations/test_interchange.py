"""The interchange file: what was exported is imported, and what cannot be right is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.presenters.saved_results import saved_results
from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import key_of
from cache_engine.store import results
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import UnknownResults, Usage
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import FindingKind
from tests.evaluations.test_evaluations import CHIP, PROBLEM, document, fill, keys
from tests.helpers import make_store


def test_other_tools_read_and_write_the_file(layout: StoreLayout, tmp_path: Path) -> None:
    """With the standard JSON module, other spacing, no checksums, and fields that are ours alone left out."""
    with Evaluations(layout) as kept:
        made = kept.evaluate(PROBLEM, CHIP).evaluation
        path = layout.results_file(CHIP.fingerprint())
        exported = json.loads(kept.export(CHIP.fingerprint()))
    assert {
        "version",
        "cache_format_version",
        "arch_fingerprint",
        "architecture",
        "cache_entries",
        "statistics",
    } <= set(exported)
    (written,) = exported["cache_entries"].values()
    assert set(written) == {"shape", "dtypes", "search_mode", "result", "metadata"}
    assert written["shape"] == {"G": 1, "M": 64, "K": 7168, "N": 2112}
    assert Hardware.from_dict(exported["architecture"]) == CHIP
    del written["metadata"]["checksum"], exported["usage"], exported["generation"], exported["evaluator"]
    other = open_store(tmp_path / "other")
    (other.evaluations / path.name).write_text(json.dumps(exported, indent=4))
    with Evaluations(other) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        assert (answer.cached, answer.evaluation) == (True, made)


def test_export_and_import_bring_back_exactly_the_same(layout: StoreLayout, tmp_path: Path) -> None:
    """All but the last use, which is the import."""
    fill(layout, 30)
    with Evaluations(layout) as kept:
        kept.evaluate(replace(PROBLEM, m=3), CHIP)
        exported = kept.export(CHIP.fingerprint())
    other = open_store(tmp_path / "other")
    with Evaluations(other) as kept:
        taken = kept.import_file(exported)
        assert (taken.taken, taken.present, taken.refused) == (30, 0, ())
        back = json.loads(kept.export(CHIP.fingerprint()))
        assert back.pop("usage").keys() == back["cache_entries"].keys()
        assert back == {name: value for name, value in json.loads(exported).items() if name != "usage"}
        assert kept.import_file(exported).present == 30
        assert kept.evaluate(replace(PROBLEM, m=3), CHIP).cached


def test_import_merges_results_and_refuses_invalid_ones(layout: StoreLayout, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    mine, theirs = fill(layout, 20), fill(other, 30)
    exported = document(other)
    entries = list(exported["cache_entries"].values())
    entries[25]["result"]["latency_us"] += 1  # no longer what its checksum was made of
    entries[26]["shape"]["M"] = 0
    entries[27]["result"]["order"] = "kmn"
    entries[28] = {"shape": 3}
    exported["cache_entries"] = {f"named otherwise {number}": entry for number, entry in enumerate(entries)}
    with Evaluations(layout) as kept:
        taken = kept.import_file(json.dumps(exported).encode())
    assert (taken.taken, taken.present) == (6, 20)
    assert [name for name, _ in taken.refused] == [f"named otherwise {number}" for number in (25, 26, 27, 28)]
    assert keys(layout) == {*mine, *theirs[:25], theirs[29]}


def test_an_import_of_what_is_there_needs_no_writing(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(layout, 2)
    data = Evaluations(layout).export(CHIP.fingerprint())
    fill(layout, 3)
    more = Evaluations(layout).export(CHIP.fingerprint())
    there = json.loads(data)["cache_entries"]
    with Evaluations(layout) as kept:
        kept.prune([one for one in kept.plan_pruning(max_entries=0) if one.key not in there])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(results, "publish_file", refuse)
    with Evaluations(layout) as kept:
        assert kept.import_file(data).present == 2
        with pytest.raises(OSError, match="Read-only"):
            kept.import_file(more)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"arch_fingerprint": "f" * 32}, UsageError, "arch_fingerprint"),
        ({"evaluator": "gpu"}, UsageError, "gpu"),
        ({"cache_format_version": "2.0"}, UnknownResults, "2.0"),
        ({"architecture": {"name": "x"}}, UsageError, "num_cores"),
        ({"cache_entries": 7}, CorruptEntry, "damaged"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(
    layout: StoreLayout, change: dict[str, Any], error: type[Exception], named: str
) -> None:
    fill(layout, 1)
    exported = {**document(layout), **change}
    with Evaluations(layout) as kept, pytest.raises(error, match=named):
        kept.import_file(json.dumps(exported).encode())


def test_an_import_of_a_pretty_printed_file_stores_every_result(layout: StoreLayout, tmp_path: Path) -> None:
    """Other tools write one line for each field; the store writes one for each result."""
    fill(layout, 20)
    exported = document(layout)
    for entry in list(exported["cache_entries"].values())[:10]:
        del entry["metadata"]["checksum"]
    other = open_store(tmp_path / "other")
    with Evaluations(other) as kept:
        taken = kept.import_file(json.dumps(exported, indent=2).encode())
        assert (taken.taken, taken.refused) == (20, ())
    assert keys(other) == keys(layout)
    stored = document(other)["cache_entries"].values()
    assert all(entry["metadata"]["checksum"] for entry in stored)
    assert list(integrity.check(DiskStore(other))) == []


# ---- What a file says is not believed ----


_ABSURD: list[tuple[str, Any]] = [
    ("metadata.model_version", "1 2.0.0"),
    ("metadata.model_version", "1.0.0\n0123456789abcdef ~ {}"),
    ("metadata.model_version", "1.0.0\n"),
    ("metadata.timestamp", -1e10),
    ("metadata.timestamp", 1e300),
    ("metadata.search_time_ms", -5),
    ("metadata.num_searched_tiles", 10**30),
    ("result.latency_us", -1),
    ("result.latency_us", 0),
    ("result.compute_us", -1),
    ("result.flops", 10**400),
    ("result.flops", -2),
    ("result.traffic_bytes", 10**400),
    ("result.arch_utilization", -0.5),
    ("result.effective_utilization", 1e300),
    ("result.order", "x" * 10**6),
    ("result.tile", {"m": 0, "n": 1, "k": 1}),
    ("result.tile", {"m": 10**30, "n": 1, "k": 1}),
    ("result.partition", {"g": 1, "m": 1, "n": 1}),
    ("shape.M", 10**30),
    ("dtypes.input", "bf16 bf16"),
    ("search_mode.compute_rate", 1e300),
]


def test_no_absurd_field_of_a_result_is_imported_or_served(layout: StoreLayout, tmp_path: Path) -> None:
    """One result for each absurd field, and one that is sound."""
    sound, *names = fill(layout, len(_ABSURD) + 1)
    exported = document(layout)
    for key, (field, value) in zip(names, _ABSURD, strict=True):
        section, name = field.split(".")
        forged = exported["cache_entries"][key]
        forged[section][name] = value
        del forged["metadata"]["checksum"]
    other = make_store(tmp_path / "other")
    with Evaluations(other.layout, durable=False) as kept:
        taken = kept.import_file(json.dumps(exported).encode())
    assert taken.taken == 1
    assert [key for key, _ in taken.refused] == names
    assert keys(other.layout) == {sound}
    # The same file put in the store's place is read, checked, listed and mended, without those results.
    layout.results_file(CHIP.fingerprint()).write_text(json.dumps(exported))
    store = DiskStore(layout)
    assert keys(layout) == {sound}
    with Evaluations(layout) as kept:
        assert [row["key"] for row in saved_results(kept)[1]] == [sound]
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_EVALUATIONS]
    assert integrity.repair(store, Journal(layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert keys(layout) == {sound}


@pytest.mark.parametrize(
    "change",
    [
        {"statistics": {"cache_hits": 10**30}},
        {"statistics": {"cache_misses": -1}},
        {"statistics": {"last_updated": 1e300}},
        {"statistics": {"total_search_time_hours": -3}},
        {"usage": {"x": 1e300}},
        {"generation": 10**30},
        {"version": "1" * 10**5},
    ],
    ids=str,
)
def test_no_absurd_sum_stops_the_store(layout: StoreLayout, tmp_path: Path, change: dict[str, Any]) -> None:
    """Import refuses the file; where it lies in the store, its results are searched again."""
    fill(layout, 3)
    exported = document(layout)
    exported.update({name: {**exported[name], **v} if isinstance(v, dict) else v for name, v in change.items()})
    with Evaluations(open_store(tmp_path / "other")) as kept, pytest.raises(CorruptEntry):
        kept.import_file(json.dumps(exported).encode())
    layout.results_file(CHIP.fingerprint()).write_text(json.dumps(exported))
    assert keys(layout) == set()
    (summary,) = Evaluations(layout).summaries()
    assert summary["cache_hits"] >= 0
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=2), CHIP).cached
    assert keys(layout) == {key_of(replace(PROBLEM, m=2), SearchMode())}
    assert list(integrity.check(DiskStore(layout))) == []


def test_sums_end_at_their_bounds_and_are_read_again(layout: StoreLayout) -> None:
    fill(layout, 1)
    (key,) = keys(layout)
    kept = Evaluations(layout)
    file = kept._of(CHIP).file
    for _ in range(3):
        file.append([], Usage(1e9, {key: 2**53}, 2**53))
    assert document(layout)["statistics"]["cache_hits"] == 2**53
    assert list(integrity.check(DiskStore(layout))) == []


def test_a_result_out_of_range_is_answered_and_not_stored(kept: Evaluations, layout: StoreLayout) -> None:
    absurd = replace(search.evaluate(PROBLEM, CHIP), latency_us=float("inf"))
    assert "not a result" in str(kept.put(PROBLEM, CHIP, SearchMode(), absurd))
    assert keys(layout) == set() if kept.fingerprints() else True


def test_a_file_with_a_name_twice_is_refused(layout: StoreLayout, tmp_path: Path) -> None:
    """Decoding keeps the last value of a name, so a result would be lost unseen."""
    fill(layout, 2)
    data = Evaluations(layout).export(CHIP.fingerprint())
    with Evaluations(open_store(tmp_path / "sound"), durable=False) as sound:
        assert sound.import_file(data).taken == 2
    first, second = json.loads(data)["cache_entries"]
    forgeries = {
        first: data.replace(second.encode(), first.encode()),
        "cache_entries": b'{"cache_entries":{},' + data[1:],
        "n": data.replace(b'"m":', b'"n":', 1),
    }
    with Evaluations(open_store(tmp_path / "other"), durable=False) as other:
        for name, forged in forgeries.items():
            assert forged != data
            with pytest.raises(CorruptEntry, match=f"has {re.escape(repr(name[:40]))} twice"):
                other.import_file(forged)
        assert other.fingerprints() == []
