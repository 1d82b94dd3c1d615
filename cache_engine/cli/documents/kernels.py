"""Documents about kernels: one that was requested, timed or looked up, and a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cache_engine.cache.stages import LOAD
from cache_engine.cli.documents import filled
from cache_engine.cli.documents.caches import AdaptedList, AdaptedRow
from cache_engine.cli.documents.comparing import Explained
from cache_engine.insight.toolchains import TimingRow, timing_row
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm.fields import Options
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import Measurement
from cache_engine.model.outcome import Failure, in_json
from cache_engine.store.codec import stored_bytes

if TYPE_CHECKING:
    from cache_engine.cache.cache import CompiledKernel
    from cache_engine.gpu.memory_pool import PoolStatistics
    from cache_engine.gpu.timer import Timing
    from cache_engine.insight.inspection import Inspection

# What a page draws may be read from a job's file, where any number can stand.
Amount = Annotated[float, Meta(ge=0, lt=1e15)]
Count = Annotated[int, Meta(ge=0, lt=10**15)]


class Compiled(msgspec.Struct, kw_only=True):
    """What ``compile`` prints.

    Attributes:
        compile_ms: what compiling took when the kernel was made, now or before.
        load_ms: what the lookup took.
        stored_bytes: blob and record on disk.
        toolchain_from: what names the toolchain in its key: ``installed``, ``pack NAME`` or ``store``.
        unpublished: why it is not stored; empty when it is.
        stands_in_for: the key of the kernel that was asked for, where another serves; else empty.
        behind_failure: why that could not be compiled; empty while it may be.
        why: of a job, why the kernel was missed; ``None`` after a hit.
    """

    key: str
    tier: str
    name: str
    arch: str
    compiler: str
    family: str
    config: KernelConfig
    specialisation: str
    opt_level: int
    config_from: str
    toolchain_from: str = "installed"
    compile_ms: Amount
    load_ms: Amount
    stages_ms: dict[str, float]
    size_bytes: Count
    stored_bytes: Count
    registers: Count
    shared_bytes: Count
    stack_bytes: Count
    spill_bytes: Count
    unpublished: str
    warnings: list[str]
    stands_in_for: str = ""
    behind_failure: str = ""
    why: Explained | UnsetType | None = UNSET


class DeviceMemory(msgspec.Struct, kw_only=True):
    """What a pool of device memory holds and has done; see ``PoolStatistics``."""

    allocated_bytes: int
    in_use_bytes: int
    cached_blocks: int
    peak_bytes: int
    allocations: int
    failures: int
    limit_bytes: int | None
    cached_bytes: int
    fragmentation: float


class Timed(msgspec.Struct, kw_only=True):
    """What ``time`` prints; see ``Timing`` for what is measured.

    Attributes:
        device: the name of the GPU.
        unkept: why the timing is not stored; empty when it is.
        why: of a job, why the kernel was missed; ``None`` after a hit.
    """

    key: str
    device: str
    median_us: Amount
    p10_us: Amount
    p90_us: Amount
    repeats: Count
    tflops: Amount
    max_rel_error: float | None
    verified: bool
    seed: int
    reference: str | None
    no_reference: str
    reference_median_us: Amount | None
    speed_ratio: Amount | None
    sm_clock_mhz: int | None
    sm_clock_before_mhz: int | None
    device_fingerprint: DeviceFingerprint
    unkept: str
    kernel: Compiled
    device_memory: DeviceMemory | UnsetType = UNSET
    why: Explained | UnsetType | None = UNSET


class KernelRow(Options, frozen=True):
    """A kernel in a list; times are seconds since 1970."""

    key: str
    name: str
    family: str
    compiler: str
    compiler_version: str
    toolchain: str
    key_schema: str
    template: str
    flags: str
    arch: str
    dtype: str
    out_dtype: str
    layout: str
    m: int
    n: int
    k: int
    batch: int
    config: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    size_bytes: int
    stored_bytes: int
    compile_ms: float
    created_at: float
    created_by: str
    memory_hits: int
    pack_hits: int
    disk_hits: int
    remote_hits: int
    hits: int
    last_used_at: float


class KernelList(msgspec.Struct, kw_only=True):
    """What ``ls`` and ``search`` print: one page of ``total`` kernels, and of the kernels of other frameworks."""

    total: int
    offset: int
    rows: list[KernelRow]
    adapted: AdaptedList


class Text(msgspec.Struct, kw_only=True):
    """What ``show`` prints with one of ``--source``, ``--ptx``, ``--sass`` and ``--log``."""

    key: str
    source: str | UnsetType = UNSET
    ptx: str | UnsetType = UNSET
    sass: str | UnsetType = UNSET
    log: str | UnsetType = UNSET


class Instructions(msgspec.Struct, kw_only=True):
    """Instructions in the code, by class and by opcode, each counted once."""

    total: int
    classes: dict[str, int]
    opcodes: dict[str, int]


class Resident(msgspec.Struct, kw_only=True):
    """The theoretical occupancy; see ``Occupancy``."""

    arch: str
    warps_per_block: int
    most_warps_per_sm: int
    block_limits: dict[str, int]
    blocks_per_sm: int
    warps_per_sm: int
    share: float
    bound_by: Sequence[str]


class Shown(msgspec.Struct, kw_only=True):
    """What ``show`` prints; without ``instructions`` and what follows it, what a record alone says.

    Attributes:
        problem: the first problem that the kernel was compiled for.
        components: what the key was hashed from.
        notes: why something is missing, in words.
        timings: newest first.
        signature: who signed it, in words, and whether that counts; empty where it has none and needs none.
        fusion_saves_bytes: that a launch of that problem need not move as the kernel applies the epilogue.
    """

    key: str
    name: str
    arch: str
    compiler: str
    family: str
    config: KernelConfig
    specialisation: str
    opt_level: int
    compiler_version: str
    problem: RecordedProblem
    size_bytes: int
    stored_bytes: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    compile_ms: float
    stages_ms: dict[str, float]
    created_at: float
    created_by: str
    components: dict[str, str]
    warnings: Sequence[str]
    config_from: str
    instructions: Instructions | UnsetType | None = UNSET
    occupancy: Resident | UnsetType | None = UNSET
    notes: list[str] | UnsetType = UNSET
    timings: list[TimingRow] | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    fusion_saves_bytes: int | UnsetType | None = UNSET


# ---- From the engine's values ----


def compiled(kernel: CompiledKernel) -> Compiled:
    """The document of a kernel that was requested."""
    return filled(
        Compiled,
        kernel,
        kernel.record,
        kernel.record.problem,
        kernel.record.resources,
        load_ms=kernel.stages_ms.get(LOAD, 0.0),
        stored_bytes=stored_bytes(kernel.record),
        unpublished=in_json(kernel.unpublished),
        warnings=list(kernel.record.warnings),
        stands_in_for=kernel.better.key if kernel.better else "",
        behind_failure=in_json(kernel.better.failure if kernel.better else None),
    )


def timed(
    kernel: CompiledKernel, timing: Timing, unkept: Failure | None = None, memory: PoolStatistics | None = None
) -> Timed:
    """The document of a timing; ``memory`` is what the pool held at the end."""
    return filled(
        Timed,
        kernel,
        timing,
        device=timing.device.name,
        device_fingerprint=timing.device,
        unkept=in_json(unkept),
        kernel=compiled(kernel),
        device_memory=UNSET if memory is None else filled(DeviceMemory, memory),
    )


def kernel_list(
    total: int, offset: int, rows: Sequence[Mapping[str, Any]], others: int, other_rows: Sequence[Mapping[str, Any]]
) -> KernelList:
    """The document of one page of a list, from rows of the mirror."""
    adapted = AdaptedList(total=others, rows=msgspec.convert(other_rows, list[AdaptedRow]))
    return KernelList(total=total, offset=offset, rows=msgspec.convert(rows, list[KernelRow]), adapted=adapted)


def shown(stored: Record, inspection: Inspection | None = None, timings: Sequence[Measurement] | None = None) -> Shown:
    """The document of a record, with what an inspection and timings add."""
    document = filled(
        Shown, stored, stored.problem, stored.resources, stored_bytes=stored_bytes(stored),
        components=dict(stored.components),
    )  # fmt: skip
    if inspection is not None:
        mix, resident = inspection.instructions, inspection.occupancy
        document.instructions = None if mix is None else filled(Instructions, mix)
        document.occupancy = None if resident is None else filled(Resident, resident)
        document.notes = list(inspection.notes)
        document.fusion_saves_bytes = inspection.fusion_saves_bytes
    if timings is not None:
        document.timings = [timing_row(timing) for timing in timings]
    return document
