"""Results of the evaluator in the index: copied from each file that changed; every query of the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine.errors import CorruptEntry, StoreError, UsageError
from cache_engine.evaluator.results.entry import Entry, decode_entry, judge
from cache_engine.index import rows
from cache_engine.index.rows import fetch
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import (
    ResultFile,
    Snapshot,
    State,
    UnknownResults,
    empty_snapshot,
    files_state,
    stored_fingerprints,
)

if TYPE_CHECKING:
    import duckdb


_LARGEST = 2**63 - 1
_LOCK_TIMEOUT_S = 10.0
_NOTHING = (None,) * 22
"""The column values of a result that cannot be read."""


def results_state(layout: StoreLayout) -> State:
    """The state of all result files. Equal states mean that nothing was written in between."""
    return files_state(layout.evaluations)


def sync_evaluations(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, bool]:
    """Copies changed results; returns their number, and whether everything could be read."""
    known = {
        fingerprint: (state, error)
        for fingerprint, state, error in connection.execute(
            "SELECT fingerprint, read_so_far, error FROM accelerators"
        ).fetchall()
    }
    there = stored_fingerprints(layout)
    changed, settled = 0, True
    for fingerprint in known.keys() - set(there):
        changed += _forget(connection, fingerprint)
    for fingerprint in there:
        file = ResultFile(
            layout, empty_snapshot("", "", fingerprint, {}), judge, durable=False, lock_timeout_s=_LOCK_TIMEOUT_S
        )
        # Before reading, so that an addition meanwhile is a change next time.
        state, (before, error) = msgspec.json.encode(file.state()).decode(), known.get(fingerprint, ("", ""))
        if state == before:
            continue
        try:
            snapshot = file.load()
        except (StoreError, OSError) as refused:
            # Another format is permanent; any other error may be temporary.
            settled = settled and isinstance(refused, UnknownResults)
            if str(refused) != error:
                changed += _refuse(connection, fingerprint, str(refused))
            continue
        changed += 1 + _replace(connection, fingerprint, snapshot)
        _describe(connection, fingerprint, snapshot, state)
    return changed, settled


def _replace(connection: duckdb.DuckDBPyConnection, fingerprint: str, snapshot: Snapshot) -> int:
    """Makes the index equal to a snapshot; returns the number of results that changed."""
    indexed = dict(
        connection.execute("SELECT key, digest FROM evaluations WHERE fingerprint = ?", [fingerprint]).fetchall()
    )
    fresh = {
        key: (raw, digest)
        for key, raw in snapshot.cache_entries.items()
        if indexed.get(key) != (digest := xxh3_64_hexdigest(raw))
    }
    gone = indexed.keys() - snapshot.cache_entries.keys()
    _drop(connection, fingerprint, [*gone, *fresh])
    _insert(connection, fingerprint, fresh)
    connection.execute("DELETE FROM evaluation_usage WHERE fingerprint = ?", [fingerprint])
    rows.insert(connection, "evaluation_usage", [(fingerprint, key, at) for key, at in snapshot.usage.items()])
    return len(gone) + len(fresh)


def _insert(
    connection: duckdb.DuckDBPyConnection, fingerprint: str, results: dict[str, tuple[msgspec.Raw, str]]
) -> None:
    rows.insert(
        connection,
        "evaluations",
        [(fingerprint, key, digest, *_cells(key, raw)) for key, (raw, digest) in results.items()],
    )


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


def _drop(connection: duckdb.DuckDBPyConnection, fingerprint: str, keys: list[str]) -> None:
    if keys:
        import pyarrow

        connection.register("deleted", pyarrow.table({"key": keys}))
        connection.execute(
            "DELETE FROM evaluations WHERE fingerprint = ? AND key IN (SELECT key FROM deleted)", [fingerprint]
        )
        connection.unregister("deleted")


def _describe(connection: duckdb.DuckDBPyConnection, fingerprint: str, snapshot: Snapshot, state: str) -> None:
    """The accelerator's row."""
    s = snapshot.statistics
    about = (snapshot.chip, snapshot.evaluator, snapshot.version)
    connection.execute("DELETE FROM accelerators WHERE fingerprint = ?", [fingerprint])
    sums = (s.created_at, s.last_updated, s.cache_hits, s.cache_misses, s.total_search_time_hours, s.corrupt_lines)
    rows.insert(connection, "accelerators", [(fingerprint, *about, *sums, "", state)])


