"""Cleans caches that other processes use: plans, and deletes so that no process fails.

Frameworks look up an entry, then read its files one by one, without a lock. If a file is deleted in between, the
compile fails. So an entry is first made impossible to find. After a wait, in which processes that had found the entry
finish reading it, its folder is renamed and deleted. A folder whose content has changed meanwhile stays, because a
process is building the entry again.

Parts that the framework does not need are deleted in the same way: first the index file that names them is replaced by
an index file without them, so that the entry can be found all the time.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from cache_engine.errors import Untrusted
from cache_engine.frameworks.base import CacheReader, Thinning
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import DeletePlan, Deletion, Entry, Fault, PartKind, Place, Rows, id_of, name_of
from cache_engine.model.outcome import Failure
from cache_engine.store.ownership import check_file, open_way

if TYPE_CHECKING:
    import sqlite3


_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """The rules of a cleaning. It deletes each selected entry to which at least one rule applies.

    Without a rule, it deletes all selected entries. A filter selects the entries before the rules are applied.

    Attributes:
        unused_days: entries neither made nor used for this many days, as far as the file system notes uses.
        versions: entries that these versions of their framework made.
        max_bytes: the bytes that the selected entries may have afterwards; the longest unused are deleted first.
    """

    takes: EntryFilter = EntryFilter()
    unused_days: float | None = None
    versions: tuple[str, ...] = ()
    max_bytes: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether there are no rules, so that every entry is deleted."""
        return self == CleaningRules()


@dataclass(frozen=True, slots=True)
class Chosen:
    """An entry to delete, and the reason."""

    place: Place
    entry: Entry
    reason: str


def choose(found: Iterable[tuple[Place, Entry]], rules: CleaningRules, now: float) -> list[Chosen]:
    """The entries to delete, the longest unused first. ``now`` is in seconds since 1970, UTC."""
    taken = sorted(
        ((place, entry) for place, entry in found if rules.takes.takes(place, entry)), key=lambda row: _used_at(row[1])
    )
    excess = None
    if rules.max_bytes is not None:
        excess = sum(entry.size_bytes for _, entry in taken) - rules.max_bytes
    has_rule = rules.unused_days is not None or rules.versions or excess is not None
    chosen = []
    for place, entry in taken:
        reason = _reason(entry, rules, now) or ("" if has_rule else "selected")
        if not reason and excess is not None and excess > 0:
            reason = "over the size"
        if reason:
            chosen.append(Chosen(place, entry, reason))
            excess = None if excess is None else excess - entry.size_bytes
    return chosen


def _reason(entry: Entry, rules: CleaningRules, now: float) -> str:
    used_at = _used_at(entry)
    if rules.unused_days is not None and used_at and used_at < now - rules.unused_days * _DAY_S:
        return f"unused for {(now - used_at) / _DAY_S:.0f} days"
    if entry.version is not None and entry.version in rules.versions:
        return f"version {entry.version}"
    return ""


def _used_at(entry: Entry) -> float:
    return max(entry.last_used_at or 0.0, entry.created_at or 0.0)


Plans = dict[Place, DeletePlan | Failure]
"""For each cache, the plan to delete entries or their IRs; or the reason why they cannot be deleted."""


def plan_cleaning(
    sources: Mapping[str, CacheReader], chosen: Sequence[Chosen], *, irs_only: bool = False, offline: bool = False,
    known: Sequence[Place] = (),
) -> Plans:  # fmt: skip
    """Plans the deletion of entries in their present state. Changes nothing.

    Args:
        sources: the readers, by kind.
        irs_only: delete only the entries' IRs.
        offline: assume that no process uses the caches, and delete each entry's files at once.
        known: all caches. With ``offline``, files of a cache that lies inside another are not deleted with the outer
            one.
    """
    plans: Plans = {}
    by_place: dict[Place, list[Entry]] = {}
    for each in chosen:
        by_place.setdefault(each.place, []).append(each.entry)
    for place, entries in by_place.items():
        source = sources[place.kind]
        try:
            status = os.stat(place.path)
            if offline:
                plans[place] = plan_offline(entries, _below(place, known))
            elif not irs_only:
                plans[place] = source.plan_delete(place, entries)
            elif isinstance(source, Thinning):
                plans[place] = source.plan_thinning(place, entries)
            else:
                plans[place] = Failure(f"whether {source.title} uses an entry without its IRs is not known")
        except OSError as error:  # the directory has vanished
            plans[place] = Failure(error.strerror or str(error))
            continue
        planned = plans[place]
        if isinstance(planned, DeletePlan):
            plans[place] = replace(planned, directory=(status.st_dev, status.st_ino))
    return plans


