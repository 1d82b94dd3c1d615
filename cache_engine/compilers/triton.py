"""Triton, in a process of its own. Compiles for any target on a machine without a GPU.

A worker process keeps three things apart from ours: Triton's settings, which come from the environment and from whoever
else uses it here, and can change what it makes; its cache, which would serve what it has made before; and LLVM, which
ends its process on some errors.
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

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.contents import WatchedFiles, digests
from cache_engine.compilers.flags import flags_at_level
from cache_engine.errors import CompileError, CompilerMissing, InfeasibleConfig, InvalidProblem, UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import renew_after_fork, run_at_end

if TYPE_CHECKING:
    from subprocess import Popen

_HOW_TO_GET = "run: pip install 'gemm-cache[triton]'"
# The rest of the environment stays outside. These are about finding programs and libraries.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


# Parts of the package that no compile for an NVIDIA GPU opens, 350 MB of it: other backends' libraries, profilers,
# headers for what Triton compiles for the host.
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
    """Triton as it was found: its fingerprint, and what tells whether the files are still those fingerprinted."""

    packages: Path
    fingerprint: ToolchainFingerprint
    names: tuple[str, ...]
    files: WatchedFiles

    def check_unchanged(self) -> None:
        """Refuses files replaced or added since, as by an upgrade under a running process.

        Raises:
            CompilerMissing: then a kernel would be stored under the key of another compiler.
        """
        self.files.check_unchanged("Triton")
        if parts(self.packages / "triton") != self.names:
            raise CompilerMissing("Triton has files that it had not when this process started; start it again")


def _find_installation() -> _Installation:
    from importlib import metadata  # 15 ms, of which who uses no Triton needs none

    try:
        found = metadata.distribution("triton")
    except metadata.PackageNotFoundError as error:
        raise CompilerMissing(f"Triton is not installed; {_HOW_TO_GET}") from error
    packages = Path(str(found.locate_file(""))).absolute()
    package = packages / "triton"
    names = parts(package)
    if not any(name.startswith("_C/libtriton.") for name in names):
        # Installed to be worked on: it is in another place, and its library may be.
        raise CompilerMissing(f"Triton is not installed from a wheel, so what it makes cannot be keyed; {_HOW_TO_GET}")
    paths = tuple(package / name for name in names)

    def digest() -> str:
        listing = "".join(f"{len(name)}:{name} {each}\n" for name, each in zip(names, digests(paths), strict=True))
        return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()[:40]

    files = WatchedFiles(paths, digest)
    build = f"{files.digest}+{hashlib.sha256(_worker().encode()).hexdigest()[:20]}"
    return _Installation(packages, ToolchainFingerprint("triton", found.version, build), names, files)


def parts(package: Path) -> tuple[str, ...]:
    """The files of the package that may take part in a compile, by their paths in it, in order.

    No bytecode: the worker reads none.
    """
    names = []
    for folder, folders, files in os.walk(package, followlinks=True):
        inside = os.path.relpath(folder, package)
        inside = "" if inside == "." else f"{inside}/"
        folders[:] = [name for name in folders if name != "__pycache__" and f"{inside}{name}" not in LEFT_OUT]
        names += [f"{inside}{name}" for name in files if f"{inside}{name}" not in LEFT_OUT]
    return tuple(sorted(names))


@cache
def _worker() -> str:
    """The worker's program, as it was when this process first asked: what runs is what the key names."""
    return Path(__file__).with_name("triton_worker.py").read_text(encoding="utf-8")


