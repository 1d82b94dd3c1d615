"""Writing a file that the command line names."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from cache_engine.cli.support import named
from cache_engine.errors import UsageError
from cache_engine.store.files import refuse_device


def write_file(path: Path, data: bytes, *, force: bool) -> None:
    """Writes a file completely or not at all: on a full disk, the old file stays.

    Args:
        force: replace an existing file; of a link, the file that it points to.

    Raises:
        UsageError: when the file exists, its folder does not, or the path is a device, pipe or socket.
        OSError: when it cannot be written.
    """
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists; give another name, or --force to replace it")
    target = os.path.realpath(path)
    refuse_device(target)
    # A name that no other user can know, as the folder may be /tmp, and short, as the file's may be as long as can be.
    temporary = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
    try:
        with named(path), open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, target)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            os.unlink(temporary)
