"""The results of jobs: the documents that ``compile``, ``time``, ``warm`` and ``tune`` print, and the dashboard reads.

Fields are only ever added. Any number can stand in a job's file, so those that a page draws are bounded.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig

Amount = Annotated[float, Meta(ge=0, lt=1e15)]
Count = Annotated[int, Meta(ge=0, lt=10**15)]


class Difference(msgspec.Struct, kw_only=True):
    """A key component in which the nearest entry differs.

    Attributes:
        there, here: its value in the nearest entry, and in the request; ``None`` where it has no such component.
        follows: whether it differs only because another component does.
        text: the difference in words.
    """

    component: str
    there: str | int | float | None
    here: str | int | float | None
    follows: bool
    text: str


class Nearest(msgspec.Struct, kw_only=True):
    """The entry whose key differs least from the one requested."""

    key: str
    name: str
    differences: list[Difference]


class Explained(msgspec.Struct, kw_only=True):
    """What ``explain`` prints.

    Attributes:
        tier: which tier has the entry; ``None`` after a miss.
        toolchain_from: what names the toolchain in the key: ``installed``, ``pack NAME`` or ``store``.
        compared: how many entries were compared with the request.
        notes: what else explains the miss, in words.
    """

    hit: bool
    tier: str | None
    key: str
    name: str
    arch: str
    compiler: str
    family: str
    config: KernelConfig
    config_from: str
    toolchain_from: str = "installed"
    specialisation: str
    opt_level: int
    compared: int
    nearest: Nearest | None
    notes: list[str]


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


class CandidateRow(msgspec.Struct, kw_only=True):
    """A config that ``tune`` times; the fields from ``median_us`` on are missing in a dry run.

    Attributes:
        tier: which tier has its kernel; ``None`` when it must be compiled.
        ratio: the measured time over the predicted one.
        trouble: why it cannot be chosen; empty when it can.
    """

    key: str
    family: str
    compiler: str
    config: KernelConfig
    config_text: str
    tier: str | None
    predicted_cycles: float
    predicted_us: float
    median_us: float | UnsetType | None = UNSET
    ratio: float | UnsetType | None = UNSET
    tflops: float | UnsetType | None = UNSET
    verified: bool | UnsetType = UNSET
    trouble: str | UnsetType = UNSET


class Chosen(msgspec.Struct, kw_only=True):
    """The config that serves the problem."""

    key: str
    family: str
    compiler: str
    config: KernelConfig
    config_text: str
    config_from: str


class Tuning(msgspec.Struct, kw_only=True):
    """What ``tune`` prints; ``device`` is ``None`` without a GPU.

    Attributes:
        estimated_seconds: how long compiling the configs without a kernel takes, predicted at the start; what the
            prediction is made from and its error are as of ``Warmed``.
    """

    dry_run: bool
    problem: GemmProblem
    device: str | None
    clock_mhz: float
    candidates: list[CandidateRow]
    chosen: Chosen
    failed: int
    seconds: float
    estimated_seconds: float = 0.0
    estimated_error: float | None = None
    estimated_by: str = ""


class FailedProblem(msgspec.Struct, kw_only=True):
    """A problem without a stored kernel, and why."""

    problem: str
    error: str


class ServedSizes(msgspec.Struct, kw_only=True):
    """Sizes of m: from ``first`` to ``last`` in steps."""

    first: int
    last: int
    step: int


class NeededKernel(msgspec.Struct, kw_only=True):
    """A kernel that a warm-up needs, the sizes of m that it serves, and whether it is in the store."""

    key: str
    problem: str
    m: list[ServedSizes]
    family: str
    compiler: str
    config_text: str
    config_from: str
    stored: bool


class Warmed(msgspec.Struct, kw_only=True):
    """What ``warm`` prints: problems requested, kernels that serve them, and what became of the kernels.

    Attributes:
        missing: kernels that were not in the store at the start.
        estimated_seconds: how long compiling them takes, predicted.
        estimated_from: how many records of the store that is drawn from; with 0, from published figures.
        estimated_error: the median error of predicting one compile, as a share; ``None`` with fewer than ten records.
        estimated_by: what it is predicted from, in words; empty when nothing is missing.
        loaded: kernels that the GPU's driver accepted; ``None`` without ``--load``.
        needed: the kernels; of a dry run.
    """

    store: str
    problems: int
    kernels: int
    missing: int
    estimated_seconds: float | None
    estimated_from: int
    compiled: int
    found: int
    loaded: int | None
    failed: list[FailedProblem]
    dry_run: bool
    needed: list[NeededKernel]
    seconds: float
    estimated_error: float | None = None
    estimated_by: str = ""
