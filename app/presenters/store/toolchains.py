"""What kernels were made with, and what of that is stale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.shared import Row, moment, when
from cache_engine.insight.toolchains import PRESENT, STALE, UNKNOWN, Made
from cache_engine.units import counted, human_bytes

STATES = {PRESENT: "✓ present", STALE: "✗ stale", UNKNOWN: "? not installed here"}


def toolchain_table(found: Sequence[Made], zone: tzinfo) -> list[Row]:
    """A row for each compiler, and for each reason why its kernels are stale."""
    return [
        {
            "Toolchain": f"{made.compiler} {made.version}",
            "Build": made.build[:12],
            "State": STATES[made.state],
            "What has changed": "; ".join(made.changed),
            "Kernels": made.entries,
            "On disk": made.stored_bytes / 1024,
            "Compiling took": made.compile_ms / 1000,
            "Hits": made.hits,
            "First made": moment(made.first_made_at, zone),
            "Last made": moment(made.last_made_at, zone),
            "Targets": ", ".join(made.archs),
            "Families": ", ".join(made.families),
            "Dtypes": ", ".join(made.dtypes),
            "List": f"kernels?{urlencode({'toolchain': made.toolchain})}",
        }
        for made in found
    ]


def stale_words(found: Sequence[Made], zone: tzinfo) -> str:
    """How much is stale, and since when the present toolchain makes kernels."""
    stale = [made for made in found if made.state == STALE]
    present = [made for made in found if made.state == PRESENT]
    since = " No kernel of the present toolchain is here yet."
    if present:
        first_made_at = min(made.first_made_at for made in present)
        since = f" The first kernel of the present toolchain was made {when(first_made_at, zone)}."
    entries, stored_bytes = sum(made.entries for made in stale), sum(made.stored_bytes for made in stale)
    if not entries:
        return f"Nothing is stale: every kernel whose compiler is here can still be hit.{since if present else ''}"
    return f"{counted(entries, 'kernel')} ({human_bytes(stored_bytes)}) can never be hit again.{since}"
