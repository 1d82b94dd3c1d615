"""Files of compilers: their paths, and the SHA-256 of each, stored across processes; and environment variables in keys.

The files of a compiler have hundreds of megabytes, and hashing them takes longer than a compile. So a small file in the
user's cache directory stores the digests, each with the identity of the hashed file: device, inode, size, mtime and
ctime in nanoseconds. No program can set ctime, so a file that was edited in place and got its old mtime back is hashed
again. If the small file cannot be written, or another user could have written it, every file is hashed.

The small file has a line with the SHA-256 of all lines after it, then a line for each hashed file: the five numbers and
the digest.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from cache_engine.compilers.base import Cuda
from cache_engine.errors import CompilerMissing, ToolMissing
from cache_engine.model.architecture import ARCHITECTURES, CUDA_VERSIONS
from cache_engine.model.key import sha256
from cache_engine.settings import user_cache_folder

Identity = tuple[int, int, int, int, int]
"""The identity of a file: device, inode, size, mtime and ctime in nanoseconds since 1970."""

_FORM = b"gemm-cache digests 1"
_LINE = rb"^(-?\d{1,20} \d{1,20} \d{1,20} -?\d{1,20} -?\d{1,20}) ([0-9a-f]{64})$"
_MOST_OF_LINE = 5 * 21 + 64 + 1
# The 170 files of Triton take 25 kB. Forty installations fit; then the file starts empty again.
_MOST_BYTES = 1024 * 1024
# A file changed twice within a clock tick looks the same after both changes. Like git, we do not trust such a young
# file.
_SETTLED_NS = 2_000_000_000

Known = dict[bytes, bytes]
"""Digests by file identity, both as bytes in the form of the small file. Two names of one file share an identity."""


def identities(paths: Iterable[Path]) -> tuple[Identity, ...]:
    """The identities of files, by which a change is found without reading a file.

    Raises:
        CompilerMissing: when a file no longer exists.
    """
    try:
        return tuple(_identity(path.stat()) for path in paths)
    except FileNotFoundError as error:
        raise CompilerMissing(
            f"{error.filename} no longer exists; reinstall its package, and restart this process"
        ) from error


def digests(paths: Sequence[Path]) -> tuple[str, ...]:
    """The SHA-256 (hex) of each file's content, in the order of ``paths``. Reads only files without a stored digest.

    Raises:
        OSError: when a file cannot be read.
    """
    place = user_cache_folder("gemm-cache-toolchains")
    lines = b"" if place is None else _load(place)
    found: list[str] = []
    fresh: Known = {}
    for path in paths:
        digest = _remembered(lines, _identity(path.stat()))
        if digest is None:
            identity, digest = _read(path)
            if identity is not None:
                fresh[_text(identity)] = digest.encode()
        found.append(digest)
    if fresh and place is not None:
        with suppress(OSError):  # the next process reads the files again
            _save(place, _parse(lines), fresh)
    return tuple(found)


class WatchedFiles:
    """Some files of a compiler, one digest of all of them, and their identities at the time of hashing."""

    def __init__(self, paths: Sequence[Path], digest: Callable[[], str]) -> None:
        """Hashes the files.

        Args:
            digest: a function that hashes all the files; called again if one may have changed.

        Raises:
            CompilerMissing: when a file does not exist or cannot be read.
        """
        self._paths, self._digest = tuple(paths), digest
        # Taken before the files are read, so that a change in between is noticed later.
        self._seen = identities(self._paths)
        self.digest = self._digest_now()

    def check_unchanged(self, whose: str) -> None:
        """Raises an error if a file was replaced since it was hashed, e.g. by an upgrade while this process runs.

        If only ctime changed, e.g. by a new hard link, the content decides.

        Args:
            whose: the subject of the error text, such as ``"NVRTC"``.

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
    """A file's digest; and its identity if the file is old enough to store the digest, else ``None``."""
    from hashlib import file_digest

    with path.open("rb", buffering=0) as file:
        before = _identity(os.fstat(file.fileno()))
        digest = file_digest(file, "sha256").hexdigest()
        after = _identity(os.fstat(file.fileno()))
    is_settled = time.time_ns() - max(before[3:]) > _SETTLED_NS
    return (before if before == after and is_settled else None), digest


