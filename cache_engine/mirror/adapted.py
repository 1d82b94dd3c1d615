"""Copies what is known of adapted kernels into the mirror: those of a store, where a framework of others put them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from cache_engine.adapted.facts import config_text, describe
from cache_engine.adapted.groups import UnknownGroup, read_group
from cache_engine.errors import CorruptEntry
from cache_engine.mirror import rows
from cache_engine.mirror.records import LOOK_AGAIN, NO_FOLDER, SETTLED_NS, mtime_ns
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.layout import StoreLayout

if TYPE_CHECKING:
    import duckdb

    from cache_engine.adapted.groups import Group

_SHARD = "groups"


def sync_adapted(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, int, bool]:
    """Reads the groups that changed, if the folder did.

    Returns:
        The numbers of added and removed rows, and whether the disk refused none.
    """
    known = connection.execute("SELECT mtime_ns FROM shards WHERE shard = ?", [_SHARD]).fetchone()
    mtime = mtime_ns(layout.groups)
    if mtime == (known[0] if known else NO_FOLDER):
        return 0, 0, True
    mirrored = dict(connection.execute("SELECT key, stamp FROM adapted").fetchall())
    fresh: list[rows.Row] = []
    refused: dict[str, tuple[int, str]] = {}
    settled = True
    for key, status in _found(layout):
        stamp = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
        if mirrored.get(key) == stamp:
            del mirrored[key]
            continue
        try:
            group = read_group(layout, key, trust=layout.trust)
        except (CorruptEntry, UnknownGroup) as error:
            refused[key] = 1, str(error)
        except OSError as error:
            refused[key] = 1, str(error)
            settled = False
        else:
            if group is not None:
                fresh.append(_row(group, status.st_size, stamp))
    # Keys left in `mirrored` are gone, changed or damaged.
    rows.delete_keys(connection, "adapted", list(mirrored))
    connection.execute("DELETE FROM skipped WHERE source = ?", [rows.ADAPTED])
    for row, cause in rows.insert(connection, "adapted", fresh):
        refused[row[0]] = 1, cause
    rows.skip(connection, rows.ADAPTED, refused)
    connection.execute("DELETE FROM shards WHERE shard = ?", [_SHARD])
    is_old = mtime <= time.time_ns() - SETTLED_NS
    rows.insert(connection, "shards", [(_SHARD, mtime if settled and is_old else LOOK_AGAIN)])
    return len(fresh), len(mirrored.keys() - {row[0] for row in fresh}), settled


def _found(layout: StoreLayout) -> Iterator[tuple[CacheKey, os.stat_result]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(layout.groups) as files:
        for file in files:
            if is_key(file.name):
                with suppress(FileNotFoundError):
                    yield CacheKey(file.name), file.stat(follow_symlinks=False)


def _row(group: Group, stored_bytes: int, stamp: str) -> rows.Row:
    """The row of ``adapted``, in the order of the columns."""
    known = describe(group)
    config = config_text(known)
    searched = (known.name, group.key, group.framework, known.version, known.arch, known.compiler, config)
    return (
        group.key, group.framework[:100], known.name, known.version, known.compiler, known.arch, known.registers,
        known.shared_bytes, known.stack_bytes, known.code_bytes, known.size_bytes, stored_bytes, known.compile_ms,
        group.made_at, config, json.dumps(dict(known.unread)), " ".join(filter(None, searched)).lower(), stamp,
    )  # fmt: skip
