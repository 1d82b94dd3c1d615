"""The queries of the dashboard's pages and the command line on the index. SQL selects the page of a list."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.index.rows import ALL_SKIPPED, Part, all_of, compared, literal, matching, tagged
from cache_engine.index.rows import fetch as _rows
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.events import ACTS, CORRUPT, EVICT, PUBLISH, SET_ASIDE
from cache_engine.model.gemm.fields import FIELDS, ProblemField

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from cache_engine.evaluator.catalogue.search import Condition, Search, Shapes

Row = dict[str, Any]
_SAVING_HITS = "coalesce(pack_hits, 0) + coalesce(disk_hits, 0) + coalesce(remote_hits, 0)"
_HITS = f"coalesce(memory_hits, 0) + {_SAVING_HITS}"
_LAST_USED = "greatest(coalesce(last_used_at, 0), created_at)"

# sm_90 before sm_100, and sm_90a after sm_90.
CAPABILITY = "lpad(regexp_extract(arch, '[0-9]+'), 6, '0') || arch"

# Columns that filter a list, in display order.
FACETS = ("arch", "dtype", "family", "compiler", "layout", "toolchain")

# Sort orders of lists: displayed name → SQL expression.
SORTS = {
    "last used": _LAST_USED, "created": "created_at", "hits": _HITS, "compile time": "compile_ms", "size": "size_bytes",
    "size on disk": "stored_bytes", "registers": "registers", "name": "name", "target": CAPABILITY, "family": "family",
    "dtype": "dtype", "layout": "layout", "shape": "row(m, n, k)", "batch": "batch", "config": "config",
    "spills": "spill_bytes", "shared memory": "shared_bytes",
    "compiler": "compiler || coalesce(' ' || compiler_version, '')",
    "time": "median_us", "tflops": "tflops", "share of library": "speed_ratio",
}  # fmt: skip


def _in_words(field: ProblemField) -> str:
    is_ours = "framework IS NULL"
    return field.name if field.kind is not bool else f"CASE WHEN {field.name} THEN 'yes' WHEN {is_ours} THEN 'no' END"


# Fields of searches: name → SQL expression, where it is not a column of that name.
_FIELDS = {
    **{field.searched_as: _in_words(field) for field in FIELDS},
    "hits": _HITS, "size": "size_bytes", "disk": "stored_bytes", "shared": "shared_bytes",
    "spills": "spill_bytes", "compile": "compile_ms", "created": "created_at", "used": _LAST_USED, "target": "arch",
    "key": "kernels.key", "note": "(SELECT note FROM notes WHERE notes.key = kernels.key)",
    "tag": "(SELECT tags FROM notes WHERE notes.key = kernels.key)",
}  # fmt: skip
# Older names, in links and commands that people stored.
OLD_SORTS = {"architecture": "target"}

_BATCH_ROWS = 10_000
_ITS_USAGE = "usage ON usage.key = kernels.key AND usage.made_at = kernels.created_at"
_USED_KERNELS = f"kernels LEFT JOIN {_ITS_USAGE}"
_ITS_TIME = "kernel_times ON kernel_times.key = kernels.key LEFT JOIN notes ON notes.key = kernels.key"
_TIMED_KERNELS = f"{_USED_KERNELS} LEFT JOIN {_ITS_TIME}"
_COLUMNS = f"""
    kernels.* EXCLUDE (framework, version, parts_bytes, search_text, shard, stamp),
    coalesce(memory_hits, 0) AS memory_hits, coalesce(pack_hits, 0) AS pack_hits, coalesce(disk_hits, 0) AS disk_hits,
    coalesce(remote_hits, 0) AS remote_hits, {_HITS} AS hits, {_LAST_USED} AS last_used_at,
    median_us, tflops, speed_ratio, device, note, tags
