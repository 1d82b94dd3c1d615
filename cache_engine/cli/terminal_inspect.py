"""How a look into kernels appears on a terminal: one of them, two side by side, or why one was missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table, print_warnings, record_fields
from cache_engine.cli.terminal_timings import print_timings
from cache_engine.insight.comparison import Comparison, Nearest, change, in_words, shown
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.compilers.disassembly import InstructionMix
    from cache_engine.insight.explanation import Explanation
    from cache_engine.insight.inspection import Inspection
    from cache_engine.model.artifact import Record
    from cache_engine.model.measurement import Measurement
    from cache_engine.model.occupancy import Occupancy

_BAR = 40
_MOST_OTHERS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


def print_inspection(inspection: Inspection, timings: Sequence[Measurement] = ()) -> None:
    """What ``show`` shows of a kernel: facts, occupancy, instructions, timings, and what its key was hashed from."""
    record = inspection.record
    print_fields(record_fields(record))
    if inspection.occupancy is not None:
        _print_occupancy(inspection.occupancy)
    if inspection.instructions is not None:
        _print_instructions(inspection.instructions)
    for note in inspection.notes:
        print(f"\n{printable(note)}")
    if timings:
        print("\nTimings, the newest first:\n")
        print_timings(timings)
    print("\nThe key is the SHA-256 of these components:\n")
    print_fields(dict(record.components))
    print_warnings(record.warnings)


def print_difference(first: Record, second: Record, comparison: Comparison, sass: str | None) -> None:
    """What ``diff`` found."""
    heads = (f"1: {first.key[:12]}", f"2: {second.key[:12]}")
    print_fields({head: record.name for head, record in zip(heads, (first, second), strict=True)})
    if not comparison.components:
        print("\nThe keys are equal: no component differs.")
    for heading, pairs in comparison.sections().items():
        print(f"\n{heading}:\n")
        # Components are texts, some of them long; the rest are numbers, or short.
        side = LEFT if pairs == comparison.components else RIGHT
        rows = [(pair.name, shown(pair.first), shown(pair.second), change(pair)) for pair in pairs]
        print_table({"": LEFT, **dict.fromkeys(heads, side), "change": RIGHT}, rows)
    if sass is not None:
        print("\nMachine code, without addresses:\n" if sass else "\nThe machine code is the same.")
        print(printable(sass, keep="\n"), end="")


def print_explanation(found: Explanation) -> None:
    """What ``explain`` found out."""
    chosen = found.selection
    verdict = "miss" if found.tier is None else f"hit ({found.tier})"
    print_fields(
        {
            "result": verdict,
            "key": chosen.key,
            "name": chosen.name,
            "target": chosen.problem.arch,
            "compiler": chosen.compiler.name,
            "config": chosen.config,
            "config from": chosen.config_from,
            "specialised": chosen.problem.specialisation,
        }
    )
    if found.nearest is not None:
        _print_nearest(found.nearest, found.compared)
    elif found.tier is None and not found.notes:
        print("\nNo entry is on disk to compare with.")
    for note in found.notes:
        print(f"\n{printable(note[0].upper() + note[1:])}.")


def _print_nearest(closest: Nearest, compared: int) -> None:
    entries = "The only entry" if compared == 1 else f"The nearest of {compared:,} entries"
    print(f"\n{entries} is {closest.record.key[:12]}, {printable(closest.record.name)}:\n")
    for pair in closest.causes:
        print(printable(f"  {in_words(pair)}"))
    if closest.consequences:
        names = ", ".join(pair.name for pair in closest.consequences)
        print(f"\nWhat differs because of that: {printable(names)}.")


def _print_occupancy(resident: Occupancy) -> None:
    print(f"\nTheoretical occupancy on {resident.arch}: {resident}.\n")
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
