"""How a process writes to the journal."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from cache_engine.model.events import USE, Event
from cache_engine.model.key import CacheKey
from cache_engine.process import renew_after_fork, run_at_end
from cache_engine.store.journal.folding import OPEN, file_names
from cache_engine.store.lock import try_lock

_log = logging.getLogger(__name__)
_ROTATE_BYTES = 1024**2

_encode = msgspec.json.Encoder().encode

_Hit = tuple[CacheKey, float, str]
"""An entry's key, when it was made, and the tier that had it."""


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
        self._misses: dict[CacheKey, tuple[str, int]] = {}
        self._failures: dict[str, int] = {}
        self._lock_waits = Event(kind=USE, at=0.0)
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

    def miss(self, key: CacheKey, arch: str = "") -> None:
        """Counts a lookup that has to compile for this target. Writes nothing now."""
        with self._lock:
            self._misses[key] = arch, self._misses.get(key, (arch, 0))[1] + 1
            if self._thread is None:
                self._start_thread()

    def failure(self, tier: str) -> None:
        """Counts a tier that failed and was passed over. Writes nothing now."""
        with self._lock:
            self._failures[tier] = self._failures.get(tier, 0) + 1
            if self._thread is None:
                self._start_thread()

    def lock_wait(self, seconds: float, *, in_vain: bool) -> None:
        """Counts a long wait for the lock of a key. Writes nothing now."""
        with self._lock:
            self._lock_waits.lock_waits += 1
            self._lock_waits.lock_timeouts += in_vain
            self._lock_waits.lock_wait_us += round(seconds * 1e6)
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
            waits = self._lock_waits
            if not hits and not misses and not failures and not waits.lock_waits:
                return []
            self._hits, self._misses, self._saved_us, self._failures = {}, {}, {}, {}
            self._lock_waits = Event(kind=USE, at=0.0)
        by_entry: dict[tuple[CacheKey, float], dict[str, int]] = {(key, 0.0): {} for key in misses}
        for (key, made_at, tier), count in hits.items():
            by_entry.setdefault((key, made_at), {})[tier] = count
        now = self._now()
        waits.at, waits.failures = now, failures
        counted = [waits] if failures or waits.lock_waits else []
        for (key, made_at), tiers in by_entry.items():
            arch, missed = misses.pop(key, ("", 0))
            saved_us = saved.pop(key, 0)
            counted.append(
                Event(
                    kind=USE, at=now, key=key, made_at=made_at, hits=tiers, misses=missed, arch=arch, saved_us=saved_us
                )
            )
        return counted

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
            for name in file_names(self._folder, OPEN):
                # One that cannot be opened is somebody else's, or gone.
                with suppress(OSError):
                    taken = _take_over(self._folder / name)
                    if taken is not None:
                        return taken
            path = self._folder / f"{time.time_ns():016x}-{os.getpid()}-{secrets.token_hex(4)}{OPEN}"
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

    def miss(self, key: CacheKey, arch: str = "") -> None:
        """Counts nothing."""

    def failure(self, tier: str) -> None:
        """Counts nothing."""

    def lock_wait(self, seconds: float, *, in_vain: bool) -> None:
        """Counts nothing."""

    def event(self, kind: str, **fields: object) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Has nothing to close."""

    def __del__(self) -> None:
        pass


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
