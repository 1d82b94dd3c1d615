"""The SHA-256 of files, remembered across processes, and whether a file has changed since.

A compiler has hundreds of megabytes, and hashing them takes longer than a compile. So one small file of the user stores
the digests, each with the identity of its file: device, inode, size, mtime and ctime in nanoseconds. No program can set
ctime, so a file that was edited in place and got its old mtime back is read again. Where the small file cannot be
written, or another user could have written it, every file is read.

The format is a line with the SHA-256 of all that follows, then a line for each file: the five numbers and the digest.
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

from cache_engine.errors import CompilerMissing
from cache_engine.settings import user_cache_folder

Identity = tuple[int, int, int, int, int]
"""Of a file: device, inode, size, mtime and ctime in nanoseconds since 1970."""

_FORM = b"gemm-cache digests 1"
_LINE = re.compile(rb"(-?\d{1,20} \d{1,20} \d{1,20} -?\d{1,20} -?\d{1,20}) ([0-9a-f]{64})")
# The 170 files of Triton take 25 kB. Forty installations fit; then the file starts empty again.
_MOST_BYTES = 1024 * 1024
# A file changed twice within a clock tick looks the same after both changes. Like git, we do not trust one so young.
_SETTLED_NS = 2_000_000_000

Known = dict[Identity, str]
"""Digests of files by identity. No path: two names of one file share an identity."""


def identities(paths: Iterable[Path]) -> tuple[Identity, ...]:
    """The identities of files, which show a change without reading them.

    Raises:
        CompilerMissing: when one no longer exists.
    """
    try:
        return tuple(_identity(path.stat()) for path in paths)
    except FileNotFoundError as error:
        raise CompilerMissing(
            f"{error.filename} no longer exists; reinstall its package, and restart this process"
        ) from error


def digests(paths: Sequence[Path]) -> tuple[str, ...]:
    """The SHA-256 (hex) of each file's content. Reads only files without a remembered digest.

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
            _save(place, known, fresh)
    return tuple(found)


class WatchedFiles:
    """Files with the digest and the identities they had when they were hashed."""

    def __init__(self, paths: Sequence[Path], digest: Callable[[], str]) -> None:
        """Hashes them.

        Args:
            digest: reads all of them; called again if one may have changed.

        Raises:
            CompilerMissing: when one does not exist or cannot be read.
        """
        self._paths, self._digest = tuple(paths), digest
        # Taken before the files are read, so that a change in between is noticed later.
        self._seen = identities(self._paths)
        self.digest = self._digest_now()

    def check_unchanged(self, whose: str) -> None:
        """Refuses files replaced since they were hashed, e.g. by an upgrade while this process runs.

        If only ctime changed, e.g. by a new hard link, the content decides.

        Args:
            whose: the subject of the error, such as ``"NVRTC"``.

        Raises:
            CompilerMissing: because the kernel would be stored under the key of another compiler.
        """
        now = identities(self._paths)
        if now == self._seen:
            return
        same_but_status = all(one[:-1] == other[:-1] for one, other in zip(now, self._seen, strict=True))
        if not same_but_status or self._digest_now() != self.digest:
            raise CompilerMissing(f"{whose} was replaced while this process ran; restart the process")
        self._seen = now

    def _digest_now(self) -> str:
        try:
            return self._digest()
        except OSError as error:
            raise CompilerMissing(
                f"cannot read {error.filename} ({error.strerror}); reinstall its package, and restart this process"
            ) from error


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read(path: Path) -> tuple[Identity | None, str]:
    """A file's digest, and its identity if the file is old enough to remember it."""
    with path.open("rb", buffering=0) as file:
        before = _identity(os.fstat(file.fileno()))
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = _identity(os.fstat(file.fileno()))
    is_settled = time.time_ns() - max(before[3:]) > _SETTLED_NS
    return (before if before == after and is_settled else None), digest


def _load(place: Path) -> Known:
    """The remembered digests; none where the file is damaged or another user could have written it."""
    with suppress(OSError):
        folder = os.lstat(place)
        if not stat.S_ISDIR(folder.st_mode) or not _is_private(folder):
            return {}
        file = os.open(place / "digests", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and _is_private(status):
                return _parse(os.read(file, _MOST_BYTES))  # the checksum of a longer file is wrong
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


def _save(place: Path, known: Known, fresh: Known) -> None:
    """Replaces the file, unless another process is writing it."""
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
        # Another process may have renamed it between open and lock; then it is the file that others read.
        if os.path.samestat(status, os.lstat(new)) and stat.S_ISREG(status.st_mode) and _is_private(status):
            os.ftruncate(file, 0)
            if os.write(file, data) == len(data):
                os.replace(new, place / "digests")
    finally:
        os.close(file)
