"""Every error this package raises on purpose.

::

    GemmCacheError                 one base; its text says what happened, to what, and what to do next
    ├── UsageError                 the request is invalid: fix it and ask again
    │   ├── InvalidProblem         a size, dtype, layout or architecture that is not supported
    │   ├── InvalidHardware        an invalid or unknown accelerator description
    │   └── InfeasibleConfig       a kernel config that breaks a limit of its target
    ├── CompileError               the compiler rejected the source; carries its log, the source and the flags
    ├── NotCached                  no tier has the kernel, and compiling is switched off
    ├── TooManyJobs                the limit of running jobs is reached
    ├── SearchStopped              an evaluator's search was ended before its end
    ├── NotPermitted               the dashboard does this only with the admin token or a login
    ├── NotHereError               something this machine lacks
    │   ├── CompilerMissing        the compiler is not installed
    │   ├── ExtraMissing           an optional package is not installed
    │   ├── ToolMissing            an inspection tool (disassembler) is not installed
    │   └── GpuRequired            launching and timing need a GPU
    ├── OutOfDeviceMemory          the GPU has less memory free than was asked for
    ├── StoreError                 the store on disk
    │   ├── StoreUnusable          not a store, owned by someone else, not writable, or of an unknown version
    │   ├── PackUnusable           not a pack, damaged, owned by someone else, or of an unknown version
    │   ├── CorruptEntry           bytes that do not match their checksum or their key
    │   │   ├── Truncated          fewer bytes than there should be
    │   │   ├── Misplaced          intact bytes, but of another entry
    │   │   ├── Unproved           an entry of a pack that no trusted signer signed
    │   │   └── Untrusted          a file or folder that anyone but you and root can change
    │   ├── LockTimeout            a lock was not free in time
    │   └── KeyNotFound            no entry has this key, or a prefix names several
    ├── RemoteError                a remote cannot be reached, or does not answer in time
    └── IndexUnavailable           the DuckDB index cannot be read or written now
        └── IndexDamaged           its file is damaged, or of another version; a rebuild helps

Each has a level (``Level``). A warning is never raised: it goes with the result.
"""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar  # importing typing takes longer than this module


class Level(StrEnum):
    """The scope of an error: it affects one result, one request, or every request of this kind."""

    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class GemmCacheError(Exception):
    """Base of all errors raised on purpose by ``cache_engine``."""

    level: ClassVar[Level] = Level.ERROR


class UsageError(GemmCacheError):
    """The request is invalid."""


class InvalidProblem(UsageError):
    """A problem outside what is supported; the text names what is allowed."""


class InvalidHardware(UsageError):
    """An invalid description of an accelerator; the text names the field."""


class InfeasibleConfig(UsageError):
    """A kernel config that breaks a limit; the text names the limit and by how much it is broken."""


class CompileError(GemmCacheError):
    """The compiler rejected the source.

    Attributes:
        log: what the compiler printed.
        source: the source text that was compiled.
        flags: the flags of the compilation.
        command: the command line that reproduces it; empty if the request is unknown.
    """

    def __init__(self, message: str, *, log: str, source: str, flags: tuple[str, ...], command: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.log = log
        self.source = source
        self.flags = flags


class NotCached(GemmCacheError):
    """No tier has the kernel, and compiling is switched off (``enable_jit``)."""


class TooManyJobs(GemmCacheError):
    """The limit of running jobs on the store is reached; the text says what to do."""


class SearchStopped(GemmCacheError):
    """The caller stopped a search; the text says how far it got."""


class NotPermitted(GemmCacheError):
    """The visitor of the dashboard may not do this; the text says what is missing, such as a login."""


class NotHereError(GemmCacheError):
    """The machine lacks something that the request needs."""

    level = Level.FATAL


class CompilerMissing(NotHereError):
    """The requested compiler is not installed."""


class ExtraMissing(NotHereError):
    """An optional package is not installed; the text has the command that installs it."""


class ToolMissing(NotHereError):
    """The requested inspection tool is not installed."""


class GpuRequired(NotHereError):
    """Launching or timing needs a usable GPU, and there is none."""


class OutOfDeviceMemory(GemmCacheError):
    """The GPU, or the limit set for the pool, has less memory left than was asked for; the text says how much."""


class StoreError(GemmCacheError):
    """A problem of the store on disk."""


class StoreUnusable(StoreError):
    """The directory cannot be a store; the text says why and what to do."""

    level = Level.FATAL


class PackUnusable(StoreError):
    """The file cannot be used as a pack; the text says why."""


class CorruptEntry(StoreError):
    """Stored bytes do not match their checksum, their digest or their key."""


class Truncated(CorruptEntry):
    """There are fewer bytes than recorded."""


class Misplaced(CorruptEntry):
    """The bytes are those of another entry: files were swapped or renamed."""


class Untrusted(CorruptEntry):
    """Users other than you and root can change the file, or a folder above it; the text says which and who."""


class Unproved(CorruptEntry):
    """An entry of a pack that is not signed by a trusted signer; the text names the signer, if there is one."""


class LockTimeout(StoreError):
    """Another process held a lock for longer than the allowed wait."""


class KeyNotFound(StoreError):
    """No entry has the key, or a key prefix fits several entries."""


class RemoteError(GemmCacheError):
    """A remote cannot be reached, does not answer in time, or refuses; the text names the request."""


class IndexUnavailable(GemmCacheError):
    """The DuckDB index is unavailable; the files remain the source of truth."""


class IndexDamaged(IndexUnavailable):
    """The file of the index is damaged, or of another version; ``store sync --rebuild`` creates it again."""


_OLD = {"MirrorError": "IndexUnavailable", "MirrorDamaged": "IndexDamaged"}


def __getattr__(name: str) -> type[GemmCacheError]:
    """The class that had this name in version 0.2, with a warning. Version 0.4 removes these old names."""
    if name not in _OLD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warnings import warn

    warn(f"import {_OLD[name]} from {__name__}; {name} goes with 0.4", DeprecationWarning, stacklevel=2)
    found: type[GemmCacheError] = globals()[_OLD[name]]
    return found
