"""Deleting rows of an SQLite database that other processes use, so that none of them waits long or fails.

Few rows in a transaction, each of which gives up at once where another process has a lock, and later tries again. The
file is not made smaller: that takes a lock for as long as it takes to write all of it. SQLite uses the space again.

Linux drops a process's locks of a file when any thread of it closes that file: nothing else of this process may read
the database meanwhile, which ``IN_PROCESS`` sees to.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from cache_engine.errors import Untrusted
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.values import Deletion, Fault, Rows, id_of, name_of
from cache_engine.model.outcome import Failure
from cache_engine.store.ownership import check_file, open_way

if TYPE_CHECKING:
    import sqlite3

_T = TypeVar("_T")
IN_PROCESS = threading.RLock()
"""Held while this process reads or writes such a database, whichever it is."""
ROWS_AT_ONCE = 20
"""The rows of one transaction."""
JOURNALS = ("-journal", "-wal", "-shm")
"""How the names of the files end that SQLite writes next to a database."""
BUSY = "a process writes to it, or was killed as it did; cuTile repairs it when it next starts"
MOST_HELD_S = 0.5
"""A transaction that takes longer is taken back: cuTile waits for five seconds, then deletes its database."""
_TRIES = 20
_PAUSE_S = 0.1
"""Between transactions; others try again that often while they wait for a lock."""


def delete_rows(place: Path, rows: Rows, deletions: Sequence[Deletion]) -> Iterator[tuple[Deletion, Failure | None]]:
    """Deletes them, and yields each with ``None``, or why it stays.

    Raises:
        OSError: when the directory cannot be opened.
    """
    import sqlite3

    left = list(deletions)
    try:
        with IN_PROCESS, closing(_tried(partial(_opened, place, rows))) as database:
            while left:
                some = left[:ROWS_AT_ONCE]
                found = _tried(partial(_transaction, database, rows, some))
                del left[:ROWS_AT_ONCE]
                for deletion, was_there in zip(some, found, strict=True):
                    yield deletion, None if was_there else Failure("it is gone")
                if left:
                    time.sleep(_PAUSE_S)
    except FileNotFoundError:
        why = "it is gone"
    except Unread as error:
        why = error.detail
    except (sqlite3.Error, OverflowError) as error:
        why = f"SQLite cannot delete it: {id_of(str(error))}"
    for deletion in left:
        yield deletion, Failure(why)


def _opened(place: Path, rows: Rows) -> sqlite3.Connection:
    """The database, to write to; raises ``Unread`` where that is not as safe as it should be."""
    import sqlite3

    with Folder(place) as folder:
        folder.check_file(rows.file)
        _check_owners(place, folder, rows.file)
        for left in reversed(range(_TRIES)):
            if is_quiet(folder, rows.file):
                break
            if not left:
                raise Unread(Fault.LOCKED, BUSY)
            time.sleep(_PAUSE_S)
    where = quote(str(place / rows.file))
    database = sqlite3.connect(f"file:{where}?mode=rw", uri=True, timeout=0, isolation_level=None)
    try:
        database.execute("PRAGMA trusted_schema = OFF")  # the schema is another program's: it calls no functions
        database.execute("PRAGMA secure_delete = OFF")  # nothing is overwritten while the lock is held
        (triggers,) = database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()
        table = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
        (page,) = database.execute(table, (rows.table,)).fetchone() or (None,)
        (journal,) = database.execute("PRAGMA journal_mode").fetchone()
        if triggers or not page or journal != "delete":
            raise Unread(Fault.DAMAGED, "its database is not as the framework makes it")
    except BaseException:
        database.close()
        raise
    return database


def _check_owners(place: Path, folder: Folder, file: str) -> None:
    """Refuses a database next to which another user can put a journal, or which another user can replace.

    SQLite rolls back a journal that it finds as it opens a database, and deletes the file that the journal names as its
    super-journal, wherever that is. It opens both by their names, so all folders on the way count too.
    """
    try:
        os.close(open_way(place))
        check_file(place, os.fstat(folder.fileno()))
        check_file(place / file, folder.stat(file))
        for journal in (f"{file}{ending}" for ending in JOURNALS):
            with suppress(FileNotFoundError):  # an empty one that another may write can be filled at any moment
                check_file(place / journal, folder.stat(journal))
    except Untrusted as error:
        why = f"{id_of(str(error))}, so another user could plant a journal by which SQLite deletes files of yours"
        mend = "clean it as its owner, who alone may write to it (chmod go-w)"
        raise Unread(Fault.FORBIDDEN, f"{why}; {mend}") from error


def is_quiet(folder: Folder, file: str) -> bool:
    """Whether a database has no journal: no process writes to it, and none was killed as it did."""
    for ending in JOURNALS:
        try:
            status = folder.stat(f"{file}{ending}")
            if status.st_size or not stat.S_ISREG(status.st_mode):  # SQLite would wait for a pipe without end
                return False
        except FileNotFoundError:
            continue
    return True


def _tried(act: Callable[[], _T]) -> _T:
    """Does something, again while another process has a lock; raises ``sqlite3.Error``."""
    import sqlite3

    for _ in range(_TRIES - 1):
        try:
            return act()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT):
                raise
        time.sleep(_PAUSE_S)
    return act()


def _transaction(database: sqlite3.Connection, rows: Rows, deletions: Sequence[Deletion]) -> list[bool]:
    """Deletes some; returns which of them were there."""
    began = time.monotonic()
    database.set_progress_handler(lambda: time.monotonic() - began > MOST_HELD_S, 1000)
    database.execute("BEGIN IMMEDIATE")
    try:
        statement = f"DELETE FROM {rows.table} WHERE {rows.key} = ?"  # noqa: S608 (names that a source gives)
        found = [database.execute(statement, (name_of(deletion.id),)).rowcount > 0 for deletion in deletions]
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return found
