"""Reads a folder that others may change: bounded, following no link, and leaving no trace if the system allows that.

Every folder is opened through the descriptor of the folder above it, so a folder that is renamed or replaced meanwhile
cannot lead outside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cache_engine.frameworks.values import Fault, ScanFinding, id_of

MOST_TEXT_BYTES = 4 << 20
"""The size of the largest metadata file that is read: a thousand times the usual."""
MOST_BINARY_BYTES = 256 << 20
"""The size of the largest binary, source or IR that is read."""
MOST_FILES = 10_000
"""The most files of one entry: a thousand times the usual. The number of entries in a cache is not limited."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_NO_TRACE = os.O_NOATIME


class Unread(Exception):
    """The reason why a file or folder could not be read."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.detail = detail

    def finding(self, name: str) -> ScanFinding:
        """The reason as a finding about ``name``, a path below the cache's directory."""
        return ScanFinding(self.fault, id_of(name), self.detail)


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a folder: the status of each file and of each subfolder by name, sorted by name."""

    files: Mapping[str, os.stat_result]
    folders: Mapping[str, os.stat_result]


class Folder:
    """An open folder; a context manager.

    Attributes:
        status: the folder's status when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Opens a folder by its path, which may contain links, because the user names it.

        Raises:
            OSError: when the folder does not exist, is not a folder, or must not be read.
        """
        self._take(_open(path, (_FLAGS & ~os.O_NOFOLLOW) | os.O_DIRECTORY, None))

    def _take(self, descriptor: int) -> Folder:
        self._descriptor = descriptor
        self.status = os.fstat(descriptor)
        return self

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the folder."""
        os.close(self._descriptor)

    def again(self) -> Folder:
        """Opens the same folder a second time."""
        return Folder.__new__(Folder)._take(os.dup(self._descriptor))  # noqa: SLF001

    def fileno(self) -> int:
        """The folder's descriptor, for use as ``dir_fd``."""
        return self._descriptor

    def enter(self, name: str) -> Folder:
        """Opens a subfolder.

        Args:
            name: the subfolder's name, or a path below this folder; no part of it may be a link.

        Raises:
            FileNotFoundError: when the subfolder has vanished.
            Unread: when the subfolder cannot be read, or is not a folder.
        """
        first, _, rest = name.partition("/")
        _check_part(first)
        with _in_words():
            found = Folder.__new__(Folder)._take(_open(first, _FLAGS | os.O_DIRECTORY, self._descriptor))  # noqa: SLF001
        if not rest:
            return found
        with found:
            return found.enter(rest)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        """Yields the folder's files and subfolders. Each iteration has its own descriptor, and so its own position."""
        descriptor = _open(".", _FLAGS | os.O_DIRECTORY, self._descriptor)
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)

    def list(self) -> Listing:
        """The folder's regular files and its subfolders, without links and devices.

        Raises:
            Unread: when there are more than ``MOST_FILES``, or the disk fails.
        """
        files, folders = [], []
        # It ends before this returns, so it needs no descriptor of its own, which takes as long as two files.
        with _in_words(), os.scandir(self._descriptor) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    files.append((entry.name, status))
                elif stat.S_ISDIR(status.st_mode):
                    folders.append((entry.name, status))
                if len(files) + len(folders) > MOST_FILES:
                    raise Unread(Fault.TOO_MANY, f"it has more than {MOST_FILES:,} files")
        return Listing(dict(sorted(files)), dict(sorted(folders)))

    def stat(self, name: str) -> os.stat_result:
        """The status of a file in this folder; for a link, the link's own status. Raises ``OSError``."""
        _check_part(name)
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def stat_below(self, folder: str, name: str) -> os.stat_result:
        """The status of a file in a subfolder, without opening the subfolder; raises ``OSError``."""
        _check_part(folder)
        _check_part(name)
        return os.stat(f"{folder}/{name}", dir_fd=self._descriptor, follow_symlinks=False)

    def check_file(self, name: str) -> None:
        """Checks, as ``read`` does, that a name belongs to a regular file; raises ``Unread`` or ``OSError``."""
        if not stat.S_ISREG(self.stat(name).st_mode):
            raise Unread(Fault.NOT_A_FILE, "it is not a regular file")

    def read(self, name: str, most_bytes: int) -> bytes:
        """The content of a regular file in this folder.

        Args:
            name: the file's name, or a path below this folder.
            most_bytes: the largest allowed size; a larger file is refused, not cut.

        Raises:
            FileNotFoundError: when the file has vanished.
            Unread: when it is too large, is not a regular file, or cannot be read.
        """
        above, _, last = name.rpartition("/")
        if above:
            with self.enter(above) as folder:
                return folder.read(last, most_bytes)
        _check_part(last)
        with _in_words():
            descriptor = _open(last, _FLAGS, self._descriptor)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise Unread(Fault.NOT_A_FILE, "it is not a regular file")
                if status.st_size > most_bytes:
                    raise Unread(Fault.TOO_LARGE, f"it has {status.st_size:,} bytes; at most {most_bytes:,} are read")
                # It may grow while it is read; what was there when it was opened is enough.
                return _read(descriptor, status.st_size)
            finally:
                os.close(descriptor)


class _in_words:  # noqa: N801 (a context manager, which is faster as a class: two for each entry)
    """A context manager that turns an ``OSError`` of its body into ``Unread``, except ``FileNotFoundError``."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            return
        if isinstance(error, PermissionError):
            raise Unread(Fault.FORBIDDEN, "you may not read it") from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise Unread(Fault.NOT_A_FILE, "it is a link, or not what its name says") from error
        raise Unread(Fault.UNREADABLE, error.strerror or str(error)) from error


def _check_part(name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Unread(Fault.NOT_A_FILE, "its name leads elsewhere")


def _open(path: str | Path, flags: int, within: int | None) -> int:
    try:
        return os.open(path, flags | _NO_TRACE, dir_fd=within)
    except PermissionError as error:
        # Only a file's owner may leave its time of access as it is.
        if error.errno != errno.EPERM:
            raise
        return os.open(path, flags, dir_fd=within)


def _read(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data
