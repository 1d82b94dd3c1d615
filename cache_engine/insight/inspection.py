"""Everything known about a compiled kernel without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cache_engine.compilers.disassembly import InstructionMix, instruction_mix
from cache_engine.errors import GemmCacheError, InvalidProblem
from cache_engine.frameworks.bundle_facts import describe, inputs_of, text_of
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.values import Entry, KeyFactors
from cache_engine.kernels.family import threads_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import Occupancy, architecture, occupancy
from cache_engine.model.artifact import Record
from cache_engine.model.documents import picked
from cache_engine.model.outcome import Failure
from cache_engine.store.codec import stored_bytes
from cache_engine.units import human_bytes, human_ms

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache


_WARP, _MOST_WARPS = 32, 32
"""The number of threads of a warp, and the most warps of a block."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A kernel's record, and facts derived from the record and from the machine code.

    Attributes:
        instructions: the number of instructions of each class; ``None`` when the code could not be disassembled.
        occupancy: the occupancy on the kernel's target; ``None`` when this program does not know the target.
        notes: sentences that say why facts are missing.
    """

    record: Record
    instructions: InstructionMix | None
    occupancy: Occupancy | None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The kernel's key in the store."""
        return self.record.key

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        return self.record.name

    @property
    def fusion_saves_bytes(self) -> int | None:
        """The bytes of memory traffic that fusing saves for the recorded problem; ``None`` for an unknown problem."""
        try:
            return self.record.problem.on(self.record.arch).fusion_saves_bytes
        except GemmCacheError:
            return None

    @property
    def fusion_in_words(self) -> str:
        """The memory traffic that fusing saves, as text; empty if nothing is fused."""
        saved = self.fusion_saves_bytes
        return f"{human_bytes(saved)} of traffic for m = {self.record.problem.m:,}" if saved else ""


@dataclass(frozen=True, slots=True)
class AdaptedInspection:
    """The inspection of another framework's kernel that is in our store.

    Attributes:
        known: the facts that the kernel's files say.
        inputs: those inputs of the kernel's key that are stored.
        instructions, occupancy, notes: as in ``Inspection``.
    """

    group: Group
    known: Entry
    inputs: KeyFactors | Failure
    instructions: InstructionMix | None
    occupancy: Occupancy | None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The kernel's key in the store."""
        return self.group.key

    @property
    def name(self) -> str:
        """The name of the kernel's function; empty if it is not known."""
        return self.known.name or ""


Stored = Record | Group
Inspected = Inspection | AdaptedInspection


def inspect_kernel(cache: Cache, record: Record) -> Inspection:
    """The resources and instruction counts of a stored kernel. Disassembles it, which takes half a second."""
    try:
        return inspect(record, cache.text(record, "sass"))
    except GemmCacheError as error:  # no disassembler, or damaged code: the rest is still known
        return inspect(record, None, str(error))


def sass_of(cache: Cache, kernel: Stored) -> str:
    """The disassembled code of a stored kernel.

    Raises:
        GemmCacheError: when the kernel has no code, is damaged, or no disassembler is installed.
    """
    return text_of(kernel, "sass") if isinstance(kernel, Group) else cache.text(kernel, "sass")


def inspect_stored(kernel: Stored, disassemble: Callable[[], str]) -> Inspected:
    """The facts about a kernel, ours or another framework's.

    Instructions are left out if ``disassemble`` raises ``GemmCacheError``.
    """
    sass, trouble = None, ""
    try:
        sass = disassemble()
    except GemmCacheError as error:  # no disassembler, or damaged code: the rest is still known
        trouble = str(error)
    return inspect_adapted(kernel, sass, trouble) if isinstance(kernel, Group) else inspect(kernel, sass, trouble)


def block_threads(record: Record) -> int:
    """The number of threads of a block; of an unknown family, only the number of threads that multiply."""
    family = FAMILIES.get(record.family)
    return record.config.threads if family is None else threads_of(family, record.config)


def inspect(record: Record, sass: str | None, trouble: str = "") -> Inspection:
    """Inspects a kernel of ours.

    Args:
        sass: the disassembled code; ``None`` if unavailable.
        trouble: why the code is unavailable.
    """
    used = record.resources
    resident = _resident(record.arch, block_threads(record), used.registers, used.shared_bytes)
    instructions = None if sass is None else instruction_mix(sass)
    return Inspection(record, instructions, *_noted(resident, trouble))


def inspect_adapted(group: Group, sass: str | None, trouble: str = "") -> AdaptedInspection:
    """Inspects another framework's kernel.

    Args:
        sass: the disassembled code; ``None`` if unavailable.
        trouble: why the code is unavailable.
    """
    known = describe(group)
    warps = known.config.get("num_warps")
    resident: Occupancy | str
    if isinstance(warps, int) and 0 < warps <= _MOST_WARPS and known.arch and known.shared_bytes is not None:
        resident = _resident(known.arch, warps * _WARP, known.registers or 0, known.shared_bytes)
    else:
        resident = f"occupancy is not known: {group.framework} does not store how many threads a block has"
    instructions = None if sass is None else instruction_mix(sass)
    return AdaptedInspection(group, known, inputs_of(group), instructions, *_noted(resident, trouble))


def _resident(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | str:
    """The occupancy of a kernel on a target, or the reason why it is not known."""
    try:
        return occupancy(architecture(arch), threads=threads, registers=registers, shared_bytes=shared_bytes)
    except InvalidProblem:
        return f"occupancy is not known: this program has no limits of {arch}"


def _noted(resident: Occupancy | str, trouble: str) -> tuple[Occupancy | None, tuple[str, ...]]:
    """The occupancy if it is known, and the sentences that say why facts are missing."""
    notes = [f"instructions were not counted: {trouble}"] if trouble else []
    if isinstance(resident, str):
        return None, (*notes, resident)
    return resident, tuple(notes)


# ---- A record in words: the one list of a kernel's properties, for the kernel page and for ``show`` ----


def titled(record: Record) -> str:
    """A kernel in one line: ``"4096×7168×2048 bf16 sm_90 · tensor_core"``, with the m that was requested first."""
    p = record.problem
    types = p.dtype if p.dtype == p.out_dtype else f"{p.dtype}→{p.out_dtype}"
    types += f" scaled {p.scales}" if p.scales else ""
    batch = f" {p.batch} groups {p.mode}" if p.mode else f" batch {p.batch}" if p.batch > 1 else ""
    return f"{p.m}×{p.n}×{p.k}{batch} {types} {record.arch} · {record.family}"


def record_document(record: Record) -> dict[str, Any]:
    """The record of a kernel as a JSON document."""
    p = record.problem
    return {
        **picked(record, "key", "name", "arch", "compiler", "family", "config"),
        **picked(p, "specialisation", "opt_level"),
        **picked(record, "compiler_version", "problem", "size_bytes"),
        "stored_bytes": stored_bytes(record),
        **picked(record.resources, "registers", "shared_bytes", "stack_bytes", "spill_bytes"),
        **picked(record, "compile_ms", "stages_ms", "created_at", "created_by"),
        "components": dict(record.components),
        **picked(record, "warnings", "config_from"),
    }


def described(record: Record, created: str) -> dict[str, str]:
    """A kernel's properties by name, as text, without its key and its name.

    Args:
        created: the time of compiling, as text: a date, or an age.
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
