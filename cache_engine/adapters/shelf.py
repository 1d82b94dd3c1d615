"""The store as adapters use it, counting and cleaning; and a folder of files for those that read kernels by path."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.frameworks.bundles import (
    Group,
    StoredGroup,
    UnknownGroup,
    group_key,
    group_keys,
    put_group,
    read_group,
    read_stored,
)
from cache_engine.model.events import CORRUPT, EVICT, PUBLISH
from cache_engine.process import OwnFile, renew_after_fork, run_at_end, unforked
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal, fold_when_long
from cache_engine.store.lock import Held, file_lock, file_lock_to_delete, try_lock
from cache_engine.store.notes import is_pinned
from cache_engine.store.ownership import own_file

if TYPE_CHECKING:
    from cache_engine.upkeep.cleanup import Housekeeper

_log = logging.getLogger(__name__)
PROGRAM = "program"
"""The name of the file, in a stored kernel, that has the bytes of a program."""
_LOCK_S = 1.0
_MOST_COMPILING = 1000


class Shelf:
    """Kernels of other frameworks in a store. Safe in several threads, and after a fork."""

    def __init__(self, store: DiskStore, settings: Settings) -> None:
        """Takes a store that ``open_store`` has checked; reads nothing yet."""
        layout = store.layout
        self.layout, self.lock_timeout_s = layout, settings.lock_timeout_s
        self._store, self._settings = store, settings
        self._journal = Journal(
            layout.journal,
            fold=partial(fold_when_long, layout),
            log=layout,
        )
        # By key and digest of a kernel that was unpacked: when it was made, and microseconds of its compile. What the
        # header says of the key is unproved until then: a file may hold another kernel's bytes under a forged one.
        self._made: dict[tuple[str, bytes], tuple[float, int]] = {}
        self._housekeeper: Housekeeper | None = None

    def get(self, framework: str, name: str, index: str) -> StoredGroup | None:
        """Reads a framework's kernel, verified by checksum, and counts a hit; ``None`` if the store does not have it.

        Raises:
            CorruptEntry, UnknownGroup, OSError: as ``read_stored``. A damaged kernel is counted, and may be stored
                again.
        """
        layout = self._store.layout
        key = group_key(framework, name, index)
        try:
            stored = read_stored(layout, key, trust=layout.trust)
            if stored is None:
                return None
            made = self._made.get((key, stored.digest))
            if made is None:
                group = stored.group
                made = self._made[key, stored.digest] = group.made_at, round((group.compile_ms or 0.0) * 1e3)
        except CorruptEntry as error:
            self._journal.event(CORRUPT, key=key, detail=str(error))
            raise
        self._journal.hit(key, DiskStore.name, made_at=made[0], saved_us=made[1])
        return stored

    def lock(self, framework: str, name: str, index: str) -> Held:
        """The lock of a kernel, to hold while the kernel is compiled; raises as ``file_lock``."""
        path = self._store.layout.key_lock(group_key(framework, name, index))
        return file_lock(path, self._settings.lock_timeout_s)

    def put(self, group: Group, arch: str = "") -> None:
        """Stores a kernel that was just compiled for a target.

        If a cleaning of the store is due, starts it in the background.

        Raises:
            ValueError, OSError: as ``put_group``.
        """
        size = put_group(self._store.layout, group, durable=self._settings.is_durable)
        self._journal.miss(arch)
        compile_us = round((group.compile_ms or 0.0) * 1e3)
        self._journal.event(PUBLISH, key=group.key, compile_us=compile_us, stored_bytes=size)
        self._kept_house().published(size)

    def delete(self, framework: str, name: str, index: str) -> bool:
        """Deletes a kernel; returns whether it was deleted: not if it is pinned or another process holds its lock."""
        layout, key = self._store.layout, group_key(framework, name, index)
        with suppress(OSError, StoreError), file_lock_to_delete(layout.key_lock(key), _LOCK_S):
            freed = 0 if is_pinned(layout, key) else self._store.delete(key)
            if freed:
                self._journal.event(EVICT, key=key, stored_bytes=freed, detail=f"{framework} deleted it")
                return True
        return False

    def groups(self, framework: str) -> Iterator[Group]:
        """All readable kernels of a framework.

        Yields nothing if the store cannot be listed, which is a warning in the log.
        """
        layout = self._store.layout
        try:
            keys = list(group_keys(layout))
        except OSError as error:
            _log.warning("the kernels of %s in the store cannot be listed: %s", framework, error)
            return
        for key in keys:
            with suppress(CorruptEntry, UnknownGroup, OSError):
                group = read_group(layout, key, trust=layout.trust)
                if group is not None and group.framework == framework:
                    yield group

    def close(self) -> None:
        """Writes the last counts to the journal, and ends a running cleaning. The end of the process does the same."""
        if self._housekeeper is not None:
            self._housekeeper.close()
        self._journal.close()

    def _kept_house(self) -> Housekeeper:
        if self._housekeeper is None:
            # Only after a compile: no hit needs it.
            from cache_engine.upkeep.cleanup import Housekeeper, prune_results
            from cache_engine.upkeep.plan import Limits

            every_s = self._settings.cleanup_interval_h * 3600
            prune = partial(prune_results, self._store, self._settings, self._journal)
            made = Housekeeper(self._store, self._journal, Limits.of(self._settings), every_s, prune)
            run_at_end(made.close)
            self._housekeeper = made
        return self._housekeeper


class Programs:
    """One framework's programs in a store, each of one file. A failure is a warning in the log and a miss."""

    def __init__(self, stored: Shelf | None, framework: str, title: str, version: str) -> None:
        """Prepares for the framework of this name, title and version. Without ``stored``, nothing is stored."""
        self.shelf, self._framework, self._title, self._version = stored, framework, title, version
        self._missed_at: dict[str, float] = {}

    def get(self, name: str) -> bytes | None:
        """A program's bytes, verified by checksum; ``None`` if the framework must compile it."""
        try:
            stored = None if self.shelf is None else self.shelf.get(self._framework, name, PROGRAM)
            if stored is not None:
                return stored.group.files[PROGRAM]
        except Exception as error:  # damage, a disk that fails, a format from the future: the framework compiles
            _log.warning("a program of %s is compiled again: %s", self._title, error)
        if len(self._missed_at) < _MOST_COMPILING:
            self._missed_at[name] = time.perf_counter()
        return None

    def put(self, name: str, code: bytes, **others: str) -> None:
        """Stores a program, other texts that belong to it, and the time since its miss as its compile time."""
        missed_at = self._missed_at.pop(name, None)
        stages_ms = {} if missed_at is None else {"compile": (time.perf_counter() - missed_at) * 1e3}
        try:
            if self.shelf is not None:
                texts = {f"{PROGRAM}.{ending}": text.encode(errors="replace") for ending, text in others.items()}
                files = {PROGRAM: bytes(code), **texts}
                self.shelf.put(Group(self._framework, name, PROGRAM, files, time.time(), stages_ms, self._version))
        except Exception as error:  # a full disk, a read-only store: whatever it is, the program is compiled and works
            _log.warning("a program of %s is not stored: %s", self._title, error)


