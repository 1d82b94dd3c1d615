"""The report of a store: what it holds, how it served, what made its kernels, and what happened last."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from cache_engine.cache.cache import Cache
from cache_engine.errors import GemmCacheError
from cache_engine.index import queries
from cache_engine.insight.report.drawing import Series, columns
from cache_engine.insight.report.page import Facts, Figure, Note, Part, Report, Section, Table, moment
from cache_engine.insight.toolchains import made_by_toolchain
from cache_engine.model.events import DAY_S, HOUR_S, TIERS, Statistics, hit_rate
from cache_engine.units import counted, human_bytes, human_ms, human_rate

MOST_KERNELS = 200
MOST_EVENTS = 100
_STEP_S, _BACK_S = 6 * HOUR_S, 7 * DAY_S

Row = dict[str, Any]


def store_report(cache: Cache, now: float) -> Report:
    """A store, with its kernels most used first.

    Args:
        now: seconds since 1970; the history goes back seven days from there.
    """
    found, root = cache.stats(), str(cache.layout.root)
    sections = [Section("Summary", (_summary(found),)), Section("Hit rate by tier, over all time", (_tiers(found),))]
    try:
        sections += _indexed(cache, now)
    except GemmCacheError as error:  # the index needs an extra, or cannot be read; the rest is from the journal
        sections.append(Section("Kernels and history", (Note(f"Not here: {error}"),)))
    command = shlex.join(("gemm-cache", "--store", root, "show", "--html", "report.html"))
    return Report("Store of compiled GEMM kernels", root, command, tuple(sections))


def _summary(found: Statistics) -> Facts:
    t = found.totals
    return Facts(
        {
            "Kernels": f"{found.entries:,} of {found.max_entries:,}",
            "On disk": f"{human_bytes(found.stored_bytes)} of {human_bytes(found.max_bytes)}",
            "Hit rate": f"{human_rate(found.hit_rate)}: {counted(found.hits, 'hit')}, {t.misses:,} misses",
            "Compile time saved": human_ms(t.saved_ms),
            "Compile time spent": f"{human_ms(t.compile_ms)}, {counted(t.compiles, 'compile')}",
            "Evicted": f"{counted(t.evictions, 'kernel')}, {human_bytes(t.evicted_bytes)}",
            "Corrupt": f"{t.corruptions:,}",
            "Save failures": f"{t.publish_failures:,}",
            "Lock waits over 1 s": f"{t.lock_waits:,}, {t.lock_timeouts:,} timed out",
            "Last kernel stored": moment(t.last_publish_at),
        }
    )


def _tiers(found: Statistics) -> Table:
    rows, left = [], found.hits + found.totals.misses
    for tier, rate in found.tier_hit_rates.items():
        hits = found.totals.hits.get(tier, 0)
        rows.append((tier, f"{left:,}", f"{hits:,}", human_rate(rate)))
        left -= hits
    return Table(("Tier", "Lookups", "Hits", "Hit rate"), tuple(rows))


def _indexed(cache: Cache, now: float) -> list[Section]:
    """What needs the index."""
    since = (int(now) - _BACK_S) // _STEP_S * _STEP_S
    history = cache.query(queries.history, _STEP_S, since=since)
    kernels = cache.query(queries.kernels, queries.KernelFilter(), sort="hits", limit=MOST_KERNELS)
    total, _ = cache.count()
    return [
        Section("Last 7 days", _history(history)),
        Section("Targets", (_targets(cache.query(queries.architectures)),)),
        Section("Toolchains", (_toolchains(cache),)),
        Section("Kernels, most hits first", (_kernels(kernels, total),)),
        Section("Recent activity", (_events(cache.query(queries.events, limit=MOST_EVENTS)),)),
    ]


def _history(rows: Sequence[Row]) -> tuple[Part, ...]:
    if not rows:
        return (Note("No lookups or compiles in this period."),)
    served = [f"{tier}_hits" for tier in TIERS if any(row[f"{tier}_hits"] for row in rows)] + ["misses"]
    starts = [moment(row["start"]) for row in rows]
    lookups = [
        Series(name.replace("_", " "), [row[name] for row in rows], [f"{row[name]:,}" for row in rows])
        for name in served
    ]
    times = [
        Series(name, [row[field] for row in rows], [human_ms(row[field] / 1e3) for row in rows])
        for name, field in (("spent", "compile_us"), ("saved by disk and pack hits", "saved_us"))
    ]
    days = [start[5:10] for start in starts]
    first = Table(
        ("From", *(one.name for one in lookups), "Hit rate"),
        tuple(
            (start, *(one.words[place] for one in lookups), human_rate(_rate(rows[place])))
            for place, start in enumerate(starts)
        ),
    )
    second = Table(
        ("From", "Compiles", *(one.name for one in times)),
        tuple(
            (start, f"{rows[place]['compiles']:,}", *(one.words[place] for one in times))
            for place, start in enumerate(starts)
        ),
    )
    return (
        Note("One column is 6 hours."),
        Figure("Lookups by the tier that served them", columns(days, lookups, stacked=True), first),
        Figure("Compile time spent and saved", columns(days, times), second),
    )


def _rate(row: Row) -> float | None:
    return hit_rate(sum(row[f"{tier}_hits"] for tier in TIERS), row["misses"])


def _targets(rows: Sequence[Row]) -> Table:
    heads = ("Target", "Families", "Kernels", "On disk", "Compile time", "Hits", "Misses")
    return Table(
        heads,
        tuple(
            (
                row["arch"],
                ", ".join(row["families"]),
                f"{row['entries']:,}",
                human_bytes(row["stored_bytes"]),
                human_ms(row["compile_ms"]),
                f"{row['hits']:,}",
                f"{row['misses']:,}",
            )
            for row in rows
        ),
        2,
    )


def _toolchains(cache: Cache) -> Table:
    found = made_by_toolchain(cache, cache.query(queries.made_with))
    rows = tuple(
        (
            f"{made.compiler} {made.version}",
            made.state,
            "; ".join(made.changed),
            moment(made.last_made_at),
            f"{made.entries:,}",
            human_bytes(made.stored_bytes),
        )
        for made in found
    )
    return Table(("Toolchain", "State", "Stale because", "Last compiled", "Kernels", "On disk"), rows, 4)


def _kernels(rows: Sequence[Row], total: int) -> Table:
    heads = (
        "Key",
        "m × n × k",
        "Dtype",
        "Target",
        "Family",
        "Config",
        "Last used",
        "Registers",
        "Spills",
        "Cubin",
        "Compile time",
        "Hits",
    )
    return Table(
        heads,
        tuple(
            (
                row["key"][:12],
                f"{row['m']} × {row['n']} × {row['k']}",
                row["dtype"],
                row["arch"],
                row["family"],
                row["config"],
                moment(row["last_used_at"]),
                f"{row['registers']:,}",
                human_bytes(row["spill_bytes"]),
                human_bytes(row["size_bytes"]),
                human_ms(row["compile_ms"]),
                f"{row['hits']:,}",
            )
            for row in rows
        ),
        7,
        max(0, total - len(rows)),
    )


def _events(rows: Sequence[Row]) -> Table:
    return Table(
        ("When", "Event", "Kernel", "Details"),
        tuple(
            (moment(row["happened_at"]), row["kind"], row["name"] or row["key"][:12], row["detail"] or "")
            for row in rows
        ),
        4,
    )
