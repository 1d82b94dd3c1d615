"""The interface of a compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache_engine.model.architecture import CUDA_VERSIONS
from cache_engine.model.fingerprint import ToolchainFingerprint


@dataclass(frozen=True, slots=True)
class Cuda:
    """The major versions of CUDA that may compile.

    Attributes:
        versions: the best first.
        why: what excludes the others, as a clause; empty where nothing does.
    """

    versions: tuple[int, ...] = CUDA_VERSIONS
    why: str = ""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The output of a compile: CUBIN, PTX and log.

    Attributes:
        shared_bytes: dynamic shared memory of a launch, where the compiler decides it (Triton); ``None`` where the
            family's template decides it.
        irs: what a compiler ``with_lines`` makes on the way to PTX, by name, such as ``ttgir``.
    """

    cubin: bytes
    ptx: bytes
    log: bytes
    shared_bytes: int | None = None
    irs: tuple[tuple[str, str], ...] = ()


class Compiler(Protocol):
    """Compiles source to CUBIN. Needs no GPU."""

    name: str
    takes: str
    """The templates it compiles, by the suffix of their names: ``.cu`` is CUDA C++, ``.py`` Triton."""
    flags: tuple[str, ...]
    """All flags except the target. They are part of the key."""

    def with_flags(self, extra: tuple[str, ...]) -> Compiler:
        """The same compiler with flags after its own. They are part of the key too.

        Raises:
            UsageError: when it accepts none.
        """
        ...

    def at_level(self, level: int) -> Compiler:
        """The same compiler at an optimisation level, one of ``OPT_LEVELS``; the highest is the default.

        Raises:
            UsageError: when it has no levels.
        """
        ...

    def of_cuda(self, cuda: Cuda) -> Compiler:
        """The same compiler, of the first of these versions of CUDA that is installed."""
        ...

    def with_lines(self) -> Compiler:
        """The same compiler, whose output states which line of the source each instruction comes from.

        To look at code with, never to fill a store: the CUBIN is another one, and its key does not say so. The machine
        code is the same (docs/decisions/0016-lines-on-request.md); who relies on it compares.
        """
        ...

    def fingerprint(self) -> ToolchainFingerprint:
        """Everything that can change its output, found without loading it.

        Raises:
            CompilerMissing: when it is not installed; the text says how to get it.
        """
        ...

    def load(self) -> None:
        """Loads the compiler; the first call in a process takes longest. ``compile`` calls it.

        Raises:
            CompilerMissing: when it cannot be loaded, or the loaded file is not the one that was fingerprinted.
        """
        ...

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles for one target.

        Raises:
            CompileError: with the log, when the compiler rejects the source.
        """
        ...

    def preprocess(self, source: str, arch: str) -> str | None:
        """The preprocessed source, for a debug dump; ``None`` when the compiler cannot print it.

        Raises:
            CompileError: when the compiler rejects the source.
        """
        ...
