"""Rows of the index's tables: made from records and events, inserted in sets, and selected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from cache_engine.frameworks.bundle_facts import config_text, describe
from cache_engine.model.artifact import MOST_COUNT, Record, RecordedProblem
from cache_engine.model.events import ACTS, RECENT, RECENT_ACTS, TIERS, EventCounts, Tally
from cache_engine.model.fingerprint import toolchain_text
from cache_engine.settings.extras import needing
from cache_engine.store.codec import stored_bytes

if TYPE_CHECKING:
    import duckdb

    from cache_engine.evaluator.catalogue.search import Condition
    from cache_engine.frameworks.bundles import Group

Row = tuple[Any, ...]
Part = tuple[str, list[Any]]
"""A condition in SQL and its parameters."""

GROUPS = "groups"
"""The shard of other frameworks' kernels. Kernels of ours have records, in shards named by the beginning of their keys.
"""

_OPERATORS = frozenset({"=", "!=", "<", "<=", ">", ">="})

JOURNAL, TIMINGS, NOTES = "journal", "timings", "notes"
"""Names of sources of rows; the table ``skipped`` counts under them the rows that cannot be indexed."""

ALL_SKIPPED = """
    (SELECT count(*) FROM unreadable) + (SELECT coalesce(sum(rows), 0)::BIGINT FROM skipped)
"""
"""SQL: the number of items in the store that cannot be indexed."""

# The errors of pyarrow for a value that does not fit its column, e.g. ArrowInvalid and ArrowTypeError.
_UNFIT = (ValueError, TypeError, OverflowError)


def with_columns(schema: str, *kinds: type[msgspec.Struct]) -> str:
    """An SQL schema in which each struct's name in braces is replaced by columns for the struct's fields."""
    for kind in kinds:
        hints = get_type_hints(kind)
        columns = (f"{name} {_column_type(hints[name])}" for name in kind.__struct_fields__)
        schema = schema.replace(f"{{{kind.__name__}}}", ", ".join(columns))
    return schema


def comments(table: str, texts: Mapping[str, str]) -> str:
    """SQL that comments columns of a table."""
    return "".join(f"COMMENT ON COLUMN {table}.{name} IS {literal(text)};\n" for name, text in texts.items())


def literal(value: Any) -> str:
    """A parameter of a condition as SQL text: a string, a number, a truth value, or a list of such values."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value) if isinstance(value, int) or math.isfinite(value) else f"'{value}'::DOUBLE"


_COLUMN_TYPES = {bool: "BOOLEAN", int: "BIGINT", str: "VARCHAR"}


def _column_type(hint: Any) -> str:
    return next(name for kind, name in _COLUMN_TYPES.items() if kind in (hint, *get_args(hint)))


def kernel_row(record: Record, stamp: str) -> Row:
    """The row of ``kernels`` for a record whose file has this stamp, in the order of the columns."""
    p, r = record.problem, record.resources
    components = dict(record.components)
    searched = (
        record.name, record.key, record.family, record.compiler, record.arch, f"{p.m}x{p.n}x{p.k}", str(record.config),
        *(value for value in msgspec.structs.astuple(p) if isinstance(value, str)),
    )  # fmt: skip
    return (
        record.key, record.name, record.family, record.compiler, record.compiler_version, toolchain_text(components),
        components.get("schema", ""), components.get("template", ""), components.get("flags", ""),
        record.arch, *msgspec.structs.astuple(p), str(record.config),
        r.registers, r.shared_bytes, r.stack_bytes, r.spill_bytes,
        record.size_bytes, stored_bytes(record), record.compile_ms, record.created_at, record.created_by,
        None, None, None, " ".join(searched).lower(), record.key[:2], stamp,
    )  # fmt: skip


def adapted_row(group: Group, stored_bytes: int, stamp: str) -> Row:
    """The row of ``kernels`` for another framework's kernel in the store: its facts, and its bytes on disk."""
    known = describe(group)
    config = config_text(known)
    searched = (known.name, group.key, group.framework, known.version, known.arch, known.compiler, config)
    unknown = [None] * len(RecordedProblem.__struct_fields__)
    of_ours = [None] * 5  # compiler_version, toolchain, key_schema, template and flags
    return (
        group.key, known.name, None, known.compiler, *of_ours, known.arch, *unknown, config, known.registers,
        known.shared_bytes, known.stack_bytes, known.spill_bytes, known.code_bytes, stored_bytes, known.compile_ms,
        group.made_at, None, group.framework[:100], known.version, known.size_bytes,
        " ".join(filter(None, searched)).lower(), GROUPS, stamp,
    )  # fmt: skip


