"""Publishes files atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cache_engine.process import OwnFile
from cache_engine.store.lock import try_lock

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def publish_file(temp: Path, target: str, data: bytes, *, durable: bool) -> None:
    """Writes ``data`` under a unique name in ``temp``, then renames it to ``target``.

    A reader of ``target`` sees the old file or the complete new one. With ``durable`` both the bytes and the name are
    on disk when this returns; without, a power cut may leave a torn file, which checksums turn into a miss.

    Raises:
        OSError: when writing fails; the temporary is then deleted and ``target`` unchanged.
    """
    staged = stage(temp)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(staged.file.descriptor, view) :]
            if durable:
                os.fsync(staged.file.descriptor)
            try:
                os.rename(staged.path, target)
            except FileNotFoundError:
                _make_folder(os.path.dirname(target), durable)
                os.rename(staged.path, target)
        finally:
            staged.file.close(check=True)
    except BaseException:
        unlink_staged(staged.path)
        raise
    if durable:
        sync_folder(os.path.dirname(target))


class Staged:
    """A new temporary, open and locked, and its path in bytes.

    Made before the file is, as returning two values would take memory after that.
    """

    __slots__ = ("file", "path")

    def __init__(self, path: bytes) -> None:
        """Of no file yet."""
        self.path = path
        self.file: OwnFile


def stage(temp: Path) -> Staged:
    """A new temporary. The lock shows cleaners that the writer is alive.

    Raises:
        OSError: when it cannot be made; then none is left.
    """
    while True:
        path, file = os.fsencode(f"{temp}/{os.getpid()}-{secrets.token_hex(8)}"), None
        staged = Staged(path)
        try:
            staged.file = file = OwnFile.open(path, _FLAGS)
            try:
                # Between opening and locking, a cleaner may have locked or deleted it.
                if try_lock(file.descriptor) and os.fstat(file.descriptor).st_nlink:
                    return staged
            except OSError:
                return staged  # locks do not work here, so cleaners use its age
            file.close()
        except BaseException:  # Ctrl-C may come after the file exists and before `file` is assigned
            if file is not None:
                file.close()
            unlink_staged(path)
            raise
        unlink_staged(path)


def unlink_staged(staged: bytes) -> None:
    """Deletes a temporary without allocating memory, which may be exhausted: hence a path in bytes."""
    try:  # noqa: SIM105 (suppress would allocate)
        os.unlink(staged)
    except OSError:
        pass


def _make_folder(folder: str, durable: bool) -> None:
    """Creates the folder of a shard, for its first entry."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if durable:
        sync_folder(os.path.dirname(folder))


def sync_folder(folder: str) -> None:
    """Syncs a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