def _load(place: Path) -> bytes:
    """The lines with stored digests; empty if the file is damaged or another user could have written it."""
    with suppress(OSError):
        folder = os.lstat(place)
        if not stat.S_ISDIR(folder.st_mode) or not _is_private(folder):
            return b""
        file = os.open(place / "digests", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and _is_private(status):
                head, _, lines = os.read(file, _MOST_BYTES).partition(b"\n")
                return lines if head == _head(lines) else b""  # the checksum of a longer file is wrong
        finally:
            os.close(file)
    return b""


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remembered(lines: bytes, identity: Identity) -> str | None:
    # A search in the bytes, not by line: this reads a file of a thousand lines before the first kernel of each process.
    start = b"%b " % _text(identity)
    at = 0 if lines.startswith(start) else lines.find(b"\n" + start) + 1
    line, _, _ = lines[at : at + _MOST_OF_LINE].partition(b"\n")
    return line.removeprefix(start).decode() if line.startswith(start) and re.fullmatch(_LINE, line) else None


def _parse(lines: bytes) -> Known:
    return dict(re.findall(_LINE, lines, flags=re.MULTILINE))


def _text(identity: Identity) -> bytes:
    return b"%d %d %d %d %d" % identity


def _head(rest: bytes) -> bytes:
    return b"%b %b" % (_FORM, sha256(rest).hexdigest().encode())


def _encode(known: Known) -> bytes:
    rest = b"".join(b"%b %b\n" % line for line in known.items())
    return _head(rest) + b"\n" + rest


def _save(place: Path, known: Known, fresh: Known) -> None:
    """Replaces the file of digests, unless another process is writing it."""
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
        # Another process may have renamed the file between open and lock; then other processes read that file.
        if os.path.samestat(status, os.lstat(new)) and stat.S_ISREG(status.st_mode) and _is_private(status):
            os.ftruncate(file, 0)
            if os.write(file, data) == len(data):
                os.replace(new, place / "digests")
    finally:
        os.close(file)


# ---- The environment variables that NVRTC reads, and which of them are part of the key ----
# NVRTC runs in this process, where other threads may read and set variables, so we cannot hide any from it. The key
# contains each variable that is set and could change the output. NVCC and Triton run in separate processes, with an
# environment of named variables only.
#
# Source: every call of ``getenv`` in libnvrtc 12.9, 13.0 and 13.5, found in its machine code and by a ``getenv`` that
# records the names it gets. ``tests/compilers/test_environment.py`` finds them again in the installed libraries.

KEYED = (
    "AS_SECURE_LOG_FILE",
    "CAN_FINALIZE_DEBUG",
    "DUMP_KNOBS_TO_FILE",
    "EDG_BASE",
    "EDG_MODULES_PATH",
    "FINALIZER_CUBIE",
    "FINALIZER_USE_LEGACY_ELF_BUILDER",
    "LIBNVVM_DISABLE_CONCURRENT_API",
    "LLVM_IGNORED_ENV_VAR",
    "LLVM_OVERRIDE_PRODUCER",
    "NVRTCWIZ",
    "NVRTC_APPEND_FLAGS",
    "NVRTC_DISABLE_CONCURRENT_NVVM",
    "NVRTC_DISABLE_PCH",
    "NVRTC_INTERNAL_GLOBAL_LOCK",
    "NVRTC_PCH_HEAP_SIZE",
    "NVVM_IR_VER_CHK",
    "NV_NVVM_VERSION",
)
"""Environment variables whose values are part of the key if they are set. All belong to NVIDIA or LLVM and are rare."""

_OPENSSL = "read by OpenSSL inside NVRTC, which a compile calls only for checksums"
_CRASH = "how LLVM prints the stack of a crash"
_PRINTED = "how messages look"
_FILES = "the folder of temporary files or of the user's files; our sources name none"

LEFT_OUT = {
    "COLUMNS": _PRINTED,
    "CTLOG_FILE": _OPENSSL,
    "CUDA_CACHE_DISABLE": "switches NVRTC's own cache, which our flags switch off",
    "EDG_COLORS": _PRINTED,
    "GCC_COLORS": _PRINTED,
    "HOME": _FILES,
    "HTTPS_PROXY": _OPENSSL,
    "LLVM_DISABLE_SYMBOLIZATION": _CRASH,
    "LLVM_ENABLE_SYMBOLIZER_MARKUP": _CRASH,
    "LLVM_SYMBOLIZER_PATH": _CRASH,
    "MAKEFLAGS": "the number of threads that make lends; set in every run of make",
    "NOCOLOR": _PRINTED,
    "NO_PROXY": _OPENSSL,
    "OPENSSL_CONF": _OPENSSL,
    "OPENSSL_CONF_INCLUDE": _OPENSSL,
    "OPENSSL_ENGINES": _OPENSSL,
    "OPENSSL_MODULES": _OPENSSL,
    "OPENSSL_ia32cap": _OPENSSL,
    "PATH": "where LLVM looks for its symbolizer",
    "PWD": "the working folder, which only debug information names; our flags ask for none",
    "TEMP": _FILES,
    "TEMPDIR": _FILES,
    "TERM": _PRINTED,
    "TMP": _FILES,
    "TMPDIR": _FILES,
    "bar": "LLVM compares it with an address that no variable can have",
    "http_proxy": _OPENSSL,
    "https_proxy": _OPENSSL,
    "no_proxy": _OPENSSL,
}
"""Environment variables that do not change the code, with the reason. In the key they would only cause misses."""


@cache
def environment_of_nvrtc() -> str:
    """The environment in NVRTC's keys: each variable that is set, with a hash of its value; empty if none is set.

    A hash, because a value may be a path. NVRTC reads some variables only once in a process, and so does this function.
    """
    return _environment_now()


def check_environment_unchanged() -> None:
    """Refuses to compile after an environment variable has changed.

    Raises:
        CompilerMissing: when a variable has changed, because the key would name another environment.
    """
    if _environment_now() != environment_of_nvrtc():
        raise CompilerMissing(
            "an environment variable that NVRTC reads was changed while this process ran; set it before the process "
            f"starts, or leave it unset (they are {', '.join(KEYED)})"
        )


def _environment_now() -> str:
    # getenv, as in NVRTC, also sees what C libraries have set. PyDLL holds the GIL, so no Python thread changes the
    # environment meanwhile.
    getenv = ctypes.PyDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p
    values = ((name, getenv(name.encode())) for name in KEYED)
    # A variable set to nothing is still set: NVRTC only checks whether some of them exist.
    return " ".join(f"{name}={sha256(value).hexdigest()[:32]}" for name, value in values if value is not None)


# ---- NVIDIA's files: first in the PyPI packages, then on the system; and which versions of CUDA may compile ----

HOW_TO_CHOOSE = "set GEMM_CACHE_CUDA to the version of CUDA that is to compile"
_LOCAL = Path("/usr/local")


@lru_cache(maxsize=256)
def cuda_for(asked: str, driver: tuple[int, int] | None, arch: str) -> Cuda:
    """The major versions of CUDA that may compile for a target.

    Args:
        asked: the setting ``cuda``.
        driver: the newest version of CUDA that the driver supports, if there is a driver. It cannot load code of a
            newer major version.
        arch: the target; an unknown one excludes no version.
    """
    versions: tuple[int, ...] = CUDA_VERSIONS
    why = []
    if asked != "auto":
        versions = (int(asked),)
        why.append(f"the setting cuda is {asked}")
    elif driver is not None and driver[0] < versions[0]:
        versions = tuple(version for version in versions if version <= driver[0])
        why.append(f"the driver is for CUDA {driver[0]}.{driver[1]}")
    known = ARCHITECTURES[arch].cuda_versions if arch in ARCHITECTURES else CUDA_VERSIONS
    if known != CUDA_VERSIONS:
        why.append(f"only CUDA {' or '.join(map(str, known))} compiles for {arch}")
    return Cuda(tuple(version for version in versions if version in known), " and ".join(why))


def package_files(pattern: str, folder: str = "cu13") -> Iterator[Path]:
    """Files of installed ``nvidia-*`` packages that match ``pattern``, such as ``lib/libnvrtc.so.*``.

    Args:
        folder: the folder of the package. Those for CUDA 13 share ``cu13``; for CUDA 12 each has its own, such as
            ``cuda_nvrtc``.
    """
    spec = find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location, folder).glob(pattern))


def toolkit_files(cuda: int, pattern: str) -> Iterator[Path]:
    """Files that match ``pattern`` in the toolkit of ``CUDA_HOME``, then in toolkits in ``/usr/local``."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    installed = sorted(_LOCAL.glob(f"cuda-{cuda}*"), key=lambda path: (len(path.name), path.name), reverse=True)
    for toolkit in (*([Path(named)] if named else ()), *installed):
        yield from sorted(toolkit.glob(pattern))


def find_tool(name: str, package: str) -> Path:
    """The path of the program ``name``: from an installed package, else from ``PATH``, else from a toolkit.

    Raises:
        ToolMissing: when it is not installed; the text names the package that has it.
    """
    for path in find_tools(name):
        return path
    raise ToolMissing(f"{name} is not installed; run: pip install {package}")


def find_tools(name: str) -> Iterator[Path]:
    """The paths of every program ``name``, in the order in which ``find_tool`` prefers them."""
    yield from package_files(f"bin/{name}")
    from shutil import which  # takes 1.5 ms, and no hit needs it

    on_path = which(name)
    if on_path is not None:
        yield Path(on_path)
    for version in CUDA_VERSIONS:
        yield from toolkit_files(version, f"bin/{name}")