def _below(place: Place, known: Sequence[Place]) -> list[str]:
    """The paths, below one cache, of the other caches that lie inside it."""
    top = os.path.realpath(place.path)
    paths = (os.path.relpath(os.path.realpath(other.path), top) for other in known)
    return [path for path in paths if path.partition("/")[0] not in (os.curdir, os.pardir)]


def with_irs(found: Iterable[tuple[Place, Entry]]) -> list[tuple[Place, Entry]]:
    """The entries that have IRs."""
    return [(place, entry) for place, entry in found if entry.part(PartKind.IR) is not None]


DELETED = "deleted.gemm-cache-"
"""The beginning of the name that a folder gets before it is deleted."""
REPLACED = "another directory took the place of the one that was looked at: look again"
_CHANGED = "it was written meanwhile: a process uses it"
_GONE = "it is gone"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_State = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class Deleted:
    """The result of carrying out a plan: the ids and bytes of deleted entries; each entry that stays, and why."""

    ids: list[str] = field(default_factory=list)
    size_bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)

    def count(self, deletion: Deletion, failure: Failure | None) -> None:
        """Adds one entry to the deleted entries or, with a failure, to the entries that stay."""
        if failure is None:
            self.ids.append(deletion.id)
            self.size_bytes += deletion.size_bytes
        else:
            self.left[deletion.id] = failure.reason


def plan_offline(entries: Sequence[Entry], others: Sequence[str] = ()) -> DeletePlan:
    """A plan that deletes the files of entries at once: a process that uses one of them may fail.

    Args:
        others: the paths of other caches inside this one. Entries in them stay.
    """
    deletions, left = [], {}
    for entry in entries:
        files = tuple(part.file for part in entry.parts if part.file)
        if any(f"{name_of(file)}/".startswith(f"{other}/") for file in files for other in others):
            left[entry.id] = "it is in a directory of another cache, which only --in with that directory cleans"
        elif len(files) == len(entry.parts):
            deletions.append(Deletion(entry.id, files, "", entry.size_bytes))
        else:
            left[entry.id] = "it is a row of a file with other entries, of which only a way that is safe deletes it"
    return DeletePlan(tuple(deletions), left=left)


def delete(
    place: Place, plan: DeletePlan, into: Deleted, on_progress: Callable[[int], None] = lambda _: None
) -> Deleted:
    """Carries out a plan.

    Args:
        into: receives the result, even if the deletion is interrupted. Then entries may be hidden but not deleted:
            the framework does not find them, and compiles their kernels again.
        on_progress: called with the number of entries processed.

    Raises:
        OSError: when the cache cannot be opened.
    """
    into.left.update(plan.left)
    with Folder(place.path) as root:
        if plan.directory not in (None, (root.status.st_dev, root.status.st_ino)):
            into.left.update((deletion.id, REPLACED) for deletion in plan.deletions)
        elif plan.rows is not None:
            for deletion, failure in delete_rows(place.path, plan.rows, plan.deletions):
                into.count(deletion, failure)
                on_progress(len(into.ids) + len(into.left))
        else:
            _delete_files(root, plan, into, on_progress)
    return into


