"""The verb ``stats``: the contents of the store and its use: now, over time, or by toolchain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cache.queue import Priority, QueueState, Turn
from cache_engine.cli.support import Span, Verb, emit, json_option, open_cache, write_or_print
from cache_engine.cli.terminal import LEFT, RIGHT, Align, moment, print_fields, print_table
from cache_engine.errors import UsageError
from cache_engine.model.documents import fields_of, picked
from cache_engine.model.events import DAY_S, HOUR_S, TIERS, EventCounts, EventPeriod, Statistics, Totals, hit_rate
from cache_engine.settings import Settings
from cache_engine.store.journal.spans import WORK, distributions
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate

if TYPE_CHECKING:
    from cache_engine.insight.toolchains import Made

_TIERS = {"memory": "in memory", "pack": "in packs", "disk": "on disk", "remote": "in the remote"}
_LENGTHS = {
    "memory": "lookups in memory",
    "pack": "lookups in packs",
    "disk": "lookups on disk",
    "remote": "lookups in the remote",
    "lock": "waits for locks",
    "select": "choices of a config",
    "queue": "waits for a slot",
    "generate": "sources made",
    "compile": "compiles",
    "publish": "kernels stored",
    "module": "loads on a GPU",
}
_STEPS = {"hour": HOUR_S, "day": DAY_S}
_LONG_S = 3 * DAY_S


@click.command(
    "stats",
    cls=Verb,
    examples=(
        "stats",
        "stats --by time --since 24h",
        "stats --by toolchain",
        "stats --by arch --json",
        "stats --format prometheus --output /var/lib/node_exporter/gemm_cache.prom",
        "stats --format grafana --output gemm_cache.json",
        "stats --format alerts --output /etc/prometheus/gemm_cache.rules.yml",
    ),
    done="The statistics are printed.",
    missing="--by arch, --by toolchain: the extra dashboard is not installed.",
)
@click.option(
    "--by",
    type=click.Choice(("arch", "toolchain", "time", *_STEPS)),
    help="Break down by target, by toolchain, or over time: by hour up to 3 days, else by day.",
)
@click.option("--since", type=Span(), metavar="SPAN", help="Over time: only this recent, e.g. 24h. Default: 7d.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "prometheus", "grafana", "alerts")),
    default="table",
    help="prometheus: metrics in Prometheus's text format; grafana: a dashboard of them; alerts: rules for Prometheus.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write what --format makes to a file; replaces it.")
@json_option
@click.pass_obj
def stats_verb(
    settings: Settings, /, by: str | None, since: float | None, form: str, output: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Show size, hit rates and compile time saved.

    Hits and misses are those of all processes since the store exists. The hit rate of a tier is its share of the
    lookups that no tier before it served.

    Over time, there is a row for each hour or day in which something happened, the earliest first. Hours are known for
    eight days, days for 400 days; older events are in sums of 28 days. The times are those of this machine; days are
    counted in UTC.

    By toolchain, it says whether a toolchain's kernels can be hit here and, if they never can, what has changed. clean
    --state stale deletes such kernels; timings --from A --to B compares two.
    """
    is_over_time = by in ("time", *_STEPS)
    if since and not is_over_time:
        raise UsageError("--since goes with --by time, hour or day")
    if form != "table" and (by or as_json):
        raise UsageError(f"--format {form} takes neither --by nor --json")
    if output and form == "table":
        raise UsageError("--output goes with --format prometheus, grafana or alerts")
    if form == "prometheus":
        _export_metrics(settings, output)
    elif form != "table":
        _export_monitoring(form, output)
    elif is_over_time:
        step = None if by == "time" else by
        _show_history(settings, 7 * DAY_S if since is None else since, step, as_json=as_json)
    elif by == "toolchain":
        _show_toolchains(settings, as_json=as_json)
    else:
        _show_statistics(settings, by_arch=by == "arch", as_json=as_json)


def _show_statistics(settings: Settings, *, by_arch: bool, as_json: bool) -> None:
    with open_cache(settings, create=False) as cache:
        found = cache.stats()
        queue = cache.queue() if cache.has_store else None
        document = statistics_document(found, queue)
        if by_arch:
            from cache_engine.index import queries

            document["architectures"] = cache.query(queries.architectures)
    emit(document, as_json, lambda: _print_statistics(found, queue, document.get("architectures", ())))


