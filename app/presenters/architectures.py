"""Sums for each target, the toolchains that compiled the kernels, and the proofs of families on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from operator import itemgetter
from urllib.parse import urlencode

from app.presenters.columns import Column
from app.presenters.overview import FINE, LOOK, Check
from app.presenters.shared import kernel_address, when
from cache_engine.insight.toolchains import CODE, COMPILE, PRESENT, REGISTERS, SPILLS, STALE, TIME, UNKNOWN, Made
from cache_engine.kernels.select import TO_PROVE
from cache_engine.model.proof import PROVED, REFUSED
from cache_engine.store.layout import StoreLayout
from cache_engine.store.proofs import states
from cache_engine.units import counted, human_bytes

TARGETS = (
    Column("Target", lambda row: f"kernels?{urlencode({'arch': row['arch']})}", "link", itemgetter("arch")),
    Column("Kernels", "entries", "count", bar=True),
    Column("Cubin size", "size_bytes", "bytes"),
    Column("On disk", "stored_bytes", "bytes", bar=True),
    Column("Total compile time", "compile_ms", "ms"),
    Column("Median compile time", "median_compile_ms", "ms", bar=True),
    Column("Hits", "hits", "count", help="Hits on kernels still in the store.", bar=True),
    Column(
        "Misses",
        "misses",
        "count",
        help="Lookups that had to compile, including kernels since evicted. Not recorded by older versions.",
    ),
    Column("Last used", "last_used_at", "age"),
    Column("Families", lambda row: ", ".join(row["families"])),
    Column("Dtypes", lambda row: ", ".join(row["dtypes"])),
)


SPEEDS = (
    Column("Target", "arch"),
    Column("GPU", "device"),
    Column("Kernels timed", "kernels", "count"),
    Column("Timings", "timings", "count"),
    Column("Median TFLOP/s", "median_tflops", "decimal"),
    Column("Best TFLOP/s", "best_tflops", "decimal"),
    Column("Compared with a library", "compared", "count"),
    Column("Median speed, % of the library's", "median_ratio", "share"),
    Column("Last timed", "measured_at", "age"),
)
"""The columns of sums over the timings on each target and GPU."""


STATES = {PRESENT: "✓ current", STALE: "✗ stale", UNKNOWN: "? compiler not installed"}


TOOLCHAINS = (
    Column(
        "Toolchain",
        lambda made: f"kernels?{urlencode({'toolchain': made.toolchain})}",
        "link",
        lambda made: f"{made.compiler} {made.version}",
    ),
    Column("Build", lambda made: made.build[:12]),
    Column("State", lambda made: STATES[made.state]),
    Column("Stale because", lambda made: "; ".join(made.changed)),
    Column("Kernels", "entries", "count"),
    Column("On disk", "stored_bytes", "bytes"),
    Column("Total compile time", "compile_ms", "ms"),
    Column("Hits", "hits", "count"),
    Column("First compiled", "first_made_at", "age"),
    Column("Last compiled", "last_made_at", "age"),
    Column("Targets", lambda made: ", ".join(made.archs)),
    Column("Families", lambda made: ", ".join(made.families)),
    Column("Dtypes", lambda made: ", ".join(made.dtypes)),
)
"""The columns of toolchains: a row for each toolchain, state and set of reasons for the state."""


FIGURES = {
    REGISTERS: "Registers",
    SPILLS: "Spill bytes",
    CODE: "Code bytes",
    COMPILE: "Compile time",
    TIME: "Time on a GPU",
}


def comparable(found: Sequence[Made]) -> list[str]:
    """The toolchains of each compiler that has several toolchains, the latest used first."""
    latest: dict[str, float] = {}
    for made in found:
        latest[made.toolchain] = max(latest.get(made.toolchain, 0.0), made.last_made_at)
    compilers = [text.split(" ")[0] for text in latest]
    several = [text for text in latest if compilers.count(text.split(" ")[0]) > 1]
    return sorted(several, key=lambda text: -latest[text])


FIGURE_COLUMNS = (
    Column("Figure", lambda one: FIGURES[one.metric]),
    Column("Compared", "compared"),
    Column("Median ratio", "median_ratio"),
    Column("Worse", "worse"),
    Column("Better", "better"),
)
"""The columns of a comparison of two toolchains: for each figure of kernels, its change over all kernels."""


def worse_columns(titles: Mapping[str, str]) -> list[Column]:
    """The columns of the figures that are worse with the second toolchain: a row for each kernel and figure.

    Args:
        titles: the titles of the kernels by key; their names would not say the target.
    """
    return [
        Column("Kernel", lambda one: kernel_address(one.to_key), "link", lambda one: titles.get(one.to_key, one.name)),
        Column("Compare", lambda one: one.from_key and f"compare?a={one.from_key}&b={one.to_key}", "link", "compare"),
        Column("Figure", lambda one: FIGURES[one.metric]),
        Column("Before", "before"),
        Column("After", "after"),
        Column("Where", "where"),
    ]


def stale_words(found: Sequence[Made], zone: tzinfo) -> str:
    """The number of stale kernels, and since when the current toolchain is in use."""
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


_REFUSED = "A GPU refused this family, so a plain one serves there until the toolchain changes."


def proof_checks(layout: StoreLayout) -> list[Check]:
    """A check of each family that was proved or refused on a GPU; if refused, the cause is the newest refusal."""
    checks = []
    for family in sorted(TO_PROVE):
        found = states(layout, family)
        refused = [one for one in found if one.state == REFUSED]
        if refused:
            checks.append(Check(f"Family {family}", LOOK, _REFUSED, f"{refused[0].words}\n{refused[0].command}"))
        elif proved := [one for one in found if one.state == PROVED]:
            checks.append(Check(f"Family {family}", FINE, "A GPU proved this family.", proved[0].words))
    return checks


def proof_lines(layout: StoreLayout) -> list[str]:
    """A line for each state of a family on a GPU, newest first."""
    return [f"{family}, {one.toolchain}: {one.words}" for family in sorted(TO_PROVE) for one in states(layout, family)]
