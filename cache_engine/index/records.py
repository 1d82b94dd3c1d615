"""Copies records, timings, and other frameworks' kernels in the store into the index, if they have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.frameworks.bundles import UnknownGroup, read_group
from cache_engine.index import rows
from cache_engine.model.key import CacheKey, is_key
from cache_engine.model.measurement import Measurement
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import SHARDS, StoreLayout, key_of_record_name
from cache_engine.store.notes import noted
from cache_engine.store.timings import Timings

if TYPE_CHECKING:
    import duckdb

    from cache_engine.store.results import State


# The worst resolution of folder times; a folder changed more recently is read again next time.
SETTLED_NS = 2_000_000_000
# In place of a folder's time: the folder does not exist; it must be read again.
NO_FOLDER, LOOK_AGAIN = -2, -1
# In place of a record's stamp: the disk refused to read it.
UNREAD = ""


def sync_records(connection: duckdb.DuckDBPyConnection, store: DiskStore) -> tuple[int, int, int]:
    """Reads the records in changed folders; returns the numbers of added, removed and newly unreadable rows."""
    known = dict(connection.execute("SELECT shard, mtime_ns FROM shards").fetchall())
    horizon = time.time_ns() - SETTLED_NS
    changed: dict[str, int] = {}
    for shard in (*SHARDS, rows.GROUPS):
        mtime = mtime_ns(_folder(store.layout, shard))
        if mtime != known.get(shard, NO_FOLDER):
            changed[shard] = mtime if mtime <= horizon else LOOK_AGAIN
    if not changed:
        return 0, 0, 0

    indexed: dict[tuple[str, str], str] = {
        (shard, key): stamp
        for shard, key, stamp in connection.execute(
            "SELECT shard, key, stamp FROM kernels WHERE list_contains(?, shard) "
            "UNION ALL SELECT shard, key, stamp FROM unreadable WHERE list_contains(?, shard)",
            [list(changed), list(changed)],
        ).fetchall()
    }
    fresh: list[rows.Row] = []
    refused: list[rows.Row] = []
    for shard in changed:
        for key, status in _found(store.layout, shard):
            stamp = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
            known_stamp = indexed.pop((shard, key), None)
            if known_stamp == stamp:
                continue
            row, cause, transient = _read(store, shard, key, status, stamp)
            if row is not None:
                fresh.append(row)
                continue
            if transient:
                # It may become readable without a change of its stamp or its folder.
                changed[shard] = LOOK_AGAIN
            if known_stamp != UNREAD or not transient:
                refused.append((key, UNREAD if transient else stamp, cause, shard))
    # Keys left in `indexed` are gone; those in `fresh` or `refused` may have been there with another stamp.
    read = [*((row[-2], row[0]) for row in fresh), *((row[-1], row[0]) for row in refused)]
    rows.delete_entries(connection, [*indexed, *read])
    unfit = rows.insert(connection, "kernels", fresh)
    refused += [(row[0], row[-1], cause, row[-2]) for row, cause in unfit]
    rows.insert(connection, "unreadable", refused)
    connection.execute("DELETE FROM shards WHERE list_contains(?, shard)", [list(changed)])
    rows.insert(connection, "shards", list(changed.items()))
    return len(fresh), len(indexed), len(refused)


def _folder(layout: StoreLayout, shard: str) -> Path:
    return Path(layout.groups) if shard == rows.GROUPS else layout.metadata / shard


def _read(
    store: DiskStore, shard: str, key: CacheKey, status: os.stat_result, stamp: str
) -> tuple[rows.Row | None, str, bool]:
    """The row of an entry, the reason if it has none, and whether this reason may go away by itself."""
    try:
        if shard != rows.GROUPS:
            record = store.record(key)
            return (None if record is None else rows.kernel_row(record, stamp)), "made by another version", False
        group = read_group(store.layout, key, trust=store.layout.trust)
        return (None if group is None else rows.adapted_row(group, status.st_size, stamp)), "it is gone", True
    except (CorruptEntry, UnknownGroup) as error:
        return None, str(error), False
    except OSError as error:
        return None, str(error), True


def _found(layout: StoreLayout, shard: str) -> Iterator[tuple[CacheKey, os.stat_result]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(_folder(layout, shard)) as files:
        for file in files:
            is_group = shard == rows.GROUPS and is_key(file.name)
            key = CacheKey(file.name) if is_group else key_of_record_name(file.name, shard)
            if key is not None:
                with suppress(FileNotFoundError):
                    yield key, file.stat(follow_symlinks=False)


def mtime_ns(folder: Path | str) -> int:
    """The time of a folder's last change, in nanoseconds since 1970; negative if the folder does not exist."""
    try:
        return os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return NO_FOLDER


