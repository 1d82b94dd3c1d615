"""Everything that is known of a compiled kernel without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_engine.compilers.disassembly import InstructionMix, instruction_mix
from cache_engine.errors import GemmCacheError, InvalidProblem
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record
from cache_engine.model.occupancy import Occupancy, occupancy

if TYPE_CHECKING:
    from cache_engine.engine.cache import Cache


@dataclass(frozen=True, slots=True)
class Inspection:
    """A record, and what follows from it and from the code.

    Attributes:
        instructions: ``None`` when the code could not be disassembled.
        occupancy: on the target it was compiled for; ``None`` when this program does not know that.
        notes: why something is missing, in words.
    """

    record: Record
    instructions: InstructionMix | None
    occupancy: Occupancy | None
    notes: tuple[str, ...] = ()


def inspect_kernel(cache: Cache, record: Record) -> Inspection:
    """What is known of a kernel in a store without running it. Takes as long as disassembling: half a second."""
    try:
        return inspect(record, cache.text(record, "sass"))
    except GemmCacheError as error:  # no disassembler, or damaged code: the rest is still known
        return inspect(record, None, str(error))


def inspect(record: Record, sass: str | None, trouble: str = "") -> Inspection:
    """Inspects a kernel.

    Args:
        sass: its code, disassembled; ``None`` when that is unavailable, and
        trouble: then why.
    """
    notes = [f"instructions were not counted: {trouble}"] if trouble else []
    resident = None
    try:
        resident = occupancy(
            architecture(record.arch),
            threads=record.config.threads,
            registers=record.resources.registers,
            shared_bytes=record.resources.shared_bytes,
        )
    except InvalidProblem:
        notes.append(f"occupancy is not known: this program has no limits of {record.arch}")
    return Inspection(record, None if sass is None else instruction_mix(sass), resident, tuple(notes))