def _refuse(connection: duckdb.DuckDBPyConnection, fingerprint: str, cause: str) -> int:
    """Stores why an accelerator's results cannot be read."""
    _forget(connection, fingerprint)
    rows.insert(connection, "accelerators", [(fingerprint, "", "", "", 0.0, 0.0, 0, 0, 0.0, 0, cause, "")])
    return 1


def _forget(connection: duckdb.DuckDBPyConnection, fingerprint: str) -> int:
    for table in ("evaluations", "evaluation_usage", "accelerators"):
        connection.execute(f"DELETE FROM {table} WHERE fingerprint = ?", [fingerprint])
    return 1


Row = dict[str, Any]

_LAST_USED = "greatest(coalesce(last_used_at, 0), made_at)"

# Sort orders of lists: displayed name → SQL expression.
EVALUATION_SORTS = {
    "made": "made_at",
    "last used": _LAST_USED,
    "latency": "latency_us",
    "share of the peak": "utilization",
    "operations": "flops",
    "m": "m",
    "n": "n",
    "k": "k",
    "time of the search": "search_ms",
}

_USED = "evaluations AS e LEFT JOIN evaluation_usage AS u ON u.fingerprint = e.fingerprint AND u.key = e.key"


@dataclass(frozen=True, slots=True)
class EvaluationFilter:
    """A filter of results: of these accelerators and types, where any are named, and with sizes that ``text`` has.

    A word of ``text`` is one size, as in ``7168``, or sizes m×n×k with ``*`` for any, as in ``*x7168x2048``.
    """

    text: str = ""
    fingerprints: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[Any]]:
        """As an SQL condition and its parameters."""
        conditions, parameters = ["cause = ''"], list[Any]()
        for word in self.text.lower().replace("×", "x").split():
            sizes = word.split("x")
            if len(sizes) == 1:
                conditions.append("list_contains([m, n, k], ?)")
                parameters.append(_size(sizes[0]))
                continue
            for name, size in zip(("m", "n", "k"), sizes[:3], strict=False):
                if size not in ("", "*"):
                    conditions.append(f"{name} = ?")
                    parameters.append(_size(size))
        for column, values in (("e.fingerprint", self.fingerprints), ("dtype", self.dtypes)):
            if values:
                conditions.append(f"list_contains(?, {column})")
                parameters.append(list(values))
        return " AND ".join(conditions), parameters


def _size(text: str) -> int:
    """A size from text; one that no result has when the text is not a size."""
    return int(text) if text.isdecimal() and len(text) < 18 else -1


def count_evaluations(connection: duckdb.DuckDBPyConnection, chosen: EvaluationFilter) -> int:
    """The number of results that a filter selects."""
    condition, parameters = chosen.where()
    row = connection.execute(f"SELECT count(*) FROM evaluations AS e WHERE {condition}", parameters).fetchone()
    return int(row[0]) if row else 0


def evaluations(
    connection: duckdb.DuckDBPyConnection,
    chosen: EvaluationFilter,
    *,
    sort: str = "made",
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> list[Row]:
    """One page of results.

    Raises:
        UsageError: when ``sort`` is not one of ``EVALUATION_SORTS``.
    """
    if sort not in EVALUATION_SORTS:
        raise UsageError(f"cannot sort by {sort!r}; use one of: {', '.join(EVALUATION_SORTS)}")
    condition, parameters = chosen.where()
    direction = "DESC" if descending else "ASC"
    return fetch(
        connection,
        f"""
        SELECT e.* EXCLUDE (digest, cause), {_LAST_USED} AS last_used_at, chip
        FROM {_USED} LEFT JOIN accelerators AS a ON a.fingerprint = e.fingerprint
        WHERE {condition} ORDER BY {EVALUATION_SORTS[sort]} {direction}, e.fingerprint, e.key LIMIT ? OFFSET ?
        """,
        [*parameters, limit, offset],
    )


def accelerators(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """One row per accelerator with results: their number, damaged results, and lookups."""
    return fetch(
        connection,
        """
        SELECT a.* EXCLUDE (read_so_far), coalesce(results, 0) AS results, coalesce(damaged, 0) AS damaged
        FROM accelerators AS a LEFT JOIN (
            SELECT fingerprint, count(*) FILTER (cause = '') AS results, count(*) FILTER (cause <> '') AS damaged
            FROM evaluations GROUP BY fingerprint
        ) USING (fingerprint) ORDER BY lower(chip), fingerprint
        """,
    )


def evaluation_dtypes(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The types of A and B with results."""
    found = connection.execute("SELECT DISTINCT dtype FROM evaluations WHERE cause = '' ORDER BY dtype").fetchall()
    return [row[0] for row in found]
