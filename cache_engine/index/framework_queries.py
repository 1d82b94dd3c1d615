"""The pages' queries about other frameworks' caches in the index."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.frameworks.doctor import Ailment, Diagnosis
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import Entry, Fault, Part, Place, ScanFinding, State, name_of
from cache_engine.index.rows import fetch

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

SORTS = {
    "created": "created_at",
    "last used": "coalesce(last_used_at, created_at)",
    "size": "size_bytes",
    "registers": "registers",
    "compile time": "compile_ms",
    "name": "name",
}
"""Sort orders of lists: displayed name → SQL expression."""

_PARTS_OF, _OBJECT = msgspec.json.Decoder(tuple[Part, ...]), msgspec.json.Decoder(dict[str, Any])


def places(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """Every cache directory, also an empty one, with the sums over its entries. Times are in seconds since 1970, UTC.

    ``path`` is as ``Place.path_text`` writes it.
    """
    return fetch(
        connection,
        "SELECT places.kind, places.path, any_value(places.origin) AS origin, "
        "count(id) AS entries, coalesce(sum(size_bytes), 0)::BIGINT AS size_bytes, "
        "coalesce(sum(source_bytes), 0)::BIGINT AS source_bytes, coalesce(sum(ir_bytes), 0)::BIGINT AS ir_bytes, "
        "coalesce(sum(ptx_bytes), 0)::BIGINT AS ptx_bytes, coalesce(sum(binary_bytes), 0)::BIGINT AS binary_bytes, "
        "count(*) FILTER (state = 'partial') AS partial, count(*) FILTER (state = 'unread') AS unread, "
        "min(created_at) AS oldest, max(created_at) AS newest, max(last_used_at) AS last_used_at "
        "FROM foreign_places AS places LEFT JOIN foreign_entries AS entries "
        "ON entries.kind = places.kind AND entries.path = places.path GROUP BY places.kind, places.path "
        "ORDER BY size_bytes DESC, places.kind, places.path",
    )


def counted(connection: duckdb.DuckDBPyConnection, column: str) -> list[Row]:
    """The number of entries and the sum of their bytes by ``column``: ``arch``, ``version``, ``kind`` or ``state``."""
    if column not in ("arch", "version", "kind", "state"):
        raise ValueError(column)
    return fetch(
        connection,
        f"SELECT kind, path, {column} AS value, count(*) AS entries, sum(size_bytes)::BIGINT AS size_bytes "
        f"FROM foreign_entries WHERE {column} IS NOT NULL GROUP BY ALL ORDER BY entries DESC, value",
    )


def parts(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """The bytes of each kind of part, such as CUBIN, for each cache directory."""
    return fetch(
        connection,
        "SELECT kind, path, name, sum(size_bytes)::BIGINT AS size_bytes FROM foreign_parts "
        "GROUP BY ALL ORDER BY size_bytes DESC, name",
    )


def growth(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """For each day and kind, the number and bytes of the entries that were made on that day and still exist."""
    return fetch(
        connection,
        "SELECT kind, floor(created_at / 86400)::BIGINT * 86400 AS day, count(*) AS entries, "
        "sum(size_bytes)::BIGINT AS size_bytes FROM foreign_entries WHERE created_at IS NOT NULL GROUP BY ALL "
        "ORDER BY day, kind",
    )


def duplicates(connection: duckdb.DuckDBPyConnection, limit: int = 50) -> list[Row]:
    """Binaries that are stored more than once; those that waste the most bytes come first."""
    return fetch(
        connection,
        "SELECT digest, count(*) AS entries, any_value(name) AS name, "
        "(sum(binary_bytes) - max(binary_bytes))::BIGINT AS extra_bytes, list(DISTINCT kind ORDER BY kind) AS kinds, "
        "count(DISTINCT (kind, path)) AS directories FROM foreign_entries WHERE digest IS NOT NULL GROUP BY digest "
        "HAVING count(*) > 1 ORDER BY extra_bytes DESC, digest LIMIT ?",
        [limit],
    )


def duplicated(connection: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """The number of entries that repeat another's binary, and the bytes that the repeated copies take."""
    found = connection.execute(
        "SELECT coalesce(sum(entries - 1), 0)::BIGINT, coalesce(sum(extra), 0)::BIGINT FROM "
        "(SELECT count(*) AS entries, sum(binary_bytes) - max(binary_bytes) AS extra "
        "FROM foreign_entries WHERE digest IS NOT NULL GROUP BY digest)"
    ).fetchone()
    return (int(found[0]), int(found[1])) if found else (0, 0)


