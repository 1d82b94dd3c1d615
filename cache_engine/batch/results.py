"""The results of ``compile``, ``time``, ``tune`` and ``warm``: JSON, which the dashboard reads from a job's file.

Fields are only ever added: other programs read these documents.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cache_engine.cache.stages import LOAD
from cache_engine.insight.comparison import in_words
from cache_engine.model.documents import picked
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.outcome import Failure, in_json
from cache_engine.store.codec import stored_bytes

if TYPE_CHECKING:
    from cache_engine.batch.tuning import Candidate, Tuned
    from cache_engine.cache.cache import CompiledKernel
    from cache_engine.cache.selection import Selection
    from cache_engine.gpu.memory_pool import PoolStatistics
    from cache_engine.gpu.timer import Timing
    from cache_engine.insight.explanation import Explanation

_D = TypeVar("_D", bound=msgspec.Struct)

# What a page draws may be read from a job's file, where any number can stand.
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
    """The document of ``explain``.

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
    """The document of ``compile``.

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


class Timed(msgspec.Struct, kw_only=True):
    """The document of ``time``; see ``Timing`` for what is measured.

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
    device_memory: dict[str, float | None] | UnsetType = UNSET
    why: Explained | UnsetType | None = UNSET


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
    """The document of ``warm``: problems requested, kernels that serve them, and what became of the kernels.

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


class Sampled(msgspec.Struct, kw_only=True):
    """The document of ``sample``; ``found_again`` kernels came from disk when they were requested a second time.

    ``requests`` were made after that, which count as demand.
    """

    store: str
    compiled: int
    found: int
    failed: list[FailedProblem]
    found_again: int
    requests: int = 0
    seconds: float


def compiled(kernel: CompiledKernel) -> Compiled:
    """The document of a kernel that was requested."""
    record = kernel.record
    return _filled(
        Compiled,
        kernel,
        record,
        record.problem,
        record.resources,
        load_ms=kernel.stages_ms.get(LOAD, 0.0),
        stored_bytes=stored_bytes(record),
        unpublished=in_json(kernel.unpublished),
        warnings=list(record.warnings),
        stands_in_for=kernel.better.key if kernel.better else "",
        behind_failure=in_json(kernel.better.failure if kernel.better else None),
    )


def timed(
    kernel: CompiledKernel, timing: Timing, unkept: Failure | None = None, memory: PoolStatistics | None = None
) -> Timed:
    """The document of a timing; ``memory`` is what the pool held at the end."""
    return _filled(
        Timed,
        kernel,
        timing,
        device=timing.device.name,
        device_fingerprint=timing.device,
        unkept=in_json(unkept),
        kernel=compiled(kernel),
        device_memory=UNSET
        if memory is None
        else {**asdict(memory), **picked(memory, "cached_bytes", "fragmentation")},
    )


def explained(found: Explanation) -> Explained:
    """The document of an explanation."""
    chosen, closest = found.selection, found.nearest
    nearest = None
    if closest is not None:
        differences = [
            Difference(
                component=pair.name,
                there=pair.first,
                here=pair.second,
                follows=pair in closest.consequences,
                text=in_words(pair),
            )
            for pair in (*closest.causes, *closest.consequences)
        ]
        nearest = Nearest(key=closest.record.key, name=closest.record.name, differences=differences)
    return _filled(
        Explained,
        found,
        chosen,
        chosen.problem,
        hit=found.tier is not None,
        arch=str(chosen.problem.arch),
        compiler=chosen.compiler.name,
        family=chosen.family.name,
        notes=list(found.notes),
        nearest=nearest,
    )


def _filled(document: type[_D], *values: object, **fields: Any) -> _D:
    """A document: ``fields``, and each other field from the first of the values that has one of its name."""
    for name in document.__struct_fields__:
        for value in values:
            if name not in fields and hasattr(value, name):
                fields[name] = getattr(value, name)
    return document(**fields)


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
    """The result of ``tune``; ``device`` is ``None`` without a GPU.

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


# ---- From the values of tuning ----


def candidate_row(one: Candidate, clock_khz: int, tuned: Tuned | None) -> CandidateRow:
    """The row of a config, with its timing where it was timed."""
    selected = one.selection
    row = CandidateRow(
        **picked(selected, "key", "config"),
        **picked(one, "tier", "predicted_cycles"),
        family=selected.family.name,
        compiler=selected.compiler.name,
        config_text=str(selected.config),
        predicted_us=one.predicted_us(clock_khz),
    )
    if tuned is not None:
        timing = tuned.timing
        row.median_us = None if timing is None else timing.median_us
        row.ratio = None if timing is None else timing.median_us / row.predicted_us
        row.tflops = None if timing is None else timing.tflops
        row.verified = timing is not None and timing.verified
        row.trouble = in_json(tuned.trouble)
    return row


def chosen_row(selected: Selection) -> Chosen:
    """The document of a selection."""
    return Chosen(
        **picked(selected, "key", "config", "config_from"),
        family=selected.family.name,
        compiler=selected.compiler.name,
        config_text=str(selected.config),
    )
