"""What a compiler is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache_engine.model.fingerprint import ToolchainFingerprint


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler gave: CUBIN, PTX and its log.

    Attributes:
        shared_bytes: dynamic shared memory that a launch must ask for, where the compiler has decided that; ``None``
            where the family's template has.
    """

    cubin: bytes
    ptx: bytes
    log: bytes
    shared_bytes: int | None = None


class Compiler(Protocol):
    """Makes CUBIN from source. Needs no GPU."""

    name: str
    takes: str
    """The templates it compiles, by the suffix of their names: ``.cu`` is CUDA C++, ``.py`` Triton."""
    flags: tuple[str, ...]
    """All flags but the target; they enter the key."""

    def with_flags(self, extra: tuple[str, ...]) -> Compiler:
        """The same compiler with flags after its own, which enter the key as those do.

        Raises:
            UsageError: when it takes none.
        """
        ...

    def at_level(self, level: int) -> Compiler:
        """The same compiler, told to optimise so hard, one of ``OPT_LEVELS``; the highest is its own.

        Raises:
            UsageError: when it has no levels.
        """
        ...

    def fingerprint(self) -> ToolchainFingerprint:
        """What can change its bytes, found without loading it.

        Raises:
            CompilerMissing: when it is not installed; the text says how to get it.
        """
        ...

    def load(self) -> None:
        """Makes it ready; the first call in a process takes longest. ``compile`` does so by itself.

        Raises:
            CompilerMissing: when it cannot be loaded, or what was loaded is not what was fingerprinted.
        """
        ...

    def compile(self, source: str, arch: str) -> Compiled:
        """Compiles for one target.

        Raises:
            CompileError: with the log, when the source is refused.
        """
        ...

    def preprocess(self, source: str, arch: str) -> str | None:
        """The source as it is once preprocessed, for a debug dump; ``None`` when the compiler does not show it.

        Raises:
            CompileError: when the source is refused.
        """
        ...