def _delete_files(root: Folder, plan: DeletePlan, into: Deleted, on_progress: Callable[[int], None]) -> None:
    waiting, makes_room = [], True
    for deletion in plan.deletions:
        try:
            state = _hide(root, deletion, makes_room=makes_room)
        except (OSError, Unread) as error:
            makes_room &= getattr(error, "errno", None) not in _NO_ROOM
            into.count(deletion, _why(error))
            continue
        if deletion.folder:
            waiting.append((deletion, state))
        else:
            if not plan.keeps_folders:
                _remove_empty_folders(root, deletion)
            into.count(deletion, None)
    if waiting:
        time.sleep(plan.wait_s)
    for deletion, state in waiting:
        try:
            failure = _remove(root, deletion, state)
        except (OSError, Unread) as error:
            failure = _why(error)
        into.count(deletion, failure)
        on_progress(len(into.ids) + len(into.left))


def _hide(root: Folder, deletion: Deletion, *, makes_room: bool) -> _State:
    """Makes an entry impossible to find: unlinks the files in ``first``; returns the state of its folder after that.

    Args:
        makes_room: on a full disk, delete the old index before writing the new one.

    Raises:
        FileNotFoundError: when another process unlinked the first file before, and so deletes the entry.
    """
    is_ours = [_unlink(root, file) for file in map(name_of, deletion.first)]
    if not deletion.folder:
        if is_ours[:1] == [False]:
            raise FileNotFoundError
        return ()
    with root.enter(name_of(deletion.folder)) as folder:
        if deletion.state is not None and state_of(folder) != deletion.state:
            raise Unread(Fault.LOCKED, _CHANGED)
        if deletion.rewritten is not None:
            try:
                _rewrite(folder, *deletion.rewritten)
            except OSError as error:
                if error.errno not in _NO_ROOM or not makes_room:
                    raise
                _rewrite(folder, *deletion.rewritten, is_full=True)
        return state_of(folder)


def _unlink(root: Folder, file: str) -> bool:
    """Unlinks a regular file; returns whether it existed."""
    above, _, last = file.rpartition("/")
    try:
        with _entered(root, above) as folder:
            if stat.S_ISREG(folder.stat(last).st_mode):
                os.unlink(last, dir_fd=folder.fileno())
                return True
    except FileNotFoundError:
        pass
    return False