@cache
def shelf(dir: str | Path | None = None) -> Shelf | None:
    """The store in ``dir``, by default that of the settings; ``None``, and a warning in the log, if it is unusable."""
    try:
        settings = Settings.load() if dir is None else Settings.load(dir=dir)
        if settings.uses_directory:
            layout = open_store(settings.directory(), trust=settings.trust_store)
            return Shelf(DiskStore(layout, durable=settings.is_durable), settings)
    except Exception as error:  # a setting, a directory, a disk: whatever it is, the framework works without
        _log.warning("the store cannot be used, and the framework does without: %s", error)
    return None


# ---- A private folder in ``TMPDIR``, for kernel files of a framework that reads them by path ----
# The folder is deleted at the end of the process. A killed process leaves its folder; its lock is then free, and the
# next process that makes such a folder deletes it.

FOLDER_PREFIX = "gemm-cache-kernels-"
LOCK = ".lock"
"""The name of each folder's lock file: empty until the folder's process locks it, then locked while that process lives.
No framework uses this name.
"""
GRACE_S = 600.0
"""Seconds. A younger folder is not deleted, even if its lock file is missing or empty.

Its process may be about to lock it.
"""


class _Own:
    """The private folder of this process, and the kernel files written to it."""

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Called in a forked child: forgets the folder, because it is the parent's, which will delete it."""
        self.lock = threading.RLock()
        self.folder: Path | None = None
        # All that this process made. The folder of a lock that is freed would be deleted while its files are in use.
        self.held: list[OwnFile] = []
        self.written: dict[bytes, dict[str, str]] = {}

    def make(self) -> Path:
        """Makes and locks the private folder of this process; returns its path. Raises ``OSError``."""
        with unforked():
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        lock = OwnFile.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        if not try_lock(lock.descriptor):  # this process was stopped for longer than the grace
            raise BlockingIOError(errno.EAGAIN, "another process deletes it", str(folder))
        os.write(lock.descriptor, b"locked\n")
        self.held.append(lock)
        run_at_end(partial(_delete, folder, os.getpid()))
        return folder


