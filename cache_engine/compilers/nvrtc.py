"""Calls NVRTC through ctypes. It compiles for all its targets, without a GPU.

NVRTC's C interface is small. ctypes takes 10 ms to import and loads exactly the file that was fingerprinted. A Python
binding takes more than 200 ms to import and may call another library of the same name:
docs/decisions/0013-light-install.md.
Source: NVRTC documentation, "Basic API"; every call returns 0 for success.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from cache_engine.compilers.base import Compiled, Cuda, CudaCompiler
from cache_engine.compilers.contents import (
    HOW_TO_CHOOSE,
    WatchedFiles,
    check_environment_unchanged,
    digests,
    environment_of_nvrtc,
    package_files,
    toolkit_files,
)
from cache_engine.errors import CompileError, CompilerMissing
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.process import unforked

# The version of CUDA: the folder of its package, and how pip names the package.
_PACKAGES = {13: ("cu13", "nvidia-cuda-nvrtc"), 12: ("cuda_nvrtc", "'nvidia-cuda-nvrtc-cu12>=12.9'")}
# NVRTC 12.8 has neither ``--no-cache`` nor all targets. A driver for any CUDA 12 loads code that 12.9 makes.
_OLDEST = (12, 9)
_BUILTINS = r"libnvrtc-builtins\.so\.(\d{1,4})\.(\d{1,4})(\.\d{1,4}){0,4}"
"""The file name of NVRTC's companion library, with its version."""
_NO_BUILTINS = 7  # NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, from nvrtc.h
_WRONG_OPTION = 5  # NVRTC_ERROR_INVALID_OPTION, of nvrtc.h


class _Installation(msgspec.Struct, frozen=True):
    """The installed NVRTC: its files, its fingerprint, and a check that its files still have that fingerprint."""

    library: Path
    builtins: Path
    package: str
    fingerprint: ToolchainFingerprint
    files: WatchedFiles

    @property
    def companion_name(self) -> str:
        """The file name of the companion library (builtins), which NVRTC has the dynamic loader find by name."""
        return f"libnvrtc-builtins.so.{self.fingerprint.version}"

    def load(self) -> ctypes.CDLL:
        """Loads NVRTC and its companion library (builtins), the companion first, unless other code has loaded one.

        NVRTC has the dynamic loader find the companion by name, and the NVRTC of CUDA 13.0's package does not tell the
        loader that the file is in the same folder.

        Raises:
            CompilerMissing: when one cannot be loaded, or their versions differ.
        """
        try:
            if not _is_loaded(self.companion_name):
                ctypes.CDLL(str(self.builtins))
            library = ctypes.CDLL(str(self.library))
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            major, minor = ctypes.c_int(), ctypes.c_int()
            library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        except (OSError, AttributeError) as error:
            raise CompilerMissing(f"cannot load NVRTC ({error}); run: {_reinstall(self.package)}") from error
        if f"{major.value}.{minor.value}" != self.fingerprint.version:
            raise CompilerMissing(
                f"{self.library} is of CUDA {major.value}.{minor.value}, but {self.builtins.name} is next to it; run: "
                f"{_reinstall(self.package)}"
            )
        return library

    def check_unchanged(self) -> None:
        """Refuses to compile if files or environment variables have changed since fingerprinting.

        Raises:
            CompilerMissing: when one has changed, because the key would name another compiler.
        """
        self.files.check_unchanged("NVRTC")
        check_environment_unchanged()

    def check_loaded(self) -> None:
        """Checks that the loaded library is the fingerprinted file, not one that had its path before.

        For a path that is already loaded, the dynamic loader returns the old library, even if the file has changed.

        Raises:
            CompilerMissing: when an older file is loaded, because the key would not fit its output.
        """
        with open("/proc/self/maps", encoding="utf-8") as maps:
            if any(line.rstrip("\n").endswith(f" {self.library} (deleted)") for line in maps):
                raise CompilerMissing("NVRTC was replaced after this process had loaded it; restart the process")

    def check_companion(self) -> None:
        """Checks that no other code in this process has loaded a companion library from another path.

        At its first compile, NVRTC has the loader find the companion by name, and gets one that is already loaded.

        Raises:
            CompilerMissing: when one is loaded; the text names its file.
        """
        # The file of a toolkit has the whole version in its name.
        named = re.compile(rf"/{re.escape(self.companion_name)}[.\s]")
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if named.search(line)}
        others = {Path(path).resolve() for path in paths} - {self.builtins.resolve()}
        if others:
            raise CompilerMissing(f"the key names {self.builtins}, but {min(others)} was loaded; remove one of the two")


def _find_installation(cuda: Cuda) -> _Installation:
    too_old = ""
    for version in cuda.versions:
        for library in _libraries(version):
            path = library.resolve()
            package = _PACKAGES[version][1]
            builtins, number = _companion(path, version, package)
            if number < _OLDEST:
                too_old = f"; {path} is of CUDA {number[0]}.{number[1]}, and 12.9 or later is needed"
                continue
            # By content: a library patched in place still has its old build ID.
            files = WatchedFiles((path, builtins), partial(_build_of, path, builtins))
            fingerprint = ToolchainFingerprint(
                "nvrtc", f"{number[0]}.{number[1]}", files.digest, environment_of_nvrtc()
            )
            return _Installation(path, builtins, package, fingerprint, files)
    if not cuda.versions:
        raise CompilerMissing(f"no NVRTC fits, as {cuda.why}; {HOW_TO_CHOOSE}")
    how_to_get = f"{too_old}; run: pip install {_PACKAGES[cuda.versions[0]][1]}"
    if not cuda.why:
        raise CompilerMissing(f"NVRTC is not installed{how_to_get}")
    raise CompilerMissing(f"NVRTC of CUDA {cuda.versions[0]} is not installed, and {cuda.why}{how_to_get}")


