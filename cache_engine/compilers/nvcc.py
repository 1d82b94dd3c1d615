"""Runs NVCC as a subprocess. It compiles for all its targets, without a GPU.

``nvcc --cubin`` runs three programs: the host's C++ compiler, here only to preprocess; ``cicc``, which makes PTX; and
``ptxas``, which makes CUBIN. It compiles nothing for the host, but it needs a host compiler.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cache_engine.compilers.base import Compiled, Cuda, CudaCompiler
from cache_engine.compilers.contents import HOW_TO_CHOOSE, WatchedFiles, package_files, toolkit_files
from cache_engine.compilers.diagnostics import first_error
from cache_engine.errors import CompileError, CompilerMissing
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import unforked, uninterrupted
from cache_engine.settings.extras import how_to_install

# A large kernel takes seconds. A compile that takes longer than this hangs.
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _Installation:
    """The installed NVCC: its programs, its fingerprint, and a check that its files still have that fingerprint."""

    nvcc: Path
    host: Path
    fingerprint: ToolchainFingerprint
    files: WatchedFiles

    headers: frozenset[Path]

    def check_unchanged(self, preprocessed: str) -> None:
        """Refuses to compile if files were replaced or added after fingerprinting, as by an upgrade in the meantime.

        Args:
            preprocessed: the preprocessed source of this compile; it names all headers that were read, so it shows a
                new header that was found in place of one that the key has.

        Raises:
            CompilerMissing: when files changed, because the kernel would be stored under the key of another compiler.
        """
        self.files.check_unchanged("NVCC or a header it includes")
        added = [header for header in _headers(preprocessed) if header not in self.headers]
        if added:
            raise CompilerMissing(f"{added[0]} was added while this process ran; restart the process")


class Nvcc(CudaCompiler):
    """The compiler ``nvcc``."""

    name = "nvcc"
    takes = ".cu"
    flags: tuple[str, ...] = ("--std=c++17", "--ptxas-options=-v", "--ptxas-options=-O3")

    def __init__(self, flags: tuple[str, ...] | None = None, cuda: Cuda | None = None) -> None:
        """Does not search for the compiler yet."""
        super().__init__(flags, cuda)
        self._found: _Installation | None = None
        self._swept = False

    def fingerprint(self) -> ToolchainFingerprint:
        """The fingerprint of NVCC: of the content of its programs and of every header that it includes by default.

        To find these headers, this runs the host's preprocessor once in a process (0.1 s).
        """
        return self._installation().fingerprint

    def load(self) -> None:
        """Finds NVCC, and deletes the temporary folders of killed compiles."""
        self._installation()
        if not self._swept:
            self._swept = True
            sweep()

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles ``source`` for one target; raises ``CompileError``. Other threads can run meanwhile."""
        self.load()
        flags = (f"-arch={arch}", *self.flags)
        # With --keep, one run leaves both PTX and CUBIN.
        with self._at_work(source, flags) as place:
            log = self._run(place, source, arch, (*flags, "--cubin", "--keep", "--keep-dir=."))
            # After the run: an upgrade may also happen between check and run.
            self._installation().check_unchanged(_text(place, "kernel.cpp1.ii"))
            return Compiled(place.read("kernel.cubin"), place.read("kernel.ptx"), log.encode())

    def preprocess(self, source: str, arch: str) -> str:
        """The preprocessed source as ``cicc`` gets it, with all headers that NVCC always includes."""
        self.load()
        flags = (f"-arch={arch}", *self.flags)
        with self._at_work(source, flags) as place:
            self._run(place, source, arch, (*flags, "-E", "-o", "kernel.ii"))
            return _text(place, "kernel.ii")

    @contextmanager
    def _at_work(self, source: str, flags: tuple[str, ...]) -> Iterator[Workplace]:
        """A context manager with a temporary folder that contains the source; ``OSError`` becomes ``CompileError``."""
        try:
            with workplace() as place:
                place.write("kernel.cu", source.encode())
                yield place
        except OSError as error:
            raise CompileError(
                f"NVCC could not work in {error.filename or 'the folder for temporary files'}: {error.strerror}",
                log="",
                source=source,
                flags=flags,
            ) from error

    def _run(self, place: Workplace, source: str, arch: str, arguments: tuple[str, ...]) -> str:
        """Runs NVCC on ``kernel.cu`` in the folder; returns the text that it prints."""
        found = self._installation()
        code, log = _execute((str(found.nvcc), f"--compiler-bindir={found.host}", *arguments, "kernel.cu"), place)
        if code == 0:
            return log
        if code is None:
            problem = f"NVCC did not finish within {_TIMEOUT_S:.0f} s and was stopped; it was compiling for {arch}"
        elif code < 0:
            problem = f"NVCC was killed by {signal.Signals(-code).name} while it compiled for {arch}"
        else:
            problem = f"NVCC rejected the source for {arch}: {first_error(log) or f'exit code {code}'}"
        raise CompileError(problem, log=log, source=source, flags=arguments)

    def _installation(self) -> _Installation:
        with self._lock:
            if self._found is None:
                self._found = _find_installation(self._cuda)
            return self._found


