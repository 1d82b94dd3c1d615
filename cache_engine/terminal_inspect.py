"""How a look into kernels appears on a terminal: one of them, two side by side, or why one was missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cache_engine.terminal import LEFT, RIGHT, print_fields, print_table, record_fields
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.compilers.disassembly import InstructionMix
    from cache_engine.inspection import Inspection
    from cache_engine.model.occupancy import Occupancy

_BAR = 40
_MOST_OTHERS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def print_inspection(inspection: Inspection) -> None:
    """What ``show`` shows of a kernel: its facts, occupancy and instructions, and what its key was hashed from."""
    record = inspection.record
    print_fields(record_fields(record))
    if inspection.occupancy is not None:
        _print_occupancy(inspection.occupancy)
    if inspection.instructions is not None:
        _print_instructions(inspection.instructions)
    for note in inspection.notes:
        print(printable(f"\n{note}"))
    print("\nThe key is the SHA-256 of these components:\n")
    print_fields(dict(record.components))


def occupancy_text(resident: Occupancy) -> str:
    """An occupancy in a line: ``"12.5%: 8 of 64 warps (1 block) per SM, bound by registers"``."""
    blocks = "1 block" if resident.blocks_per_sm == 1 else f"{resident.blocks_per_sm} blocks"
    return (
        f"{resident.share:.1%}: {resident.warps_per_sm} of {resident.most_warps_per_sm} warps ({blocks}) per SM, "
        f"bound by {' and '.join(resident.bound_by)}"
    )


def _print_occupancy(resident: Occupancy) -> None:
    print(f"\nTheoretical occupancy on {resident.arch}: {occupancy_text(resident)}.\n")
    rows = [(name, blocks, "◀" if name in resident.bound_by else "") for name, blocks in resident.block_limits.items()]
    print_table({"limit": LEFT, "blocks it allows": RIGHT, "": LEFT}, rows)


def _print_instructions(mix: InstructionMix) -> None:
    print(f"\n{mix.total:,} instructions in the code, however often each is run:\n")
    print_table({"class": LEFT, "count": RIGHT, "share": RIGHT, "": LEFT}, _instruction_rows(mix.classes))
    if mix.others:
        most = ", ".join(f"{name} {count:,}" for name, count in list(mix.others.items())[:_MOST_OTHERS])
        print(f"\nOf the others, most are: {most}.")


def _instruction_rows(classes: Mapping[str, int]) -> list[tuple[str, str, str, str]]:
    total = max(1, sum(classes.values()))
    longest = max(1, *classes.values())
    return [(name, f"{count:,}", f"{count / total:.1%}", _bar(count / longest)) for name, count in classes.items()]


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
