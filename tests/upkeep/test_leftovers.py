"""What killed writers leave: found when its lock is free, deleted once, and never while it is in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.store.disk import DiskStore
from cache_engine.store.lock import file_lock, try_lock
from cache_engine.upkeep import cleanup
from cache_engine.upkeep.cleanup import abandoned_temporaries, is_abandoned, is_orphan, orphan_blobs, remove_orphan
from tests.helpers import blob_file, publish, record_file
from tests.upkeep.damages import age


def test_a_temporary_is_abandoned_when_its_lock_is_free(store: DiskStore) -> None:
    path = store.layout.temp / "1-2"
    path.touch()
    with path.open("r+b") as file:
        assert try_lock(file.fileno())
        assert list(abandoned_temporaries(store.layout)) == []
    assert list(abandoned_temporaries(store.layout)) == [path]


def test_a_temporary_that_is_gone_is_not_abandoned(tmp_path: Path) -> None:
    assert not is_abandoned(tmp_path / "gone")
    path = tmp_path / "going"
    path.touch()
    with path.open("r+b") as file:
        path.unlink()
        assert not cleanup._is_free(file.fileno(), path)


def test_where_locks_do_not_work_a_temporary_is_abandoned_when_it_is_old(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> bool:
        raise OSError("locks do not work on this file system")

    monkeypatch.setattr(cleanup, "try_lock", refused)
    path = store.layout.temp / "1-2"
    path.touch()
    assert not is_abandoned(path)
    age(path)
    assert is_abandoned(path)


def test_an_orphan_is_deleted_unless_its_key_is_being_published(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).unlink()
    blob = blob_file(store, key)
    with file_lock(store.layout.key_lock(key), 5):
        assert not is_orphan(store, key, blob)
        assert not remove_orphan(store, blob)
    assert list(orphan_blobs(store)) == [blob]
    assert remove_orphan(store, blob)
    assert remove_orphan(store, blob), "another cleaner was faster"
    assert not is_orphan(store, key, blob)
    assert list(orphan_blobs(store)) == []


def test_where_locks_do_not_work_a_blob_is_an_orphan_when_it_is_old(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, timeout_s: float) -> None:
        raise OSError("locks do not work on this file system")

    monkeypatch.setattr(cleanup, "file_lock_to_delete", refused)
    key = publish(store)
    record_file(store, key).unlink()
    blob = blob_file(store, key)
    assert not is_orphan(store, key, blob)
    age(blob)
    assert is_orphan(store, key, blob)
    blob.unlink()
    assert not is_orphan(store, key, blob)


def test_the_blob_of_a_record_of_another_format_is_no_orphan(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b'{"format": 99}')
    assert list(orphan_blobs(store)) == []
    assert not is_orphan(store, key, blob_file(store, key))
    assert not remove_orphan(store, blob_file(store, key))
    assert blob_file(store, key).exists()


def test_a_blob_whose_record_cannot_be_read_is_no_orphan(store: DiskStore) -> None:
    key = publish(store)
    record_file(store, key).write_bytes(b"{")
    assert list(orphan_blobs(store)) == []
    assert not remove_orphan(store, blob_file(store, key))


def test_a_file_that_is_not_named_as_a_blob_is_no_orphan(store: DiskStore) -> None:
    path = store.layout.kernels / "ab" / "core.1234"
    path.parent.mkdir()
    path.touch()
    assert list(orphan_blobs(store)) == []
    assert not remove_orphan(store, path)
    assert path.exists()


def test_a_file_in_the_place_of_a_folder_is_skipped(store: DiskStore) -> None:
    (store.layout.kernels / "00").touch()
    os.rmdir(store.layout.temp)
    store.layout.temp.touch()
    assert list(orphan_blobs(store)) == []
    assert list(abandoned_temporaries(store.layout)) == []
