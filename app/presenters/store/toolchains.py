"""The toolchains that compiled the kernels, and which of them are stale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.shared import Row, kernel_address, moment, when
from cache_engine.insight.toolchains import (
    CODE,
    COMPILE,
    PRESENT,
    REGISTERS,
    SPILLS,
    STALE,
    TIME,
    UNKNOWN,
    Made,
    Regressions,
)
from cache_engine.units import counted, human_bytes

STATES = {PRESENT: "✓ current", STALE: "✗ stale", UNKNOWN: "? compiler not installed"}


def toolchain_table(found: Sequence[Made], zone: tzinfo) -> list[Row]:
    """A row for each compiler, and for each reason why its kernels are stale."""
    return [
        {
            "Toolchain": f"{made.compiler} {made.version}",
            "Build": made.build[:12],
            "State": STATES[made.state],
            "Stale because": "; ".join(made.changed),
            "Kernels": made.entries,
            "On disk": made.stored_bytes,
            "Total compile time": made.compile_ms,
            "Hits": made.hits,
            "First compiled": moment(made.first_made_at, zone),
            "Last compiled": moment(made.last_made_at, zone),
            "Targets": ", ".join(made.archs),
            "Families": ", ".join(made.families),
            "Dtypes": ", ".join(made.dtypes),
            "Open": f"kernels?{urlencode({'toolchain': made.toolchain})}",
        }
        for made in found
    ]


FIGURES = {
    REGISTERS: "Registers",
    SPILLS: "Spill bytes",
    CODE: "Code bytes",
    COMPILE: "Compile time",
    TIME: "Time on a GPU",
}


def comparable(found: Sequence[Made]) -> list[str]:
    """The toolchains of those compilers that have several, the latest used first."""
    latest: dict[str, float] = {}
    for made in found:
        latest[made.toolchain] = max(latest.get(made.toolchain, 0.0), made.last_made_at)
    compilers = [text.split(" ")[0] for text in latest]
    several = [text for text in latest if compilers.count(text.split(" ")[0]) > 1]
    return sorted(several, key=lambda text: -latest[text])


def figure_table(found: Regressions) -> list[Row]:
    """A row for each figure: how it changed over all kernels."""
    return [
        {
            "Figure": FIGURES[one.metric],
            "Compared": one.compared,
            "Median ratio": one.median_ratio,
            "Worse": one.worse,
            "Better": one.better,
        }
        for one in found.summaries
    ]


def worse_table(found: Regressions) -> list[Row]:
    """A row for each figure of a kernel that is worse."""
    return [
        {
            "Kernel": one.name,
            "Figure": FIGURES[one.metric],
            "Before": one.before,
            "After": one.after,
            "Where": one.where,
            "Open": kernel_address(one.to_key) if one.to_key else None,
        }
        for one in found.worse
    ]


def stale_words(found: Sequence[Made], zone: tzinfo) -> str:
    """How many kernels are stale, and since when the current toolchain is in use."""
    stale = [made for made in found if made.state == STALE]
    present = [made for made in found if made.state == PRESENT]
    since = " Nothing compiled with the current toolchain yet."
    if present:
        first_made_at = min(made.first_made_at for made in present)
        since = f" Current toolchain in use since {when(first_made_at, zone)}."
    entries, stored_bytes = sum(made.entries for made in stale), sum(made.stored_bytes for made in stale)
    if not entries:
        return f"No stale kernels.{since if present else ''}"
    return f"{counted(entries, 'stale kernel')} ({human_bytes(stored_bytes)}), which no lookup can hit.{since}"
