"""Reading files that anybody may have put there."""

from __future__ import annotations

import os
import stat

from cache_engine.errors import CorruptEntry

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def read_file(path: str | os.PathLike[str], limit: int) -> bytes | None:
    """The first ``limit`` bytes of a file; ``None`` when there is none.

    Raises:
        CorruptEntry: when it is no regular file. Opening a pipe would hang, and a link may lead anywhere.
        OSError: when it cannot be read.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        if os.path.islink(path):
            raise CorruptEntry(f"{path} is a link, not a file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptEntry(f"{path} is no regular file")
        # Asked for no more than there is: the buffer is allocated first.
        wanted = min(limit, status.st_size)
        data = os.read(descriptor, wanted)
        while len(data) < wanted and (more := os.read(descriptor, wanted - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)
