"""Copies records into the mirror: those of folders that changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.errors import CorruptEntry
from cache_engine.mirror import rows
from cache_engine.model.artifact import Record
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import SHARDS, key_of_record_name

if TYPE_CHECKING:
    import duckdb

# The worst resolution of folder times; a folder changed more recently is read again next time.
SETTLED_NS = 2_000_000_000
# In place of a folder's time: the folder does not exist; it must be read again.
NO_FOLDER, LOOK_AGAIN = -2, -1
# In place of a record's stamp: the disk refused to read it.
UNREAD = ""


def sync_records(connection: duckdb.DuckDBPyConnection, store: DiskStore) -> tuple[int, int, int]:
    """Reads the records of changed folders; returns the numbers of added, removed and newly unreadable rows."""
    metadata = store.layout.metadata
    known = dict(connection.execute("SELECT shard, mtime_ns FROM shards").fetchall())
    horizon = time.time_ns() - SETTLED_NS
    changed: dict[str, int] = {}
    for shard in SHARDS:
        mtime = mtime_ns(metadata / shard)
        if mtime != known.get(shard, NO_FOLDER):
            changed[shard] = mtime if mtime <= horizon else LOOK_AGAIN
    if not changed:
        return 0, 0, 0

    mirrored: dict[str, str] = dict(
        connection.execute(
            "SELECT key, stamp FROM kernels WHERE list_contains(?, key[:2]) "
            "UNION ALL SELECT key, stamp FROM unreadable WHERE list_contains(?, key[:2])",
            [list(changed), list(changed)],
        ).fetchall()
    )
    fresh: list[rows.Row] = []
    refused: list[rows.Row] = []
    for shard in changed:
        for key, stamp in _stamps(metadata / shard):
            known_stamp = mirrored.pop(key, None)
            if known_stamp == stamp:
                continue
            record, cause, transient = _read(store, key)
            if record is not None:
                fresh.append(rows.kernel_row(record, stamp))
                continue
            if transient:
                # It may become readable without a change of its stamp or its folder.
                changed[shard] = LOOK_AGAIN
            if known_stamp != UNREAD or not transient:
                refused.append((key, UNREAD if transient else stamp, cause))
    # Keys left in `mirrored` are gone; those in `fresh` or `refused` may have been there with another stamp.
    stale = [*mirrored, *(row[0] for row in fresh), *(row[0] for row in refused)]
    for table in ("kernels", "unreadable"):
        rows.delete_keys(connection, table, stale)
    refused += [(row[0], row[-1], cause) for row, cause in rows.insert(connection, "kernels", fresh)]
    rows.insert(connection, "unreadable", refused)
    connection.execute("DELETE FROM shards WHERE list_contains(?, shard)", [list(changed)])
    rows.insert(connection, "shards", list(changed.items()))
    return len(fresh), len(mirrored), len(refused)


def _read(store: DiskStore, key: CacheKey) -> tuple[Record | None, str, bool]:
    """A record, or why there is none and whether that may be temporary."""
    try:
        return store.record(key), "made by another version", False
    except CorruptEntry as error:
        return None, str(error), False
    except OSError as error:
        return None, str(error), True


def _stamps(folder: Path) -> Iterator[tuple[CacheKey, str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            key = key_of_record_name(file.name, folder.name)
            if key is not None:
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    yield key, f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def mtime_ns(folder: Path | str) -> int:
    """When a folder last changed, in nanoseconds since 1970; negative where there is none."""
    try:
        return os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return NO_FOLDER
