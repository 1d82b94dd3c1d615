"""What a compile makes (Artifact), and what is kept about it (Record)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import Components

CUBIN, PTX, SOURCE, LOG = "cubin", "ptx", "source", "log"
SECTIONS = (CUBIN, PTX, SOURCE, LOG)


class Resources(msgspec.Struct, frozen=True):
    """What one thread or block of the kernel takes.

    Attributes:
        registers: per thread.
        shared_bytes: per block, dynamic and static together, without what the system reserves.
        stack_bytes: per thread, in local memory.
        spill_bytes: register contents stored to and loaded from local memory, as ptxas counts them.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled bytes and all that was seen while making them."""

    cubin: bytes
    ptx: bytes
    source: bytes
    log: bytes
    resources: Resources

    def section(self, name: str) -> bytes:
        """The bytes kept under one of ``SECTIONS``."""
        return {CUBIN: self.cubin, PTX: self.ptx, SOURCE: self.source, LOG: self.log}[name]


class Section(msgspec.Struct, frozen=True):
    """Where a part of a blob lies, and the SHA-256 (hex) of its stored bytes."""

    offset: int
    stored_bytes: int
    raw_bytes: int
    digest: str


class Blob(msgspec.Struct, frozen=True):
    """The file that holds an artifact: SHA-256 (hex) of all of it, its size, and its parts by name."""

    digest: str
    stored_bytes: int
    compressed: bool
    sections: dict[str, Section]


class RecordedProblem(msgspec.Struct, frozen=True):
    """A problem as plain values, so that a record of a program that knows more dtypes or targets can still be read."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    layout: str

    @classmethod
    def of(cls, problem: GemmProblem) -> RecordedProblem:
        """The values of ``problem``, without its target."""
        p = problem
        return cls(p.m, p.n, p.k, p.batch, p.dtype.value, p.output.value, p.layout.value)

    def on(self, arch: str) -> GemmProblem:
        """The problem on a target.

        Raises:
            InvalidProblem: when this program does not know one of its values.
        """
        return GemmProblem(
            self.m,
            self.n,
            self.k,
            self.batch,
            dtype=self.dtype,  # type: ignore[arg-type]  # text is checked and converted
            out_dtype=self.out_dtype,  # type: ignore[arg-type]
            layout=self.layout,  # type: ignore[arg-type]
            arch=arch,
        )


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of one artifact. In a store, the record's presence is what makes an entry exist.

    Attributes:
        key: the entry's CacheKey.
        components: what the key was hashed from.
        name: the kernel's function name.
        problem: the problem it was first compiled for. n and k are fixed in the kernel, m and the batch are not.
        compile_ms: time the compiler took.
        stages_ms: every stage of making it, by name.
        created_at: seconds since 1970, UTC.
        created_by: the program and its version.
    """

    key: str
    components: Components
    name: str
    family: str
    compiler: str
    compiler_version: str
    arch: str
    problem: RecordedProblem
    config: KernelConfig
    resources: Resources
    blob: Blob
    compile_ms: float
    stages_ms: dict[str, float]
    created_at: float
    created_by: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the compiled code."""
        return self.blob.sections[CUBIN].raw_bytes
