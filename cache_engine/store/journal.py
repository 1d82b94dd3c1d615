"""Usage and events, append-only.

Each process writes to a file that it alone holds locked, and leaves it to the next one when it ends, so there are about
as many files as processes at work. Hits are counted in memory and written in batches by a thread of its own; what is
lost when a process is killed is at most its last batch. A line cut short by a kill ends at the next writer's newline
and is passed over.

``fold`` adds up the files nobody holds into ``snapshot.json``. It first renames them, so that no writer takes them
over, and the snapshot names those it holds, so that a kill before they are deleted counts nothing twice.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, run_at_end
from cache_engine.stats import USE, EntryUsage, Event, Tally, Totals
from cache_engine.store.lock import try_lock
from cache_engine.store.publish import publish_file

_log = logging.getLogger(__name__)
_OPEN, _FOLDING = ".jsonl", ".folding"
_ROTATE_BYTES = 1024**2
SNAPSHOT = "snapshot.json"
_FORMAT = 1

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


_Hit = tuple[CacheKey, float, str]
"""An entry's key, when it was made, and the tier that had it."""


class Snapshot(msgspec.Struct):
    """Sums of files that are no more, or about to be."""

    format: int = _FORMAT
    generation: int = 0
    folded: list[str] = msgspec.field(default_factory=list)
    totals: Totals = msgspec.field(default_factory=Totals)
    usage: list[EntryUsage] = msgspec.field(default_factory=list)
    recent: list[Event] = msgspec.field(default_factory=list)


