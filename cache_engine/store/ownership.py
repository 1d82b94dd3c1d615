"""Checks that only you and root can change a file or a folder.

Everything that can write to a store could change the kernels that are served, so only you and root may write to it. The
check walks a path from ``/`` down: it opens each folder and link from the one above and checks its descriptor. No other
user can replace a folder that only you and root may write, so the path cannot lead elsewhere after the check. git
(``safe.directory``) and OpenSSH (``StrictModes``) check the same.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path, PurePath

from cache_engine.errors import CorruptEntry, Untrusted
from cache_engine.inputs import others_may_change
from cache_engine.process import OwnFile

# Opens a folder that may be entered but not listed; for a link, opens the link itself.
_PASS = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_LINKS = 40  # the limit of Linux


def check_file(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Checks that no users other than you and root may change an open file.

    Raises:
        Untrusted: when others may change it; the text says why.
    """
    why = others_may_change(status)
    if why:
        raise Untrusted(f"{os.fspath(path)} {why}")


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, trust: bool | None = None) -> int:
    """An open descriptor of a regular file that only you and root may change. The caller closes it.

    Other kinds of files are refused: opening a pipe would hang, and a link may lead anywhere.

    Args:
        flags: those of ``os.open``, except ``O_CREAT``.
        trust: accept a file that others may change. ``None`` accepts such a file only if others may change its folder
            too, because ``open_store`` accepts such a folder only if the user trusts everything in it.

    Raises:
        CorruptEntry: when it is not a regular file, or ``Untrusted``.
        OSError: when it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS)
    except OSError as error:
        name_what_is_no_file(path, error)
        raise
    try:
        check_opened(path, os.fstat(descriptor), trust)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def own_file(path: str | os.PathLike[str], flags: int) -> OwnFile:
    """The file as an ``OwnFile``, opened and checked as ``open_file`` does."""
    try:
        file = OwnFile.open(path, flags | _FLAGS)
    except OSError as error:
        name_what_is_no_file(path, error)
        raise
    try:
        check_opened(path, os.fstat(file.descriptor), None)
    except BaseException:
        file.close()
        raise
    return file


def name_what_is_no_file(path: str | os.PathLike[str], error: OSError) -> None:
    """Raises ``CorruptEntry`` if opening failed because the path is a link or not a regular file. Else does nothing."""
    if isinstance(error, FileNotFoundError):
        return
    if os.path.islink(path):
        raise CorruptEntry(f"{os.fspath(path)} is a link, not a file") from error
    if os.path.exists(path) and not os.path.isfile(path):
        raise CorruptEntry(f"{os.fspath(path)} is not a regular file") from error


def check_opened(path: str | os.PathLike[str], status: os.stat_result, trust: bool | None) -> None:
    """Checks an open file as ``open_file`` does, and raises the same errors."""
    if not stat.S_ISREG(status.st_mode):
        raise CorruptEntry(f"{os.fspath(path)} is not a regular file")
    if not trust and others_may_change(status):
        if trust is None and others_may_change(os.stat(os.path.dirname(path) or os.curdir)):
            return
        check_file(path, status)


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open`` that creates files which only their owner can read and write."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def open_way(path: Path, *, make: bool = False) -> int:
    """An open descriptor of ``path``, for use as a ``dir_fd`` or with ``fstat``. The caller closes it.

    Checks every folder and link above ``path``. The caller checks ``path`` itself, because only the caller knows
    what it should be.

    Args:
        make: create missing folders, private to you.

    Raises:
        Untrusted: when others can make the path lead elsewhere.
        OSError: when a part of the path cannot be opened.
    """
    parts = list(reversed(path.absolute().parts[1:]))
    here, links = os.open("/", _PASS), 0
    way = PurePath("/")
    try:
        while parts:
            _check_passed(way, os.fstat(here))
            name = parts.pop()
            there = _open_next(here, name, make=make)
            status = os.fstat(there)
            if stat.S_ISLNK(status.st_mode):
                os.close(there)
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                if status.st_uid and status.st_uid != os.geteuid():
                    raise Untrusted(f"the link {way / name} belongs to user {status.st_uid}, not to you")
                target = PurePath(os.readlink(name, dir_fd=here))
                parts.extend(reversed(target.parts[target.is_absolute() :]))
                if target.is_absolute():
                    there, way = os.open("/", _PASS), PurePath("/")
                else:
                    continue
            else:
                way = way.parent if name == os.pardir else way / name
            done, here = here, there  # assigned first: Ctrl-C in between would otherwise close a descriptor twice
            os.close(done)
    except BaseException:
        os.close(here)
        raise
    return here


def open_folder(path: Path, *, within: int, trust: bool = False) -> int:
    """An open descriptor of the folder ``path`` inside the open folder ``within``. The caller closes it.

    Args:
        within: the descriptor of the parent folder.
        trust: accept a link, and a folder that others may change.

    Raises:
        Untrusted: when users other than you and root can change the folder, or it is a link.
        OSError: when it does not exist.
    """
    descriptor = os.open(path.name, _PASS & ~os.O_NOFOLLOW if trust else _PASS, dir_fd=within)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode):
            raise Untrusted(f"{path} is a link, not a folder")
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if not trust:
            check_file(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def close_folder(path: Path) -> None:
    """Removes write permission for a folder from its group and all other users.

    Raises:
        OSError: when it is not a folder, or not yours.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    finally:
        os.close(descriptor)


def _open_next(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _PASS, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # another process has just created it
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _PASS, dir_fd=folder)


def _check_passed(way: PurePath, status: os.stat_result) -> None:
    why = others_may_change(status)
    # In a sticky folder, such as /tmp, only a file's owner can rename or replace the file.
    if why and not (status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid())):
        raise Untrusted(f"{way} {why}")
