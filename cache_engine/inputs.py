"""Opening files that a user names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_input(path: Path) -> BinaryIO:
    """A regular file, open to read bytes. A pipe would keep a command waiting for ever, a device never ends.

    Raises:
        OSError: when it is none, or cannot be opened.
        ValueError: when it is no name of a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file; write its content to one", str(path))
