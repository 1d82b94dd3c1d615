"""A temporary folder for one run of a compiler.

The run holds a lock on the folder, and the programs it starts inherit the lock. So a free lock means that the process
was killed, and the next process may remove the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cache_engine.process import unforked

_PREFIX = "gemm-cache-compile-"


@dataclass(frozen=True, slots=True)
class Workplace:
    """A folder, and the open descriptor that holds its lock."""

    folder: Path
    lock: int

    def write(self, name: str, data: bytes) -> None:
        """Writes a file in it."""
        (self.folder / name).write_bytes(data)

    def read(self, name: str) -> bytes:
        """The content of a file in it."""
        return (self.folder / name).read_bytes()


@contextmanager
def workplace() -> Iterator[Workplace]:
    """An empty folder, readable only by this user. It is removed with its content at the end.

    Raises:
        OSError: when it cannot be created, e.g. on a full disk.
    """
    import tempfile  # 3 ms, on the path of every hit

    place = None
    while place is None:
        with unforked():
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        place = _locked(folder)
    try:
        yield place
    finally:
        shutil.rmtree(place.folder, ignore_errors=True)
        os.close(place.lock)


def sweep() -> None:
    """Removes the folders of killed processes, where possible."""
    import tempfile

    left: list[str] = []
    with suppress(OSError):
        with unforked():
            temporary = tempfile.gettempdir()
        with os.scandir(temporary) as entries:
            left = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_ours(entry)]
    for path in left:
        with suppress(OSError):
            abandoned = _locked(Path(path))
            if abandoned is not None:
                shutil.rmtree(abandoned.folder, ignore_errors=True)
                os.close(abandoned.lock)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    return False


def _locked(folder: Path) -> Workplace | None:
    """The folder with its lock held; ``None`` when another process holds the lock or has removed the folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return Workplace(folder, lock)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