def fetch(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] | dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Runs a query; returns each row as a dictionary by column."""
    cursor = connection.execute(sql, parameters or [])
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def matching(pattern: str) -> Iterator[Part]:
    """SQL conditions that together say: a word of ``search_text`` matches a pattern, in which ``*`` is any characters.

    ``contains`` takes a tenth of the time of a regular expression, so only patterns with text on both sides of a * use
    one.
    """
    first, *middle, last = pattern.split("*")
    if first:
        yield "(starts_with(search_text, ?) OR contains(search_text, ?))", [first, f" {first}"]
    if last:
        yield "(ends_with(search_text, ?) OR contains(search_text, ?))", [last, f"{last} "]
    yield from (("contains(search_text, ?)", [text]) for text in middle if text)
    if sum(map(bool, (first, *middle, last))) > 1:
        yield "regexp_matches(search_text, ?)", [f"(?:^| ){_expression(pattern, '[^ ]*')}(?: |$)"]


def compared(condition: Condition, column: str) -> Part:
    """An SQL condition that holds where a column, or an SQL expression, fulfils ``condition``; with its parameters."""
    value, operator = condition.value, condition.operator
    if operator not in _OPERATORS:
        raise ValueError(operator)
    if not isinstance(value, str):
        return f"{column} {operator} ?", [value]
    if "*" not in value:
        return f"lower({column}) {operator} ?", [value]
    return f"regexp_full_match(lower({column}), ?) = ?", [_expression(value, "(?s:.*)"), operator == "="]


def tagged(condition: Condition, column: str) -> Part:
    """An SQL condition that holds where a word of a column fulfils ``condition``; for ``!=``, where no word is equal.

    A column without a value has no words.
    """
    word = f" {_expression(str(condition.value), '[^ ]*')} "
    words = f"coalesce(' ' || nullif({column}, '') || ' ', '')"
    return f"regexp_matches({words}, ?) = ?", [word, condition.operator == "="]


def all_of(parts: Sequence[Part]) -> Part:
    """An SQL condition that holds where all of ``parts`` hold, with their parameters."""
    return " AND ".join(["true", *(part for part, _ in parts)]), [value for _, given in parts for value in given]


def _expression(pattern: str, anything: str) -> str:
    return anything.join(map(re.escape, re.sub(r"\*+", "*", pattern).split("*")))


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Adds rows to a table as one set, which takes a hundredth of the time of adding them one by one.

    Returns:
        The rows that do not fit into the table's columns, each with the reason. These are skipped; the others are
        added.
    """
    if not rows:
        return []
    with needing("dashboard", "the index"):
        import pyarrow

    types = {
        "VARCHAR": pyarrow.string(),
        "BIGINT": pyarrow.int64(),
        "INTEGER": pyarrow.int32(),
        "DOUBLE": pyarrow.float64(),
        "BOOLEAN": pyarrow.bool_(),
    }
    columns = [(name, types[kind]) for name, kind, *_ in connection.execute(f"DESCRIBE {table}").fetchall()]

    def as_table(some: Sequence[Row]) -> pyarrow.Table:
        # A value that does not fit must fail here: in DuckDB it would end the whole transaction.
        of_each = zip(columns, zip(*some, strict=True), strict=True)
        return pyarrow.table({name: pyarrow.array(values, kind) for (name, kind), values in of_each})

    refused: list[tuple[Row, str]] = []
    try:
        incoming = as_table(rows)
    except _UNFIT:
        fitting = []
        for row in rows:
            try:
                as_table([row])
                fitting.append(row)
            except _UNFIT as error:
                refused.append((row, f"it does not fit into the index: {error}"))
        if not fitting:
            return refused
        incoming = as_table(fitting)
    connection.register("incoming", incoming)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    connection.unregister("incoming")
    return refused


def skip(connection: duckdb.DuckDBPyConnection, source: str, names: dict[str, tuple[int, str]]) -> None:
    """Records the rows that cannot be indexed: for each name, their number and the reason."""
    insert(connection, "skipped", [(source, name[:100], rows, cause) for name, (rows, cause) in names.items()])


def insert_or_skip(connection: duckdb.DuckDBPyConnection, source: str, table: str, rows: Sequence[Row]) -> None:
    """Adds rows to a table; those that do not fit its columns are recorded as skipped, under their first value."""
    for row, cause in insert(connection, table, rows):
        skip(connection, source, {str(row[0]): (1, cause)})


