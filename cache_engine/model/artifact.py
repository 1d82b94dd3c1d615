"""The result of a compile (Artifact), and its metadata (Record)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cache_engine.model.gemm import GemmProblem, Specialisation, bucket_of
from cache_engine.model.gemm.fields import Options, chosen
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import Components
from cache_engine.settings import FAST_MATH

# Limits of numbers in files, far above any real one, so that a value that is read fits wherever it is used.
MOST_COUNT = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Ms = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
# Below zero where the clock is before 1970, as on a board without a battery; -2**31 is the year 1901.
Seconds = Annotated[float, msgspec.Meta(ge=-(2**31), le=1e12)]

MAX_WARNINGS, MAX_WARNING_LENGTH = 20, 500

CUBIN, PTX, SOURCE, LOG = "cubin", "ptx", "source", "log"
SECTIONS = (CUBIN, PTX, SOURCE, LOG)


class Resources(msgspec.Struct, frozen=True):
    """The resources that a thread or a block of a kernel uses.

    Attributes:
        registers: registers per thread.
        shared_bytes: shared memory per block, dynamic and static together, without what the system reserves.
        stack_bytes: local memory per thread for the stack.
        spill_bytes: register contents that are stored to and loaded from local memory, as ptxas counts them.
    """

    registers: Small
    shared_bytes: Count
    stack_bytes: Count
    spill_bytes: Count


class Artifact(msgspec.Struct, frozen=True):
    """The result of a compile: the compiled bytes, the texts (source, PTX, log) and the resources."""

    cubin: bytes
    ptx: bytes
    source: bytes
    log: bytes
    resources: Resources

    def section(self, name: str) -> bytes:
        """The bytes of the section with this name, one of ``SECTIONS``."""
        return {CUBIN: self.cubin, PTX: self.ptx, SOURCE: self.source, LOG: self.log}[name]


class Section(msgspec.Struct, frozen=True):
    """The position and size of a section in a blob file, and the checksum of its stored bytes."""

    offset: Count
    stored_bytes: Count
    raw_bytes: Count
    checksum: str


class Blob(msgspec.Struct, frozen=True):
    """The file of an artifact: its SHA-256 in hexadecimal, its size, and its sections by name."""

    digest: str
    stored_bytes: Count
    compressed: bool
    sections: dict[str, Section]


_SHOWN_APART = ("scales", "specialisation", "opt_level")


class RecordedProblem(Options, frozen=True):
    """A problem as plain values, so that records with dtypes or targets of a newer program can be read."""

    m: Count
    n: Count
    k: Count
    batch: Count
    dtype: str
    out_dtype: str
    layout: str

    @classmethod
    def of(cls, problem: GemmProblem) -> RecordedProblem:
        """The values of ``problem``, without its target."""
        return cls(**problem.plain(cls.__struct_fields__))

    @property
    def types(self) -> str:
        """Element types, scales, layout, and other options that change the result, as text for people."""
        scales = f" with scales {self.scales}" if self.scales else ""
        others = (f"; {each.in_words(value)}" for each, value in chosen(self) if each.name not in _SHOWN_APART)
        return f"{self.dtype} in{scales}, {self.out_dtype} out; layout {self.layout}{''.join(others)}"

    @property
    def served(self) -> str:
        """A text that says which other problems the kernel of this problem serves."""
        bucket, batch = bucket_of(max(self.m, 1)), "number of groups" if self.mode else "batch"
        words: dict[str, str] = {
            Specialisation.NK: f"n and k fixed, for every m and {batch}",
            Specialisation.EXACT: "m, n and k fixed, for every batch",
            Specialisation.BUCKETED: f"n and k fixed, for m from {bucket // 2 + 1:,} to {bucket:,}, every {batch}",
            Specialisation.DYNAMIC: "for every shape whose rows allow accesses as wide",
        }
        return words.get(self.specialisation, "what it serves is not known to this program")

    def on(self, arch: str) -> GemmProblem:
        """The problem, for the target ``arch``.

        Raises:
            InvalidProblem: when this program does not know one of its values.
        """
        return GemmProblem(**msgspec.structs.asdict(self), arch=arch)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of one artifact. In a store, the record's presence is what makes an entry exist.

    Attributes:
        key: the entry's CacheKey.
        components: the labels and values from which the key was computed.
        name: the kernel's function name.
        problem: the problem that the kernel was first compiled for. Its specialisation says which sizes are
            constants in the kernel.
        compile_ms: the milliseconds that the compiler took.
        stages_ms: the milliseconds of every stage of making the kernel, by name.
        created_at: seconds since 1970, UTC.
        created_by: the program, its version and build, such as ``gemm-cache 0.2.0+3f2a91c0d4e5``.
        warnings: notes about the code, such as register spills.
        config_from: the origin of the config at the compile: ``"given"``, ``"cost model"``, ``"tuning"`` or
            ``"measured on …"``. Empty in older records.
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
    compile_ms: Ms
    stages_ms: dict[str, Ms]
    created_at: Seconds
    created_by: str
    warnings: tuple[str, ...] = ()
    config_from: str = ""

    def __post_init__(self) -> None:
        """Sets ``problem.fast_math`` from the flags if the record is too old to state it."""
        if self.problem.fast_math:
            return
        for name, value in self.components:  # every hit comes here
            if name == "flags" and FAST_MATH in value.split():
                msgspec.structs.force_setattr(self, "problem", msgspec.structs.replace(self.problem, fast_math=True))

    def __repr__(self) -> str:
        return f"<Record {self.key[:12]}: {self.name}, {self.arch}>"

    @property
    def size_bytes(self) -> int:
        """The bytes of the compiled code."""
        return self.blob.sections[CUBIN].raw_bytes
