"""Copies results of the evaluator into the mirror: new lines of their logs, or everything that differs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.evaluations.entry import Entry, decode_entry, judge
from cache_engine.mirror import rows
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results.file import (
    ReadSoFar,
    ResultFile,
    Snapshot,
    Statistics,
    UnknownResults,
    empty_snapshot,
    stored_fingerprints,
)

if TYPE_CHECKING:
    import duckdb

_LARGEST = 2**63 - 1
_LOCK_TIMEOUT_S = 10.0
_NOTHING = (None,) * 22
"""The column values of a result that cannot be read."""


def results_state(layout: StoreLayout) -> object:
    """The state of all result files. Equal states mean that nothing was written in between."""
    found = []
    with suppress(FileNotFoundError), os.scandir(layout.evaluations) as files:
        for file in files:
            with suppress(FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                found.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return sorted(found)


def sync_evaluations(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, bool]:
    """Copies changed results; returns their number, and whether everything could be read."""
    known = {row[0]: row[1:] for row in connection.execute(_KNOWN).fetchall()}
    there = stored_fingerprints(layout)
    changed, settled = 0, True
    for fingerprint in known.keys() - set(there):
        changed += _forget(connection, fingerprint)
    for fingerprint in there:
        file = ResultFile(
            layout, empty_snapshot("", "", fingerprint, {}), judge, durable=False, lock_timeout_s=_LOCK_TIMEOUT_S
        )
        read, error, *sums = known.get(fingerprint, ("", ""))
        before = msgspec.json.decode(read, type=ReadSoFar) if read else None
        if before is not None:
            file.resume(before, Statistics(0, *sums))
        try:
            snapshot = file.load()
        except (StoreError, OSError) as refused:
            # Another format is permanent; any other error may be temporary.
            settled = settled and isinstance(refused, UnknownResults)
            if str(refused) != error:
                changed += _refuse(connection, fingerprint, str(refused))
            continue
        if before is None or before.forms != file.read_so_far.forms:
            changed += 1 + _replace(connection, fingerprint, snapshot)
        elif before == file.read_so_far:
            continue
        else:
            changed += 1 + _add(connection, fingerprint, snapshot)
        _describe(connection, fingerprint, snapshot, file.read_so_far)
    return changed, settled


_KNOWN = (
    "SELECT fingerprint, read_so_far, error, created_at, last_updated, hits, misses, search_hours, damaged_lines "
    "FROM accelerators"
)


def _replace(connection: duckdb.DuckDBPyConnection, fingerprint: str, snapshot: Snapshot) -> int:
    """Makes the mirror equal to a snapshot; returns the number of results that changed."""
    mirrored = dict(
        connection.execute("SELECT key, digest FROM evaluations WHERE fingerprint = ?", [fingerprint]).fetchall()
    )
    fresh = {
        key: (raw, digest)
        for key, raw in snapshot.cache_entries.items()
        if mirrored.get(key) != (digest := xxh3_64_hexdigest(raw))
    }
    gone = mirrored.keys() - snapshot.cache_entries.keys()
    _drop(connection, "evaluations", fingerprint, [*gone, *fresh])
    _insert(connection, fingerprint, fresh)
    connection.execute("DELETE FROM evaluation_usage WHERE fingerprint = ?", [fingerprint])
    _insert_usage(connection, fingerprint, snapshot)
    return len(gone) + len(fresh)


def _add(connection: duckdb.DuckDBPyConnection, fingerprint: str, added: Snapshot) -> int:
    """Copies results added since; returns their number."""
    _drop(connection, "evaluations", fingerprint, list(added.cache_entries))
    _insert(connection, fingerprint, {key: (raw, xxh3_64_hexdigest(raw)) for key, raw in added.cache_entries.items()})
    before = dict(
        connection.execute(
            "SELECT key, last_used_at FROM evaluation_usage WHERE fingerprint = ? AND list_contains(?, key)",
            [fingerprint, list(added.usage)],
        ).fetchall()
    )
    added.usage = {key: max(at, before.get(key, 0.0)) for key, at in added.usage.items()}
    _drop(connection, "evaluation_usage", fingerprint, list(added.usage))
    _insert_usage(connection, fingerprint, added)
    return len(added.cache_entries)


def _insert(
    connection: duckdb.DuckDBPyConnection, fingerprint: str, results: dict[str, tuple[msgspec.Raw, str]]
) -> None:
    rows.insert(
        connection,
        "evaluations",
        [(fingerprint, key, digest, *_cells(key, raw)) for key, (raw, digest) in results.items()],
    )


def _insert_usage(connection: duckdb.DuckDBPyConnection, fingerprint: str, snapshot: Snapshot) -> None:
    rows.insert(connection, "evaluation_usage", [(fingerprint, key, at) for key, at in snapshot.usage.items()])


def _cells(key: str, raw: msgspec.Raw) -> rows.Row:
    """The columns of a result from ``cause`` on."""
    try:
        return ("", *_columns(decode_entry(raw, key)))
    except (CorruptEntry, OverflowError, ValueError) as error:
        return (str(error), *_NOTHING)


def _columns(entry: Entry) -> rows.Row:
    s, r, mode, metadata = entry.shape, entry.result, entry.search_mode, entry.metadata
    return (
        s.M, s.N, s.K, s.G, entry.dtypes.input, entry.dtypes.output, mode.tile_search, mode.partition_search,
        mode.reduce_partial_sums, mode.compute_rate, r.latency_us, r.compute_us, r.memory_us, float(r.flops),
        float(r.traffic_bytes), r.effective_utilization, _product(r.tile, "mnk"), r.order,
        _product(r.partition, "gmnk"), metadata.search_time_ms, metadata.timestamp, metadata.model_version,
    )  # fmt: skip


def _product(parts: dict[str, int], names: str) -> str:
    return "×".join(str(parts[name]) for name in names)


def _drop(connection: duckdb.DuckDBPyConnection, table: str, fingerprint: str, keys: list[str]) -> None:
    if keys:
        import pyarrow

        connection.register("deleted", pyarrow.table({"key": keys}))
        connection.execute(
            f"DELETE FROM {table} WHERE fingerprint = ? AND key IN (SELECT key FROM deleted)", [fingerprint]
        )
        connection.unregister("deleted")


def _describe(connection: duckdb.DuckDBPyConnection, fingerprint: str, snapshot: Snapshot, read: ReadSoFar) -> None:
    """The accelerator's row; its description stays unchanged if only logs were read."""
    s = snapshot.statistics
    stored = connection.execute(
        "SELECT chip, evaluator, version FROM accelerators WHERE fingerprint = ?", [fingerprint]
    ).fetchone()
    about = (snapshot.chip, snapshot.evaluator, snapshot.version)
    if not snapshot.architecture and stored is not None:
        about = stored
    connection.execute("DELETE FROM accelerators WHERE fingerprint = ?", [fingerprint])
    sums = (s.created_at, s.last_updated, s.cache_hits, s.cache_misses, s.total_search_time_hours, s.corrupt_lines)
    rows.insert(connection, "accelerators", [(fingerprint, *about, *sums, "", msgspec.json.encode(read).decode())])


def _refuse(connection: duckdb.DuckDBPyConnection, fingerprint: str, cause: str) -> int:
    """Stores why an accelerator's results cannot be read."""
    _forget(connection, fingerprint)
    rows.insert(connection, "accelerators", [(fingerprint, "", "", "", 0.0, 0.0, 0, 0, 0.0, 0, cause, "")])
    return 1


def _forget(connection: duckdb.DuckDBPyConnection, fingerprint: str) -> int:
    for table in ("evaluations", "evaluation_usage", "accelerators"):
        connection.execute(f"DELETE FROM {table} WHERE fingerprint = ?", [fingerprint])
    return 1
