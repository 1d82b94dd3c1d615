"""Making a file visible at once and whole."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def publish_file(temp: Path, target: str, data: bytes, *, durable: bool) -> None:
    """Writes ``data`` under a name of its own in ``temp``, then renames it to ``target``.

    Whoever opens ``target`` sees the old file or all of the new one. With ``durable`` both the bytes and the name are
    on disk when this returns; without, a power cut may leave a torn file, which checksums turn into a miss.

    Raises:
        OSError: when the disk refuses; the temporary is then gone and ``target`` is as it was.
    """
    staged = f"{temp}/{os.getpid()}-{secrets.token_hex(8)}"
    folder = os.path.dirname(target)
    try:
        descriptor = os.open(staged, _FLAGS, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.rename(staged, target)
        except FileNotFoundError:
            # The first entry of a shard makes its folder.
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if durable:
                sync_folder(os.path.dirname(folder))
            os.rename(staged, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise
    if durable:
        sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Puts a folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
