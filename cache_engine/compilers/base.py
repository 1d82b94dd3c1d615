"""The interface of a compiler, and the extra flags that a user may add."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, Self

import msgspec

from cache_engine.errors import UsageError
from cache_engine.model.architecture import CUDA_VERSIONS
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm import OPT_LEVELS
from cache_engine.process import Locked
from cache_engine.settings import FAST_MATH


class Cuda(msgspec.Struct, frozen=True):
    """The versions of CUDA that may compile a kernel.

    Attributes:
        versions: their major versions, best first.
        why: the reason why other versions are excluded, as a clause; empty if none is.
    """

    versions: tuple[int, ...] = CUDA_VERSIONS
    why: str = ""


class Compiled(msgspec.Struct, frozen=True):
    """The output of one compile: CUBIN, PTX, and the text that the compiler printed (log).

    Attributes:
        shared_bytes: the bytes of dynamic shared memory that a launch needs, if the compiler decides them (Triton);
            ``None`` if the family's template does.
        irs: the intermediate representations before PTX by name, such as ``ttgir``; only from a compiler
            ``with_lines``.
    """

    cubin: bytes
    ptx: bytes
    log: bytes
    shared_bytes: int | None = None
    irs: tuple[tuple[str, str], ...] = ()


class Compiler(Protocol):
    """Compiles source to CUBIN, without a GPU."""

    name: str
    takes: str
    """The suffix of the templates that the compiler takes: ``.cu`` for CUDA C++, ``.py`` for Triton."""
    flags: tuple[str, ...]
    """All flags of the compiler except the target. They are part of the key."""

    def with_flags(self, extra: tuple[str, ...]) -> Compiler:
        """The same compiler with further flags after its own. They are also part of the key.

        Raises:
            UsageError: when it accepts no further flags.
        """
        ...

    def at_level(self, level: int) -> Compiler:
        """The same compiler at an optimisation level, one of ``OPT_LEVELS``; the highest is the default.

        Raises:
            UsageError: when it has no levels.
        """
        ...

    def of_cuda(self, cuda: Cuda) -> Compiler:
        """The same compiler, from the first of these versions of CUDA that is installed."""
        ...

    def with_lines(self) -> Compiler:
        """The same compiler, with output that states the source line of each instruction.

        Use it to inspect code, never to fill a store: the CUBIN differs, and its key does not show this. The machine
        code is the same (docs/decisions/0016-lines-on-request.md); a caller that relies on this must compare it.
        """
        ...

    def fingerprint(self) -> ToolchainFingerprint:
        """A fingerprint of everything that can change the compiler's output, computed without loading the compiler.

        Raises:
            CompilerMissing: when the compiler is not installed; the text says how to get it.
        """
        ...

    def load(self) -> None:
        """Loads the compiler; the first call in a process takes longest. ``compile`` calls it.

        Raises:
            CompilerMissing: when it cannot be loaded, or the loaded file is not the one that was fingerprinted.
        """
        ...

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles ``source`` for one target.

        Raises:
            CompileError: when the compiler rejects the source; the error has the compiler's log.
        """
        ...

    def preprocess(self, source: str, arch: str) -> str | None:
        """The preprocessed source, for a debug dump; ``None`` when the compiler cannot print it.

        Raises:
            CompileError: when the compiler rejects the source.
        """
        ...


class CudaCompiler(Locked):
    """The part that NVRTC and NVCC share: both take flags, and are of a version of CUDA."""

    flags: tuple[str, ...]

    def __init__(self, flags: tuple[str, ...] | None = None, cuda: Cuda | None = None) -> None:
        """Does not search for the compiler yet."""
        super().__init__()
        if flags is not None:
            self.flags = flags
        self._cuda = cuda or Cuda()

    def with_flags(self, extra: tuple[str, ...]) -> Self:
        """The same compiler with more flags after its own; they are also part of the key."""
        return type(self)((*self.flags, *extra), self._cuda)

    def at_level(self, level: int) -> Self:
        """The same compiler at another optimisation level of ptxas, one of ``OPT_LEVELS``."""
        return type(self)(flags_at_level(self.flags, level), self._cuda)

    def of_cuda(self, cuda: Cuda) -> Self:
        """The same compiler, from the first of these versions of CUDA that is installed."""
        return self if cuda == self._cuda else type(self)(self.flags, cuda)

    def with_lines(self) -> Self:
        """The same compiler, whose output states the source line of each instruction; use it only to inspect code."""
        return self.with_flags((LINE_TABLES,))


# ---- Extra compiler flags: which are allowed ----
# The key contains the text of each flag, so a flag is allowed only if its text determines its effect. The key would not
# see the content of a file or folder that a flag names. A target contradicts the problem, a macro contradicts the
# constants, and a register limit has no effect because our kernels have launch bounds. The problem sets the
# optimisation level. NVRTC and NVCC accept every flag in the list, and none has an effect on a later compile of the
# same process.

# For NVRTC and NVCC. Not allowed as an extra flag: the CUBIN would be three to four times as large, with the same code.
LINE_TABLES = "-lineinfo"

_YES_OR_NO = "(true|false)"
# Source: NVRTC documentation, "Supported Compile Options"; NVCC documentation, "NVCC Command Options"; ptxas --help.
ALLOWED = {
    FAST_MATH: None,
    "--fmad": _YES_OR_NO,
    "--ftz": _YES_OR_NO,
    "--prec-div": _YES_OR_NO,
    "--prec-sqrt": _YES_OR_NO,
    "--extra-device-vectorization": None,
    "--disable-warnings": None,
    "--diag-suppress": "[0-9]{1,5}",
    "--ptxas-options": "(-d[ls]cm=c[agsv]|--allow-expensive-optimizations=(true|false)"
    "|--register-usage-level=(10|[0-9])|--Ofast-compile=(0|min|mid|max)|--disable-optimizer-constants|--dont-merge-basicblocks|--warn-on-spills)",
}

# Measured with NVRTC 13.5: after one compile with this flag, every later compile of the process has its effect without
# having it among its flags. So kernels were stored with other code than their key states.
_STAYS = "--restrict"

_HIGHEST = f"-O{OPT_LEVELS[-1]}"


def flags_at_level(flags: tuple[str, ...], level: int) -> tuple[str, ...]:
    """The flags of a compiler with ``level`` in place of the highest optimisation level of ptxas, its last step."""
    return tuple(f"{flag.removesuffix(_HIGHEST)}-O{level}" if flag.endswith(_HIGHEST) else flag for flag in flags)


def extra_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The extra flags from the settings, each checked against ``ALLOWED``, in the order that keys use.

    Raises:
        UsageError: when a flag is not allowed; the text names it and the allowed flags.
    """
    for flag in given:
        name, equals, value = flag.partition("=")
        pattern = ALLOWED.get(name, "")
        if name == _STAYS:
            raise UsageError(f"compiler_flags has {flag!r}; remove it: NVRTC would apply it to all later compiles too")
        if pattern == "" or bool(equals) != (pattern is not None):
            raise UsageError(f"compiler_flags has {flag!r}, which is not allowed; use: {_usage()}")
        if pattern is not None and not re.fullmatch(pattern, value):
            hint = "; set the optimisation level with --opt-level" if value.startswith("-O") else ""
            raise UsageError(f"compiler_flags has {flag!r}; its value must be of the form {pattern}{hint}")
    # Fast math first, as in keys that were made when it was a separate setting.
    return tuple(sorted(given, key=lambda flag: flag != FAST_MATH))


def _usage() -> str:
    return ", ".join(name if pattern is None else f"{name}=…" for name, pattern in ALLOWED.items())