def delete_entries(connection: duckdb.DuckDBPyConnection, entries: Sequence[Row]) -> None:
    """Removes the rows of entries, each given by its shard and its key."""
    if entries:
        import pyarrow

        shards, keys = zip(*entries, strict=True)
        connection.register("deleted", pyarrow.table({"shard": shards, "key": keys}))
        for table in ("kernels", "unreadable"):
            connection.execute(f"DELETE FROM {table} WHERE (shard, key) IN (SELECT shard, key FROM deleted)")
        connection.unregister("deleted")


def clear_journal(connection: duckdb.DuckDBPyConnection) -> None:
    """Deletes all rows that came from the journal."""
    for table in ("usage", "events", "totals", "periods", "misses", "spans"):
        connection.execute(f"DELETE FROM {table}")
    connection.execute("DELETE FROM skipped WHERE source = ?", [JOURNAL])


def add_tally(connection: duckdb.DuckDBPyConnection, tally: Tally) -> None:
    """Adds sums of events to the sums already in the index."""
    usage = [
        (used.key, used.made_at, *(used.hits.get(tier, 0) for tier in TIERS), used.last_used_at) for used in tally.usage
    ]
    insert_or_skip(connection, JOURNAL, "usage", usage)
    if usage:
        # The same entry may now have two rows: the old sums, and the new use.
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE merged AS SELECT key, made_at, "
            + "".join(f"least(sum({tier}_hits), {MOST_COUNT}) AS {tier}_hits, " for tier in TIERS)
            + "max(last_used_at) AS last_used_at FROM usage GROUP BY key, made_at"
        )
        connection.execute("DELETE FROM usage")
        connection.execute("INSERT INTO usage BY NAME SELECT * FROM merged")
    events = [(e.at, e.kind, e.key, e.compile_us / 1000, e.stored_bytes, e.detail, e.by) for e in tally.recent]
    insert_or_skip(connection, JOURNAL, "events", events)
    is_act = f"kind IN {ACTS}"
    connection.execute(
        "DELETE FROM events WHERE rowid NOT IN (SELECT rowid FROM events QUALIFY row_number() OVER "
        f"(PARTITION BY {is_act} ORDER BY happened_at DESC, kind DESC, key DESC, detail DESC) "
        f"<= CASE WHEN {is_act} THEN {RECENT_ACTS} ELSE {RECENT} END)"
    )
    t = tally.totals
    insert_or_skip(connection, JOURNAL, "totals", _counts_rows(connection, "totals", [t]))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE summed AS SELECT {_sums(connection, 'totals', 'last_publish_at')}, "
        "max(last_publish_at) AS last_publish_at FROM totals"
    )
    connection.execute("DELETE FROM totals")
    connection.execute("INSERT INTO totals BY NAME SELECT * FROM summed")
    insert_or_skip(connection, JOURNAL, "periods", _counts_rows(connection, "periods", tally.periods))
    sum_up(connection, "periods", "start, seconds")
    insert_or_skip(connection, JOURNAL, "misses", list(t.misses_by_arch.items()))
    sum_up(connection, "misses", "arch")
    insert_or_skip(connection, JOURNAL, "spans", list(t.spans.items()))
    sum_up(connection, "spans", "name")


def _counts_rows(connection: duckdb.DuckDBPyConnection, table: str, counted: Sequence[EventCounts]) -> list[Row]:
    """Rows for a table whose columns are named as the counters are, with a column for the hits of each tier."""
    columns = [column[0] for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description or []]
    return [tuple(_column(counts, name) for name in columns) for counts in counted]


def _column(counts: EventCounts, name: str) -> Any:
    tier = name.removesuffix("_hits")
    if tier in TIERS:
        return counts.hits.get(tier, 0)
    if name.startswith("lookups_"):
        return counts.lookups.get(name.removeprefix("lookups_"), 0)
    return sum(counts.failures.values()) if name == "tier_failures" else getattr(counts, name)


def sum_up(connection: duckdb.DuckDBPyConnection, table: str, names: str) -> None:
    """Merges all rows of a table that have the same values in the columns ``names`` into one with their sums."""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE summed AS SELECT {names}, {_sums(connection, table, names)} FROM {table} "
        f"GROUP BY {names}"
    )
    connection.execute(f"DELETE FROM {table}")
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM summed")


def _sums(connection: duckdb.DuckDBPyConnection, table: str, but: str) -> str:
    """SQL for the sums of all columns except ``but``, bounded as in the store's files, so that they fit the columns."""
    names = [row[0] for row in connection.execute(f"DESCRIBE {table}").fetchall()]
    return ", ".join(f"least(sum({name}), {MOST_COUNT}) AS {name}" for name in names if name not in but.split(", "))
