"""Files that killed writers leave: temporaries without a writer, and blobs that no record names.

The writer of a temporary holds its lock, and the publisher of an entry holds its key's lock; both end with the process.
So a free lock identifies a leftover, independent of the clock. Where locks do not work, as in a
read-only store, the file's age decides.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.files import shards_in
from cache_engine.store.layout import StoreLayout, key_of_blob_name
from cache_engine.store.lock import file_lock_to_delete, try_lock

# Where age decides: a younger file may belong to a running publish.
GRACE_S = 600.0


def abandoned_temporaries(layout: StoreLayout) -> Iterator[Path]:
    """Temporaries whose writers are gone."""
    for path in _files(layout.temp):
        # A folder here is not ours; ``integrity`` reports it.
        if (path.is_symlink() or not path.is_dir()) and is_abandoned(path):
            yield path


def is_abandoned(path: Path) -> bool:
    """Whether the writer of a temporary is gone; anything but a regular file has none."""
    with _abandoned(path) as abandoned:
        return abandoned


def remove_temporary(path: Path) -> bool:
    """Deletes a temporary if its writer is gone; returns whether it did.

    Raises:
        OSError: when deleting fails.
    """
    with _abandoned(path) as abandoned:
        if abandoned:
            path.unlink(missing_ok=True)
        return abandoned


@contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Whether the writer of a temporary is gone. The body of the ``with`` holds its lock, so no writer can start."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield not _is_young(path)
        return
    try:
        yield _is_free(descriptor, path)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int, path: Path) -> bool:
    """Whether the lock of an open file is free, and the file is still at its path."""
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # locks do not work here
    return not _is_young(path)


def orphan_blobs(store: DiskStore) -> Iterator[Path]:
    """Blobs that no record names or will name, because a publish, replacement or eviction was interrupted.

    If the record exists but names another, missing blob, that is damage, and left for ``integrity``.
    """
    layout = store.layout
    for shard in shards_in(layout.kernels, links=layout.trust):
        by_key: dict[CacheKey, list[Path]] = {}
        for path in _files(layout.kernels / shard):
            key = key_of_blob_name(path.name, shard)
            if key is not None:
                by_key.setdefault(key, []).append(path)
        for key, blobs in by_key.items():
            if len(blobs) > 1 or not os.path.lexists(layout.record_path(key)):
                yield from (path for path in blobs if is_orphan(store, key, path))


def is_orphan(store: DiskStore, key: CacheKey, path: Path) -> bool:
    """Whether the key's record, if any, names another blob, and no process is publishing the key."""
    if _named(store, key) in (path.name, None):
        return False
    try:
        with file_lock_to_delete(store.layout.key_lock(key), 0):
            # Again: its publish may have ended in between.
            return os.path.lexists(path) and _named(store, key) not in (path.name, None)
    except LockTimeout:
        return False
    except OSError:
        return not _is_young(path)


def remove_orphan(store: DiskStore, path: Path) -> bool:
    """Deletes a blob that was an orphan, if it still is one; returns whether it did.

    The same blob may have been published since, under the same name, so that its record exists now.

    Raises:
        OSError: when deleting fails.
    """
    key = key_of_blob_name(path.name, path.parent.name)
    if key is None:
        return False
    with suppress(LockTimeout), file_lock_to_delete(store.layout.key_lock(key), 0):
        if _named(store, key) not in (path.name, None):
            path.unlink(missing_ok=True)
            return True
    return False


def _named(store: DiskStore, key: CacheKey) -> str | None:
    """The name of the blob in a key's record: empty when there is no record, ``None`` when it cannot be read."""
    try:
        record = store.record(key)
    except (CorruptEntry, OSError):
        return None
    if record is not None:
        return Path(store.layout.blob_path(key, record.blob.digest)).name
    return None if os.path.lexists(store.layout.record_path(key)) else ""


def _files(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def _is_young(path: Path) -> bool:
    """Whether a file was changed lately. The clock may have been set back, by seconds or by a year."""
    try:
        return abs(time.time() - os.lstat(path).st_mtime) < GRACE_S
    except FileNotFoundError:
        return True