class Journal:
    """One process's way of writing to the journal. Safe to use from several threads, and after a fork."""

    def __init__(self, folder: Path, flush_s: float, now: Callable[[], float] = time.time) -> None:
        """Writes to files in ``folder``, at most every ``flush_s`` seconds for hits. Opens nothing yet."""
        self._folder = folder
        self._flush_s = flush_s
        self._now = now
        self._descriptor: int | None = None
        self._complaint = logging.WARNING
        self._start_counting()
        renew_after_fork(self)

    def _start_counting(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._hits: dict[_Hit, int] = {}
        self._misses: dict[CacheKey, int] = {}
        self._failures: dict[str, int] = {}
        self._saved_us: dict[CacheKey, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._forget_end: Callable[[], None] = lambda: None

    def renew_after_fork(self) -> None:
        """In a forked child: what the parent counted, and the file it holds, are the parent's."""
        self._release()  # without unlocking, which would unlock it for the parent too
        self._start_counting()

    def hit(self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0) -> None:
        """Counts a hit on the entry of a key that was made then. Writes nothing now."""
        hit = (key, made_at, tier)
        with self._lock:
            self._hits[hit] = self._hits.get(hit, 0) + 1
            if saved_us:
                self._saved_us[key] = self._saved_us.get(key, 0) + saved_us
            if self._thread is None:
                self._start_thread()

    def miss(self, key: CacheKey) -> None:
        """Counts a lookup that has to compile. Writes nothing now."""
        with self._lock:
            self._misses[key] = self._misses.get(key, 0) + 1
            if self._thread is None:
                self._start_thread()

    def failure(self, tier: str) -> None:
        """Counts a tier that failed and was passed over. Writes nothing now."""
        with self._lock:
            self._failures[tier] = self._failures.get(tier, 0) + 1
            if self._thread is None:
                self._start_thread()

    def event(self, kind: str, **fields: object) -> None:
        """Writes an event at once, with all that is counted so far."""
        event = msgspec.convert({"kind": kind, "at": self._now(), **fields}, Event)
        self._write([*self._take_counts(), event])

    def flush(self) -> None:
        """Writes what is counted so far."""
        self._write(self._take_counts())

    def close(self) -> None:
        """Writes what is counted so far, lets the file go and ends the thread."""
        self._finish()
        # The interpreter stops threads wherever they are when it ends, with the locks they have. None is left to it.
        if self._thread is not None:
            self._thread.join()

    def __del__(self) -> None:
        # Dropped without being closed, maybe by its own thread. Whatever fails here has nobody left to be told. When
        # the interpreter ends it was closed before, or its thread may have been stopped with a lock.
        if not sys.is_finalizing():
            with suppress(Exception):
                self._finish()

    def _finish(self) -> None:
        self.flush()
        with self._writing:
            self._release()
        self._closed.set()
        self._forget_end()

    def _start_thread(self) -> None:
        # Weak, so that a journal no longer used can go.
        self._forget_end()
        self._forget_end = run_at_end(partial(_close_if_alive, weakref.ref(self)))
        arguments = (weakref.ref(self), self._closed, self._flush_s)
        thread = threading.Thread(target=_flush_now_and_then, args=arguments, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # This process may have no more threads. Then counts are written with the next event, or at the end.
            _log.log(self._complaint, "usage is not written in between: %s", error)
            self._complaint = logging.DEBUG
        else:
            self._thread = thread

    def _take_counts(self) -> list[Event]:
        with self._lock:
            hits, misses, saved, failures = self._hits, self._misses, self._saved_us, self._failures
            if not hits and not misses and not failures:
                return []
            self._hits, self._misses, self._saved_us, self._failures = {}, {}, {}, {}
        by_entry: dict[tuple[CacheKey, float], dict[str, int]] = {(key, 0.0): {} for key in misses}
        for (key, made_at, tier), count in hits.items():
            by_entry.setdefault((key, made_at), {})[tier] = count
        now = self._now()
        failed = [Event(kind=USE, at=now, failures=failures)] if failures else []
        return failed + [
            Event(
                kind=USE,
                at=now,
                key=key,
                made_at=made_at,
                hits=tiers,
                misses=misses.pop(key, 0),
                saved_us=saved.pop(key, 0),
            )
            for (key, made_at), tiers in by_entry.items()
        ]

    def _write(self, events: list[Event]) -> None:
        if not events:
            return
        data = b"".join(_encode(event) + b"\n" for event in events)
        with self._writing:
            try:
                if self._descriptor is None:
                    self._descriptor = self._acquire()
                if os.write(self._descriptor, data) != len(data):
                    raise OSError("the journal took only a part")
                if os.fstat(self._descriptor).st_size >= _ROTATE_BYTES:
                    self._release()
            except OSError as error:
                # A full disk or read-only store: counts are lost, kernels are not.
                _log.log(self._complaint, "usage could not be written to %s: %s", self._folder, error)
                self._complaint = logging.DEBUG  # once is enough
                self._release()

    def _acquire(self) -> int:
        """A file nobody else holds, at its end."""
        while True:
            for name in _names(self._folder, _OPEN):
                # One that cannot be opened is somebody else's, or gone.
                with suppress(OSError):
                    taken = _take_over(self._folder / name)
                    if taken is not None:
                        return taken
            path = self._folder / f"{time.time_ns():016x}-{os.getpid()}-{secrets.token_hex(4)}{_OPEN}"
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
            try:
                if _lock_in_place(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            # Between the two, another writer took it over, or it was folded away.
            os.close(descriptor)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # A network file system may say only now that it is full; the file is closed all the same.
            with suppress(OSError):
                os.close(descriptor)


class NoJournal(Journal):
    """Counts nothing and writes nothing: the journal of a cache without a store."""

    def __init__(self) -> None:
        """Starts nothing."""

    def hit(self, key: CacheKey, tier: str, *, made_at: float = 0.0, saved_us: int = 0) -> None:
        """Counts nothing."""

    def miss(self, key: CacheKey) -> None:
        """Counts nothing."""

    def failure(self, tier: str) -> None:
        """Counts nothing."""

    def event(self, kind: str, **fields: object) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Has nothing to close."""

    def __del__(self) -> None:
        pass


def read_journal(folder: Path) -> Tally:
    """Everything the journal says, added up."""
    while True:
        snapshot = read_snapshot(folder)
        generation = snapshot.generation
        tally = Tally(snapshot.totals, snapshot.usage, snapshot.recent)
        for event in read_events(folder, snapshot, {}):
            tally.add(event)
        # Had files been folded meanwhile, their events might have been seen in neither place.
        if read_snapshot(folder).generation == generation:
            return tally


def read_snapshot(folder: Path) -> Snapshot:
    """The sums of folded files; empty when nothing was folded yet or the file cannot be read, which is said."""
    try:
        return load_snapshot(folder)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s cannot be read, so older usage is not counted: %s", folder / SNAPSHOT, error)
        return Snapshot()


class UnknownSnapshot(ValueError):
    """A snapshot of a format version this program does not know. It is to be left alone."""


def load_snapshot(folder: Path) -> Snapshot:
    """The sums of folded files; empty when nothing was folded yet.

    Raises:
        UnknownSnapshot: when it is of another format version.
        ValueError, RecursionError: when it is damaged.
        OSError: when it cannot be read.
    """
    try:
        snapshot = msgspec.json.decode((folder / SNAPSHOT).read_bytes(), type=Snapshot)
    except FileNotFoundError:
        return Snapshot()
    if snapshot.format != _FORMAT:
        raise UnknownSnapshot(f"it is of format {snapshot.format}, and this program knows {_FORMAT}")
    return snapshot


def read_events(folder: Path, snapshot: Snapshot, positions: dict[str, int]) -> Iterator[Event]:
    """Events of all files not in the snapshot, from ``positions`` (bytes by file stem) on, which it moves forward."""
    folded = set(snapshot.folded)
    for name in _names(folder, _OPEN, _FOLDING):
        stem = name.partition(".")[0]
        if stem in folded:
            continue
        data = _read_from(folder, stem, positions.get(stem, 0))
        whole = data.rfind(b"\n") + 1
        positions[stem] = positions.get(stem, 0) + whole
        yield from _decode_lines(data[:whole])


def _read_from(folder: Path, stem: str, position: int) -> bytes:
    """A file's bytes, also when it is renamed to be folded just now; nothing when it cannot be read."""
    for suffix in (_OPEN, _FOLDING):
        with suppress(OSError), open(folder / f"{stem}{suffix}", "rb") as file:
            file.seek(position)
            return file.read()
    return b""


def journal_state(folder: Path) -> tuple[tuple[str, int], ...]:
    """Names and sizes of all files: equal states mean that nothing was written in between."""
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        return tuple(sorted((file.name, file.stat().st_size) for file in files))
    return ()


def fold(folder: Path, temp: Path, keep: Callable[[str], bool]) -> int:
    """Adds up the files nobody holds into the snapshot; returns how many. To be called under the maintenance lock.

    A snapshot that cannot be read is left alone, and with it all files: it may be a newer version's.

    Args:
        keep: tells for a key whether its usage is still of interest.
    """
    try:
        snapshot = load_snapshot(folder)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("the journal is not folded, since %s cannot be read: %s", folder / SNAPSHOT, error)
        return 0
    for name in _names(folder, _OPEN):
        # One that cannot be opened is somebody else's.
        with suppress(OSError), open(folder / name, "r+b") as file:
            if try_lock(file.fileno()):
                (folder / name).rename((folder / name).with_suffix(_FOLDING))
    names = _names(folder, _FOLDING)
    stems = [name.partition(".")[0] for name in names]
    fresh = [name for name, stem in zip(names, stems, strict=True) if stem not in snapshot.folded]
    if fresh:
        tally = Tally(snapshot.totals, snapshot.usage, snapshot.recent)
        for name in fresh:
            for event in _decode_lines((folder / name).read_bytes()):
                tally.add(event)
        snapshot = Snapshot(
            # Never one that was given before, also if an earlier snapshot was lost: the mirror goes by it.
            generation=max(snapshot.generation + 1, time.time_ns() // 1000),
            folded=stems,
            totals=tally.totals,
            usage=[used for used in tally.usage if keep(used.key)],
            recent=tally.recent,
        )
        publish_file(temp, str(folder / SNAPSHOT), _encode(snapshot), durable=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return len(fresh)


def _names(folder: Path, *suffixes: str) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if name.endswith(suffixes))
    return []


def _decode_lines(data: bytes) -> Iterator[Event]:
    for line in data.splitlines():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield _decode(line)


def _take_over(path: Path) -> int | None:
    """Opens and locks a file if it is free and has room, and closes off a line cut short; else ``None``."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size < _ROTATE_BYTES and _lock_in_place(descriptor, path):
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_in_place(descriptor: int, path: Path) -> bool:
    """Locks an open file if it is free and still in its place: it may have been renamed, to be folded, before."""
    if not try_lock(descriptor):
        return False
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _close_if_alive(reference: weakref.ref[Journal]) -> None:
    journal = reference()
    if journal is not None:
        journal.close()


def _flush_now_and_then(reference: weakref.ref[Journal], closed: threading.Event, wait_s: float) -> None:
    """Body of the writing thread; ends when its journal is closed or gone."""
    while not closed.wait(wait_s):
        journal = reference()
        if journal is None:
            return
        journal.flush()
        del journal  # not to keep it alive while waiting
