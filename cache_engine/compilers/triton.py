"""Runs Triton in a separate process. It compiles for all its targets, without a GPU.

The worker process avoids three problems. Triton's settings come from the environment and from other code that uses
Triton, and can change the output. Triton's cache would return earlier output. And LLVM ends its process on some errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache_engine.compilers.base import Compiled, Cuda, flags_at_level
from cache_engine.compilers.contents import WatchedFiles, digests
from cache_engine.errors import CompileError, CompilerMissing, InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import renew_after_fork, run_at_end, unforked
from cache_engine.settings.extras import how_to_install

if TYPE_CHECKING:
    from subprocess import Popen

# The worker gets only these variables of our environment; they locate programs and libraries.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


_NO_LINES, _LINES = "TRITON_DISABLE_LINE_INFO=1", "TRITON_DISABLE_LINE_INFO=0"
_DUMP = "TRITON_KERNEL_DUMP=1"
_DUMPED = ("ttir", "ttgir", "llir")

# Parts of the package that no compile for an NVIDIA GPU opens, 350 MB: libraries of other backends, profilers, headers
# for code that Triton compiles for the host.
LEFT_OUT = (
    "FileCheck",
    "_C/libproton.so",
    "backends/amd/include",
    "backends/amd/lib",
    "backends/nvidia/bin/nvdisasm",
    "backends/nvidia/include",
    "backends/nvidia/lib/cupti",
    "backends/nvidia/lib/cupti-blackwell",
    "include",
    "instrumentation",
    "plugins",
)


@dataclass(frozen=True)
class _Installation:
    """The installed Triton: its files, its fingerprint, and a check that its files still have that fingerprint."""

    packages: Path
    fingerprint: ToolchainFingerprint
    names: tuple[str, ...]
    files: WatchedFiles

    def check_unchanged(self) -> None:
        """Refuses to compile if files were replaced or added after fingerprinting, as by an upgrade in the meantime.

        Raises:
            CompilerMissing: when files changed, because the kernel would be stored under the key of another compiler.
        """
        self.files.check_unchanged("Triton")
        if parts(self.packages / "triton") != self.names:
            raise CompilerMissing("files were added to Triton while this process ran; restart the process")


def _find_installation() -> _Installation:
    from importlib import metadata  # 15 ms, needed only with Triton

    try:
        found = metadata.distribution("triton")
    except metadata.PackageNotFoundError as error:
        raise CompilerMissing(f"Triton is not installed; run: {how_to_install('triton')}") from error
    packages = Path(str(found.locate_file(""))).absolute()
    package = packages / "triton"
    names = parts(package)
    if not any(name.startswith("_C/libtriton.") for name in names):
        # An editable install: its files, and maybe its library, are elsewhere.
        raise CompilerMissing(
            f"Triton is not installed from a wheel, so its content is unknown; run: {how_to_install('triton')}"
        )
    paths = tuple(package / name for name in names)

    def digest() -> str:
        listing = "".join(f"{len(name)}:{name} {each}\n" for name, each in zip(names, digests(paths), strict=True))
        return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()[:40]

    files = WatchedFiles(paths, digest)
    build = f"{files.digest}+{hashlib.sha256(_worker().encode()).hexdigest()[:20]}"
    return _Installation(packages, ToolchainFingerprint("triton", found.version, build), names, files)


def parts(package: Path) -> tuple[str, ...]:
    """The files of the package that a compile may use, as sorted paths relative to the package.

    Without bytecode files, which the worker never reads.

    Raises:
        CompilerMissing: when a folder cannot be listed: a compile would use its files, but the key would not contain
            them.
    """
    names = []
    for folder, folders, files in os.walk(package, followlinks=True, onerror=_refuse):
        inside = os.path.relpath(folder, package)
        inside = "" if inside == "." else f"{inside}/"
        folders[:] = [name for name in folders if name != "__pycache__" and f"{inside}{name}" not in LEFT_OUT]
        names += [f"{inside}{name}" for name in files if f"{inside}{name}" not in LEFT_OUT]
    return tuple(sorted(names))


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # the caller sees which files are missing
        raise CompilerMissing(f"cannot read Triton's folder {error.filename}: {error.strerror}") from error


@cache
def _worker() -> str:
    """The text of the worker program, read once in a process, so that the text that runs is the text in the key."""
    return Path(__file__).with_name("triton_worker.py").read_text(encoding="utf-8")


class Triton:
    """The compiler ``triton``."""

    name = "triton"
    takes = ".py"
    # The worker's environment. No line numbers: they would put paths into the CUBIN. Multiply-adds are fused, as in
    # NVRTC. The template holds all other options of Triton.
    flags: tuple[str, ...] = (_NO_LINES, "TRITON_DEFAULT_FP_FUSION=1", "PTXAS_OPTIONS=-O3")

    def __init__(self) -> None:
        """Does not search for the compiler yet."""
        self._found: _Installation | None = None
        self._idle: list[_Worker] = []
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: forgets the workers, which belong to the parent."""
        self._idle = []

    def with_flags(self, extra: tuple[str, ...]) -> Triton:  # noqa: ARG002
        """Raises ``UsageError``, because the flags that a user may add are for CUDA C++."""
        raise UsageError("Triton accepts no compiler_flags and no fast math; unset them, or leave out --fast-math")

    def at_level(self, level: int) -> Triton:
        """The same compiler at another optimisation level of ptxas, with its own worker processes."""
        other = Triton()
        other.flags = flags_at_level(self.flags, level)
        return other

    def of_cuda(self, cuda: Cuda) -> Triton:  # noqa: ARG002
        """The same compiler for all versions of CUDA, because Triton brings its own ptxas."""
        return self

    def with_lines(self) -> Triton:
        """The same compiler, whose output has source lines and intermediate representations; only to inspect code."""
        other = Triton()
        other.flags = (*(_LINES if flag == _NO_LINES else flag for flag in self.flags), _DUMP)
        return other

    def preprocess(self, source: str, arch: str) -> None:
        """``None``, because Python has no preprocessor."""

    def fingerprint(self) -> ToolchainFingerprint:
        """The fingerprint of Triton: of every file that a compile may use, and of the worker program."""
        return self._installation().fingerprint

    def _installation(self) -> _Installation:
        # Two threads may both search; they find the same.
        if self._found is None:
            self._found = _find_installation()
        return self._found

    def load(self) -> None:
        """Starts a worker process, so that the next compile need not wait for its start."""
        self._idle.append(self._worker())

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles ``source`` for one target.

        Threads that compile at the same time use different workers.

        Raises:
            CompileError: when Triton rejects the source.
            InfeasibleConfig: when the compiled kernel needs more shared memory than the target has.
            InvalidProblem: when Triton does not support the target.
        """
        from base64 import b64decode

        target = architecture(arch)
        if arch.endswith("f"):
            raise InvalidProblem(f"Triton has no family targets such as {arch}; use {arch[:-1]}a")
        worker = self._worker()
        try:
            answer = worker.ask({"source": source, "capability": 10 * target.major + target.minor})
            self._installation().check_unchanged()
        except BaseException:
            worker.end()
            raise
        self._idle.append(worker)
        if "error" in answer:
            error, log = str(answer["error"]), str(answer["log"])
            reason = next((line for line in error.splitlines() if line.strip()), "")
            raise CompileError(
                f"Triton rejected the source for {arch}: {reason}",
                log=f"{log}{error}",
                source=source,
                flags=(f"cuda:{target.major}{target.minor}", *self.flags),
            )
        shared_bytes = answer["shared_bytes"]
        if shared_bytes > target.shared_bytes_per_block:
            raise InfeasibleConfig(
                f"Triton made a kernel that needs {shared_bytes:,} bytes of shared memory per block, "
                f"{shared_bytes - target.shared_bytes_per_block:,} more than the {target.shared_bytes_per_block:,} "
                f"of {arch}; use fewer stages or smaller tiles"
            )
        cubin = b64decode(answer["cubin"])
        return Compiled(cubin, answer["ptx"].encode(), answer["log"].encode(), shared_bytes, worker.dumped())

    def _worker(self) -> _Worker:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                worker = self._idle.pop()
                if worker.is_usable():
                    return worker
                worker.end()
        return _Worker(self._installation(), self.flags)


class _Worker:
    """A process with Triton in it. It handles one request at a time."""

    def __init__(self, installation: _Installation, flags: tuple[str, ...]) -> None:
        """Starts the process, and waits until it is ready.

        Raises:
            CompilerMissing: when it does not start, or its Triton is not the fingerprinted one.
        """
        import subprocess  # no hit needs it
        import tempfile

        self._folder = Path(tempfile.mkdtemp(prefix="gemm-cache-triton-"))
        # The output of LLVM and ptxas.
        self._printed = self._folder / "printed"
        self._dumps = self._folder / "dumps"
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= dict(flag.split("=", 1) for flag in flags)
        environment |= {
            "TMPDIR": str(self._folder),
            "TRITON_CACHE_DIR": str(self._folder / "cache"),
            "TRITON_HOME": str(self._folder),
            "TRITON_DUMP_DIR": str(self._dumps),
            "TRITON_BACKENDS_IN_TREE": "1",
            "TRITON_DUMP_PTXAS_LOG": "1",
        }
        # No start-up files of other packages (-S), and no bytecode, which may not match the hashed sources.
        isolated = ("-I", "-S", "-B", "-X", f"pycache_prefix={self._folder}/none")
        command = [sys.executable, *isolated, "-c", _worker(), str(installation.packages), str(self._folder)]
        pipe = subprocess.PIPE
        try:
            with unforked(), self._printed.open("ab") as printed:
                # In a separate session, so that Ctrl-C reaches only the caller.
                self._process: Popen[bytes] = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=printed, env=environment, start_new_session=True
                )
        except OSError as error:
            raise CompilerMissing(f"cannot start the process of Triton: {error}") from error
        self._forget = run_at_end(self.end)
        renew_after_fork(self)
        hello = self._read()
        package = installation.packages / "triton"
        if "error" in hello:
            self.end()
            raise CompilerMissing(f"cannot load Triton ({hello['error']}); run: {how_to_install('triton')}")
        if hello["package"] != str(package):
            self.end()
            raise CompilerMissing(f"the key names {package}, but {hello['package']} was loaded; remove one of the two")

    def ask(self, question: dict[str, object]) -> dict[str, Any]:
        """Sends a request; returns the worker's answer, which has ``error`` and ``log`` if it fails or dies."""
        import json

        os.truncate(self._printed, 0)
        assert self._process.stdin is not None  # noqa: S101 (a pipe was asked for)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; _read reports that
        return self._read()

    def _read(self) -> dict[str, Any]:
        import json

        assert self._process.stdout is not None  # noqa: S101 (a pipe was asked for)
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            if "error" not in answer:
                return answer
        else:
            answer = {"error": f"the process of Triton ended with {self._process.wait()}", "log": ""}
        printed = self._printed.read_text(errors="replace")
        if self._process.poll() is not None and printed.strip():
            answer["error"] += f": {printed.strip().splitlines()[-1]}"
        return {**answer, "log": f"{answer.get('log', '')}{printed}"}

    def dumped(self) -> tuple[tuple[str, str], ...]:
        """The intermediate representations of the last compile, as pairs of name and text, if they were asked for.

        A second call returns none, because the first deletes them.
        """
        found = []
        for name in _DUMPED:
            for path in self._dumps.glob(f"*/*.{name}"):
                found.append((name, path.read_text(encoding="utf-8", errors="replace")))
                path.unlink()
        return tuple(found)

    def is_usable(self) -> bool:
        """Whether the process is alive and its temporary folder still exists."""
        return self._process.poll() is None and self._printed.exists()

    def end(self) -> None:
        """Ends the process, and deletes its folder."""
        import shutil

        self._forget()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent data
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def renew_after_fork(self) -> None:
        """In a forked child: closes the pipes, so that the worker can end when the parent does."""
        self._forget()
        self._process.returncode = 0  # the parent waits for it
        # Not closed: another thread of the parent may have held their locks.
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