def findings(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """The findings of the last scan: files that could not be read."""
    return fetch(connection, "SELECT * FROM foreign_findings ORDER BY kind, path, id")


def findings_of(connection: duckdb.DuckDBPyConnection, place: Place) -> list[ScanFinding]:
    """The findings of the last scan about one cache: files in it that could not be read."""
    found = connection.execute(
        "SELECT fault, id, detail FROM foreign_findings WHERE kind = ? AND path = ? ORDER BY ALL",
        [place.kind, place.path_text],
    ).fetchall()
    return [ScanFinding(Fault(fault), name, detail) for fault, name, detail in found]


def diagnoses(connection: duckdb.DuckDBPyConnection, of: Place | None = None, id: str = "") -> list[Diagnosis]:
    """The diagnoses of the last scan, of all entries or of one.

    Diagnoses do not say which code runs on this machine's GPU; ``doctor.examine`` does.
    """
    only, parameters = "", [str(Ailment.UNREAD)]
    if of is not None:
        only, parameters = "WHERE kind = ? AND path = ? AND id = ?", [*parameters, of.kind, of.path_text, id]
    found = connection.execute(
        "SELECT * FROM (SELECT kind, path, id, ailment, detail FROM foreign_diagnoses UNION ALL "
        "SELECT kind, path, id, ?, fault || ': ' || detail FROM foreign_findings WHERE path <> '') "
        f"{only} ORDER BY ALL",
        parameters,
    ).fetchall()
    known: dict[tuple[str, str], Place] = {}
    return [
        Diagnosis(known.setdefault((kind, path), place_of(kind, path)), name, Ailment(ailment), detail)
        for kind, path, name, ailment, detail in found
    ]


def place_of(kind: str, path: str) -> Place:
    """The cache with the kind and path of a row, without the way in which it was found, which rows do not have."""
    return Place(kind, Path(name_of(path)), "")


def count(connection: duckdb.DuckDBPyConnection, chosen: EntryFilter) -> int:
    """The number of entries that a filter selects."""
    condition, parameters = _where(chosen)
    row = connection.execute(f"SELECT count(*) FROM foreign_entries WHERE {condition}", parameters).fetchone()
    return int(row[0]) if row else 0


def entries(
    connection: duckdb.DuckDBPyConnection,
    chosen: EntryFilter,
    *,
    sort: str = "created",
    ascending: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> list[Row]:
    """One page of the entries that a filter selects; entries without a value in the field of ``sort`` come last."""
    condition, parameters = _where(chosen)
    return fetch(
        connection,
        f"SELECT * EXCLUDE (stamp, search_text, parts, unread) FROM foreign_entries WHERE {condition} "
        f"ORDER BY {SORTS[sort]} {'ASC' if ascending else 'DESC'} NULLS LAST, kind, path, id LIMIT ? OFFSET ?",
        [*parameters, limit, offset],
    )


def entry(connection: duckdb.DuckDBPyConnection, place: Place, id: str) -> Entry | None:
    """One entry as of the last scan; ``None`` if the index does not have it.

    The reader of its framework can read the entry's parts and key factors.
    """
    found = _stored(connection, "kind = ? AND path = ? AND id = ?", [place.kind, place.path_text, id])
    return found[0][1] if found else None


def stored(connection: duckdb.DuckDBPyConnection, chosen: EntryFilter) -> list[tuple[Place, Entry]]:
    """The entries that a filter selects, each with its cache, as of the last scan."""
    return _stored(connection, *_where(chosen))


def entries_of(connection: duckdb.DuckDBPyConnection, place: Place) -> list[Entry]:
    """The entries of a cache, as of the last scan."""
    return [each for _, each in _stored(connection, "kind = ? AND path = ?", [place.kind, place.path_text])]


def state_of(connection: duckdb.DuckDBPyConnection, place: Place) -> str:
    """A text that changes when any entry of the cache changes."""
    row = connection.execute(
        "SELECT count(*) || ' ' || coalesce(bit_xor(hash(id, stamp)), 0) FROM foreign_entries "
        "WHERE kind = ? AND path = ?",
        [place.kind, place.path_text],
    ).fetchone()
    return str(row[0]) if row else ""


_APART = ("parts", "state", "config", "unread", "elsewhere")  # the last is in the diagnoses
_PLAIN = tuple(field.name for field in fields(Entry) if field.name not in _APART)


def _stored(connection: duckdb.DuckDBPyConnection, condition: str, parameters: list[Any]) -> list[tuple[Place, Entry]]:
    columns = ", ".join(("kind", "path", "parts", "state", "config", "unread", *_PLAIN))
    sql = f"SELECT {columns} FROM foreign_entries WHERE {condition}"
    known: dict[tuple[str, str], Place] = {}
    found = []
    for kind, path, parts_text, state, config, unread, *plain in connection.execute(sql, parameters).fetchall():
        place = known.get((kind, path)) or known.setdefault((kind, path), place_of(kind, path))
        each = Entry(
            **dict(zip(_PLAIN, plain, strict=True)),
            parts=_PARTS_OF.decode(parts_text),
            state=State(state),
            config=_OBJECT.decode(config),
            unread=_OBJECT.decode(unread),
        )
        found.append((place, each))
    return found


def _where(chosen: EntryFilter) -> tuple[str, list[Any]]:
    conditions = ["true"]
    parameters: list[Any] = []
    for word in chosen.text.lower().split():
        conditions.append("contains(search_text, ?)")
        parameters.append(word)
    for column, values in (("kind", chosen.kinds), ("arch", chosen.archs), ("state", chosen.states)):
        if values:
            conditions.append(f"list_contains(?, {column})")
            parameters.append(list(values))
    return " AND ".join(conditions), parameters