"""
_NAMED = "name, arch, m, n, k, batch, dtype, out_dtype, config"
_OF_ADAPTED = f"""
    kernels.key, framework, name, version, compiler, arch, registers, shared_bytes, stack_bytes,
    size_bytes AS code_bytes, parts_bytes AS size_bytes, stored_bytes, compile_ms, created_at, config,
    ({_HITS})::BIGINT AS hits, {_LAST_USED} AS last_used_at,
    note, tags
"""


@dataclass(frozen=True, slots=True)
class KernelFilter:
    """Selects kernels that contain every word of ``text`` and, for each list that is not empty, one of its values.

    Selected kernels match all ``patterns``, words in which ``*`` is any characters, and fulfil all ``conditions``,
    comparisons such as ``n>4096``. ``shapes`` is a list of lists of (n, k), for example one for a model, and
    ``targets`` a list of lists of targets, for example one for a GPU: a kernel must fit one value of each. A kernel
    whose field is unknown fulfils no condition on that field.

    With ``frameworks``, selects the kernels that other frameworks store in our store: of the named frameworks, or of
    all if it is empty.
    """

    text: str = ""
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ()
    _: KW_ONLY
    patterns: tuple[str, ...] = ()
    shapes: tuple[Shapes, ...] = ()
    targets: tuple[tuple[str, ...], ...] = ()
    conditions: tuple[Condition, ...] = ()
    frameworks: tuple[str, ...] | None = None

    @classmethod
    def of(cls, search: Search, *facets: tuple[str, ...]) -> KernelFilter:
        """The filter of a search, with the chosen values of the facets in their order."""
        found = cls(search.words, *facets, patterns=search.patterns, conditions=search.conditions)
        return replace(found, shapes=search.shapes, targets=search.targets)

    @property
    def table(self) -> str:
        """The table to select from. Usage is joined only if a condition needs it: a join takes longer than the rest."""
        return _USED_KERNELS if any(one.field in ("hits", "used") for one in self.conditions) else "kernels"

    def where(self) -> tuple[str, list[Any]]:
        """The filter as an SQL condition, and the parameters of the condition."""
        chosen = [(f"list_contains(?, {column})", [[*values]]) for column, values in self.choices().items() if values]
        return all_of([self.searched(), *chosen])

    def searched(self) -> tuple[str, list[Any]]:
        """The part of the SQL condition that ``text`` and the search make, without the facets; and its parameters."""
        both = "(n, k) IN (SELECT unnest(?::BIGINT[]), unnest(?::BIGINT[]))"
        found: list[Part] = [
            ("framework IS NULL" if self.frameworks is None else "framework IS NOT NULL", []),
            *([("list_contains(?, framework)", [[*self.frameworks]])] if self.frameworks else []),
            *(("contains(search_text, ?)", [word]) for word in self.text.lower().replace("×", "x").split()),
            *(part for pattern in self.patterns for part in matching(pattern)),
            *((both, [[n for n, _ in sizes], [k for _, k in sizes]]) for sizes in self.shapes),
            *(("list_contains(?, arch)", [list(targets)]) for targets in self.targets),
            *(
                (tagged if one.field == "tag" else compared)(one, _FIELDS.get(one.field, one.field))
                for one in self.conditions
            ),
        ]
        return all_of(found)

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The chosen values of each facet."""
        chosen = (self.archs, self.dtypes, self.families, self.compilers, self.layouts, self.toolchains)
        return dict(zip(FACETS, chosen, strict=True))


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """The number of all selected kernels, and for each value of a facet the number if only that value were chosen."""

    total: int
    values: dict[str, dict[str, int]]


def count(connection: duckdb.DuckDBPyConnection, chosen: KernelFilter) -> int:
    """The number of kernels that a filter selects."""
    condition, parameters = chosen.where()
    row = connection.execute(f"SELECT count(*) FROM {chosen.table} WHERE {condition}", parameters).fetchone()
    return int(row[0]) if row else 0


