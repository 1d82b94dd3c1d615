"""Publishes files atomically."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cache_engine.process import OwnFile
from cache_engine.store.lock import try_lock

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def publish_file(temp: Path, target: str, data: bytes, *, durable: bool) -> None:
    """Writes ``data`` under a unique name in ``temp``, then renames it to ``target``.

    A reader of ``target`` sees the old file or the complete new one. With ``durable`` both the bytes and the name are
    on disk when this returns. Without it, a power cut may leave an incomplete file; its checksum then fails, which is a
    miss.

    Raises:
        OSError: when writing fails; the temporary file is then deleted and ``target`` unchanged.
    """
    path, file = stage(temp)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file.descriptor, view) :]
            if durable:
                os.fsync(file.descriptor)
            try:
                os.rename(path, target)
            except FileNotFoundError:
                _make_folder(os.path.dirname(target), durable)
                os.rename(path, target)
        finally:
            file.close(check=True)
    except BaseException:
        delete(path)
        raise
    if durable:
        sync_folder(os.path.dirname(target))


def stage(temp: Path) -> tuple[str, OwnFile]:
    """The path of a new temporary file, and the open file, locked: so cleanings see that its writer still runs.

    Raises:
        OSError: when the file cannot be created.
    """
    while True:
        path, file = f"{temp}/{os.getpid()}-{os.urandom(8).hex()}", None
        try:
            file = OwnFile.open(path, _FLAGS)
            try:
                # Between opening and locking, a cleaner may have locked or deleted the file.
                if try_lock(file.descriptor) and os.fstat(file.descriptor).st_nlink:
                    return path, file
            except OSError:
                return path, file  # the file system has no locks, so cleaners judge by its age
            file.close()
        except BaseException:  # Ctrl-C may come after the file exists and before `file` is assigned
            if file is not None:
                file.close()
            delete(path)
            raise
        delete(path)


def delete(path: str | Path) -> None:
    """Deletes a temporary file or a ticket; ignores errors, because a later cleaning deletes it."""
    with suppress(OSError):
        os.unlink(path)


def _make_folder(folder: str, durable: bool) -> None:
    """Creates a subfolder of entries (those with the same first two digits) if it does not exist yet."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if durable:
        sync_folder(os.path.dirname(folder))


def sync_folder(folder: str) -> None:
    """Syncs a folder to disk, so that the names of its files survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
