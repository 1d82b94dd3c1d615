"""Reports of one kernel, of two compared, and of a store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cache_engine.cache.cache import Cache
from cache_engine.cache.reproduction import reproducing_command
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.gpu import EVALUATOR, MODEL_VERSION, Prediction
from cache_engine.index import queries
from cache_engine.insight.comparison import Pair, change, compare, sass_difference, shown
from cache_engine.insight.inspection import described, inspect, level_table
from cache_engine.insight.passes import predicted
from cache_engine.insight.report.drawing import Bar, Series, bars, columns, roofline, tiles
from cache_engine.insight.report.page import (
    Command,
    Facts,
    Figure,
    Note,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
    moment,
)
from cache_engine.insight.toolchains import made_by_toolchain
from cache_engine.model.architecture import Occupancy
from cache_engine.model.artifact import LOG, PTX, SOURCE, Record
from cache_engine.model.events import DAY_S, HOUR_S, TIERS, Statistics, hit_rate
from cache_engine.model.measurement import Measurement
from cache_engine.units import counted, human_bytes, human_ms, human_rate

if TYPE_CHECKING:
    from cache_engine.compilers.disassembly import InstructionMix


SASS = "sass"
MOST_DECISIONS = 100
_MOST_OTHERS = 6
_CODES = {SOURCE: "Source", PTX: "PTX", SASS: "SASS", LOG: "Compiler log"}


def kernel_report(cache: Cache, record: Record) -> Report:
    """A report of everything known about one kernel. Disassembles it, which takes half a second."""
    texts, missing = _texts(cache, record, _CODES)
    inspection = inspect(record, texts.get(SASS), missing.get(SASS, ""))
    problem: list[Part] = [
        Facts(described(record, moment(record.created_at))),
        Figure("Tile shapes in elements, to scale", tiles(record), _rows(level_table(record))),
    ]
    sections = [
        Section("Problem and config", (*problem, *(Note(warning) for warning in record.warnings))),
        Section("Reproduce", (Command(reproducing_command(record, cache.settings, cache.layout.root)),)),
    ]
    if inspection.instructions is not None:
        sections.append(Section("Static instructions", (_instructions(inspection.instructions),)))
    if inspection.occupancy is not None:
        sections.append(Section("Theoretical occupancy", _occupancy(inspection.occupancy)))
    sections += [
        Section("Performance", tuple(_speed(record, cache.timings.of_key(record.key)))),
        Section("Code", (*_code(texts), *(Note(f"{_CODES[part]}: {why}") for part, why in missing.items()))),
        Section(
            "Cache key", (Note("SHA-256 of these components:"), Table(("Component", "Value"), record.components, 2))
        ),
        Section("Decisions", (_decisions(cache, record.key),)),
    ]
    return Report(_title(record), f"{record.name} {record.key}", _command(cache, record.key), tuple(sections))


def comparison_report(cache: Cache, first: Record, second: Record) -> Report:
    """A report that compares two kernels."""
    codes = [_texts(cache, record, (SASS,)) for record in (first, second)]
    heads = f"1: {first.key[:12]}", f"2: {second.key[:12]}"
    inspections = [
        inspect(record, texts.get(SASS), missing.get(SASS, ""))
        for record, (texts, missing) in zip((first, second), codes, strict=True)
    ]
    found = compare(*inspections)
    names = Facts(
        {
            head: f"{_title(record)}; {record.name}, {record.key}"
            for head, record in zip(heads, (first, second), strict=True)
        }
    )
    sections = [Section("Kernels", (names, *(Note(note) for one in inspections for note in one.notes)))]
    for heading, pairs in found.sections().items():
        table = _pairs(pairs, heads)
        if pairs == found.components:  # words, so that none has a change
            table = Table(table.heads[:3], tuple(row[:3] for row in table.rows), 3)
        part: Part = _compared(pairs, heads, table) if pairs == found.instructions else table
        sections.append(Section(heading, (part,)))
    if not found.components:
        sections.append(Section("Key differences", (Note("Same key: this is the same kernel twice."),)))
    if all(SASS in texts for texts, _ in codes):
        lines = sass_difference(first, codes[0][0][SASS], second, codes[1][0][SASS])
        code: Part = Paragraph("SASS diff, addresses removed", lines) if lines else Note("The SASS is the same.")
        sections.append(Section("Code", (code,)))
    title = f"{first.key[:12]} compared with {second.key[:12]}"
    return Report(title, f"{first.key} {second.key}", _command(cache, first.key, second.key), tuple(sections))


def _title(record: Record) -> str:
    p = record.problem
    return f"{p.m} × {p.n} × {p.k}, {p.types}, {record.arch}, {record.family}"


def _command(cache: Cache, *keys: str) -> str:
    return shlex.join(("gemm-cache", "--store", str(cache.layout.root), "show", *keys, "--output", "report.html"))


def _texts(cache: Cache, record: Record, parts: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Two dictionaries: the texts of a kernel by part, and the reason for each part that cannot be shown."""
    texts, missing = {}, {}
    for part in parts:
        try:
            texts[part] = cache.text(record, part)
        except GemmCacheError as error:  # no disassembler, or damaged
            missing[part] = str(error)
    return texts, missing


def _code(texts: dict[str, str]) -> tuple[Part, ...]:
    return tuple(Paragraph(_CODES[part], text) for part, text in texts.items() if text)


def _rows(rows: Sequence[dict[str, str]]) -> Table:
    return Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), len(rows[0]))


