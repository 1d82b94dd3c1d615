"""Making a file visible at once and whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cache_engine.process import OwnFile
from cache_engine.store.lock import try_lock

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def publish_file(temp: Path, target: str, data: bytes, *, durable: bool) -> None:
    """Writes ``data`` under a name of its own in ``temp``, then renames it to ``target``.

    Whoever opens ``target`` sees the old file or all of the new one. With ``durable`` both the bytes and the name are
    on disk when this returns; without, a power cut may leave a torn file, which checksums turn into a miss.

    Raises:
        OSError: when the disk refuses; the temporary is then gone and ``target`` is as it was.
    """
    file, staged, as_bytes = _stage(temp)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file.descriptor, view) :]
            if durable:
                os.fsync(file.descriptor)
            try:
                os.rename(staged, target)
            except FileNotFoundError:
                _make_folder(os.path.dirname(target), durable)
                os.rename(staged, target)
        finally:
            file.close(check=True)
    except BaseException:
        _forget(as_bytes)
        raise
    if durable:
        sync_folder(os.path.dirname(target))


def _stage(temp: Path) -> tuple[OwnFile, str, bytes]:
    """A new temporary, open and locked, and its path, also as ``_forget`` takes it.

    The lock shows cleaners that its writer lives.
    """
    while True:
        staged = f"{temp}/{os.getpid()}-{secrets.token_hex(8)}"
        as_bytes, file = os.fsencode(staged), None
        try:
            file = OwnFile.open(staged, _FLAGS)
            try:
                # A cleaner that came between opening and locking has it locked, or deleted.
                if try_lock(file.descriptor) and os.fstat(file.descriptor).st_nlink:
                    return file, staged, as_bytes
            except OSError:
                return file, staged, as_bytes  # locks do not work here, and cleaners go by age
            file.close()
        except BaseException:  # Ctrl-C is raised as soon as the file has been made, before its descriptor has a name
            if file is not None:
                file.close()
            _forget(as_bytes)
            raise
        _forget(as_bytes)


def _forget(staged: bytes) -> None:
    """Deletes a temporary. Asks for no memory, of which there may be none: a path as text is encoded first."""
    try:  # noqa: SIM105 (suppress is made anew each time)
        os.unlink(staged)
    except OSError:
        pass


def _make_folder(folder: str, durable: bool) -> None:
    """Makes the folder of a shard, for its first entry."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if durable:
        sync_folder(os.path.dirname(folder))


def sync_folder(folder: str) -> None:
    """Puts a folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