def statistics_document(found: Statistics, queue: QueueState | None = None) -> dict[str, Any]:
    """The contents and history of a store, as JSON.

    ``saved_ms`` is the compile time saved by hits on disk, in packs and in a remote.
    """
    totals, day = found.totals, found.last_24h
    document = {
        **picked(found, "entries", "max_entries", "stored_bytes", "max_bytes", "journal_bytes", "max_memory_bytes"),
        **picked(totals, "hits", "misses"),
        "hit_rate": found.hit_rate,
        **picked(totals, "compiles", "compile_ms", "saved_ms", "evictions", "evicted_bytes", "corruptions"),
        **picked(totals, "publish_failures", "lock_waits", "lock_timeouts", "lock_wait_ms"),
        "tier_failures": totals.failures,
        "passed": totals.passed,
        "last_publish_at": totals.last_publish_at or None,
        "hit_rates": found.tier_hit_rates,
        "lengths": lengths_document(totals.spans),
        **picked(totals, "promotions", "demotions", "remote_sent", "remote_dropped"),
        "last_24h": {
            **picked(day, "compiles", "promotions", "demotions"), "compiles_per_hour": day.compiles / 24,
        },
    }  # fmt: skip
    if queue is not None:
        lists = ("compiling", "queued", "waiting")
        turns = {name: [_turn_document(turn) for turn in getattr(queue, name)] for name in lists}
        document["queue"] = {"slots": queue.slots, **turns}
    return document


