"""cuTile's cache: an SQLite database, with a row for each kernel.

Source of the layout: ``cutile_cache/_cache.py`` of cuda-tile 1.7.0. cuTile deletes the database on any error while
opening it, also if another process holds its lock for five seconds. So the database is read here without a lock: from
a copy in memory if it is not larger than ``MOST_BINARY_BYTES``, else in place, as a file that does not change; after
reading, its file is checked for changes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.deletion import BUSY, IN_PROCESS, JOURNALS, is_quiet
from cache_engine.frameworks.facts import entry_of, image_facts, json_object, text_in
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import Reader, stamp_of, stray_file
from cache_engine.frameworks.values import (
    MOST_NAME,
    DeletePlan,
    Deletion,
    Entry,
    Factor,
    Fault,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Rows,
    ScanFinding,
    Seen,
    Unchanged,
    id_of,
)
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    import sqlite3

FILE = "cache.db"
_BELOW = "cutile-python"
_VARIABLE, _OFF = "CUDA_TILE_CACHE_DIR", ("", "0", "off", "none")
_RELEASE = re.compile(r"(\w{1,100}):.*?release [^\n]{0,100}?V(\d[\d.]{0,30})", re.DOTALL)
_TRIES, _PAUSE_S = 5, 0.02
_MOST_STEPS = 20_000  # of a thousand instructions of SQLite: a hostile schema cannot keep us
_LIST = "SELECT key, length(blob), atime, {metadata} FROM cache"


class CuTile(Reader):
    """The reader of cuTile's cache."""

    kind = "cutile"
    title = "cuTile"
    default = f".cache/{_BELOW}"
    variables: Mapping[str, str] = {_VARIABLE: "", "XDG_CACHE_HOME": _BELOW}
    stores = ("compile_ms",)
    unknown: Mapping[str, str] = {"version": "cuTile stores the version of its compiler, not its own"}

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The directory in ``CUDA_TILE_CACHE_DIR``, else the default.

        If caching is off, the place says that cuTile does not use the directory.
        """
        places = super().discover(where)
        if where.environment.get(_VARIABLE, _BELOW).strip().lower() not in _OFF:
            return places
        found = (place for place in places if place.origin != _VARIABLE)
        return (place if place.origin == "given" else replace(place, replaced_by=_VARIABLE) for place in found)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """Yields the rows of the database, and other files."""
        import sqlite3

        with Folder(place.path) as folder:
            try:
                with IN_PROCESS, closing(opened(folder, place)) as database:
                    yield from _rows(database, known)
            except FileNotFoundError:
                pass
            except Unread as error:
                yield error.finding(FILE)
            except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
                yield ScanFinding(Fault.DAMAGED, FILE, f"{error}; cuTile makes it again, and loses what is in it")
            for item in folder:
                if item.name != FILE and item.name not in {f"{FILE}{ending}" for ending in JOURNALS}:
                    try:
                        yield stray_file(folder, item.name, item.name)
                    except FileNotFoundError:
                        continue
                    except Unread as error:
                        yield error.finding(item.name)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """The bytes of a part of an entry: a column of its row, or a file."""
        import sqlite3

        if part.file:
            return super().read(place, entry, part)
        try:
            with Folder(place.path) as folder, IN_PROCESS, closing(opened(folder, place)) as database:
                column = "blob" if part.kind == PartKind.BINARY else "metadata"
                row = database.execute(f"SELECT {column} FROM cache WHERE key = ?", (entry.id,)).fetchone()  # noqa: S608
        except (OSError, Unread, sqlite3.Error) as error:
            return Failure(f"cannot read {FILE}: {error}")
        if row is None:
            return Failure(f"{entry.id} is gone; scan the cache again")
        return row[0] if isinstance(row[0], bytes) else str(row[0] or "").encode()

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The inputs of the key: the name, which contains types and constants, the target, and the compiler."""
        stated = (("kernel", entry.name), ("target", entry.arch), ("compiler", entry.compiler))
        factors = tuple(Factor(name, value) for name, value in stated if value)
        return KeyFactors(factors, ("the bytecode, the level of optimisation and the linked files",))

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete rows by SQL.

        A process sees a whole row or none; without the row, cuTile compiles the kernel again.
        """
        rows = [entry for entry in entries if not any(part.file for part in entry.parts)]
        left = {entry.id: "it is no row of cuTile's database" for entry in entries if entry not in rows}
        deletions = tuple(Deletion(entry.id, (), "", entry.size_bytes) for entry in rows)
        return DeletePlan(deletions, left=left, rows=Rows(FILE, "cache", "key"))


def opened(folder: Folder, place: Place) -> sqlite3.Connection:
    """Opens the database as it was at one moment; raises ``Unread`` if a process keeps writing to it."""
    import sqlite3

    for _ in range(_TRIES):
        before = folder.stat(FILE)
        if is_quiet(folder, FILE):
            if before.st_size <= MOST_BINARY_BYTES:
                data = folder.read(FILE, MOST_BINARY_BYTES)
                if not data:
                    raise Unread(Fault.DAMAGED, "it is empty")
                database = sqlite3.connect(":memory:")
                database.deserialize(data)
            else:
                folder.check_file(FILE)
                where = quote(str(place.path / FILE))
                database = sqlite3.connect(f"file:{where}?mode=ro&immutable=1", uri=True)
            if stamp_of(folder.stat(FILE)) == stamp_of(before) and is_quiet(folder, FILE):
                return _guarded(database)
            database.close()
        time.sleep(_PAUSE_S)
    raise Unread(Fault.LOCKED, BUSY)


def _guarded(database: sqlite3.Connection) -> sqlite3.Connection:
    """Limits the database's rights: a hostile one can neither run for long nor call functions from its schema."""
    import sqlite3

    steps = 0

    def is_enough() -> bool:
        nonlocal steps
        steps += 1
        return steps > _MOST_STEPS

    database.set_progress_handler(is_enough, 1000)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BINARY_BYTES)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA query_only = ON")
    return database