class Triton:
    """The ``triton`` compiler."""

    name = "triton"
    takes = ".py"
    # The worker's environment. No line numbers: they would put paths into the CUBIN. Multiply-adds are fused, as NVRTC
    # does it too. What else Triton is told is in the template.
    flags: tuple[str, ...] = ("TRITON_DISABLE_LINE_INFO=1", "TRITON_DEFAULT_FP_FUSION=1", "PTXAS_OPTIONS=-O3")

    def __init__(self) -> None:
        """Looks for nothing yet."""
        self._found: _Installation | None = None
        self._idle: list[_Worker] = []
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: the workers are the parent's."""
        self._idle = []

    def with_flags(self, extra: tuple[str, ...]) -> Triton:  # noqa: ARG002
        """Refuses them: they are flags of CUDA C++; see ``Compiler.with_flags``."""
        raise UsageError("Triton takes no compiler_flags and no fast_math; unset them to use it")

    def at_level(self, level: int) -> Triton:
        """The same compiler at another level of ptxas, with workers of its own; see ``Compiler.at_level``."""
        other = Triton()
        other.flags = flags_at_level(self.flags, level)
        return other

    def preprocess(self, source: str, arch: str) -> None:
        """Nothing: Python is not preprocessed; see ``Compiler.preprocess``."""

    def fingerprint(self) -> ToolchainFingerprint:
        """The content of all that may take part, the worker's program included; see ``Compiler.fingerprint``."""
        return self._installation().fingerprint

    def _installation(self) -> _Installation:
        # Two threads may both look; they find the same.
        if self._found is None:
            self._found = _find_installation()
        return self._found

    def load(self) -> None:
        """Has a worker ready; see ``Compiler.load``."""
        self._idle.append(self._worker())

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles for one target; see ``Compiler.compile``. Each thread has a worker to itself.

        Raises:
            InfeasibleConfig: when the kernel came to need more shared memory than the target has.
            InvalidProblem: when Triton does not know the target.
        """
        from base64 import b64decode

        target = architecture(arch)
        if arch.endswith("f"):
            raise InvalidProblem(f"Triton has no targets for families of chips such as {arch}; use {arch[:-1]}a")
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
                f"Triton refused the source for {arch}: {reason}",
                log=f"{log}{error}",
                source=source,
                flags=(f"cuda:{target.major}{target.minor}", *self.flags),
            )
        shared_bytes = answer["shared_bytes"]
        if shared_bytes > target.shared_bytes_per_block:
            raise InfeasibleConfig(
                f"Triton made a kernel of {shared_bytes:,} bytes of shared memory per block, "
                f"{shared_bytes - target.shared_bytes_per_block:,} more than the {target.shared_bytes_per_block:,} "
                f"that {arch} has; take fewer stages or smaller tiles"
            )
        return Compiled(b64decode(answer["cubin"]), answer["ptx"].encode(), answer["log"].encode(), shared_bytes)

    def _worker(self) -> _Worker:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                worker = self._idle.pop()
                if worker.is_usable():
                    return worker
                worker.end()
        return _Worker(self._installation(), self.flags)


class _Worker:
    """A process with Triton in it, for one question at a time."""

    def __init__(self, installation: _Installation, flags: tuple[str, ...]) -> None:
        """Starts it, and waits until it is ready.

        Raises:
            CompilerMissing: when it cannot be started, or has another Triton than was fingerprinted.
        """
        import subprocess  # no hit needs it
        import tempfile

        self._folder = Path(tempfile.mkdtemp(prefix="gemm-cache-triton-"))
        # What LLVM and ptxas print themselves.
        self._printed = self._folder / "printed"
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= dict(flag.split("=", 1) for flag in flags)
        environment |= {
            "TMPDIR": str(self._folder),
            "TRITON_CACHE_DIR": str(self._folder / "cache"),
            "TRITON_HOME": str(self._folder),
            "TRITON_BACKENDS_IN_TREE": "1",
            "TRITON_DUMP_PTXAS_LOG": "1",
        }
        # Neither start-up files of other packages (-S) nor bytecode, which need not be that of the sources hashed.
        isolated = ("-I", "-S", "-B", "-X", f"pycache_prefix={self._folder}/none")
        command = [sys.executable, *isolated, "-c", _worker(), str(installation.packages), str(self._folder)]
        pipe = subprocess.PIPE
        try:
            with self._printed.open("ab") as printed:
                # In a session of its own: Ctrl-C is for whoever asked.
                self._process: Popen[bytes] = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=printed, env=environment, start_new_session=True
                )
        except OSError as error:
            raise CompilerMissing(f"Triton's process cannot be started: {error}") from error
        self._forget = run_at_end(self.end)
        renew_after_fork(self)
        hello = self._read()
        package = installation.packages / "triton"
        if "error" in hello:
            self.end()
            raise CompilerMissing(f"Triton cannot be loaded ({hello['error']}); {_HOW_TO_GET}")
        if hello["package"] != str(package):
            self.end()
            raise CompilerMissing(f"{hello['package']} was loaded where the key names {package}; remove one of the two")

    def ask(self, question: dict[str, object]) -> dict[str, Any]:
        """What the worker answers; with ``error`` and ``log`` when it refuses or dies."""
        import json

        os.truncate(self._printed, 0)
        assert self._process.stdin is not None  # noqa: S101 (a pipe was asked for)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; reading says so
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

    def is_usable(self) -> bool:
        """Whether it can be asked: it has not died, and nobody has tidied its folder away."""
        return self._process.poll() is None and self._printed.exists()

    def end(self) -> None:
        """Ends it, and deletes its folder."""
        import shutil

        self._forget()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not read any more
                    pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def renew_after_fork(self) -> None:
        """In a forked child: lets go of the pipes, so that the worker ends with its parent."""
        self._forget()
        self._process.returncode = 0  # not for us to wait for
        # Not closed: another thread of the parent may have held their locks.
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