def _instructions(mix: InstructionMix) -> Figure:
    """A figure of a kernel's instructions by class; the most frequent ones without a class are drawn muted."""
    from cache_engine.compilers.disassembly import OTHER

    named = {name: count for name, count in mix.classes.items() if name != OTHER}
    most = dict(list(mix.others.items())[:_MOST_OTHERS])
    rest = mix.total - sum(named.values()) - sum(most.values())
    counts = {**named, **most, **({OTHER: rest} if rest else {})}
    drawn = bars([Bar(n, c, f"{c:,}", n not in named) for n, c in counts.items()])
    rows = tuple((name, f"{count:,}", f"{count / max(1, mix.total):.1%}") for name, count in counts.items())
    return Figure(
        "Static instructions by class; grey ones are not specific to GEMM",
        drawn,
        Table(("Class", "Count", "Share"), rows),
    )


def _occupancy(resident: Occupancy) -> tuple[Part, ...]:
    rows = tuple(
        (name, "yes" if name in resident.bound_by else "", f"{blocks}")
        for name, blocks in resident.block_limits.items()
    )
    return Note(f"{resident.arch}: {resident}."), Table(("Limit", "Limiting", "Blocks per SM"), rows, 2)


def _speed(record: Record, timings: Sequence[Measurement]) -> Iterable[Part]:
    if timings:
        yield Note("Measured, newest first:")
        yield _timings(timings)
    else:
        yield Note("Not timed in this store.")
    try:
        found = predicted(record.problem.on(record.arch))
    except GemmCacheError as error:  # a dtype that the model does not know, or its extra is missing
        yield Note(f"No prediction: {error}")
        return
    if not found:
        return
    yield Note(
        f"Predicted by {EVALUATOR} {MODEL_VERSION}, for m = {record.problem.m:,}: a vendor library's GEMM of this "
        "shape. It does not model this kernel's code."
    )
    rows = tuple(
        (
            one.chip.name,
            f"{one.cost.latency_us:,.2f}",
            f"{one.cost.low_us:,.2f} to {one.cost.high_us:,.2f}",
            f"{one.cost.roofline_us:,.2f}",
            f"{one.rate / 1e12:,.1f}",
        )
        for one in found
        if isinstance(one.cost, Prediction)
    )
    heads = ("GPU", "Predicted, µs", "68 % from, µs", "Roofline, µs", "TFLOP/s")
    yield roofline(found, Table(heads, rows))


def _timings(timings: Sequence[Measurement]) -> Table:
    def number(one: Measurement, name: str) -> str:
        value = one.timing.get(name)
        return f"{value:,.2f}" if isinstance(value, int | float) else "–"

    names = ("median_us", "p10_us", "p90_us", "tflops", "reference_median_us", "speed_ratio")
    rows = tuple(
        (
            one.device.name,
            "verified" if one.verified else "WRONG RESULT",
            moment(one.measured_at),
            f"{one.problem.m:,}",
            *(number(one, name) for name in names),
        )
        for one in timings
    )
    heads = (
        "Device",
        "Result",
        "Measured",
        "m",
        "Median, µs",
        "10 %, µs",
        "90 %, µs",
        "TFLOP/s",
        "Reference, µs",
        "Ratio",
    )
    return Table(heads, rows, 3)


def _decisions(cache: Cache, key: str) -> Part:
    found = cache.admin.decisions(key)
    if not found:
        return Note("Nothing is logged about this kernel.")
    rows = tuple(
        (moment(one.at), one.kind, one.reason, one.detail, one.runner_up, one.by)
        for one in reversed(found[-MOST_DECISIONS:])
    )
    return Table(("When", "Decision", "Reason", "Details", "Runner-up", "By"), rows, 6, len(found) - len(rows))


def _pairs(pairs: Iterable[Pair], heads: tuple[str, str]) -> Table:
    rows = tuple((pair.name, shown(pair.first), shown(pair.second), change(pair)) for pair in pairs)
    return Table(("Property", *heads, "Change"), rows)


def _compared(pairs: Iterable[Pair], heads: tuple[str, str], table: Table) -> Figure:
    classes = [pair for pair in pairs if pair.name != "total"]
    sides = [
        [side if isinstance(side, int) else 0 for side in sides]
        for sides in zip(*((p.first, p.second) for p in classes), strict=True)
    ]
    series = [Series(head, side, [f"{count:,}" for count in side]) for head, side in zip(heads, sides, strict=True)]
    return Figure("Static instructions by class", columns([pair.name for pair in classes], series), table)


# ---- The report of a store: its content, its service, the toolchains of its kernels, and its last events ----

MOST_KERNELS = 200
MOST_EVENTS = 100
_STEP_S, _BACK_S = 6 * HOUR_S, 7 * DAY_S

Row = dict[str, Any]


def store_report(cache: Cache, now: float) -> Report:
    """A report of a store, with its most used kernels first.

    Args:
        now: the present time, in seconds since 1970; the history goes back seven days from it.
    """
    found, root = cache.stats(), str(cache.layout.root)
    sections = [Section("Summary", (_summary(found),)), Section("Hit rate by tier, over all time", (_tiers(found),))]
    try:
        sections += _indexed(cache, now)
    except GemmCacheError as error:  # the index needs an extra, or cannot be read; the rest is from the journal
        sections.append(Section("Kernels and history", (Note(f"Not here: {error}"),)))
    command = shlex.join(("gemm-cache", "--store", root, "show", "--output", "report.html"))
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
    """The sections of a store's report that need the index."""
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
