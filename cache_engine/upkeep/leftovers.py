"""What killed writers leave behind: temporaries nobody writes any more, and blobs that no record names.

Whoever writes a temporary holds its lock, and whoever publishes an entry holds its key's; both locks end with the
process. So a leftover is told from work under way by asking for its lock, whatever the clock says. Where locks do not
work, or may not be had in a store that cannot be written, age has to tell.
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
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_blob_name
from cache_engine.store.lock import file_lock_to_delete, try_lock

# Where only age can tell: a file this young may belong to a publish under way.
GRACE_S = 600.0


def abandoned_temporaries(layout: StoreLayout) -> Iterator[Path]:
    """Temporaries whose writers are gone."""
    for path in _files(layout.temp):
        # Nobody here makes folders; that is for ``integrity`` to say.
        if (path.is_symlink() or not path.is_dir()) and is_abandoned(path):
            yield path


def is_abandoned(path: Path) -> bool:
    """Whether the writer of a temporary is gone; what is not a regular file has none."""
    with _abandoned(path) as abandoned:
        return abandoned


def remove_temporary(path: Path) -> bool:
    """Deletes a temporary if its writer is gone; whether it did.

    Raises:
        OSError: when the disk refuses.
    """
    with _abandoned(path) as abandoned:
        if abandoned:
            path.unlink(missing_ok=True)
        return abandoned


@contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Whether the writer of a temporary is gone. For the body of the ``with`` it is locked, so none can come back."""
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
    """Whether the lock of an open file can be had, and the file is still in its place."""
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # locks do not work here
    return not _is_young(path)


def orphan_blobs(store: DiskStore) -> Iterator[Path]:
    """Blobs that no record names, nor will: a publish, a replacement or an eviction was cut short.

    A blob whose record is there but names another that is not is damage, and left for ``integrity``.
    """
    layout = store.layout
    for shard in SHARDS:
        by_key: dict[CacheKey, list[Path]] = {}
        for path in _files(layout.kernels / shard):
            key = key_of_blob_name(path.name, shard)
            if key is not None:
                by_key.setdefault(key, []).append(path)
        for key, blobs in by_key.items():
            if len(blobs) > 1 or not os.path.lexists(layout.record_path(key)):
                yield from (path for path in blobs if is_orphan(store, key, path))


def is_orphan(store: DiskStore, key: CacheKey, path: Path) -> bool:
    """Whether the key's record, if there is any, names another blob, and nobody is publishing the key just now."""
    if _named(store, key) in (path.name, None):
        return False
    try:
        with file_lock_to_delete(store.layout.key_lock(key), 0):
            # Once more: its publish may have ended in between.
            return os.path.lexists(path) and _named(store, key) not in (path.name, None)
    except LockTimeout:
        return False
    except OSError:
        return not _is_young(path)


def remove_orphan(store: DiskStore, path: Path) -> bool:
    """Deletes a blob that was seen to be an orphan; whether it still was.

    The same blob may have been published since, under the same name, and its record be there by now.

    Raises:
        OSError: when the disk refuses.
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
    """The name of the blob a key's record names: empty when there is no record, ``None`` when it cannot be read."""
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
    """Whether a file was changed lately. The clock may have been set back, by a little or by a year."""
    try:
        return abs(time.time() - os.lstat(path).st_mtime) < GRACE_S
    except FileNotFoundError:
        return True
