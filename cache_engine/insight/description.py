"""A record described: the one list of a kernel's properties in words, and the document that ``show`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.insight.timings import TimingRow, timing_row
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.documents import filled
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import Measurement

if TYPE_CHECKING:
    from cache_engine.insight.inspection import Inspection


from cache_engine.store.codec import stored_bytes
from cache_engine.units import human_bytes, human_ms


def titled(record: Record) -> str:
    """A kernel in one short line: ``"4096×7168×2048 bf16 sm_90 · tensor_core"``. Its m is that first asked for."""
    p = record.problem
    types = p.dtype if p.dtype == p.out_dtype else f"{p.dtype}→{p.out_dtype}"
    types += f" scaled {p.scales}" if p.scales else ""
    batch = f" {p.batch} groups {p.mode}" if p.mode else f" batch {p.batch}" if p.batch > 1 else ""
    return f"{p.m}×{p.n}×{p.k}{batch} {types} {record.arch} · {record.family}"


def described(record: Record, created: str) -> dict[str, str]:
    """A kernel's properties by name, both as people read them, without its key and its name.

    Args:
        created: when the kernel was compiled, as the reader wants it: a date, or an age.
    """
    p, r = record.problem, record.resources
    return {
        "Target": record.arch,
        "Problem": f"{p.m} × {p.n} × {p.k}, {f'{p.batch} groups, {p.mode}' if p.mode else f'batch {p.batch}'}",
        "Compile-time sizes": f"{p.specialisation}: {p.served}",
        "Types": p.types,
        "Family": record.family,
        "Config": str(record.config),
        "Compiler": f"{record.compiler} {record.compiler_version}, optimisation level {p.opt_level}",
        "Compile time": human_ms(record.compile_ms),
        "Created": f"{created}, by {record.created_by}",
        "Cubin size": human_bytes(record.size_bytes),
        "Size on disk": f"{human_bytes(stored_bytes(record))}, with PTX, source and log",
        "Registers": f"{r.registers} per thread",
        "Spills": f"{human_bytes(r.spill_bytes)} per thread, in local memory",
        "Stack": f"{human_bytes(r.stack_bytes)} per thread",
        "Shared memory": f"{human_bytes(r.shared_bytes)} per block",
    }


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
