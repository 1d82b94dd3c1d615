"""Copies the contents of other frameworks' caches into the index: rows of their own, next to the store's.

A scan may take long, so it holds no lock: it reads the known stamps (a stamp changes whenever an entry's files do),
scans, and writes the changes in parts. The rows come from no file of the store: after a rebuild of the index, the next
scan adds them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.frameworks.doctor import Diagnosis, examine, examine_entry, network_file_system, read_mounts
from cache_engine.frameworks.registry import search_text, survey
from cache_engine.frameworks.values import Entry, Fault, PartKind, Place, ScanFinding, Unchanged
from cache_engine.index import rows

if TYPE_CHECKING:
    import duckdb

    from cache_engine.frameworks.registry import Sources
    from cache_engine.index.sync import Index

_BATCH = 5_000
_STEP = 500  # entries between two calls of ``progress``
_MOST_TEXT = 10_000  # letters of a search text
_OF_ENTRIES = ("foreign_entries", "foreign_parts", "foreign_diagnoses")
_NO_KERNEL = (PartKind.OTHER, PartKind.TEMPORARY)  # files with names of their own, as many as there are

Progress = Callable[[int, str], None]
"""A function that is called now and then during a scan, with the number of entries seen and the directory."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of a scan: the numbers of changed, unchanged and deleted entries, findings and caches; and seconds."""

    read: int
    unchanged: int
    gone: int
    findings: int
    places: int
    seconds: float


@dataclass(slots=True)
class _Found:
    """The entries of one directory that a scan has read but not written yet, and those that it has not seen yet."""

    place: Place
    network: str
    left: dict[str, str]
    entries: list[Entry] = field(default_factory=list)
    read: int = 0
    unchanged: int = 0


def scan(
    index: Index,
    sources: Sources,
    places: Iterable[Place],
    progress: Progress | None = None,
    *,
    others_stay: bool = False,
) -> Scanned:
    """Scans caches, and updates their rows in the index.

    Args:
        others_stay: whether the rows of caches that are not in ``places`` stay; if not, they are deleted.

    Raises:
        IndexUnavailable: when another process keeps the index busy, or the disk fails.
        ExtraMissing: when DuckDB is not installed.
    """
    started = time.monotonic()
    index.sync()
    known = index.query(known_stamps)
    read = unchanged = gone = count = 0
    all_findings: list[tuple[Place | None, ScanFinding]] = [(None, finding) for finding in sources.findings]
    seen_places, mounts = list(places), read_mounts()
    fresh = index.query(_unknown, seen_places)
    if fresh:  # so that what is found in them is shown meanwhile
        index.change(lambda connection: _add_places(connection, fresh))
    for place in seen_places:
        stamps = known.get((place.kind, place.path_text), {})
        found = _Found(place, network_file_system(place.path, mounts), dict(stamps))
        for _, seen in survey(sources, [place], {place: stamps}):
            if isinstance(seen, ScanFinding):
                all_findings.append((place, seen))
                continue
            found.left.pop(seen.id, None)
            if isinstance(seen, Unchanged):
                found.unchanged += 1
            else:
                found.entries.append(seen)
                found.read += 1
            if len(found.entries) >= _BATCH:
                all_findings += _write_entries(index, found)
            if progress is not None and (found.read + found.unchanged) % _STEP == 0:
                progress(count + found.read + found.unchanged, place.path_text)
        if found.entries or found.left:
            gone += len(found.left)
            all_findings += _write_entries(index, found, list(found.left))
        read, unchanged, count = read + found.read, unchanged + found.unchanged, count + found.read + found.unchanged
    wrong = [each for place in seen_places for each in examine(place, (), runs_here=None, mounts=mounts)]
    last = _Rest(seen_places, all_findings, wrong, others_stay=others_stay)
    if not index.query(last.is_there):  # else all answers that were asked for before are still right
        index.change(last.write)
    return Scanned(read, unchanged, gone, len(all_findings), len(seen_places), time.monotonic() - started)


