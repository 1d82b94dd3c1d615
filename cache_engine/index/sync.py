"""Syncs the index with a store's files, and opens it for reading.

DuckDB lets either one process write or many read, and others fail. So all access goes through our own lock, shared to
read and exclusive to write, and nobody keeps the file open. Only this package opens it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import msgspec

from cache_engine.errors import IndexDamaged, IndexUnavailable, LockTimeout
from cache_engine.index import records, rows
from cache_engine.index.connection import (
    LOCKED,
    Attaching,
    connect,
    home_of,
    interrupted_after,
    is_own,
    passing_on_ctrl_c,
)
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.events import HOUR_S, Tally
from cache_engine.model.gemm.fields import FIELDS
from cache_engine.model.shapes import Shape, ShapeCounts
from cache_engine.process import renew_after_fork
from cache_engine.settings.extras import needing
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import journal_state, read_events, read_snapshot
from cache_engine.store.journal.demand import FoldedDemand, demand_generation, read_demand, read_lines
from cache_engine.store.layout import SHARDS, StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.usage.demand import bucket
from cache_engine.usage.timeline import Timeline

if TYPE_CHECKING:
    import duckdb

    from cache_engine.index import Connection

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
"""The system's messages for a full disk, which DuckDB repeats. On a full disk, the index is in a private folder."""