def _rewrite(folder: Folder, file: str, content: bytes, *, is_full: bool = False) -> None:
    """Replaces a file atomically. Keeps the old file's mode and times, so that the entry does not look newer.

    Args:
        is_full: delete the old file first, which makes room for the new one. Until the new file is written, the
            framework does not find the entry.
    """
    name, where = name_of(file), {"src_dir_fd": folder.fileno(), "dst_dir_fd": folder.fileno()}
    old, aside, before = folder.stat(name), f"{DELETED}{uuid.uuid4()}", os.fstat(folder.fileno())
    if is_full:
        os.unlink(name, dir_fd=folder.fileno())
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder.fileno())
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(content)
            new.flush()
            os.fchmod(new.fileno(), stat.S_IMODE(old.st_mode))
            os.utime(new.fileno(), ns=(old.st_atime_ns, old.st_mtime_ns))
            os.fsync(new.fileno())
        os.rename(aside, name, **where)
    except BaseException:
        os.unlink(aside, dir_fd=folder.fileno())
        with suppress(OSError):  # else the folder would stay for a while, as what was written lately does
            os.utime(folder.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        raise


def _remove(root: Folder, deletion: Deletion, state: _State) -> Failure | None:
    """Deletes an entry's folder, unless the folder has changed since ``state``."""
    above, _, name = name_of(deletion.folder).rpartition("/")
    with _entered(root, above) as parent:
        with parent.enter(name) as folder:
            if state_of(folder) != state:
                return Failure(_CHANGED)
            if deletion.parts:
                return _remove_parts(folder, deletion, state)
            aside = f"{DELETED}{uuid.uuid4()}"
            where = {"src_dir_fd": parent.fileno(), "dst_dir_fd": parent.fileno()}
            os.rename(name, aside, **where)
            # A writer may have come between the look and the rename.
            if state_of(folder) != state:
                os.rename(aside, name, **where)
                return Failure(_CHANGED)
        shutil.rmtree(aside, dir_fd=parent.fileno())
    return None


def _remove_parts(folder: Folder, deletion: Deletion, state: _State) -> Failure | None:
    """Unlinks each part that has not changed since ``state``; returns a failure if the parts stay.

    If two processes do this at once, the process that unlinks the first part succeeds; the other returns a failure.
    """
    is_ours = []
    for name in map(name_of, deletion.parts):
        try:
            if _of(name, folder.stat(name)) not in state:
                return Failure(_CHANGED)
            os.unlink(name, dir_fd=folder.fileno())
            is_ours.append(True)
        except FileNotFoundError:
            is_ours.append(False)
    return Failure(_GONE) if is_ours[:1] == [False] else None


def state_of(folder: Folder) -> _State:
    """The state of a folder: a value that changes when any file in the folder is written.

    It does not consist of the files' times alone, because times may be as coarse as milliseconds.
    """
    listing = folder.list()
    statuses = {"": os.fstat(folder.fileno()), **listing.files, **listing.folders}
    return tuple(_of(name, status) for name, status in statuses.items())


def _of(name: str, status: os.stat_result) -> tuple[str, int, int, int]:
    return name, status.st_ino, status.st_size, status.st_mtime_ns


def _remove_empty_folders(root: Folder, deletion: Deletion) -> None:
    for file in deletion.first:
        above = name_of(file).rpartition("/")[0]
        while above:
            parent, _, name = above.rpartition("/")
            try:
                with _entered(root, parent) as folder:
                    os.rmdir(name, dir_fd=folder.fileno())
            except (OSError, Unread):  # not empty, or gone
                break
            above = parent


def _entered(root: Folder, name: str) -> Folder:
    return root.enter(name) if name else root.again()


def _why(error: OSError | Unread) -> Failure:
    if isinstance(error, FileNotFoundError):
        return Failure(_GONE)
    return Failure(error.detail if isinstance(error, Unread) else id_of(error.strerror or str(error)))


# ---- Deleting rows of an SQLite database that other processes use, so that none of them waits long or fails ----
#
# Few rows in a transaction, each of which gives up at once where another process has a lock, and later tries again. The
# file is not made smaller: that takes a lock for as long as it takes to write all of it. SQLite uses the space again.
#
# Linux drops a process's locks of a file when any thread of it closes that file: nothing else of this process may read
# the database meanwhile, which ``IN_PROCESS`` sees to.

_T = TypeVar("_T")
IN_PROCESS = threading.RLock()
"""A lock held while this process reads or writes any framework's SQLite database."""
ROWS_AT_ONCE = 20
"""The number of rows deleted in one transaction."""
JOURNALS = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite writes next to a database."""
BUSY = "a process writes to it, or was killed as it did; cuTile repairs it when it next starts"
MOST_HELD_S = 0.5
"""Seconds after which a transaction is rolled back: cuTile waits for five seconds, then deletes its database."""
_TRIES = 20
_PAUSE_S = 0.1
"""Seconds between two transactions, and between two tries to get a lock."""


def delete_rows(place: Path, rows: Rows, deletions: Sequence[Deletion]) -> Iterator[tuple[Deletion, Failure | None]]:
    """Deletes rows of a database. Yields each deletion with ``None``, or with the reason why the row stays.

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
    """Opens the database for writing; raises ``Unread`` if that is not safe."""
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
    """Refuses a database that another user can replace, or next to which another user can put a journal.

    When SQLite opens a database and finds a journal, it rolls the database back, and deletes the file that the journal
    names as its super-journal, in whatever folder. SQLite opens the database and the journal by their paths, so all
    folders above them must be safe too.
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
    """Whether a database has no journal: no process is writing to it, and none was killed while writing."""
    for ending in JOURNALS:
        try:
            status = folder.stat(f"{file}{ending}")
            if status.st_size or not stat.S_ISREG(status.st_mode):  # SQLite would wait for a pipe without end
                return False
        except FileNotFoundError:
            continue
    return True


def _tried(act: Callable[[], _T]) -> _T:
    """Calls ``act``, and repeats the call while another process has the lock; raises ``sqlite3.Error``."""
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
    """Deletes rows in one transaction; returns, for each deletion, whether its row existed."""
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