def _rows(database: sqlite3.Connection, known: Mapping[str, str]) -> Iterator[Seen]:
    columns = {row[1] for row in database.execute("PRAGMA table_info(cache)")}
    listed = _LIST.format(metadata="metadata" if "metadata" in columns else "NULL")
    pages, page_bytes = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    left = pages * page_bytes
    for key, size, atime, metadata in database.execute(listed):
        if not isinstance(key, str) or not isinstance(size, int) or len(key) > MOST_NAME:
            yield ScanFinding(Fault.DAMAGED, FILE, "a row has no key or no binary")
            continue
        left -= size + (len(metadata) if isinstance(metadata, str | bytes) else 0)
        if left < 0:  # rows may share their pages, or be computed: each could be as large as the whole file
            yield ScanFinding(Fault.DAMAGED, FILE, "its rows have more bytes than it has; the others are not read")
            return
        name, stamp = id_of(key), f"{size}-{atime}"
        if known.get(name) == stamp:
            yield Unchanged(name)
            continue
        row = database.execute("SELECT blob FROM cache WHERE key = ?", (key,)).fetchone()
        image = row[0] if row and isinstance(row[0], bytes) else b""
        yield _entry(name, stamp, image, atime, metadata)


def _entry(name: str, stamp: str, image: bytes, atime: object, metadata: object) -> Entry:
    parts = [Part("cubin", PartKind.BINARY, len(image))]
    document: dict[str, Any] = {}
    why = "this version of cuTile stores nothing about the kernel"
    if isinstance(metadata, str):
        parts.append(Part("metadata", PartKind.METADATA, len(metadata.encode(errors="replace"))))
        try:
            document = json_object(metadata.encode(errors="replace"))
        except Unread as error:
            why = str(error)
    facts, unread = image_facts(image, name)
    names = document.get("kernel_names")
    called = text_in({"name": names[0]}, "name") if isinstance(names, list) and names else None
    release = _RELEASE.match(str(document.get("compiler_version", ""))[:10_000])
    seconds, made_at = document.get("compilation_time_seconds"), document.get("compilation_timestamp")
    facts |= {
        "id": name,
        "stamp": stamp,
        "parts": tuple(parts),
        "name": called,
        "compile_ms": 1e3 * seconds if isinstance(seconds, float) and 0 <= seconds < 1e6 else None,
        "created_at": made_at if isinstance(made_at, float) and 0 <= made_at < 1e11 else None,
        "last_used_at": atime if isinstance(atime, float) and 0 <= atime < 1e11 else None,
    }
    if release is not None:
        facts["compiler"] = f"{release[1]} {release[2]}"
    return entry_of(facts, {**unread, **dict.fromkeys(("name", "compile_ms", "created_at"), why)})
