"""Opens files that a user names, and checks whether other users may change a file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_input(path: Path) -> BinaryIO:
    """A regular file, opened to read bytes.

    Other kinds of files are refused: a pipe would keep a command waiting for ever, and a device never ends.

    Raises:
        OSError: when it is not a regular file, or cannot be opened.
        ValueError: when ``path`` is not a valid file name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file; write its content to one", str(path))


def others_may_change(status: os.stat_result) -> str | None:
    """The reason why users other than you and root can change a file with this status; ``None`` if they cannot."""
    if status.st_uid and status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to you"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everyone"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"can be written by its group {_group_name(status.st_gid)}"
    return None


def _is_private_group(gid: int) -> bool:
    """Whether a group has only one member, you or root: many systems give each user a private group.

    A directory service may not list all users, so a group may have members that this program does not see. So the group
    must also have the user's name, as Debian's OpenSSH requires.
    """
    import grp  # rarely needed
    import pwd

    try:
        group = grp.getgrgid(gid)
        owner = pwd.getpwnam(group.gr_name)
    except KeyError:
        return False
    if owner.pw_uid not in (0, os.geteuid()) or owner.pw_gid != gid or set(group.gr_mem) - {owner.pw_name}:
        return False
    return all(user.pw_gid != gid or user.pw_uid == owner.pw_uid for user in pwd.getpwall())


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
