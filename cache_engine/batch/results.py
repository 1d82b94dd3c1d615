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
        there, here: the component's value in the nearest entry, and in the request; ``None`` where the component is
            missing.
        follows: whether this component differs only because another component does.
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
        toolchain_from: where the key's toolchain was found: ``installed``, ``pack NAME`` or ``store``.
        compared: how many entries were compared with the request.
        notes: further sentences that explain the miss.
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
        compile_ms: the milliseconds that compiling the kernel took, now or when it was made earlier.
        load_ms: the milliseconds that the lookup took.
        stored_bytes: the size of the kernel's blob and record on disk.
        toolchain_from: where the key's toolchain was found: ``installed``, ``pack NAME`` or ``store``.
        unpublished: why the kernel is not stored; empty when it is.
        stands_in_for: the key of the requested kernel, if this is another one that serves in its place; else empty.
        behind_failure: why the requested kernel could not be compiled; empty if it was not tried or may still succeed.
        why: for a job, why the kernel was missed; ``None`` after a hit.
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
    """The document of ``time``; the measured values have the names and units of the fields of ``Timing``.

    Attributes:
        device: the name of the GPU.
        unkept: why the timing is not stored; empty if it is stored.
        why: for a job, why the kernel was missed; ``None`` after a hit.
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
    """A problem that has no stored kernel, and the reason."""

    problem: str
    error: str


class ServedSizes(msgspec.Struct, kw_only=True):
    """Values of m that a kernel serves: from ``first`` to ``last``, in steps."""

    first: int
    last: int
    step: int


class NeededKernel(msgspec.Struct, kw_only=True):
    """A kernel that a warm-up needs, the values of m that it serves, and whether it is in the store."""

    key: str
    problem: str
    m: list[ServedSizes]
    family: str
    compiler: str
    config_text: str
    config_from: str
    stored: bool


class Warmed(msgspec.Struct, kw_only=True):
    """The document of ``warm``: the problems requested, the kernels that serve them, and the result for each kernel.

    Attributes:
        missing: the number of kernels that were not in the store at the start.
        estimated_seconds: the predicted seconds to compile the missing kernels.
        estimated_from: the number of records of the store that the prediction is made from; with 0, it is made from
            published figures.
        estimated_error: the median error of predicting one compile, as a share of the time that it took; ``None`` with
            fewer than ten records.
        estimated_by: the basis of the prediction, in words; empty when nothing is missing.
        loaded: the number of kernels that the GPU's driver accepted; ``None`` without ``--load``.
        needed: every kernel that the problems need; only in a dry run.
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
    """The document of ``warm --sample``.

    ``found_again`` is the number of kernels that came from disk at the second request.

    ``requests`` is the number of further requests made after the second one, which are recorded as demand.
    """

    store: str
    compiled: int
    found: int
    failed: list[FailedProblem]
    found_again: int
    requests: int = 0
    seconds: float


def compiled(kernel: CompiledKernel) -> Compiled:
    """The document of ``compile`` for a kernel."""
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
    """The document of ``time`` for a timing. ``memory`` is the state of the GPU's memory pool after the timing."""
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
    """The document of ``explain`` for an explanation of a lookup."""
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
    """A document with the given ``fields``; other fields come from the first of ``values`` that has the name."""
    for name in document.__struct_fields__:
        for value in values:
            if name not in fields and hasattr(value, name):
                fields[name] = getattr(value, name)
    return document(**fields)


class CandidateRow(msgspec.Struct, kw_only=True):
    """A config that ``tune`` times; the fields from ``median_us`` on are missing in a dry run.

    Attributes:
        tier: the tier that has the config's kernel; ``None`` if the kernel must be compiled.
        ratio: the measured time divided by the predicted time.
        trouble: why the config cannot be chosen; empty if it can.
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
    """The config that serves the problem from now on."""

    key: str
    family: str
    compiler: str
    config: KernelConfig
    config_text: str
    config_from: str


class Tuning(msgspec.Struct, kw_only=True):
    """The document of ``tune``; ``device`` is ``None`` without a GPU.

    Attributes:
        estimated_seconds: the seconds, predicted at the start, to compile the configs that have no stored kernel. The
            other fields that begin with ``estimated`` mean the same as in ``Warmed``.
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
    """The row of a config, with its timing if it was timed."""
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
    """The document of the config that a selection chose."""
    return Chosen(
        **picked(selected, "key", "config", "config_from"),
        family=selected.family.name,
        compiler=selected.compiler.name,
        config_text=str(selected.config),
    )