SCHEMA = rows.with_columns(Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"), RecordedProblem, Shape)
SCHEMA += rows.comments("kernels", {field.name: field.label for field in FIELDS if field.name not in "mnk"})
# An index with another schema is rebuilt; the hash replaces a number that one could forget to raise.
SCHEMA_VERSION = hashlib.sha256(SCHEMA.encode()).hexdigest()[:16]
_WRITE_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync: added and removed entries, events read, and the new generation.

    ``timings`` is the number of measurements read or removed: all, if any is new. ``settled`` says that every file
    could be read, so that the next sync can skip the files that have not changed. ``skipped`` is the number of all
    records, timings and journal lines in the store that cannot be indexed, not only of new ones. ``results`` is 0: the
    index had results of the evaluator until version 0.3, and the documents of ``sync`` keep the field.
    """

    added: int
    removed: int
    unreadable: int
    events: int
    generation: int
    settled: bool = True
    results: int = 0
    timings: int = 0
    skipped: int = 0

    @property
    def changed(self) -> bool:
        """Whether the sync has changed the index."""
        return bool(self.added or self.removed or self.unreadable or self.events or self.timings)


class Index:
    """The DuckDB copy of one store. Safe to use from several threads and processes.

    Attributes:
        query_limit_s: the longest time to read from a connection before it is interrupted; ``None`` means no limit.
        reads_often: whether to keep a DuckDB instance with its threads, but no open file, between two reads, which
            makes the next read quicker.
        of_users: the lock that lets one SQL query of a user run at a time.
    """

    query_limit_s: float | None = None
    reads_often = False

    def __init__(self, store: DiskStore) -> None:
        """Stores the argument; opens nothing yet."""
        self._store = store
        self._home: StoreLayout | None = None
        self._seen: object = None
        self._generation = 0
        self._skipped = 0
        self._in_process, self.of_users = threading.Lock(), threading.Lock()
        self._attaching = Attaching()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Called in a forked child: makes new locks, as another thread of the parent may have held the old ones."""
        self._in_process, self.of_users = threading.Lock(), threading.Lock()

    @property
    def path(self) -> Path:
        """The path of the DuckDB file: in the store, or in a private folder if the store cannot be written."""
        return self._layout.index

    def sync(self, *, rebuild: bool = False) -> Synced:
        """Copies changes in the store since the last sync. Takes a millisecond if there are none.

        Args:
            rebuild: start from an empty index.

        Raises:
            IndexUnavailable: when another process keeps the index busy, or the disk fails.
            ExtraMissing: when DuckDB is not installed.
        """
        with needing("dashboard", "the index"):
            import duckdb  # noqa: F401

        with self._in_process, passing_on_ctrl_c():
            sources = self._sources()
            if not rebuild and sources is not None and sources == self._seen:
                return Synced(0, 0, 0, 0, self._generation, skipped=self._skipped)
            try:
                synced = self._update(rebuild)
            except IndexUnavailable as error:
                if self._layout is not self._store.layout or not any(words in str(error) for words in _FULL):
                    raise
                self._discard()  # what was written of it is no index, and takes space
                self._home = home_of(self._store.layout, is_full=True)
                synced, sources = self._update(rebuild), None
            self._seen = None if sources is None or not synced.settled else (sources[0], self._file_identity())
            self._generation, self._skipped = synced.generation, synced.skipped
            return synced

    def _update(self, rebuild: bool) -> Synced:
        """Syncs the index under its lock; if it is damaged, makes a new one.

        Raises ``IndexUnavailable``.
        """
        import duckdb

        try:
            with file_lock(self._layout.index_lock, _WRITE_TIMEOUT_S):
                try:
                    return self._write(rebuild)
                except duckdb.Error as error:
                    if LOCKED in str(error):
                        raise IndexUnavailable(f"another program has the index open: {error}") from error
                    if any(words in str(error) for words in _FULL):
                        raise
                    # Damaged. Nothing is lost: it is rebuilt from the files.
                    _log.warning("the index is damaged and is rebuilt: %s", error)
                    return self._write(rebuild=True)
        except (LockTimeout, OSError, duckdb.Error) as error:
            raise IndexUnavailable(f"cannot update the index: {error}") from error

    def _write(self, rebuild: bool) -> Synced:
        """Opens the index, creates its tables if it has none, and syncs it atomically. Call this under the lock."""
        if rebuild or not is_own(self._layout):
            self._discard()
        connection = connect(self.path)
        try:
            version = _schema_version(connection)
            if version not in (None, SCHEMA_VERSION):
                connection.close()
                self._discard()
                connection, version = connect(self.path), None
            self.path.chmod(0o600)
            connection.begin()
            if version is None:
                connection.execute(SCHEMA)
                # A rebuilt index must not reuse an earlier generation: callers cache answers by it.
                generation = time.time_ns() // 1000
                connection.execute("INSERT INTO sync_state VALUES (?, ?, -1, 0)", [SCHEMA_VERSION, generation])
            synced = _sync(connection, self._store)
            connection.commit()
            return synced
        finally:
            connection.close()

    def change(self, action: Callable[[Connection], _T]) -> _T:
        """Writes rows that come from no file of the store, atomically; returns the action's result.

        Call ``sync`` first.

        Raises:
            IndexUnavailable: when another process keeps the index busy or has rebuilt it for another version, or the
                disk fails.
        """
        import duckdb

        with self._in_process, passing_on_ctrl_c():
            try:
                with file_lock(self._layout.index_lock, _WRITE_TIMEOUT_S), closing(connect(self.path)) as connection:
                    connection.begin()
                    done = action(connection)
                    row = connection.execute(
                        "UPDATE sync_state SET generation = generation + 1 RETURNING generation"
                    ).fetchone()
                    connection.commit()
                    self._generation = int(row[0]) if row else self._generation
                    return done
            except (LockTimeout, OSError, duckdb.Error) as error:
                raise IndexUnavailable(f"cannot update the index: {error}") from error

    @contextmanager
    def read(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for reading, for the body of a ``with``. Call ``sync`` first.

        Raises:
            IndexUnavailable: when there is no index yet, or another process keeps the index busy; ``IndexDamaged`` when
                a rebuild helps.
            ExtraMissing: when DuckDB is not installed.
        """
        with self.file():
            import duckdb

            try:
                with (
                    self._reading() as connection,
                    passing_on_ctrl_c(),
                    interrupted_after(connection, self.query_limit_s),
                ):
                    yield connection
            except duckdb.InterruptException as error:
                raise IndexUnavailable(
                    f"the query was stopped after {self.query_limit_s:g} s; ask for less, or raise the setting "
                    "page_limit_s"
                ) from error
            except duckdb.Error as error:
                raise _unreadable(error) from error

    @contextmanager
    def file(self) -> Iterator[Path]:
        """The path of the index, which nobody changes during the body of a ``with``. Call ``sync`` first.

        Raises:
            IndexUnavailable: when the file is not ours alone, or another process keeps it busy.
            ExtraMissing: when DuckDB is not installed.
        """
        with needing("dashboard", "the index"):
            import duckdb  # noqa: F401

        with ExitStack() as held:
            try:
                held.enter_context(file_lock(self._layout.index_lock, _READ_TIMEOUT_S, shared=True))
            except (LockTimeout, OSError) as error:  # the store may be gone since the sync
                raise IndexUnavailable(f"cannot read the index: {error}") from error
            if not is_own(self._layout):
                raise IndexUnavailable(
                    f"{self.path} is not your own file; gemm-cache store sync --rebuild creates it again"
                )
            yield self.path

    def query(
        self, question: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **options: _P.kwargs
    ) -> _T:
        """The result of one function of ``queries``, as of the last ``sync``; raises as ``read``.

        If the index was damaged since then, it is rebuilt, because ``sync`` does not open an index whose sources have
        not changed.
        """
        try:
            with self.read() as connection:
                return question(connection, *arguments, **options)
        except IndexDamaged as error:
            _log.warning("the index is damaged and is rebuilt: %s", error)
        self.sync(rebuild=True)
        with self.read() as connection:
            return question(connection, *arguments, **options)

    def generation(self) -> int:
        """A number that changes whenever the index's content changes, and is never used twice."""
        with self.read() as connection:
            row = connection.execute("SELECT generation FROM sync_state").fetchone()
        return int(row[0]) if row else 0

    @property
    def _layout(self) -> StoreLayout:
        if self._home is None:
            self._home = home_of(self._store.layout)
        return self._home

    def _sources(self) -> tuple[object, object] | None:
        """The state of all files that a sync reads, and of the index; ``None`` while folder times are too recent."""
        layout = self._store.layout
        horizon = time.time_ns() - records.SETTLED_NS
        metadata = str(layout.metadata)  # a page asks often, and joining 256 paths takes longer than looking at them
        folders: tuple[Path | str, ...] = (layout.groups, layout.notes, *(f"{metadata}/{shard}" for shard in SHARDS))
        times = tuple(map(records.mtime_ns, folders))
        if any(mtime > horizon for mtime in times):
            return None
        sources = (
            times,
            journal_state(layout.journal),
            records.mtime_ns(layout.demand),
            records.timings_state(layout),
        )
        return sources, self._file_identity()

    def _file_identity(self) -> object:
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_ino
        return None

    def _reading(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return self._attaching.reading(self.path) if self.reads_often else closing(connect(self.path, read_only=True))

    def _discard(self) -> None:
        for path in (self._layout.index, self._layout.index_log):
            path.unlink(missing_ok=True)


def _unreadable(error: duckdb.Error) -> IndexUnavailable:
    """The error for an index that cannot be read, with DuckDB's message; its type says whether a rebuild helps."""
    import duckdb

    # Bytes that are not DuckDB's, or tables of another version that has rebuilt it since the sync. Not a wrong query.
    damaged = (duckdb.IOException, duckdb.CatalogException, duckdb.InternalException, duckdb.FatalException,
               duckdb.SerializationException)  # fmt: skip
    helps = isinstance(error, damaged) and LOCKED not in str(error)
    return (IndexDamaged if helps else IndexUnavailable)(f"cannot read the index: {error}")


def _schema_version(connection: duckdb.DuckDBPyConnection) -> str | None:
    """The version of an index's schema; empty if the file is not an index, ``None`` if the file is empty."""
    import duckdb

    try:
        row = connection.execute("SELECT schema_version FROM sync_state").fetchone()
    except (duckdb.CatalogException, duckdb.BinderException):  # no such table, or no such column
        tables = connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone()  # takes longer than all else
        return None if tables == (0,) else ""
    return str(row[0]) if row else ""


def _sync(connection: duckdb.DuckDBPyConnection, store: DiskStore) -> Synced:
    added, removed, unreadable = records.sync_records(connection, store)
    events = _sync_journal(connection, store.layout.journal) + sync_demand(connection, store.layout)
    timings, timings_settled = records.sync_timings(connection, store.layout)
    notes, notes_settled = records.sync_notes(connection, store.layout)
    changed = int(bool(added or removed or unreadable or events or timings or notes))
    row = connection.execute(
        "UPDATE sync_state SET generation = generation + ?, synced_at = ? RETURNING generation", [changed, time.time()]
    ).fetchone()
    waiting = connection.execute("SELECT count(*) FROM unreadable WHERE stamp = ?", [records.UNREAD]).fetchone()
    settled = waiting == (0,) and timings_settled and notes_settled
    left_out = connection.execute(f"SELECT {rows.ALL_SKIPPED}").fetchone()
    return Synced(
        added, removed, unreadable, events, int(row[0]) if row else 0, settled, 0, timings,
        int(left_out[0]) if left_out else 0,
    )  # fmt: skip


def _sync_journal(connection: duckdb.DuckDBPyConnection, folder: Path) -> int:
    """Adds new events to the sums; starts over when the journal was folded. Returns the number of events added."""
    seen = connection.execute("SELECT snapshot_generation FROM sync_state").fetchone()
    while True:
        snapshot = read_snapshot(folder)
        generation = snapshot.generation
        if seen is not None and seen[0] == generation:
            positions: dict[str, int] = dict(connection.execute("SELECT * FROM journal_positions").fetchall())
            tally = Tally()
        else:
            positions = {}
            tally = snapshot.tally()
        before = dict(positions)
        damaged: dict[str, int] = {}
        for event in read_events(folder, snapshot, positions, damaged):
            tally.add(event)
        if read_snapshot(folder).generation == generation:
            break
    starting_over = seen is None or seen[0] != generation
    if not starting_over and positions == before:
        return 0
    if starting_over:
        rows.clear_journal(connection)
        connection.execute("UPDATE sync_state SET snapshot_generation = ?", [generation])
    rows.add_tally(connection, tally)
    rows.skip(connection, rows.JOURNAL, {stem: (count, "damaged lines") for stem, count in damaged.items()})
    connection.execute("DELETE FROM journal_positions")
    rows.insert(connection, "journal_positions", list(positions.items()))
    return max(1, len(tally.recent) + len(tally.usage))


# ---- Demand, the counts of requests over time: the sums once, then each new line of the journal ----

_PLACE = ", ".join(("start", "seconds", *Shape.__struct_fields__, "m", "power"))


def sync_demand(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> int:
    """Adds the demand in new lines of the journal to the index; returns the number of rows added.

    When ``demand.json``, the file of sums, has changed, replaces all rows.
    """
    seen = connection.execute("SELECT generation, since FROM demand_read").fetchone()
    while True:
        generation = demand_generation(layout)
        folded = read_demand(layout)
        starting_over = seen is None or seen[0] != folded.generation
        positions: dict[str, int] = {}
        if not starting_over:
            positions = dict(connection.execute("SELECT * FROM demand_positions").fetchall())
        before = dict(positions)
        lines = list(read_lines(layout.journal, folded, positions))
        # If files were folded meanwhile, their lines may be missing from both.
        if demand_generation(layout) == generation:
            break
    if not starting_over and positions == before:
        return 0
    added: list[rows.Row] = []
    since = None if seen is None or starting_over else seen[1]
    if starting_over:
        for table in ("demand", "demand_dropped"):
            connection.execute(f"DELETE FROM {table}")
        since = _since(folded)
        added += _folded_rows(folded)
        rows.insert(connection, "demand_dropped", list(_dropped_rows(folded)))
    added += [row for line in lines for row in _line_rows(line)]
    rows.insert_or_skip(connection, rows.JOURNAL, "demand", added)
    rows.sum_up(connection, "demand", _PLACE)
    since = min([line.at for line in lines] + ([] if since is None else [since]), default=None)
    for table in ("demand_read", "demand_positions"):
        connection.execute(f"DELETE FROM {table}")
    rows.insert(connection, "demand_read", [(folded.generation, since)])
    rows.insert(connection, "demand_positions", list(positions.items()))
    return len(added)


def _since(folded: FoldedDemand) -> float | None:
    return folded.timeline.since if folded.timeline.periods else None


def _folded_rows(folded: FoldedDemand) -> Iterator[rows.Row]:
    for one in Timeline(folded.timeline).periods:
        for shape, sketch in one.sketches.items():
            place = (one.start, one.seconds, *msgspec.structs.astuple(shape))
            for m, counter in sketch.counters.items():
                yield (*place, m, bucket(m), counter.certain)
            for power, requests in enumerate(sketch.tail):
                if requests:
                    yield (*place, 0, power, requests)


def _dropped_rows(folded: FoldedDemand) -> Iterator[rows.Row]:
    return ((one.start, one.seconds, one.dropped) for one in Timeline(folded.timeline).periods if one.dropped)


def _line_rows(line: ShapeCounts) -> Iterator[rows.Row]:
    start = int(line.at // HOUR_S) * HOUR_S
    for m, count in line.asked.items():
        yield (start, HOUR_S, *msgspec.structs.astuple(line.shape), m, bucket(m), float(count))
