"""What files hold: their SHA-256, remembered across processes, and whether they are still what they were.

A compiler is hundreds of megabytes, and hashing them takes longer than a compile. So the digests of files are kept in
one small file of the user, each with what the system says of the file: device, inode, size, and the times of its last
change in nanoseconds. The time of change of status (ctime) cannot be set, so a file edited in place with its time of
modification restored is read again. Where that file cannot be written, or others could have written it, files are read.

The form is a line with the SHA-256 of all that follows, then a line for each file: the five numbers and the digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from cache_engine.config import user_cache_folder
from cache_engine.errors import CompilerMissing

Identity = tuple[int, int, int, int, int]
"""Of a file: device, inode, size, times of modification and of change of status in nanoseconds since 1970."""

_FORM = b"gemm-cache digests 1"
_LINE = re.compile(rb"(-?\d{1,20} \d{1,20} \d{1,20} -?\d{1,20} -?\d{1,20}) ([0-9a-f]{64})")
# The 170 files of Triton take 25 kB. Forty installations fit; then the file starts again.
_MOST_BYTES = 1024 * 1024
# A file changed twice within a tick of the clock looks the same after both; as git, do not trust one so young.
_SETTLED_NS = 2_000_000_000

Known = dict[Identity, str]
"""Digests of files by their identities. No path: two names of a file have one."""


def identities(paths: Iterable[Path]) -> tuple[Identity, ...]:
    """What shows whether files are still the same, without reading them.

    Raises:
        CompilerMissing: when one has gone.
    """
    try:
        return tuple(_identity(path.stat()) for path in paths)
    except FileNotFoundError as error:
        raise CompilerMissing(f"{error.filename} has gone; install its package again, and start again") from error


def digests(paths: Sequence[Path]) -> tuple[str, ...]:
    """The SHA-256 (hex) of each file's content, read only where it is not known already.

    Raises:
        OSError: when a file cannot be read.
    """
    place = user_cache_folder("gemm-cache-toolchains")
    known = {} if place is None else _load(place)
    found: list[str] = []
    fresh: Known = {}
    for path in paths:
        digest = known.get(_identity(path.stat()))
        if digest is None:
            identity, digest = _read(path)
            if identity is not None:
                fresh[identity] = digest
        found.append(digest)
    if fresh and place is not None:
        with suppress(OSError):  # the next process reads the files again
            _keep(place, known, fresh)
    return tuple(found)


class WatchedFiles:
    """Files whose content has been hashed, and what shows that they still hold it."""

    def __init__(self, paths: Sequence[Path], digest: Callable[[], str]) -> None:
        """Hashes them.

        Args:
            digest: reads all of them; called again if one may have changed.

        Raises:
            CompilerMissing: when one has gone, or cannot be read.
        """
        self._paths, self._digest = tuple(paths), digest
        # Looked at before they are read: a change in between is seen later.
        self._seen = identities(self._paths)
        self.digest = self._digest_now()

    def check_unchanged(self, whose: str) -> None:
        """Refuses files replaced since, as by an upgrade under a running process.

        A change of status alone, as by a new hard link, is none if the content is the same.

        Args:
            whose: the subject of the error, such as ``"NVRTC"``.

        Raises:
            CompilerMissing: then a kernel would be stored under the key of another compiler.
        """
        now = identities(self._paths)
        if now == self._seen:
            return
        same_but_status = all(one[:-1] == other[:-1] for one, other in zip(now, self._seen, strict=True))
        if not same_but_status or self._digest_now() != self.digest:
            raise CompilerMissing(f"{whose} was replaced while this process ran; start it again")
        self._seen = now

    def _digest_now(self) -> str:
        try:
            return self._digest()
        except OSError as error:
            raise CompilerMissing(
                f"{error.filename} cannot be read ({error.strerror}); install its package again, and start again"
            ) from error


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read(path: Path) -> tuple[Identity | None, str]:
    """A file's digest, and its identity if that stood still for long enough to be remembered."""
    with path.open("rb", buffering=0) as file:
        before = _identity(os.fstat(file.fileno()))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = _identity(os.fstat(file.fileno()))
    is_settled = time.time_ns() - max(before[3:]) > _SETTLED_NS
    return (before if before == after and is_settled else None), digest


def _load(place: Path) -> Known:
    """The digests remembered; none where the file is damaged, or anyone else could have written it."""
    with suppress(OSError):
        folder = os.lstat(place)
        if not stat.S_ISDIR(folder.st_mode) or not _is_private(folder):
            return {}
        file = os.open(place / "digests", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and _is_private(status):
                return _parse(os.read(file, _MOST_BYTES))  # of a longer one the checksum is wrong
        finally:
            os.close(file)
    return {}


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _parse(data: bytes) -> Known:
    head, _, rest = data.partition(b"\n")
    if head != _head(rest):
        return {}
    matches = (_LINE.fullmatch(line) for line in rest.split(b"\n"))
    return {_numbers(match[1]): match[2].decode() for match in matches if match is not None}


def _numbers(text: bytes) -> Identity:
    device, inode, size, modified, changed = map(int, text.split())
    return (device, inode, size, modified, changed)


def _head(rest: bytes) -> bytes:
    return b"%b %b" % (_FORM, hashlib.sha256(rest).hexdigest().encode())


def _encode(known: Known) -> bytes:
    rest = "".join(f"{' '.join(map(str, identity))} {digest}\n" for identity, digest in known.items()).encode()
    return _head(rest) + b"\n" + rest


def _keep(place: Path, known: Known, fresh: Known) -> None:
    """Replaces the file. Whoever comes while another writes leaves it to that one."""
    data = _encode(known | fresh)
    if len(data) > _MOST_BYTES:
        data = _encode(fresh)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(os.lstat(place)):
        return
    new = place / "digests.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(file)
        # Another may have renamed it between opening and locking; then it is the file that others read.
        if os.path.samestat(status, os.lstat(new)) and stat.S_ISREG(status.st_mode) and _is_private(status):
            os.ftruncate(file, 0)
            if os.write(file, data) == len(data):
                os.replace(new, place / "digests")
    finally:
        os.close(file)