def _find_installation(cuda: Cuda) -> _Installation:
    nvcc, host = _find_nvcc(cuda), _find_host_compiler()
    try:
        with workplace() as place:
            place.write("kernel.cu", b"")
            base = (str(nvcc), f"--compiler-bindir={host}", "-arch=sm_90", *Nvcc.flags)
            _, plan = _execute((*base, "--dryrun", "--cubin", "kernel.cu"), place)
            code, log = _execute((*base, "-E", "--compiler-options=-dD", "kernel.cu", "-o", "kernel.ii"), place)
            text = _text(place, "kernel.ii") if code == 0 else ""
    except OSError as error:
        raise CompilerMissing(f"cannot run {nvcc}: {error.strerror}; {_how_to_get()}") from error
    version = dict(re.findall(r"#define __CUDACC_VER_(MAJOR|MINOR)__ (\d+)\n", text))
    if len(version) < 2:
        cause = first_error(log) or log.strip()[:200] or f"exit code {code}"
        raise CompilerMissing(f"{nvcc} does not work with {host}: {cause}; name another host compiler in NVCC_CCBIN")
    release = f"{version['MAJOR']}.{version['MINOR']}"
    if cuda.why and int(version["MAJOR"]) not in cuda.versions:
        raise CompilerMissing(f"{nvcc} is of CUDA {release}, but {cuda.why}; {_how_to_get(cuda)}")
    tools, headers = _tools(nvcc, plan), _headers(text)
    files = WatchedFiles((*tools, *headers), lambda: f"{_digest_of_files(tools)}+{_digest_of_headers(text, headers)}")
    fingerprint = ToolchainFingerprint("nvcc", release, files.digest)
    return _Installation(nvcc, host, fingerprint, files, frozenset(headers))


def _text(place: Workplace, name: str) -> str:
    return place.read(name).decode("utf-8", "replace")


def _find_nvcc(cuda: Cuda) -> Path:
    """The path of NVCC: in ``CUDA_HOME``, which the user set; else in a package; else the first on ``PATH``."""
    if not cuda.versions:
        raise CompilerMissing(f"no NVCC fits, as {cuda.why}; {HOW_TO_CHOOSE}")
    places = [Path(os.environ.get("CUDA_HOME") or os.devnull, "bin", "nvcc")]
    if 13 in cuda.versions:
        places += package_files("bin/nvcc")
    if cuda.why:
        places += chain.from_iterable(toolkit_files(version, "bin/nvcc") for version in cuda.versions)
    for place in places:
        if os.access(place, os.X_OK):
            return place.absolute()
    found = shutil.which("nvcc")
    if found is None:
        if not cuda.why:
            raise CompilerMissing(f"NVCC is not installed; {_how_to_get()}")
        raise CompilerMissing(f"NVCC of CUDA {cuda.versions[0]} is not installed, and {cuda.why}; {_how_to_get(cuda)}")
    return Path(found).absolute()


def _find_host_compiler() -> Path:
    """The path of the C++ compiler with which NVCC preprocesses: ``NVCC_CCBIN``, else the first one installed."""
    for name in filter(None, (os.environ.get("NVCC_CCBIN"), "g++", "clang++", "c++")):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    raise CompilerMissing(
        "NVCC needs a C++ compiler of the host to preprocess with, and none is installed; install g++, or name one in "
        "NVCC_CCBIN, or use the nvrtc compiler, which needs none"
    )


