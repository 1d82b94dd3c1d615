"""NVRTC, called through ctypes. Compiles for any target on a machine without a GPU.

Its C interface is small. Loading it with ctypes takes 10 ms, and loads the file that was fingerprinted. A binding takes
more than 200 ms to import and may call another library of that name: docs/decisions/0013-light-install.md.
Source: NVRTC documentation, "Basic API"; every call returns 0 for success.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.contents import WatchedFiles, digests
from cache_engine.compilers.diagnostics import first_error
from cache_engine.compilers.environment import check_environment_unchanged, environment_of_nvrtc
from cache_engine.compilers.flags import LINE_TABLES, flags_at_level
from cache_engine.compilers.tools import package_files
from cache_engine.errors import CompileError, CompilerMissing
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import renew_after_fork


@dataclass(frozen=True, slots=True)
class _Installation:
    """The installed NVRTC: its files, its fingerprint, and a check that the files have not changed since."""

    library: Path
    builtins: Path
    fingerprint: ToolchainFingerprint
    files: WatchedFiles

    def check_unchanged(self) -> None:
        """Refuses files or variables that have changed since.

        Raises:
            CompilerMissing: because the kernel would be stored under the key of another compiler.
        """
        self.files.check_unchanged("NVRTC")
        check_environment_unchanged()

    def check_loaded(self) -> None:
        """Refuses a library that other code in this process loaded from this path before the file was replaced.

        The dynamic loader returns the library already loaded for a path, even if the file has changed.

        Raises:
            CompilerMissing: because that library is not the one that was fingerprinted.
        """
        with open("/proc/self/maps", encoding="utf-8") as maps:
            if any(line.rstrip("\n").endswith(f" {self.library} (deleted)") for line in maps):
                raise CompilerMissing("NVRTC was replaced after this process had loaded it; restart the process")

    def check_companion(self) -> None:
        """Refuses a companion library that other code in this process has loaded from another path.

        At its first compile NVRTC asks the loader for the companion by name, and gets one that is already loaded.

        Raises:
            CompilerMissing: naming the other file.
        """
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if f"/{self.builtins.name}" in line}
        others = {Path(path).resolve() for path in paths} - {self.builtins.resolve()}
        if others:
            raise CompilerMissing(f"the key names {self.builtins}, but {min(others)} was loaded; remove one of the two")


def _find_installation() -> _Installation:
    library = _find_library()
    companions = sorted(library.parent.glob("libnvrtc-builtins.so.*"))
    if not companions:
        raise CompilerMissing(f"libnvrtc-builtins is missing next to {library.name}; reinstall nvidia-cuda-nvrtc")
    builtins = companions[-1]
    # By content: a library patched in place still has its old build ID.
    files = WatchedFiles((library, builtins), lambda: "+".join(each[:40] for each in digests((library, builtins))))
    version = re.search(r"\.so\.(\d+\.\d+)", builtins.name)
    fingerprint = ToolchainFingerprint(
        "nvrtc", version[1] if version else "unknown", files.digest, environment_of_nvrtc()
    )
    return _Installation(library, builtins, fingerprint, files)


def _find_library() -> Path:
    for path in package_files("lib/libnvrtc.so.*"):
        return path.resolve()
    # No package: NVIDIA's own search finds the system's library. It has to load it for that (0.15 s).
    try:
        from cuda import pathfinder

        return Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path or "").resolve(strict=True)
    except Exception as error:  # the search raises errors of many types; each means: not found
        raise CompilerMissing("NVRTC is not installed; run: pip install nvidia-cuda-nvrtc") from error


class Nvrtc:
    """The ``nvrtc`` compiler."""

    name = "nvrtc"
    takes = ".cu"
    # --minimal leaves out what GEMM kernels do not use; ptxas -v reports spills. Without --no-cache NVRTC would use the
    # driver's cache, whose code may come from another environment.
    flags: tuple[str, ...] = ("--std=c++17", "--minimal", "--no-cache", "--ptxas-options=-v", "--ptxas-options=-O3")

    def __init__(self) -> None:
        """Does not search for the compiler yet."""
        self._found: _Installation | None = None
        self._library: ctypes.CDLL | None = None
        self._loading = Lock()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._loading = Lock()

    def with_flags(self, extra: tuple[str, ...]) -> Nvrtc:
        """The same compiler with more flags; see ``Compiler.with_flags``."""
        other = Nvrtc()
        other.flags = (*self.flags, *extra)
        return other

    def at_level(self, level: int) -> Nvrtc:
        """The same compiler at another level of ptxas; see ``Compiler.at_level``."""
        other = Nvrtc()
        other.flags = flags_at_level(self.flags, level)
        return other

    def with_lines(self) -> Nvrtc:
        """The same compiler with line tables; see ``Compiler.with_lines``."""
        return self.with_flags((LINE_TABLES,))

    def fingerprint(self) -> ToolchainFingerprint:
        """The content of the library and of its companion, and the environment; see ``Compiler.fingerprint``."""
        return self._installation().fingerprint

    def _installation(self) -> _Installation:
        # Two threads may both look; they find the same.
        if self._found is None:
            self._found = _find_installation()
        return self._found

    def load(self) -> None:
        """Loads the library that was fingerprinted; see ``Compiler.load``."""
        self._loaded()

    def _loaded(self) -> ctypes.CDLL:
        with self._loading:
            if self._library is None:
                installation = self._installation()
                try:
                    library = ctypes.CDLL(str(installation.library))
                    library.nvrtcGetErrorString.restype = ctypes.c_char_p
                except (OSError, AttributeError) as error:
                    raise CompilerMissing(
                        f"cannot load NVRTC ({error}); run: pip install --force-reinstall nvidia-cuda-nvrtc"
                    ) from error
                installation.check_unchanged()
                installation.check_loaded()
                self._library = library
            return self._library

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles for one target; see ``Compiler.compile``. Other threads run meanwhile."""
        nvrtc = self._loaded()
        options = (f"-arch={arch}", *self.flags)
        with _program(nvrtc, source) as program:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            check_environment_unchanged()
            status = nvrtc.nvrtcCompileProgram(program, len(options), given)
            log = _text(nvrtc, program, "ProgramLog").rstrip(b"\0\n").decode("utf-8", "replace")
            if status != 0:
                error = nvrtc.nvrtcGetErrorString(status).decode()
                raise CompileError(
                    f"NVRTC rejected the source for {arch}: {first_error(log) or error}",
                    log=log,
                    source=source,
                    flags=options,
                )
            # The first compile loads the companion library.
            self._installation().check_unchanged()
            self._installation().check_companion()
            ptx = _text(nvrtc, program, "PTX").rstrip(b"\0")
            return Compiled(_text(nvrtc, program, "CUBIN"), ptx, log.encode())

    def preprocess(self, source: str, arch: str) -> None:
        """``None``: NVRTC cannot print preprocessed source; see ``Compiler.preprocess``."""


@contextmanager
def _program(nvrtc: ctypes.CDLL, source: str) -> Iterator[ctypes.c_void_p]:
    """An NVRTC program for the length of the body."""
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None),
    )
    try:
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """The bytes of one result of a program: ``ProgramLog``, ``PTX`` or ``CUBIN``."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status != 0:
        cause = nvrtc.nvrtcGetErrorString(status).decode()
        raise CompilerMissing(f"NVRTC failed: {cause}; reinstall nvidia-cuda-nvrtc")
