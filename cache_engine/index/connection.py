"""Opens a store's index for reading, and interrupts queries on Ctrl-C or when they take too long."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cache_engine.errors import IndexUnavailable, Untrusted
from cache_engine.inputs import others_may_change
from cache_engine.process import renew_after_fork
from cache_engine.store.layout import StoreLayout
from cache_engine.store.ownership import check_file, open_way

if TYPE_CHECKING:
    import duckdb

_T = TypeVar("_T")

LOCKED = "Could not set lock on file"
"""DuckDB's message when another process has the file open."""

# An extension that is not built in would be downloaded, and a failing download stalls for seconds.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# The longest wait for programs that do not use our lock, such as DuckDB's shell.
_PATIENCE_S = 1.0
_NAME = "attached"


def home_of(store: StoreLayout, *, is_full: bool = False) -> StoreLayout:
    """The folder for the index: the store, or a private folder if the store or DuckDB allows no file in the store.

    Args:
        is_full: whether the store's disk is full.

    Raises:
        IndexUnavailable: when no private folder can be made.
    """
    # DuckDB reads what follows a question mark as parameters, and puts its log elsewhere.
    if not is_full and os.access(store.root, os.W_OK) and "?" not in str(store.root):
        return store
    name = hashlib.sha256(os.fsencode(store.root)).hexdigest()[:16]
    home = StoreLayout(Path(tempfile.gettempdir(), f"gemm-cache-{os.geteuid()}") / name)
    try:
        locks = open_way(home.locks, make=True)
        try:
            check_file(home.locks, os.fstat(locks))
        finally:
            os.close(locks)
    except Untrusted as error:
        raise IndexUnavailable(
            f"there is no place for the index: {error}; set TMPDIR to a folder of your own"
        ) from error
    return home


def is_own(home: StoreLayout) -> bool:
    """Whether the index's files are regular files that only this user and root can change; true if they do not exist.

    DuckDB would wait for a pipe, and show the content of another user's file. This function does not open the files:
    closing one again would drop the lock of a connection in this process.
    """
    for path in (home.index, home.index_log):
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or (others_may_change(status) and not home.trust):
                return False
    return True


def connect(path: Path, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB file; if another program has it open, waits shortly, then raises ``duckdb.Error``."""
    import duckdb

    return _patiently(lambda: duckdb.connect(str(path), read_only=read_only, config=_CONFIG))


class Attaching:
    """Opens DuckDB files by attaching them to one lasting DuckDB instance, for a process that reads often.

    Opening a file takes 16 ms, mostly to make an instance of DuckDB for it; attaching the file to an existing instance
    takes 3 ms. The file is closed while nobody reads it, so that other processes can write.
    """

    def __init__(self) -> None:
        """Makes no DuckDB instance yet."""
        self._lock = threading.Lock()
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._readers = 0
        self._of_parents: list[object] = []
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Called in a forked child: forgets the instance.

        The threads of the instance run only in the parent, and closing it would wait for them.
        """
        self._of_parents.append(self._instance)
        self._lock, self._instance, self._readers = threading.Lock(), None, 0

    @contextmanager
    def reading(self, path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yields a connection to the attached file; if another program has the file open, waits shortly.

        All threads that read at the same time share one opening of the file, because closing a second one would drop
        the lock of the first.

        Raises:
            duckdb.Error: when the file cannot be attached.
        """
        import duckdb

        with self._lock:
            if self._instance is None:
                self._instance = duckdb.connect(config=_CONFIG)
            instance = self._instance
            if not self._readers:
                quoted = str(path).replace("'", "''")
                _patiently(lambda: instance.execute(f"ATTACH '{quoted}' AS {_NAME} (READ_ONLY)"))
            self._readers += 1
        try:
            with instance.cursor() as connection:
                connection.execute(f"USE {_NAME}")
                yield connection
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers:
                    self._detach(instance)

    def _detach(self, instance: duckdb.DuckDBPyConnection) -> None:
        import duckdb

        try:
            instance.execute(f"DETACH {_NAME}")
        except duckdb.Error:  # one that has met a fatal error does nothing more
            self._instance = None
            with suppress(duckdb.Error):
                instance.close()


def _patiently(action: Callable[[], _T]) -> _T:
    import duckdb

    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return action()
        except duckdb.IOException as error:
            if LOCKED not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


@contextmanager
def interrupted_after(connection: duckdb.DuckDBPyConnection, limit_s: float | None) -> Iterator[None]:
    """Interrupts the connection if the body of the ``with`` takes longer than ``limit_s`` seconds."""
    if limit_s is None:
        yield
        return
    is_over = False
    lock = threading.Lock()  # a connection that is being closed must not be interrupted

    def interrupt() -> None:
        with lock:
            if not is_over:
                connection.interrupt()

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True


@contextmanager
def passing_on_ctrl_c() -> Iterator[None]:
    """In the ``with``, Ctrl-C raises ``KeyboardInterrupt``; DuckDB itself would raise ``RuntimeError`` in its place."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != "Query interrupted":
            raise
        raise KeyboardInterrupt from error
