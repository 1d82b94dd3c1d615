"""Stores of version 0.2: its compressed files and its logs of results are read, and merged by the next write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import decode_entry, encode_entry, key_of
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import compress
from cache_engine.upkeep import integrity
from tests.evaluations.test_evaluations import CHIP, PROBLEM, document, fill, keys
from tests.store.old_results import line, write_log

FINGERPRINT = CHIP.fingerprint()


def as_of_0_2(layout: StoreLayout, count: int, *, compressed: bool = False) -> list[str]:
    """A store as that version left it: half of the results in the file, half in a log. Returns all keys."""
    made = fill(layout, count)
    path, stored = layout.results_file(FINGERPRINT), document(layout)
    entries = stored["cache_entries"]
    stored["cache_entries"] = {key: entries[key] for key in made[: count // 2]}
    stored["generation"] = 3
    log = write_log(layout, FINGERPRINT, {key: msgspec.json.encode(entries[key]) for key in made[count // 2 :]}, 3)
    with log.open("ab") as file:
        file.write(line(b"~ " + msgspec.json.encode({"at": 2e9, "hits": {made[0]: 2}, "misses": 1})))
    data = json.dumps(stored).encode()
    path.write_bytes(data)
    if compressed:
        path.unlink()
        layout.compressed_results_file(FINGERPRINT).write_bytes(compress(data))
    return made


def names(layout: StoreLayout) -> list[str]:
    return sorted(path.name for path in layout.evaluations.iterdir())


@pytest.mark.parametrize("compressed", [False, True])
def test_all_is_read_and_the_next_write_merges_it(layout: StoreLayout, compressed: bool) -> None:
    made = as_of_0_2(layout, 20, compressed=compressed)
    before = document(layout)
    assert set(before["cache_entries"]) == set(made)
    assert (before["usage"], before["statistics"]["cache_hits"]) == ({made[0]: 2e9}, 2)
    assert len(names(layout)) == 2, "reading changes nothing"
    assert list(integrity.check(DiskStore(layout))) == []
    with Evaluations(layout) as kept:
        assert kept.evaluate(replace(PROBLEM, m=20), CHIP).cached
        kept.evaluate(replace(PROBLEM, m=21), CHIP)
    assert names(layout) == [layout.results_file(FINGERPRINT).name]
    after = document(layout)
    assert {key: after["cache_entries"][key] for key in made} == before["cache_entries"]
    assert Hardware.from_dict(after["architecture"]) == CHIP
    assert json.loads(layout.results_file(FINGERPRINT).read_bytes())["generation"] == 4


def test_what_was_merged_counts_once(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the writer is killed before it deletes what it merged."""
    as_of_0_2(layout, 20, compressed=True)

    def refuse(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(KeyboardInterrupt):
            Evaluations(layout)._of(CHIP).file.change(lambda _: None)
    assert len(names(layout)) == 3
    assert document(layout)["statistics"]["cache_hits"] == 2
    assert len(keys(layout)) == 20
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=500), CHIP).cached
    assert len(names(layout)) == 1
    assert (document(layout)["statistics"]["cache_hits"], len(keys(layout))) == (2, 21)


def test_a_process_of_0_2_that_goes_on_writing_loses_nothing(layout: StoreLayout) -> None:
    """It finds its log gone, and begins one with the number that the file names."""
    made = as_of_0_2(layout, 20)
    with Evaluations(layout) as kept:
        kept.evaluate(replace(PROBLEM, m=21), CHIP)
    number = json.loads(layout.results_file(FINGERPRINT).read_bytes())["generation"]
    key = key_of(replace(PROBLEM, m=22), SearchMode())
    entry = decode_entry(json.dumps(document(layout)["cache_entries"][made[0]]).encode())
    there = msgspec.structs.replace(entry, shape=msgspec.structs.replace(entry.shape, M=22))
    forged = msgspec.structs.replace(there, metadata=msgspec.structs.replace(there.metadata, checksum=""))
    write_log(layout, FINGERPRINT, {key: encode_entry(forged)}, number)
    with Evaluations(layout) as kept:
        assert kept.evaluate(replace(PROBLEM, m=22), CHIP).cached
    assert keys(layout) == {*made, key, key_of(replace(PROBLEM, m=21), SearchMode())}


def test_damaged_lines_are_skipped_and_counted(layout: StoreLayout, caplog: pytest.LogCaptureFixture) -> None:
    made = as_of_0_2(layout, 20)
    log = layout.results_log(FINGERPRINT, 3)
    data = log.read_bytes().replace(b'"latency_us":', b'"latency_us":1', 1)
    log.write_bytes(data + b"\n0123456789abcdef core-grid-1/1x1\n" + b"\n0123456789abcdef a line without its end")
    assert keys(layout) == {*made[:10], *made[11:]}
    (finding,) = integrity.check(DiskStore(layout))
    assert finding.cause == "2 of 12 lines are damaged"
    kept = Evaluations(layout)
    kept.put(replace(PROBLEM, m=500), CHIP, SearchMode(), search.evaluate(PROBLEM, CHIP))
    assert document(layout)["statistics"]["corrupt_lines"] == 2, "also when they are gone"
    assert "lines are damaged" in caplog.text


@pytest.mark.parametrize("rest", [b"x", compress(b"{}")], ids=["a byte", "a second file"])
def test_a_damaged_compressed_file_is_quarantined_and_the_log_still_counts(layout: StoreLayout, rest: bytes) -> None:
    made = as_of_0_2(layout, 20, compressed=True)
    path = layout.compressed_results_file(FINGERPRINT)
    path.write_bytes(path.read_bytes() + rest)
    damaged = path.read_bytes()
    assert keys(layout) == set(made[10:])
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=1), CHIP).cached
    assert [copied.read_bytes() for copied in layout.quarantine.iterdir()] == [damaged]
    assert keys(layout) == {made[0], *made[10:]}