def _tools(nvcc: Path, plan: str) -> tuple[Path, ...]:
    """The files that compile preprocessed source, in the folders that a dry run of NVCC names."""
    folders = dict(re.findall(r"^#\$ (\w+)=(.*)$", plan, re.MULTILINE))
    here = Path(folders.get("_HERE_", nvcc.parent))
    tools = (
        here / "nvcc",
        here / "nvcc.profile",
        here / "ptxas",
        Path(folders.get("CICC_PATH", here), "cicc"),
        Path(folders.get("NVVMIR_LIBRARY_DIR", here), "libdevice.10.bc"),
    )
    for tool in tools:
        if not tool.is_file():
            raise CompilerMissing(f"{nvcc} lacks {tool.name}; {_how_to_get()}")
    return tools


def _headers(preprocessed: str) -> tuple[Path, ...]:
    """The files that a preprocessed text includes, in the order in which it first names them."""
    named = dict.fromkeys(re.findall(r'^# \d+ "(/[^"]+)"', preprocessed, re.MULTILINE))
    # One marker names the working folder, with a slash at the end.
    return tuple(Path(name) for name in named if not name.endswith("/"))


def _how_to_get(cuda: Cuda | None = None) -> str:
    if cuda is not None and 13 not in cuda.versions:
        return "set CUDA_HOME to a toolkit of CUDA 12"
    return f"run: {how_to_install('nvcc')}, or set CUDA_HOME to a CUDA toolkit"


def _digest_of_files(files: Sequence[Path]) -> str:
    from mmap import ACCESS_READ, mmap

    from xxhash import xxh3_128

    hasher = xxh3_128()
    for path in files:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            hasher.update(b"%d:" % len(content))
            hasher.update(content)
    return hasher.hexdigest()


def _digest_of_headers(preprocessed: str, headers: Sequence[Path]) -> str:
    """A digest of the host compiler's predefined macros and of whole headers: targets use different branches."""
    from xxhash import xxh3_128

    defined = xxh3_128(re.sub(r"^# .*\n", "", preprocessed, flags=re.MULTILINE).encode()).hexdigest()
    contents = b"".join(b"%d:%b" % (len(content), content) for content in (path.read_bytes() for path in headers))
    return xxh3_128(defined.encode() + contents).hexdigest()


def _execute(command: tuple[str, ...], place: Workplace) -> tuple[int | None, str]:
    """Runs a program in the folder; returns its exit code (``None``: timed out) and its output.

    The program and its children form a session, which is killed as a whole if this call is interrupted. It gets only
    the variables that it needs: compilers read flags and folders from variables such as CPATH and NVCC_APPEND_FLAGS,
    which the key does not contain. NVCC runs its programs through a shell, so every path that it passes on must be a
    safe name: its folder for temporary files is this folder, named ".".
    """
    import subprocess

    process: subprocess.Popen[bytes] | None = None
    try:
        with unforked(), uninterrupted():
            process = subprocess.Popen(
                command,
                cwd=place.folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": ".", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(place.lock,),
                start_new_session=True,
            )
        printed, _ = process.communicate(timeout=_TIMEOUT_S)
        return process.returncode, printed.decode("utf-8", "replace").rstrip()
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


# ---- A temporary folder for one run of a compiler ----
#
# The run holds a lock on the folder, and the programs it starts inherit the lock. So a free lock means that the process
# was killed, and the next process may remove the folder.

_PREFIX = "gemm-cache-compile-"


@dataclass(frozen=True, slots=True)
class Workplace:
    """A temporary folder for a compile, and the open descriptor that holds its lock."""

    folder: Path
    lock: int

    def write(self, name: str, data: bytes) -> None:
        """Writes a file in the folder."""
        (self.folder / name).write_bytes(data)

    def read(self, name: str) -> bytes:
        """The content of a file in the folder."""
        return (self.folder / name).read_bytes()


@contextmanager
def workplace() -> Iterator[Workplace]:
    """A context manager with an empty folder that only this user can read. It is deleted with its content at the end.

    Raises:
        OSError: when the folder cannot be created, such as on a full disk.
    """
    import tempfile  # takes 3 ms, and every hit imports this module

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
    """Deletes the folders of killed processes, if possible."""
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
    """The folder with its lock held; ``None`` if another process holds the lock or has deleted the folder."""
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
