"""Copies what is in the caches of other frameworks into the mirror: rows of their own, next to the store's.

A scan may take long, so it holds no lock: it reads the stamps that are known, scans, and writes what changed in parts.
These rows come from no file of the store; where the mirror was rebuilt, the next scan brings them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.foreign.survey import search_text, survey
from cache_engine.foreign.values import Entry, Finding, PartKind, Place, Unchanged
from cache_engine.mirror import rows

if TYPE_CHECKING:
    import duckdb

    from cache_engine.foreign.registry import Sources
    from cache_engine.mirror.sync import Mirror

_BATCH = 5_000
_MOST_TEXT = 10_000  # letters of a search text

Progress = Callable[[int, str], None]
"""Told after each part how many entries were seen, and in which directory."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan found: entries that are new or changed, unchanged, and gone, and findings; how long it took."""

    read: int
    unchanged: int
    gone: int
    findings: int
    places: int
    seconds: float


@dataclass(slots=True)
class _Found:
    """What is not written yet of one place, and what is still to be seen of it."""

    place: Place
    left: dict[str, str]
    entries: list[Entry]
    read: int = 0
    unchanged: int = 0


def scan(mirror: Mirror, sources: Sources, places: Iterable[Place], progress: Progress | None = None) -> Scanned:
    """Brings the rows of the places up to date, and deletes those of places that are not given any more.

    Raises:
        MirrorError: when another process keeps the mirror busy, or the disk refuses.
        ExtraMissing: when DuckDB is not installed.
    """
    started = time.monotonic()
    mirror.sync()
    known = mirror.query(known_stamps)
    read = unchanged = gone = count = 0
    all_findings: list[tuple[Place | None, Finding]] = [(None, finding) for finding in sources.findings]
    seen_places: list[Place] = []
    for place in places:
        seen_places.append(place)
        stamps = known.get((place.kind, str(place.path)), {})
        found = _Found(place, dict(stamps), [])
        for _, seen in survey(sources, [place], {place: stamps}):
            if isinstance(seen, Finding):
                all_findings.append((place, seen))
                continue
            found.left.pop(seen.id, None)
            if isinstance(seen, Unchanged):
                found.unchanged += 1
            else:
                found.entries.append(seen)
                found.read += 1
            if len(found.entries) >= _BATCH:
                _write_entries(mirror, found)
            if progress is not None and (found.read + found.unchanged) % _BATCH == 0:
                progress(count + found.read + found.unchanged, str(place.path))
        if found.entries or found.left:
            gone += len(found.left)
            _write_entries(mirror, found, list(found.left))
        read, unchanged, count = read + found.read, unchanged + found.unchanged, count + found.read + found.unchanged
    mirror.change(lambda connection: _finish(connection, seen_places, all_findings))
    return Scanned(read, unchanged, gone, len(all_findings), len(seen_places), time.monotonic() - started)


def known_stamps(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], dict[str, str]]:
    """The stamps of all entries by id, for each kind and directory."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for kind, path, name, stamp in connection.execute("SELECT kind, path, id, stamp FROM foreign_entries").fetchall():
        found.setdefault((kind, path), {})[name] = stamp
    return found


def _write_entries(mirror: Mirror, found: _Found, gone: Sequence[str] = ()) -> None:
    fresh = [_row(found.place, entry) for entry in found.entries]
    ids = [*gone, *(entry.id for entry in found.entries)]
    kind, path = found.place.kind, str(found.place.path)

    def write(connection: duckdb.DuckDBPyConnection) -> None:
        import pyarrow

        connection.register("replaced", pyarrow.table({"id": ids}))
        connection.execute(
            "DELETE FROM foreign_entries WHERE kind = ? AND path = ? AND id IN (SELECT id FROM replaced)", [kind, path]
        )
        connection.unregister("replaced")
        rows.insert(connection, "foreign_entries", fresh)

    mirror.change(write)
    found.entries.clear()


def _finish(
    connection: duckdb.DuckDBPyConnection, places: Sequence[Place], findings: Sequence[tuple[Place | None, Finding]]
) -> None:
    now = time.time()
    connection.execute("DELETE FROM foreign_places")
    rows.insert(connection, "foreign_places", [(place.kind, _text(place.path), place.origin, now) for place in places])
    connection.execute(
        "DELETE FROM foreign_entries WHERE NOT EXISTS (SELECT 1 FROM foreign_places AS known "
        "WHERE known.kind = foreign_entries.kind AND known.path = foreign_entries.path)"
    )
    connection.execute("DELETE FROM foreign_findings")
    rows.insert(
        connection,
        "foreign_findings",
        [
            (
                place.kind if place else "",
                _text(place.path) if place else "",
                finding.id,
                str(finding.fault),
                finding.detail,
            )
            for place, finding in findings
        ],
    )


def _row(place: Place, entry: Entry) -> rows.Row:
    """The row of ``foreign_entries``, in the order of the columns."""
    sizes: Mapping[PartKind, int] = _sizes(entry)
    return (
        place.kind, _text(place.path), entry.id, entry.stamp, str(entry.state), entry.name, entry.version,
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


def _text(path: object) -> str:
    """A path as a text that DuckDB takes."""
    return str(path).encode(errors="replace").decode()