# ---- Measurements of kernels: they are few, so if any is new, all are read ----

_LOCK_TIMEOUT_S = 10.0


def timings_state(layout: StoreLayout) -> State:
    """The state of all timing files; if two calls return equal states, no timing was written between them."""
    from cache_engine.store.results import files_state

    return files_state(layout.timings)


def sync_timings(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, bool]:
    """Copies timings if any has changed; returns the number read or removed, and whether all could be read."""
    # Before reading, so that an addition meanwhile is a change next time.
    state = msgspec.json.encode(timings_state(layout)).decode()
    known = connection.execute("SELECT state FROM timings_read").fetchone()
    if known == (state,):
        return 0, True
    skipped: dict[str, tuple[int, str]] = {}
    found, settled = _read_timings(layout, skipped)
    gone = connection.execute("DELETE FROM timings RETURNING key").fetchall()
    connection.execute("DELETE FROM skipped WHERE source = ?", [rows.TIMINGS])
    rows.skip(connection, rows.TIMINGS, skipped)
    rows.insert_or_skip(connection, rows.TIMINGS, "timings", [_row(one) for one in found])
    connection.execute("DELETE FROM timings_read")
    if settled:
        rows.insert(connection, "timings_read", [(state,)])
    return len(found) + len(gone), settled


def _read_timings(layout: StoreLayout, skipped: dict[str, tuple[int, str]]) -> tuple[list[Measurement], bool]:
    """All sound timings of the store, and whether every file could be read; adds skipped files to ``skipped``."""
    from cache_engine.store.results import UnknownResults

    timings, found, settled = Timings(layout, durable=False, lock_timeout_s=_LOCK_TIMEOUT_S), [], True
    for fingerprint in timings.fingerprints():
        try:
            found += timings.read_device(fingerprint, lambda name, error: skipped.update({name: (1, str(error))}))
        except UnknownResults as error:
            skipped[fingerprint] = (1, str(error))  # permanently
        except (StoreError, OSError):
            settled = False
    return found, settled


def sync_notes(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, bool]:
    """Copies notes and tags if any has changed; returns the number read or removed, and whether the folder is settled.

    A file is always replaced, so the time of the folder changes with each note.
    """
    changed_ns = mtime_ns(layout.notes)
    if connection.execute("SELECT state FROM notes_read").fetchone() == (str(changed_ns),):
        return 0, True
    settled = changed_ns < time.time_ns() - SETTLED_NS
    found = dict(noted(layout))
    gone = connection.execute("DELETE FROM notes RETURNING key").fetchall()
    connection.execute("DELETE FROM skipped WHERE source = ?", [rows.NOTES])
    rows.skip(connection, rows.NOTES, {key: (1, why) for key, why in found.items() if isinstance(why, str)})
    read = [(key, one.text, " ".join(one.tags)) for key, one in found.items() if not isinstance(one, str)]
    rows.insert_or_skip(connection, rows.NOTES, "notes", read)
    connection.execute("DELETE FROM notes_read")
    if settled:
        rows.insert(connection, "notes_read", [(str(changed_ns),)])
    return len(read) + len(gone), settled


def _row(one: Measurement) -> rows.Row:
    """The row of ``timings`` for a measurement, in the order of the columns."""
    numbers = ("p10_us", "p90_us", "tflops", "reference_median_us", "speed_ratio", "max_rel_error")
    return (
        one.key, one.family, one.compiler, one.arch, str(one.config), one.config_from,
        *msgspec.structs.astuple(one.problem), one.device.name, one.device.digest(), one.device.driver, one.median_us,
        *(_number(one.timing.get(name)) for name in numbers), one.verified, one.measured_at, one.measured_by,
        msgspec.json.encode(one.timing).decode(),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    """The value as a number; ``None`` if it is not a number, as in a file of another version, or fits no column."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None