def stock(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """The number of kernels in the index, and a checksum of their keys."""
    row = connection.execute("SELECT count(*), coalesce(bit_xor(hash(key)), 0) FROM ours").fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def kernels(
    connection: duckdb.DuckDBPyConnection,
    chosen: KernelFilter,
    *,
    sort: str = "last used",
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> list[Row]:
    """One page of the selected kernels; kernels without a value in the field of ``sort`` come last.

    Raises:
        UsageError: when ``sort`` is not one of ``SORTS``.
    """
    order = _order(sort)
    condition, parameters = chosen.where()
    direction, columns = "DESC" if descending else "ASC", _COLUMNS if chosen.frameworks is None else _OF_ADAPTED
    # The page is found on narrow rows first: sorting whole ones takes twice as long.
    return _rows(
        connection,
        f"""
        WITH page AS (
            SELECT kernels.rowid AS row, {order} AS sorted FROM {_joined(sort)} WHERE {condition}
            ORDER BY sorted {direction} NULLS LAST, kernels.key LIMIT ? OFFSET ?
        )
        SELECT {columns} FROM page JOIN kernels ON kernels.rowid = row LEFT JOIN {_ITS_USAGE} LEFT JOIN {_ITS_TIME}
        ORDER BY sorted {direction} NULLS LAST, kernels.key
        """,
        [*parameters, limit, offset],
    )


def kernel(connection: duckdb.DuckDBPyConnection, key: str) -> Row | None:
    """One kernel's row; ``None`` if the index has no such kernel."""
    rows = _rows(
        connection, f"SELECT {_COLUMNS} FROM {_TIMED_KERNELS} WHERE kernels.key = ? AND framework IS NULL", [key]
    )
    return rows[0] if rows else None


def versions(connection: duckdb.DuckDBPyConnection, key: str, limit: int = 100) -> list[Row]:
    """The kernels for the problem of one kernel on its target, that kernel included, the latest compiled first.

    They differ in toolchain, family, config, and the m that they were first asked for.
    """
    ways = {"m", "specialisation", "opt_level"}
    same = ", ".join(("arch", *(name for name in RecordedProblem.__struct_fields__ if name not in ways)))
    return _rows(
        connection,
        f"""
        SELECT {_COLUMNS} FROM {_TIMED_KERNELS}
        WHERE framework IS NULL AND row({same}) = (SELECT row({same}) FROM ours WHERE key = ?)
        ORDER BY created_at DESC, kernels.key LIMIT ?
        """,
        [key, limit],
    )


def adapted_kernel(connection: duckdb.DuckDBPyConnection, key: str) -> Row | None:
    """The row of another framework's kernel in the store; ``None`` if the index has no such kernel."""
    rows = _rows(
        connection, f"SELECT {_OF_ADAPTED} FROM {_TIMED_KERNELS} WHERE kernels.key = ? AND framework IS NOT NULL", [key]
    )
    return rows[0] if rows else None


def as_sql(chosen: KernelFilter, *, sort: str = "last used", descending: bool = True) -> str:
    """The SQL query for all selected kernels, as text for ``sql.ask``.

    Raises:
        UsageError: when ``sort`` is not one of ``SORTS``.
    """
    condition, parameters = chosen.where()
    first, *rest = condition.replace("true AND ", "").split("?")
    shown = first + "".join(literal(value) + text for value, text in zip(parameters, rest, strict=True))
    columns = " ".join((_COLUMNS if chosen.frameworks is None else _OF_ADAPTED).split())
    direction = "DESC" if descending else "ASC"
    return (
        f"SELECT {columns}\nFROM {_TIMED_KERNELS}\nWHERE {shown}\n"
        f"ORDER BY {_order(sort)} {direction} NULLS LAST, kernels.key"
    )


def names(connection: duckdb.DuckDBPyConnection, keys: list[str]) -> dict[str, str]:
    """The names of those kernels of ``keys`` that are stored, by key, other frameworks' included."""
    found = connection.execute("SELECT key, name FROM kernels WHERE list_contains(?, key)", [keys])
    return dict(found.fetchall())


def departed(connection: duckdb.DuckDBPyConnection, keys: list[str]) -> dict[str, str]:
    """For each kernel of ``keys`` that left the store, as far as the events go back: the kind of the event."""
    found = connection.execute(
        "SELECT key, arg_max(kind, happened_at) AS last FROM events "
        "WHERE list_contains(?, kind) AND key IN (SELECT unnest(?)) GROUP BY key HAVING last != ?",
        [[PUBLISH, EVICT, CORRUPT, SET_ASIDE], keys, PUBLISH],
    )
    return dict(found.fetchall())


def named(connection: duckdb.DuckDBPyConnection, keys: list[str]) -> list[Row]:
    """The name, target and problem of each existing kernel among ``keys``; no problem for other frameworks' kernels."""
    return _rows(connection, f"SELECT key, {_NAMED} FROM kernels WHERE list_contains(?, key)", [keys])


def facets(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """For each facet (a column by which kernels can be selected), the values that exist, sorted."""
    found: dict[str, list[str]] = {}
    for column in ("arch", "dtype", "family", "compiler", "framework"):
        order, table = CAPABILITY if column == "arch" else column, "kernels" if column == "framework" else "ours"
        rows = connection.execute(
            f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL GROUP BY {column} ORDER BY {order}"
        ).fetchall()
        found[column] = [row[0] for row in rows]
    return found


def facet_counts(connection: duckdb.DuckDBPyConnection, chosen: KernelFilter) -> FacetCounts:
    """The number of kernels for each value of each facet, under the filter of all other facets.

    One scan groups the kernels that the search finds by all facets at once. The chosen values are applied to these few
    groups here: a SQL statement for each facet would take longer to plan than the scan of 100,000 kernels.
    """
    condition, parameters = chosen.searched()
    columns = ", ".join(FACETS)
    groups = connection.execute(
        f"SELECT {columns}, count(*) FROM {chosen.table} WHERE {condition} GROUP BY {columns}", parameters
    ).fetchall()
    choices = [frozenset(values) for values in chosen.choices().values()]
    total, counted = 0, [Counter[str]() for _ in FACETS]
    for *group, entries in groups:
        misfits = [at for at, value in enumerate(group) if choices[at] and value not in choices[at]]
        if not misfits:
            total += entries
        if len(misfits) <= 1:  # a facet counts whatever is chosen of itself
            for at in misfits or range(len(FACETS)):
                counted[at][group[at]] += entries
    return FacetCounts(total, {facet: _ordered(facet, counts) for facet, counts in zip(FACETS, counted, strict=True)})


def _ordered(facet: str, counts: Mapping[str, int]) -> dict[str, int]:
    """A facet's counts by value, sorted by value; targets are in the order of ``CAPABILITY``."""
    capable = {value: "".join(re.findall("[0-9]+", value)[:1]) if facet == "arch" else "" for value in counts}
    return {value: counts[value] for value in sorted(counts, key=lambda value: f"{capable[value]:0>6}"[:6] + value)}


def kernel_batches(
    connection: duckdb.DuckDBPyConnection,
    chosen: KernelFilter,
    *,
    sort: str = "last used",
    descending: bool = True,
    limit: int,
) -> pyarrow.RecordBatchReader:
    """The first ``limit`` selected kernels in the order of ``sort``, as a reader of Arrow batches.

    Raises:
        UsageError: when ``sort`` is not one of ``SORTS``.
    """
    condition, parameters = chosen.where()
    return connection.sql(
        f"SELECT {_COLUMNS} FROM {_TIMED_KERNELS} WHERE {condition} "
        f"ORDER BY {_order(sort)} {'DESC' if descending else 'ASC'}, kernels.key LIMIT ?",
        params=[*parameters, limit],
    ).to_arrow_reader(_BATCH_ROWS)


def overview(connection: duckdb.DuckDBPyConnection) -> Row:
    """One row: the number and bytes of all entries, all columns of ``totals``, the last sync, and skipped items.

    Skipped items are records, timings and journal lines that could not be indexed.
    """
    rows = _rows(
        connection,
        f"""
        SELECT entries.*, totals.*, synced_at, {ALL_SKIPPED} AS unreadable, spans
        FROM (SELECT count(*) AS entries, coalesce(sum(stored_bytes), 0) AS stored_bytes,
                     coalesce(sum(size_bytes), 0) AS size_bytes FROM kernels) AS entries,
             (SELECT map(list(name), list(count)) AS spans FROM spans) AS spans, sync_state LEFT JOIN totals ON true
        """,
    )
    return {name: value or 0 for name, value in rows[0].items()}


def events(connection: duckdb.DuckDBPyConnection, limit: int = 50) -> list[Row]:
    """The latest events other than hits, with the kernel's name, target and problem if it is still stored."""
    return _rows(
        connection,
        f"SELECT events.*, {_NAMED} FROM events LEFT JOIN kernels USING (key) ORDER BY happened_at DESC LIMIT ?",
        [limit],
    )


def events_of(connection: duckdb.DuckDBPyConnection, key: str) -> list[Row]:
    """The stored events of one key other than hits, newest first."""
    return _rows(connection, "SELECT * FROM events WHERE key = ? ORDER BY happened_at DESC", [key])


def acts(
    connection: duckdb.DuckDBPyConnection, kinds: Sequence[str] = ACTS, *, limit: int = 50, offset: int = 0
) -> list[Row]:
    """One page of actions on the whole store, or of events of other ``kinds``, newest first."""
    return _rows(
        connection,
        "SELECT happened_at, kind, key, stored_bytes, detail, done_by FROM events WHERE list_contains(?, kind) "
        "ORDER BY happened_at DESC, kind, detail, key LIMIT ? OFFSET ?",
        [list(kinds), limit, offset],
    )


def sums_by_arch(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> list[Row]:
    """For each target, the number and bytes of the stored kernels with these keys, other frameworks' included."""
    return _rows(
        connection,
        "SELECT arch, count(*) AS entries, sum(stored_bytes) AS stored_bytes "
        "FROM (SELECT key, coalesce(arch, '') AS arch, stored_bytes FROM kernels) "
        f"WHERE key IN (SELECT unnest(?)) GROUP BY arch ORDER BY {CAPABILITY}",
        [list(keys)],
    )


def sizes_of(connection: duckdb.DuckDBPyConnection, chosen: KernelFilter) -> list[Row]:
    """For each target, the number and bytes of the selected kernels."""
    condition, parameters = chosen.where()
    return _rows(
        connection,
        f"SELECT arch, count(*) AS entries, sum(stored_bytes) AS stored_bytes FROM {chosen.table} "
        f"WHERE {condition} GROUP BY arch ORDER BY {CAPABILITY}",
        parameters,
    )


def state(connection: duckdb.DuckDBPyConnection) -> Row:
    """The index's schema version, generation, time of the last sync, number of skipped items, and rows per table."""
    (row,) = _rows(
        connection, f"SELECT schema_version, generation, synced_at, {ALL_SKIPPED} AS skipped FROM sync_state"
    )
    tables = {"kernels": "ours", "usage": "usage", "events": "events", "unreadable": "unreadable"}
    counted = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {table}" for name, table in tables.items())
    return {**row, "rows": dict(connection.execute(counted).fetchall())}


def busiest(connection: duckdb.DuckDBPyConnection, limit: int = 10) -> list[Row]:
    """The kernels with the most hits."""
    # On narrow rows first, as in `kernels`.
    return _rows(
        connection,
        f"""
        WITH most AS (
            SELECT kernels.rowid AS row, {_HITS} AS counted FROM kernels JOIN {_ITS_USAGE}
            WHERE counted > 0 AND framework IS NULL
            ORDER BY counted DESC, kernels.key LIMIT ?
        )
        SELECT {_COLUMNS} FROM most JOIN kernels ON kernels.rowid = row JOIN {_ITS_USAGE} LEFT JOIN {_ITS_TIME}
        ORDER BY hits DESC, kernels.key
        """,
        [limit],
    )


def architectures(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """For each target, sums over its stored kernels; ``misses`` counts all misses, also of kernels since evicted."""
    return _rows(
        connection,
        f"""
        WITH used AS (
            SELECT arch, sum({_HITS}) AS hits,
                   sum(({_SAVING_HITS}) * compile_ms) AS saved_ms,
                   max(last_used_at) AS last_used_at
            FROM ours AS kernels JOIN {_ITS_USAGE} GROUP BY arch
        ), made AS (
            SELECT arch, count(*) AS entries, sum(size_bytes) AS size_bytes, sum(stored_bytes) AS stored_bytes,
                   sum(compile_ms) AS compile_ms, median(compile_ms) AS median_compile_ms,
                   list_sort(list(DISTINCT family)) AS families, list_sort(list(DISTINCT dtype)) AS dtypes,
                   max(created_at) AS last_made_at
            FROM ours GROUP BY arch
        )
        SELECT made.* EXCLUDE last_made_at, coalesce(hits, 0) AS hits, coalesce(saved_ms, 0) AS saved_ms,
               greatest(coalesce(last_used_at, 0), last_made_at) AS last_used_at, coalesce(misses, 0) AS misses
        FROM made LEFT JOIN used USING (arch) LEFT JOIN misses USING (arch) ORDER BY {CAPABILITY}
        """,
    )


def made_with(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """Sums over the stored kernels for each way of making: the same toolchain, template, flags, target and dtype."""
    # Usage is summed separately, so that only used kernels are joined.
    ways = "key_schema, family, template, compiler, compiler_version, toolchain, opt_level, flags, arch, dtype"
    return _rows(
        connection,
        f"""
        WITH used AS (SELECT {ways}, sum({_HITS}) AS hits FROM ours AS kernels JOIN {_ITS_USAGE} GROUP BY {ways}),
        made AS (
            SELECT {ways}, count(*) AS entries, sum(size_bytes) AS size_bytes, sum(stored_bytes) AS stored_bytes,
                   sum(compile_ms) AS compile_ms, min(created_at) AS first_made_at,
                   max(created_at) AS last_made_at
            FROM ours GROUP BY {ways}
        )
        SELECT made.*, coalesce(hits, 0) AS hits FROM made LEFT JOIN used USING ({ways})
        ORDER BY {CAPABILITY}, {ways}
        """,
    )


def history(connection: duckdb.DuckDBPyConnection, seconds: int, since: float = 0) -> list[Row]:
    """Events summed over intervals of this many seconds, from ``since`` on, oldest first.

    Leaves out events whose sums are only known for longer intervals.
    """
    return _rows(
        connection,
        """
        SELECT start // $seconds * $seconds AS start, sum(COLUMNS(* EXCLUDE (start, seconds)))::BIGINT
        FROM periods WHERE seconds <= $seconds AND start >= $since GROUP BY ALL ORDER BY ALL
        """,
        {"seconds": seconds, "since": since},
    )


def _joined(sort: str) -> str:
    """The tables that the order ``sort`` needs; timings are joined only if it uses them."""
    return _TIMED_KERNELS if SORTS.get(sort) in ("median_us", "tflops", "speed_ratio") else _USED_KERNELS


def _order(sort: str) -> str:
    sort = OLD_SORTS.get(sort, sort)
    if sort not in SORTS:
        raise UsageError(f"cannot sort by {sort!r}; use one of: {', '.join(SORTS)}")
    return SORTS[sort]
