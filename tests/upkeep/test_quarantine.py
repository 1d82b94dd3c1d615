"""Quarantine: items are listed, only valid ones are restored, and deleting is permanent and recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.errors import StoreError
from cache_engine.model.artifact import Blob
from cache_engine.model.events import DISCARD, RESTORE
from cache_engine.store.codec import decode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, read_journal
from cache_engine.upkeep import integrity, quarantine
from tests.helpers import blob_file, files_of, fill, make_entry, publish, record_file


def _repair(store: DiskStore, journal: Journal) -> None:
    integrity.repair(store, journal, list(integrity.check(store)))


def test_the_files_of_an_entry_are_one_item_with_when_why_and_bytes(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    blob_file(store, key).write_bytes(b"damaged")
    size = record_file(store, key).stat().st_size + 7
    stray = store.layout.metadata / "00" / "core.1234"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"stray")
    _repair(store, journal)
    entry, other = sorted(quarantine.items(store), key=lambda item: item.key, reverse=True)
    assert (entry.key, len(entry.files), entry.stored_bytes) == (key, 2, size)
    assert entry.why.startswith("truncated: blob of")
    assert (other.key, other.files[0].original, other.stored_bytes) == ("", "core.1234", 5)
    assert other.why == "metadata/00/core.1234: misnamed file: unexpected file name in a folder of records"
    assert all(abs(item.set_aside_at - journal._now()) < 60 for item in (entry, other))
    examined = quarantine.examine(store, entry)
    assert examined.record is not None
    assert "ends within its header" in examined.cause
    assert quarantine.examine(store, other) == quarantine.Examined(None, "it is not part of an entry")


def test_a_valid_item_is_restored_byte_for_byte(store: DiskStore, journal: Journal) -> None:
    keys = fill(store, 3)
    before = {path: path.read_bytes() for path in files_of(store)}
    store.quarantine(keys[1])
    (item,) = quarantine.items(store)
    assert quarantine.examine(store, item) == quarantine.Examined(make_entry(1)[2](_blob(before)), "")
    quarantine.restore(store, journal, item, by="somebody")
    assert {path: path.read_bytes() for path in files_of(store)} == before
    assert quarantine.items(store) == []
    (event,) = [event for event in read_journal(store.layout.journal).recent if event.kind == RESTORE]
    assert (event.by, event.key, event.stored_bytes) == ("somebody", keys[1], item.stored_bytes)


def _blob(files: dict[Path, bytes]) -> Blob:
    key = make_entry(1)[0]
    return decode_record(key, next(data for path, data in files.items() if path.name == f"{key}.json")).blob


def test_two_swapped_blobs_are_not_restored_and_a_record_finds_its_blob_quarantined_earlier(
    store: DiskStore, journal: Journal
) -> None:
    one, other = fill(store, 2)
    first, second = blob_file(store, one), blob_file(store, other)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    third = publish(store, 7)
    store.quarantine_file(blob_file(store, third))
    store.quarantine_file(record_file(store, third))
    _repair(store, journal)
    causes = {item.key: quarantine.examine(store, item).cause for item in quarantine.items(store)}
    assert causes[third] == ""
    assert "belongs to" in causes[one]
    with pytest.raises(StoreError, match="cannot restore"):
        quarantine.restore(store, journal, quarantine.find(store, [one])[0])
    quarantine.restore(store, journal, quarantine.find(store, [third])[0])
    assert store.get(third) is not None


def test_a_recompiled_kernel_stays_and_is_reported(store: DiskStore, journal: Journal) -> None:
    key = publish(store)
    store.quarantine(key)
    publish(store)
    (item,) = quarantine.items(store)
    assert "recompiled" in quarantine.examine(store, item).cause
    with pytest.raises(StoreError, match="recompiled"):
        quarantine.restore(store, journal, item)
    assert quarantine.items(store) == [item]


def test_deleting_removes_only_the_named_items(store: DiskStore, journal: Journal, tmp_path: Path) -> None:
    keys = fill(store, 3)
    for key in keys[:2]:
        store.quarantine(key)
    chosen = quarantine.find(store, [keys[0]])
    publish(store, 0)
    store.quarantine(keys[0])  # the same entry once more, after the choice
    folder = store.layout.temp / "folder"
    folder.mkdir()
    (folder / "file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (folder / "link").symlink_to(outside)
    store.quarantine_file(folder)
    chosen += [item for item in quarantine.items(store) if not item.key]
    done = quarantine.discard(store, journal, chosen, by="somebody")
    assert (done.items, done.stored_bytes) == (2, sum(item.stored_bytes for item in chosen))
    assert sorted(item.key for item in quarantine.items(store)) == sorted(keys[:2])
    assert (outside / "precious").exists()
    events = [event for event in read_journal(store.layout.journal).recent if event.kind == DISCARD]
    assert {(event.by, event.detail, event.stored_bytes) for event in events} == {
        ("somebody", "2 items in quarantine to delete", 0),  # which a kill leaves
        ("somebody", "2 items in quarantine", done.stored_bytes),
    }
    assert quarantine.discard(store, journal, chosen).items == 0, "it has gone"


def test_a_name_that_fits_nothing_or_several_is_refused(store: DiskStore) -> None:
    for key in fill(store, 2):
        store.quarantine(key)
    for name in ("", "../../store.json", "abc", "f" * 64):
        with pytest.raises(StoreError, match="in quarantine named"):
            quarantine.find(store, [name])


def test_unexpected_files_are_reported_and_do_no_harm(store: DiskStore) -> None:
    folder = store.layout.quarantine
    for name in ("1-a", "x" * 200, "9" * 40 + "-b", "1700000000000000000-\x1b[31m\n**", "gemm_cache_0.json"):
        (folder / name).write_bytes(b"?")
    key = publish(store)
    os.mkfifo(folder / f"1700000000000000001-{key}.json")
    (folder / f"1700000000000000002-{key}.json").symlink_to("/dev/zero")
    items = quarantine.items(store)
    assert len(items) == 6
    assert all(quarantine.examine(store, item).cause for item in items)


def test_no_quarantine_is_an_empty_one(store: DiskStore) -> None:
    store.layout.quarantine.rmdir()
    assert quarantine.items(store) == []
