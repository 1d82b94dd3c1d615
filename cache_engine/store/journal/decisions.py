"""The log of decisions, such as a promotion: two files of bounded size, to which every process appends.

Each line has a checksum (``lines``). When the newer file is long, it replaces the older one.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from cache_engine.errors import CorruptEntry, LockTimeout
from cache_engine.model.decision import DEMOTION, Decision, standing
from cache_engine.model.events import DAY_S
from cache_engine.store.files import copy_to_quarantine, read_whole
from cache_engine.store.journal.lines import CHECKSUM_BYTES, append, decoded, texts, whole_lines, with_checksum
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.store.ownership import open_file, own_file
from cache_engine.store.publish import publish_file

LONG_BYTES = 4 * 1024**2
_MOST_BYTES = 16 * LONG_BYTES  # bytes; a larger file was not written by this program
_MOST_WAITING = 10_000
_APPEND_TIMEOUT_S, _MEND_TIMEOUT_S = 1.0, 30.0
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Decision).decode


class DecisionLog:
    """The decisions of this process that are not written yet.

    ``Journal`` calls ``write`` from one thread at a time.
    """

    def __init__(self, layout: StoreLayout | None) -> None:
        """Writes to the log of the store ``layout``; without one, drops all decisions."""
        self._layout = layout
        self.forget()

    def forget(self) -> None:
        """In a forked child: drops the decisions, because the parent writes them."""
        self._waiting: deque[Decision] = deque()  # a signal handler may add while its thread does

    def add(self, decision: Decision | None) -> None:
        """Remembers a decision for the next ``write``; drops it if very many already wait. Writes nothing."""
        if decision is not None and self._layout is not None and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(decision)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def write(self) -> OSError | None:
        """Appends the waiting decisions to the log. Returns the error if that failed; the decisions are then lost."""
        decided: list[Decision] = []
        with suppress(IndexError):
            while True:
                decided.append(self._waiting.popleft())
        if decided and self._layout is not None:
            try:
                append_decisions(self._layout, decided)
            except OSError as error:
                return error
            except (CorruptEntry, LockTimeout) as error:
                return OSError(error)
        return None


def append_decisions(layout: StoreLayout, decisions: Iterable[Decision]) -> None:
    """Appends decisions to the log.

    Raises:
        LockTimeout: when another process repairs the log.
        CorruptEntry: when the file is a link, or another user may change it.
        OSError: when writing fails.
    """
    data = b"".join(with_checksum(_encode(one)) for one in decisions)
    with suppress(FileExistsError):
        layout.decisions.mkdir(mode=0o700)
    with file_lock(layout.decisions_lock, _APPEND_TIMEOUT_S, shared=True):
        file = own_file(layout.decisions_log, _APPENDING)
        try:
            append(file.descriptor, data)
            is_long = os.fstat(file.descriptor).st_size >= LONG_BYTES
        finally:
            file.close()
    if is_long:
        # Another process may be appending; then a later process replaces the file. Or another process has just done so.
        with suppress(LockTimeout, FileNotFoundError), file_lock(layout.decisions_lock, 0):
            if layout.decisions_log.stat().st_size >= LONG_BYTES:
                layout.decisions_log.replace(layout.older_decisions_log)


class DecisionReader:
    """Reads the log, and at later calls the lines added since.

    Attributes:
        damaged: the number of lines that were skipped, because they are damaged or have a time in the future.
    """

    def __init__(self, layout: StoreLayout) -> None:
        """Reads nothing yet."""
        self._layout = layout
        self._read: dict[tuple[int, bytes], int] = {}  # positions in bytes, by inode and checksum of the first line
        self.damaged = 0

    def new(self) -> list[Decision]:
        """The decisions since the last call, oldest first; the first call returns all.

        A file that cannot be read adds none.
        """
        is_whole = False
        with ExitStack() as files:
            while not is_whole:  # otherwise the files changed places during the read
                files.close()
                older = _identity(self._layout.older_decisions_log)
                opened = []
                for path in (self._layout.older_decisions_log, self._layout.decisions_log):
                    with suppress(OSError, CorruptEntry):
                        file = os.fdopen(open_file(path, trust=self._layout.trust or None), "rb")
                        opened.append(files.enter_context(file))
                is_whole = older == _identity(self._layout.older_decisions_log)
            found: list[Decision] = []
            for file in opened:
                with suppress(OSError):
                    found += self._more(file)
            return found

    def _more(self, file: BinaryIO) -> list[Decision]:
        status = os.fstat(file.fileno())
        # A file system may give the inode of a deleted file to the next one.
        identity = status.st_ino, file.read(CHECKSUM_BYTES)
        position = self._read.get(identity, 0)
        file.seek(position if position <= status.st_size else 0)
        data = file.read(_MOST_BYTES)
        whole = whole_lines(data)
        self._read[identity] = file.tell() - len(data) + len(whole)
        lines = list(_lines(whole, status.st_mtime))
        self.damaged += lines.count(None)
        return [line for line in lines if line is not None]


def demoted_keys(layout: StoreLayout) -> frozenset[str]:
    """The keys of kernels that were demoted and not promoted since. Files that cannot be read are skipped."""
    if not any(_mentions(path, DEMOTION) for path in (layout.older_decisions_log, layout.decisions_log)):
        return frozenset()  # the usual case: no line has to be decoded
    known = standing(DecisionReader(layout).new())
    return frozenset(key for key, one in known.items() if one.kind == DEMOTION)


def _mentions(path: Path, word: str) -> bool:
    with suppress(OSError, CorruptEntry):
        return word.encode() in (read_whole(path, _MOST_BYTES, trust=True) or b"")
    return False


def damaged_decisions(path: Path) -> tuple[int, int]:
    """The number of whole lines of a file that are damaged or dated over a day ahead; and the number of all.

    Raises:
        CorruptEntry: when it is not a regular file, or too large.
        OSError: when it cannot be read.
    """
    data = read_whole(path, _MOST_BYTES, trust=True)
    lines = [] if data is None else list(_lines(data, path.stat().st_mtime))
    return lines.count(None), len(lines)


def mend_decisions(layout: StoreLayout, path: Path) -> None:
    """Copies a damaged file to quarantine, then writes the file again with its sound lines.

    Raises:
        LockTimeout: when another process holds the lock for too long.
        OSError: when reading or writing fails.
    """
    with file_lock(layout.decisions_lock, _MEND_TIMEOUT_S):
        copy = copy_to_quarantine(layout, path, durable=True, most_bytes=_MOST_BYTES)
        if copy is not None and path.exists():
            lines = _lines(read_whole(path, _MOST_BYTES) or b"", path.stat().st_mtime)
            data = b"".join(with_checksum(_encode(line)) for line in lines if line is not None)
            publish_file(layout.temp, str(path), data, durable=True)


def _identity(path: Path) -> tuple[int, int]:
    """Two numbers that identify a file: they change if another file takes its place, even one with the same inode."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_ctime_ns
    return 0, 0


def _lines(data: bytes, written_at: float) -> Iterator[Decision | None]:
    """The decision in each line; ``None`` for a line that is damaged or from the future.

    A line is from the future if it is dated more than a day after now and more than a day after the file's last write.
    The second condition keeps lines valid that were written before a clock was set back.
    """
    latest = max(time.time(), written_at) + DAY_S
    for text in texts(data):
        # A checksum shows that a line is unchanged, not that its values are valid.
        decision = None if text is None else next(decoded(_decode, [text]), None)
        yield decision if decision is not None and decision.at <= latest else None
