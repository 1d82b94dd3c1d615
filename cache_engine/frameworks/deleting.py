"""Deleting from a cache that other processes use, so that none of them fails.

Frameworks look up an entry, then read its files one by one, without a lock. Deleted in between, a file is missing and
the compile fails. So an entry is first made impossible to find; after a wait, in which those that had found it have
read it, its folder is renamed away and deleted, unless anything in it has changed: then a process is building it again.

Parts that the framework can do without go in the same way: first the index that names them is replaced by one that does
not, so that the entry is found all the time.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.rows import delete_rows
from cache_engine.frameworks.values import DeletePlan, Deletion, Entry, Fault, Place, id_of, name_of
from cache_engine.model.outcome import Failure

DELETED = "deleted.gemm-cache-"
"""How the name of a folder begins that is about to be deleted."""
REPLACED = "another directory took the place of the one that was looked at: look again"
_CHANGED = "it was written meanwhile: a process uses it"
_GONE = "it is gone"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_State = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class Deleted:
    """What came of a plan: the ids of what is deleted, bytes, and for each entry that stays the reason."""

    ids: list[str] = field(default_factory=list)
    size_bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)

    def count(self, deletion: Deletion, failure: Failure | None) -> None:
        """Counts one entry."""
        if failure is None:
            self.ids.append(deletion.id)
            self.size_bytes += deletion.size_bytes
        else:
            self.left[deletion.id] = failure.reason


def plan_offline(entries: Sequence[Entry], others: Sequence[str] = ()) -> DeletePlan:
    """Deletes the files of entries at once: a process that uses one of them may fail.

    Args:
        others: the paths of other places below this one; what is in them stays.
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
    """Does what a plan says.

    Args:
        into: what came of it, also if this is interrupted. An entry that was only made impossible to find is a miss.
        on_progress: called with the number of entries done.

    Raises:
        OSError: when the place cannot be opened.
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
    """Unlinks what comes first; returns the state of the folder after that.

    Args:
        makes_room: on a full disk the index that is replaced may go before the new one is written.

    Raises:
        FileNotFoundError: when another has deleted the entry: whoever unlinks the first file has.
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
    """Unlinks a regular file; returns whether it was there."""
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
    """Replaces a file at once, with the old one's mode and times: the entry is as old as before.

    Args:
        is_full: the old one goes first, which makes room for the new one. Its entry is a miss until that is there.
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
    """Deletes the folder, unless its state is another now."""
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
    """Unlinks each part that is still the file that the state has; of two that do so, who has the first one did."""
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
    """The state of a folder. Changes when anything is written to it: times alone may be as coarse as milliseconds."""
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