_own = _Own()


def own_folder() -> Path:
    """The private folder of this process, made at the first call.

    Raises:
        OSError: when the folder cannot be made.
    """
    with _own.lock:
        # What tidies TMPDIR may have deleted the folder of a process that lives.
        if _own.folder is None or not _own.folder.is_dir():
            delete_abandoned()
            _own.folder = _own.make()
        return _own.folder


def delete_abandoned() -> list[Path]:
    """Deletes the folders of this user's processes that ended without deleting them; returns the folders.

    Raises nothing.
    """
    deleted = []
    with suppress(OSError):
        with unforked():
            temporary = tempfile.gettempdir()
        with os.scandir(temporary) as items:
            for item in items:
                if item.name.startswith(FOLDER_PREFIX) and _is_abandoned(item):
                    shutil.rmtree(item.path, ignore_errors=True)
                    deleted.append(Path(item.path))
    return deleted


def _is_abandoned(item: os.DirEntry[str]) -> bool:
    """Whether a directory entry is a folder of this user whose process has ended.

    False for a folder that other users may write to.
    """
    with suppress(OSError, CorruptEntry):
        status = item.stat(follow_symlinks=False)
        if not item.is_dir(follow_symlinks=False) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return False
        is_old = abs(time.time() - status.st_mtime) > GRACE_S
        try:
            lock = own_file(f"{item.path}/{LOCK}", os.O_RDWR)
        except FileNotFoundError:
            return is_old
        try:
            return (is_old or os.fstat(lock.descriptor).st_size > 0) and try_lock(lock.descriptor)
        finally:
            lock.close()
    return False


def _delete(folder: Path, of_process: int) -> None:
    if os.getpid() == of_process:
        shutil.rmtree(folder, ignore_errors=True)


def write_files(files: dict[str, bytes]) -> dict[str, str]:
    """Writes files into a new folder below the private folder of this process; returns their paths by name.

    Names must have no directory.

    Raises:
        OSError: when writing fails.
    """
    below = f"{own_folder()}/{next(_numbers)}"
    os.mkdir(below, 0o700)
    return add_files(below, files)


def add_files(folder: str, files: dict[str, bytes]) -> dict[str, str]:
    """Writes files into a folder that ``write_files`` made; returns their paths by name. Raises as ``write_files``."""
    paths = {}
    for name, data in files.items():
        path = paths[name] = f"{folder}/{name}"
        # Without Python's own layers, which take as long as the file system does.
        descriptor = os.open(path, _NEW, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, "only a part of the data was written", path)
        finally:
            os.close(descriptor)
    return paths


def files_of(stored: StoredGroup) -> dict[str, str]:
    """Writes the files of another framework's kernel below this process's folder; returns their paths by name.

    A kernel that was written before is neither unpacked nor written again.

    Raises:
        CorruptEntry: when the bytes are not those of a stored kernel.
        OSError: when writing fails.
    """
    paths = _own.written.get(stored.digest)
    if paths is None or not all(map(os.path.exists, paths.values())):
        # Another thread may write the same files at the same time, into another folder.
        paths = _own.written[stored.digest] = write_files(stored.group.files)
    return paths


def forget_written() -> None:
    """Forgets which kernels ``files_of`` has written, so that it writes them again, as in a new process."""
    _own.written.clear()


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_numbers = count()