def lengths_document(counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The durations of the steps of lookups and compiles, as JSON, by step; steps that never ran are left out.

    ``per_s`` is the number of runs of a step per second of its own time. ``share`` is the step's share of the time that
    misses took; ``None`` for a step of a hit.
    """
    found = distributions(counts)
    of_misses_s = sum(one.total_s for span, one in found.items() if span in WORK)
    quantiles = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
    return {
        span: {
            "count": one.count,
            "mean_ms": one.total_s * 1e3 / one.count,
            **{name: one.quantile_ms(share) for name, share in quantiles.items()},
            "per_s": one.count / one.total_s if one.total_s else None,
            "total_ms": one.total_s * 1e3,
            "share": one.total_s / of_misses_s if span in WORK and of_misses_s else None,
        }
        for span, one in found.items()
    }


def _turn_document(turn: Turn) -> dict[str, Any]:
    return {**fields_of(turn), "priority": turn.priority.name.lower()}


def _show_history(settings: Settings, since: float, by: str | None, *, as_json: bool) -> None:
    step = _STEPS[by or ("hour" if since <= _LONG_S else "day")]
    with open_cache(settings, create=False) as cache:
        found = summed(cache.tally().periods, step, time.time() - since)
    rows = [
        picked(
            one, "start", "seconds", "hits", "misses", "compiles", "compile_ms", "saved_ms", "publish_failures",
            "corruptions", "lock_waits", "promotions", "demotions",
        )
        for one in found
    ]  # fmt: skip
    emit({"step_seconds": step, "rows": rows}, as_json, lambda: _print_history(found))


def _show_toolchains(settings: Settings, *, as_json: bool) -> None:
    from cache_engine.index import queries
    from cache_engine.insight.toolchains import made_by_toolchain

    with open_cache(settings, create=False) as cache:
        found = made_by_toolchain(cache, cache.query(queries.made_with))
    rows = [{**fields_of(made), "build": made.build} for made in found]
    emit({"rows": rows}, as_json, lambda: _print_toolchains(found))


def _export_metrics(settings: Settings, file: Path | None) -> None:
    from cache_engine.insight.monitoring import prometheus_text

    with open_cache(settings, create=False) as cache:
        text = prometheus_text(cache.stats(), cache.queue() if cache.has_store else None)
    write_or_print(text, file)


def _export_monitoring(form: str, file: Path | None) -> None:
    from cache_engine.insight.monitoring import alert_rules, grafana_dashboard

    write_or_print(grafana_dashboard() if form == "grafana" else alert_rules(), file)


def summed(periods: Iterable[EventPeriod], seconds: int, since: float = 0.0) -> list[EventPeriod]:
    """Sums of events over intervals of ``seconds``, the earliest first. Empty intervals are left out.

    Events that are known only for a longer interval are in a row of that longer interval.

    Args:
        since: a time in seconds since 1970; the first interval is the one that contains it.
    """
    found: dict[tuple[int, int], EventPeriod] = {}
    for period in periods:
        length = max(seconds, period.seconds)
        start = period.start // length * length
        if start + length <= since:
            continue
        there = found.get((start, length))
        if there is None:
            found[start, length] = period.copied(start, length)
        else:
            there.add(period)
    return [found[place] for place in sorted(found)]


# ---- For people ----


def _print_statistics(d: Statistics, queue: QueueState | None, architectures: Sequence[Mapping[str, Any]]) -> None:
    t = d.totals
    hits = ", ".join(f"{count:,} {_TIERS.get(tier, tier)}" for tier, count in t.hits.items()) or "none"
    rates = ", ".join(f"{tier} {human_rate(rate)}" for tier, rate in d.tier_hit_rates.items())
    lengths = lengths_document(t.spans)
    print_fields(
        {
            "entries": f"{d.entries:,} of {d.max_entries:,}",
            "on disk": f"{human_bytes(d.stored_bytes)} of {human_bytes(d.max_bytes)}",
            "journal": human_bytes(d.journal_bytes),
            "memory of a process": f"at most {human_bytes(d.max_memory_bytes)}",
            "hits": hits,
            "misses": f"{t.misses:,}",
            "hit rate": human_rate(d.hit_rate),
            "hit rate by tier": rates,
            "compile time spent": f"{human_ms(t.compile_ms)}, {counted(t.compiles, 'kernel')}",
            "compile time saved": human_ms(t.saved_ms),
            "evicted": f"{counted(t.evictions, 'entry', 'entries')}, {human_bytes(t.evicted_bytes)}",
            "corrupt entries": f"{t.corruptions:,}",
            "tier failures": ", ".join(f"{n:,} × {tier}" for tier, n in t.failures.items()) or "none",
            **({"left to nvcc": ", ".join(f"{n:,} × {why}" for why, n in t.passed.items())} if t.passed else {}),
            "lock waits over 1 s": f"{t.lock_waits:,}, {t.lock_timeouts:,} timed out",
            **{_LENGTHS.get(span, span): _length_in_words(one) for span, one in lengths.items()},
            "compiled ahead": f"{counted(t.promotions, 'promotion')}, {counted(t.demotions, 'demotion')}",
            **({"to the remote": _sent_in_words(t)} if t.remote_sent or t.remote_dropped else {}),
            "last 24 hours": _day_in_words(d.last_24h),
            "compile queue": _queue_in_words(queue) if queue else "none, as there is no store",
            "save failures": f"{t.publish_failures:,}",
            "last kernel stored": human_age(time.time() - t.last_publish_at) if t.last_publish_at else "never",
        }
    )
    if architectures:
        print()
        print_table(
            {"target": LEFT, "entries": RIGHT, "code": RIGHT, "on disk": RIGHT, "compile time": RIGHT, "hits": RIGHT},
            [
                (
                    row["arch"], row["entries"], human_bytes(row["size_bytes"]), human_bytes(row["stored_bytes"]),
                    human_ms(row["compile_ms"]), row["hits"],
                )
                for row in architectures
            ],
        )  # fmt: skip


def _queue_in_words(queue: QueueState) -> str:
    slots = f"{len(queue.compiling):,} of {counted(queue.slots, 'slot')} in use"
    waiting = [*queue.queued, *queue.waiting]
    if not waiting:
        return f"{slots}, none waits"
    callers = sum(turn.priority is Priority.CALLER for turn in waiting)
    longest = human_ms(1e3 * max(turn.seconds for turn in waiting))
    others = f", {len(queue.waiting):,} for a kernel under way" if queue.waiting else ""
    return f"{slots}, {len(queue.queued):,} in the queue{others}; {counted(callers, 'caller')}, longest {longest}"


def _day_in_words(day: EventCounts) -> str:
    compiles = f"{counted(day.compiles, 'compile')}, {day.compiles / 24:.3g} an hour"
    return f"{compiles}; {counted(day.promotions, 'promotion')}, {counted(day.demotions, 'demotion')}"


def _sent_in_words(totals: Totals) -> str:
    return f"{counted(totals.remote_sent, 'kernel')} sent, {totals.remote_dropped:,} dropped"


def _length_in_words(one: Mapping[str, Any]) -> str:
    total = human_ms(one["total_ms"])
    share = "" if one["share"] is None else f"; {total} in all, {one['share']:.0%} of what misses took"
    return (
        f"{counted(one['count'], 'time')}; half within {human_ms(one['p50_ms'])}, 90 % {human_ms(one['p90_ms'])}, "
        f"99 % {human_ms(one['p99_ms'])}, 99.9 % {human_ms(one['p999_ms'])}{share}"
    )


def _print_history(periods: Sequence[EventPeriod]) -> None:
    if not periods:
        print("No lookups or compiles in this time.")
        return
    columns: dict[str, Align] = {"from": LEFT} | dict.fromkeys(
        ("lookups", "hit rate", *TIERS, "misses", "compiles", "spent", "saved"), RIGHT
    )
    print_table(
        columns,
        [
            (
                moment(row.start), f"{row.misses + sum(row.hits.values()):,}",
                human_rate(hit_rate(sum(row.hits.values()), row.misses)),
                *(f"{row.hits.get(tier, 0):,}" for tier in TIERS), f"{row.misses:,}", f"{row.compiles:,}",
                human_ms(row.compile_ms), human_ms(row.saved_ms),
            )
            for row in periods
        ],
    )  # fmt: skip


def _print_toolchains(found: Sequence[Made]) -> None:
    if not found:
        print("The store is empty.")
        return
    columns: dict[str, Align] = {"toolchain": LEFT, "state": LEFT, "kernels": RIGHT, "on disk": RIGHT, "hits": RIGHT}
    now = time.time()
    print_table(
        {**columns, "last compiled": RIGHT, "stale because": LEFT, "build": LEFT},
        [
            (
                f"{row.compiler} {row.version}", row.state, f"{row.entries:,}", human_bytes(row.stored_bytes),
                f"{row.hits:,}", human_age(now - row.last_made_at), "; ".join(row.changed),
                row.build[:12],
            )
            for row in found
        ],
        dispensable=("build", "hits"),
    )  # fmt: skip