def known_stamps(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], dict[str, str]]:
    """The stamps of all entries by id, for each kind and directory.

    An entry with temporary files has no stamp, so that each scan reads it again, since such files become leftovers with
    time.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    stamp = f"if(contains(parts, '\"{PartKind.TEMPORARY}\"'), '', stamp)"
    for kind, path, name, known in connection.execute(
        f"SELECT kind, path, id, {stamp} FROM foreign_entries"
    ).fetchall():
        found.setdefault((kind, path), {})[name] = known
    return found


def _write_entries(index: Index, found: _Found, gone: Sequence[str] = ()) -> list[tuple[Place, ScanFinding]]:
    """Replaces the rows of entries that were read or deleted; returns a finding for each that does not fit a column."""
    fresh = [_row(found.place, entry) for entry in found.entries]
    wrong = [each for entry in found.entries for each in examine_entry(found.place, entry, None, found.network)]
    kind, path = found.place.kind, found.place.path_text
    parts = [
        (kind, path, entry.id, part.kind.value if part.kind in _NO_KERNEL else part.name, part.size_bytes)
        for entry in found.entries
        for part in entry.parts
    ]
    ids = [*gone, *(entry.id for entry in found.entries)]

    def write(connection: duckdb.DuckDBPyConnection) -> list[tuple[rows.Row, str]]:
        import pyarrow

        connection.register("replaced", pyarrow.table({"id": ids}))
        for table in _OF_ENTRIES:
            connection.execute(
                f"DELETE FROM {table} WHERE kind = ? AND path = ? AND id IN (SELECT id FROM replaced)", [kind, path]
            )
        connection.unregister("replaced")
        refused = rows.insert(connection, "foreign_entries", fresh)
        rows.insert(connection, "foreign_parts", parts)
        rows.insert(connection, "foreign_diagnoses", [_diagnosis_row(each) for each in wrong])
        return refused

    refused = index.change(write)
    found.entries.clear()
    return [(found.place, ScanFinding(Fault.DAMAGED, row[2], why)) for row, why in refused]


def _unknown(connection: duckdb.DuckDBPyConnection, places: Sequence[Place]) -> list[Place]:
    """Those of ``places`` whose caches are not in the index yet."""
    there = set(connection.execute("SELECT kind, path FROM foreign_places").fetchall())
    return [place for place in places if (place.kind, place.path_text) not in there]


def _add_places(connection: duckdb.DuckDBPyConnection, places: Sequence[Place]) -> None:
    rows.insert(connection, "foreign_places", [(place.kind, place.path_text, place.origin) for place in places])


class _Rest:
    """A scan's findings about whole caches, and its diagnoses; the scan writes them to the index at its end."""

    def __init__(
        self,
        places: Sequence[Place],
        findings: Sequence[tuple[Place | None, ScanFinding]],
        wrong: Sequence[Diagnosis],
        *,
        others_stay: bool,
    ) -> None:
        self._places, self._others_stay = places, others_stay
        self._findings = [
            (place.kind if place else "", place.path_text if place else "", each.id, str(each.fault), each.detail)
            for place, each in findings
        ]
        self._wrong = [_diagnosis_row(each) for each in wrong]

    def is_there(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Whether the index already has exactly the findings and diagnoses of this scan for its caches."""
        asked = {(place.kind, place.path_text) for place in self._places}

        def of_these(sql: str) -> list[rows.Row]:
            found = connection.execute(sql).fetchall()
            return sorted(row for row in found if not self._others_stay or row[:2] in asked or not row[1])

        places = of_these("SELECT kind, path, origin FROM foreign_places")
        return (
            places == sorted((place.kind, place.path_text, place.origin) for place in self._places)
            and of_these("SELECT * FROM foreign_diagnoses WHERE id = ''") == sorted(self._wrong)
            and of_these("SELECT * FROM foreign_findings") == sorted(self._findings)
        )

    def write(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Replaces the findings and diagnoses of whole caches, and deletes rows that belong to no cache."""
        for place in self._places:
            of = [place.kind, place.path_text]
            connection.execute("DELETE FROM foreign_places WHERE kind = ? AND path = ?", of)
            connection.execute("DELETE FROM foreign_diagnoses WHERE kind = ? AND path = ? AND id = ''", of)
            connection.execute("DELETE FROM foreign_findings WHERE kind = ? AND path = ?", of)
        connection.execute("DELETE FROM foreign_findings WHERE path = ''")  # of plug-ins
        if not self._others_stay:
            connection.execute("DELETE FROM foreign_places")
        _add_places(connection, self._places)
        for table in (*_OF_ENTRIES, "foreign_findings"):
            connection.execute(
                f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM foreign_places AS known "
                f"WHERE known.kind = {table}.kind AND known.path = {table}.path)"
            )
        rows.insert(connection, "foreign_diagnoses", self._wrong)
        rows.insert(connection, "foreign_findings", self._findings)


def _diagnosis_row(each: Diagnosis) -> rows.Row:
    return each.place.kind, each.place.path_text, each.id, str(each.ailment), each.detail


def _row(place: Place, entry: Entry) -> rows.Row:
    """The row of ``foreign_entries`` for an entry, in the order of the columns."""
    sizes: Mapping[PartKind, int] = _sizes(entry)
    return (
        place.kind, place.path_text, entry.id, entry.stamp, str(entry.state), entry.name, entry.version,
        entry.compiler, entry.arch, entry.registers, entry.shared_bytes, entry.stack_bytes, entry.spill_bytes,
        entry.code_bytes, entry.compile_ms, entry.created_at, entry.last_used_at, entry.digest, entry.size_bytes,
        sizes.get(PartKind.SOURCE, 0), sizes.get(PartKind.IR, 0), sizes.get(PartKind.PTX, 0),
        sizes.get(PartKind.BINARY, 0), _json(dict(entry.config)), _json(entry.parts), _json(dict(entry.unread)),
        search_text(place, entry)[:_MOST_TEXT],
    )  # fmt: skip


def _sizes(entry: Entry) -> dict[PartKind, int]:
    found: dict[PartKind, int] = {}
    for part in entry.parts:
        found[part.kind] = found.get(part.kind, 0) + part.size_bytes
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
