"""NVRTC, through CuPy's binding of it. Compiles for any target on a machine without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.elf import build_id, missing_bytes
from cache_engine.compilers.tools import package_files
from cache_engine.errors import CompileError, CompilerMissing
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import renew_after_fork


@dataclass(frozen=True, slots=True)
class _Installation:
    """NVRTC as it was found: its fingerprint, and what tells whether the files are still those fingerprinted."""

    library: Path
    builtins: Path
    fingerprint: ToolchainFingerprint
    identities: tuple[tuple[int, ...], ...]

    def check_unchanged(self) -> None:
        """Refuses files replaced since, as by an upgrade under a running process.

        Raises:
            CompilerMissing: then a kernel would be kept under the key of another compiler.
        """
        if _identities(self.library, self.builtins) != self.identities:
            raise CompilerMissing("NVRTC was replaced while this process ran; start it again")


def _find_installation() -> _Installation:
    library = _find_library()
    companions = sorted(library.parent.glob("libnvrtc-builtins.so.*"))
    if not companions:
        raise CompilerMissing(f"{library.name} lacks libnvrtc-builtins beside it; reinstall nvidia-cuda-nvrtc")
    builtins = companions[-1]
    identities = _identities(library, builtins)
    digest = hashlib.blake2b(builtins.read_bytes(), digest_size=10).hexdigest()
    identity = build_id(library) or hashlib.blake2b(library.read_bytes(), digest_size=20).hexdigest()
    version = re.search(r"\.so\.(\d+\.\d+)", builtins.name)
    fingerprint = ToolchainFingerprint("nvrtc", version[1] if version else "unknown", f"{identity}+{digest}")
    return _Installation(library, builtins, fingerprint, identities)


def _find_library() -> Path:
    for path in package_files("lib/libnvrtc.so.*"):
        return path.resolve()
    # No package: let NVIDIA's own search find the system's. It has to load the library to tell (0.15 s).
    try:
        from cuda import pathfinder

        return Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path or "").resolve(strict=True)
    except Exception as error:  # the search raises errors of many kinds; each means: not found
        raise CompilerMissing("NVRTC is not installed; run: pip install nvidia-cuda-nvrtc") from error


def _identities(*paths: Path) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in (path.stat() for path in paths))
    except FileNotFoundError as error:
        raise CompilerMissing(f"{error.filename} has gone; reinstall nvidia-cuda-nvrtc and start again") from error


class Nvrtc:
    """The ``nvrtc`` compiler."""

    name = "nvrtc"
    takes = ".cu"
    # --minimal leaves out what GEMM kernels do not use and saves a third of the time; ptxas -v reports spills.
    flags: tuple[str, ...] = ("--std=c++17", "--minimal", "--ptxas-options=-v")

    def __init__(self) -> None:
        """Looks for nothing yet."""
        self._found: _Installation | None = None
        self._binding: Any = None
        self._loading = Lock()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._loading = Lock()

    def fingerprint(self) -> ToolchainFingerprint:
        """The library's build ID and the content of its companion; see ``Compiler.fingerprint``."""
        return self._installation().fingerprint

    def _installation(self) -> _Installation:
        # Two threads may both look; they find the same.
        if self._found is None:
            self._found = _find_installation()
        return self._found

    def load(self) -> None:
        """Loads the library that was fingerprinted, then CuPy's binding; see ``Compiler.load``."""
        with self._loading:
            if self._binding is not None:
                return
            installation = self._installation()
            library = installation.library
            try:
                # Loaded by path first, so that the binding finds this one and no other.
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
                from cupy.cuda import nvrtc
            except (OSError, ImportError) as error:
                raise CompilerMissing(f"NVRTC cannot be loaded ({error}); run: pip install cupy-cuda13x") from error
            nvrtc.getVersion()  # makes the binding resolve its library
            strangers = _loaded_libraries() - {library}
            if strangers:
                raise CompilerMissing(
                    f"{min(strangers)} was loaded where the key names {library}; remove one of the two"
                )
            installation.check_unchanged()
            self._binding = nvrtc

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles for one target; see ``Compiler.compile``. Other threads run meanwhile."""
        self.load()
        nvrtc = self._binding
        options = (f"-arch={arch}", *self.flags)
        program = nvrtc.createProgram(source, "kernel.cu", (), ())
        try:
            try:
                nvrtc.compileProgram(program, options)
            except nvrtc.NVRTCError as error:
                log = nvrtc.getProgramLog(program).rstrip("\0\n")
                raise CompileError(
                    f"NVRTC refused the source for {arch}: {_first_error(log) or error}",
                    log=log,
                    source=source,
                    flags=options,
                ) from error
            # The companion library is loaded by the first compile.
            self._installation().check_unchanged()
            log = nvrtc.getProgramLog(program).rstrip("\0\n")
            return Compiled(_whole(nvrtc.getCUBIN(program)), nvrtc.getPTX(program).rstrip(b"\0"), log.encode())
        finally:
            nvrtc.destroyProgram(program)


def _whole(cubin: bytes) -> bytes:
    # CuPy 14.2 cuts the last byte off a CUBIN, as it does the closing NUL off PTX. It is a zero (the high byte of a
    # program header's alignment), but without it the disassemblers refuse the image.
    missing = missing_bytes(cubin)
    if missing > 1:
        raise ValueError(f"NVRTC gave a CUBIN that lacks {missing} bytes")
    return cubin + b"\0" * missing


def _first_error(log: str) -> str | None:
    return next((line.strip() for line in log.splitlines() if "error" in line), None)


def _loaded_libraries() -> set[Path]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libnvrtc.so" in line}
    return {Path(path).resolve() for path in paths}
