"""One kernel: its properties, occupancy, code and history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter

from app.presenters.columns import Column
from app.presenters.kernel_list import COLUMNS
from app.presenters.overview import event_details, event_words
from app.presenters.shared import Row, kernel_address
from cache_engine.compilers.disassembly import OTHER, InstructionMix
from cache_engine.insight.inspection import block_threads
from cache_engine.model.architecture import Architecture, Occupancy, occupancy, runs_on
from cache_engine.model.artifact import Record
from cache_engine.model.events import PUBLISH
from cache_engine.units import counted, human_ms, human_rate

MOST_LINES = 5_000
"""The most lines of a kernel's text that the page shows; the download has all."""

_MOST_OTHERS = 6


OCCUPANCY = (
    Column("Target", lambda one: one[0].name),
    Column("Example chip", lambda one: one[0].example),
    Column("Occupancy", lambda one: human_rate(one[1].share)),
    Column("Warps per SM", lambda one: f"{one[1].warps_per_sm} of {one[1].most_warps_per_sm}"),
    Column("Blocks per SM", lambda one: one[1].blocks_per_sm),
    Column("Limited by", lambda one: " and ".join(one[1].bound_by)),
)


def occupancy_by_chip(record: Record) -> list[tuple[Architecture, Occupancy]]:
    """The kernel's occupancy on each architecture that runs its CUBIN."""
    r, threads = record.resources, block_threads(record)
    return [
        (chip, occupancy(chip, threads=threads, registers=r.registers, shared_bytes=r.shared_bytes))
        for chip in runs_on(record.arch)
    ]


def first_lines(text: str) -> tuple[str, str]:
    """The first lines of a text, as many as the page shows; and the number of all lines, in words."""
    lines = text.splitlines()
    only = f"; showing the first {MOST_LINES:,}" if len(lines) > MOST_LINES else ""
    return "\n".join(lines[:MOST_LINES]), f"{counted(len(lines), 'line')}{only}"


EVENTS = (Column("When", "happened_at", "age"), Column("Event", event_words), Column("Details", event_details))


def history(record: Record, events: Iterable[Row], timings: Iterable[Row]) -> list[Row]:
    """The known events and timings of all kernels that were stored under a key, newest first.

    The journal also has the compile of the kernel that is stored now, but the record says more: the two are one row.
    """
    made = f"in {human_ms(record.compile_ms)}, by {record.created_by}, with {record.compiler} {record.compiler_version}"
    rows = [
        {"happened_at": record.created_at, "kind": PUBLISH, "detail": made},
        *(event for event in events if event["kind"] != PUBLISH or event["happened_at"] < record.created_at),
        *(
            {
                "happened_at": timing["measured_at"],
                "kind": "timed" if timing["verified"] else "WRONG RESULT",
                "detail": f"on {timing['device']}",
            }
            for timing in timings
        ),
    ]
    return sorted(rows, key=itemgetter("happened_at"), reverse=True)


def instruction_rows(mix: InstructionMix) -> list[tuple[str, int, str]]:
    """Rows of name, count and kind: the classes of instructions, the most frequent others, and the rest as one row."""
    named = {name: count for name, count in mix.classes.items() if name != OTHER}
    most = dict(list(mix.others.items())[:_MOST_OTHERS])
    rest = mix.total - sum(named.values()) - sum(most.values())
    others = {**most, **({OTHER: rest} if rest else {})}
    return [*((*item, "of GEMM") for item in named.items()), *((*item, "") for item in others.items())]


def version_columns(key: str, instructions: Mapping[str, int]) -> list[Column]:
    """The columns of the kernels for one problem, with what a toolchain or a config changes.

    Args:
        key: the key of the kernel that the page shows.
        instructions: the number of static instructions of each kernel that was disassembled, by key.
    """
    return [
        Column("Kernel", lambda row: kernel_address(row["key"]), "link", lambda row: row["key"][:12]),
        Column("Shown", lambda row: "yes" if row["key"] == key else ""),
        Column("Toolchain", lambda row: " ".join((row["compiler"], row["toolchain"].partition(" ")[2][:24]))),
        *([Column("Instructions", lambda row: instructions.get(row["key"]), "count")] if instructions else []),
        *(column for column in COLUMNS if column.name in _OF_VERSIONS),
    ]


_OF_VERSIONS = {
    "Compiled", "Family", "Config", "m × n × k", "Registers", "Spills", "Cubin size", "Compile time", "Time", "Hits"
}  # fmt: skip


INSTRUCTIONS = (
    Column("Instruction", itemgetter(0)),
    Column("Count", itemgetter(1), "count", bar=True),
    Column("Kind", itemgetter(2)),
)
"""The columns of the table of instructions from ``instruction_rows``."""