def _libraries(version: int) -> Iterator[Path]:
    """The NVRTC libraries of a version of CUDA: from installed packages, from toolkits, and from the system."""
    name = f"libnvrtc.so.{version}"
    yield from package_files(f"lib/{name}", _PACKAGES[version][0])
    yield from toolkit_files(version, f"lib*/{name}")
    # Only the loader can tell where it finds a library of the system (0.15 s).
    with suppress(OSError):
        yield _path_of(ctypes.CDLL(name).nvrtcVersion)


def _is_loaded(name: str) -> bool:
    """Whether this process has loaded a library with this name."""
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _path_of(function: object) -> Path:
    """The path of the loaded library that contains a function."""
    info = (ctypes.c_char_p * 4)()  # Dl_info begins with the path
    ctypes.CDLL(None).dladdr(function, info)
    return Path(os.fsdecode(info[0] or b""))


def _companion(library: Path, version: int, package: str) -> tuple[Path, tuple[int, int]]:
    """The path of the companion library, which NVRTC loads at its first compile, and the version of both libraries."""
    found = [
        ((version, int(match[2])), library.with_name(name))
        for name in os.listdir(library.parent)
        if (match := re.fullmatch(_BUILTINS, name)) and int(match[1]) == version
    ]
    if not found:
        raise CompilerMissing(f"libnvrtc-builtins is missing next to {library}; run: {_reinstall(package)}")
    number, builtins = max(found)
    return builtins, number


def _build_of(*files: Path) -> str:
    return "+".join(each[:40] for each in digests(files))


def _reinstall(package: str) -> str:
    return f"pip install --force-reinstall --no-deps {package}"


class Nvrtc(CudaCompiler):
    """The compiler ``nvrtc``."""

    name = "nvrtc"
    takes = ".cu"
    # --minimal leaves out what GEMM kernels do not use; ptxas -v reports spills. Without --no-cache NVRTC would use the
    # driver's cache, whose code may come from another environment.
    flags: tuple[str, ...] = ("--std=c++17", "--minimal", "--no-cache", "--ptxas-options=-v", "--ptxas-options=-O3")

    def __init__(self, flags: tuple[str, ...] | None = None, cuda: Cuda | None = None) -> None:
        """Does not search for the compiler yet."""
        super().__init__(flags, cuda)
        self._found: _Installation | None = None
        self._library: ctypes.CDLL | None = None

    def fingerprint(self) -> ToolchainFingerprint:
        """The fingerprint of NVRTC: of the content of its two libraries, and of environment variables."""
        return self._installation().fingerprint

    def _installation(self) -> _Installation:
        # Two threads may both search; they find the same.
        if self._found is None:
            self._found = _find_installation(self._cuda)
        return self._found

    def load(self) -> None:
        """Loads the library that was fingerprinted; ``compile`` calls it."""
        self._loaded()

    def _loaded(self) -> ctypes.CDLL:
        with self._lock:
            if self._library is None:
                installation = self._installation()
                self._library = installation.load()
                installation.check_unchanged()
                installation.check_loaded()
            return self._library

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles ``source`` for one target; raises ``CompileError``. Other threads can run; a fork waits."""
        options = (f"-arch={arch}", *self.flags)
        with unforked(), _program(nvrtc := self._loaded(), source) as program:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            check_environment_unchanged()
            status = nvrtc.nvrtcCompileProgram(program, len(options), given)
            log = _text(nvrtc, program, "ProgramLog").rstrip(b"\0\n").decode("utf-8", "replace")
            if status == 0:
                # The first compile loads the companion library.
                self._installation().check_unchanged()
                self._installation().check_companion()
                ptx = _text(nvrtc, program, "PTX").rstrip(b"\0")
                return Compiled(_text(nvrtc, program, "CUBIN"), ptx, log.encode())
            from cache_engine.compilers.diagnostics import first_error

            if status == _NO_BUILTINS:
                package = self._installation().package
                raise CompilerMissing(f"NVRTC cannot compile ({first_error(log) or log}); run: {_reinstall(package)}")
            if status == _WRONG_OPTION and arch in ARCHITECTURES and (reason := _unsupported(nvrtc, arch)):
                installed = self._installation()
                raise CompilerMissing(
                    f"NVRTC {installed.fingerprint.version} {reason}; install another version: pip "
                    f"install --upgrade {installed.package}"
                )
            error = nvrtc.nvrtcGetErrorString(status).decode()
            raise CompileError(
                f"NVRTC rejected the source for {arch}: {first_error(log) or error}",
                log=log,
                source=source,
                flags=options,
            )

    def preprocess(self, source: str, arch: str) -> None:
        """``None``, because NVRTC cannot print preprocessed source."""


@contextmanager
def _program(nvrtc: ctypes.CDLL, source: str) -> Iterator[ctypes.c_void_p]:
    """A context manager with an NVRTC program, which is destroyed at the end of the body."""
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None),
    )
    try:
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _unsupported(nvrtc: ctypes.CDLL, arch: str) -> str:
    """The reason why NVRTC cannot compile for a target, from its own list of targets; empty if it can."""
    count = ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check(nvrtc, nvrtc.nvrtcGetSupportedArchs(known))
    if arch.removeprefix("sm_").rstrip("af") in map(str, known):
        return ""
    return f"compiles for sm_{', sm_'.join(map(str, known))}, and not for {arch}"


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """One result of an NVRTC program, as bytes: ``ProgramLog``, ``PTX`` or ``CUBIN``."""
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status != 0:
        cause = nvrtc.nvrtcGetErrorString(status).decode()
        raise CompilerMissing(f"NVRTC failed: {cause}; reinstall its package")
