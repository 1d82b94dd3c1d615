"""The verbs that list what a store holds: ``ls``, ``search`` and ``stats``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from cache_engine.cli.documents import kernels, store
from cache_engine.cli.documents.caches import AdaptedList
from cache_engine.cli.documents.lengths import LastDay, Length, Queue
from cache_engine.cli.support import Verb, emit, json_option, last_first, named, open_cache, printing
from cache_engine.cli.support.targets import only_targets_option
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_fields, print_table
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, printable

_F = TypeVar("_F", bound=Callable[..., Any])
_LISTED = "The kernels are listed, or none matches."
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
_DISPENSABLE = ("compile time", "batch", "regs", "layout", "size", "config", "family", "hits")
_DISPENSABLE_OF_OTHERS = ("config", "compile time", "code", "regs", "version", "on disk", "hits")
_UNKNOWN = "–"


def _filter_options(verb: _F) -> _F:
    """Gives a verb the options of a list of kernels."""
    from cache_engine.index.queries import OLD_SORTS, SORTS  # no other verb needs the mirror

    sorts = [name.replace(" ", "-") for name in SORTS]
    for decorate in last_first(
        only_targets_option,
        click.option("--dtype", multiple=True, help="Only this element type (repeatable)."),
        click.option("--family", multiple=True, help="Only this family (repeatable)."),
        click.option("--compiler", multiple=True, help="Only this compiler (repeatable)."),
        click.option("--framework", multiple=True, help="Only kernels that this framework put here (repeatable)."),
        click.option(
            "--sort",
            type=click.Choice([*sorts, *OLD_SORTS]),
            metavar="BY",
            default=sorts[0],
            show_default=True,
            help=f"Sort order, one of: {', '.join(sorts)}.",
        ),
        click.option("--ascending", is_flag=True, help="Smallest, oldest or A first. Default: last."),
        click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows to print."),
        click.option("--offset", type=click.IntRange(0, 10**9), default=0, help="Number of rows to skip."),
        json_option,
    ):
        verb = decorate(verb)
    return verb


@click.command(
    "ls",
    cls=Verb,
    examples=(
        "ls --arch sm_90a --dtype bf16",
        "ls --sort hits --limit 10",
        "ls --framework triton",
        "ls --sort size --json",
    ),
    done=_LISTED,
    missing="The extra dashboard is not installed.",
)
@_filter_options
@click.pass_obj
def ls_verb(settings: Settings, /, **options: Any) -> None:
    """List kernels, most recently used first.

    Prints 50 kernels, unless --limit says otherwise, and how many there are; then likewise the kernels that other
    frameworks keep in this store, unless --dtype, --family or --compiler is given. On a narrow terminal some columns
    are left out; a file or a pipe gets all of them.
    """
    _list(settings, "", **options)


@click.command(
    "search",
    cls=Verb,
    examples=(
        "search sm_90 bf16",
        "search 4096x7168",
        "search deepseek h100 --sort hits",
        "search 'tensor_*' 'registers>200'",
        "search hits=0 'created>30d'",
        "search 'compile>1s' 'size>=64KB' specialise=exact",
    ),
    done=_LISTED,
    missing="The extra dashboard is not installed.",
)
@click.argument("text", nargs=-1, required=True)
@_filter_options
@click.pass_obj
def search_verb(settings: Settings, /, text: tuple[str, ...], **options: Any) -> None:
    """List kernels matching every word of TEXT.

    Searches name, key, shape, target, dtype, family, compiler and config. In a word, * is any characters, and the
    whole word must match. A model or the start of its name stands for the n and k of its shapes, a GPU (H100) or an
    architecture (hopper) for its targets. FIELD=VALUE compares, as do !=, <, <=, > and >=. Fields are:

    \b
    m, n, k, batch, groups, level, registers   numbers
    hits                                       hits=0: never hit
    size, disk, shared, spills                 bytes, or 64KB, 2MiB
    compile, compile_ms                        ms, or 250us, 1.5s, 2min
    created, used                              an age, <1d: in the last day,
                                               or a day of UTC, >2026-11-01
    target, arch, dtype, out, layout,          a word, also with *: 64x*
    epilogue, scales, mode, specialise,
    family, compiler, config, name, key

    Quote words with *, < or >, because shells interpret these. Prints up to 50 kernels (--limit), and as many of other
    frameworks that match by name, key, target, framework, version or config.
    """  # noqa: D301 (click reads the backspace as: leave these lines as they are)
    _list(settings, " ".join(text), **options)


@click.command(
    "stats",
    cls=Verb,
    examples=("stats", "stats --by-arch", "stats --json", "stats --textfile /var/lib/node_exporter/gemm_cache.prom"),
    done="The statistics are printed.",
    missing="--by-arch: the extra dashboard is not installed.",
)
@click.option("--by-arch", is_flag=True, help="Break down by target.")
@click.option("--prometheus", is_flag=True, help="Print metrics in Prometheus's text format.")
@click.option(
    "--textfile", type=click.Path(path_type=Path), help="Write these to a file, for the node exporter; replaces it."
)
@json_option
@click.pass_obj
def stats_verb(settings: Settings, /, by_arch: bool, prometheus: bool, textfile: Path | None, as_json: bool) -> None:
    """Show size, hit rates and compile time saved.

    Hits and misses are those of all processes since the store exists. The hit rate of a tier is its share of the
    lookups that no tier before it served.
    """
    if prometheus or textfile:
        if by_arch or as_json:
            raise UsageError("--prometheus and --textfile take neither --by-arch nor --json")
        _export_metrics(settings, textfile, prometheus=prometheus)
        return
    with open_cache(settings, create=False) as cache:
        architectures = None
        found = cache.stats()
        if by_arch:
            from cache_engine.index import queries

            architectures = cache.query(queries.architectures)
        queue = cache.queue() if cache.has_store else None
    document = store.stats(found, architectures, queue)
    emit(document, as_json, lambda: _print_statistics(document))


def _export_metrics(settings: Settings, textfile: Path | None, *, prometheus: bool) -> None:
    from cache_engine.insight.metrics import prometheus_text, write_to_textfile

    with open_cache(settings, create=False) as cache:
        if textfile is not None:
            with named(textfile):
                write_to_textfile(cache, textfile)
        if prometheus:
            with printing():
                sys.stdout.write(prometheus_text(cache.stats(), cache.queue() if cache.has_store else None))


def _list(
    settings: Settings,
    text: str,
    *,
    archs: tuple[str, ...],
    dtype: tuple[str, ...],
    family: tuple[str, ...],
    compiler: tuple[str, ...],
    framework: tuple[str, ...],
    sort: str,
    ascending: bool,
    limit: int,
    offset: int,
    as_json: bool,
) -> None:
    from cache_engine.evaluator.catalogue import read_search
    from cache_engine.evaluator.catalogue.tables import advice
    from cache_engine.index import queries

    search = read_search(text)
    chosen = queries.KernelFilter.of(search, archs, dtype, family, compiler)
    # Kernels of other frameworks have no dtype or family that would be known, and ours have no framework.
    others = replace(chosen, frameworks=framework)
    has_ours = not framework
    page: dict[str, Any] = {
        "sort": sort.replace("-", " "), "descending": not ascending, "limit": limit, "offset": offset,
    }  # fmt: skip
    with open_cache(settings, create=False) as cache:
        document = kernels.kernel_list(
            cache.query(queries.count, chosen) if has_ours else 0,
            offset,
            cache.query(queries.kernels, chosen, **page) if has_ours else [],
            cache.query(queries.count, others),
            cache.query(queries.kernels, others, **page),
        )
        there: dict[str, list[str]] = {}
        if not document.rows and not document.adapted.rows:
            there = cache.query(queries.facets)
            there["hint"] = advice(
                text,
                lambda one: cache.query(queries.count, queries.KernelFilter.of(read_search(one))),
                chain.from_iterable(there.values()),
            )
    emit(document, as_json, lambda: print_kernels(document, there, search.meanings))


# ---- For people ----


def print_kernels(page: kernels.KernelList, there: Mapping[str, Sequence[str]], meanings: Sequence[str] = ()) -> None:
    """Prints a page of kernels; when it is empty, hints, and the values ``there`` are to filter by."""
    for meaning in meanings:
        print(printable(meaning))
    total = page.total + page.adapted.total
    if not page.rows and not page.adapted.rows:
        print(f"Only {counted(total, 'row')}." if total else "No kernel matches.")
        for hint in there.get("hint", ()):
            print(printable(hint))
        for column, values in there.items():
            if values and not total and column != "hint":
                print(printable(f"  valid {column} values: {', '.join(values)}"))
    now = time.time()
    if page.rows:
        _print_ours(page, now)
    if page.rows and page.adapted.rows:
        print("\nKernels of other frameworks:\n")
    if page.adapted.rows:
        _print_adapted(page.adapted, page.offset, now)


def _print_ours(page: kernels.KernelList, now: float) -> None:
    columns: dict[str, Align] = {
        "key": LEFT, "target": LEFT, "family": LEFT, "dtype": LEFT, "layout": LEFT, "m × n × k": RIGHT, "batch": RIGHT,
        "config": LEFT, "regs": RIGHT, "size": RIGHT, "compile time": RIGHT, "hits": RIGHT, "last used": RIGHT,
    }  # fmt: skip
    rows = [
        (
            row.key[:12], row.arch, row.family,
            row.dtype if row.dtype == row.out_dtype else f"{row.dtype}→{row.out_dtype}",
            row.layout, f"{row.m} × {row.n} × {row.k}", row.batch, row.config, row.registers,
            human_bytes(row.size_bytes), human_ms(row.compile_ms), row.hits, human_age(now - row.last_used_at),
        )
        for row in page.rows
    ]  # fmt: skip
    print_table(columns, rows, dispensable=_DISPENSABLE)
    print(f"\n{page.offset + 1:,}–{page.offset + len(rows):,} of {page.total:,}")


def _print_adapted(page: AdaptedList, offset: int, now: float) -> None:
    columns: dict[str, Align] = {
        "key": LEFT, "framework": LEFT, "version": LEFT, "target": LEFT, "name": LEFT, "config": LEFT, "regs": RIGHT,
        "code": RIGHT, "on disk": RIGHT, "compile time": RIGHT, "hits": RIGHT, "last used": RIGHT,
    }  # fmt: skip
    rows = [
        (
            row.key[:12], row.framework, row.version or _UNKNOWN, row.arch or _UNKNOWN, row.name, row.config,
            _UNKNOWN if row.registers is None else row.registers,
            _UNKNOWN if row.code_bytes is None else human_bytes(row.code_bytes), human_bytes(row.stored_bytes),
            _UNKNOWN if row.compile_ms is None else human_ms(row.compile_ms), row.hits,
            human_age(now - row.last_used_at),
        )
        for row in page.rows
    ]  # fmt: skip
    print_table(columns, rows, dispensable=_DISPENSABLE_OF_OTHERS)
    print(f"\n{offset + 1:,}–{offset + len(rows):,} of {page.total:,}")


def _queue_in_words(queue: Queue) -> str:
    slots = f"{len(queue.compiling):,} of {counted(queue.slots, 'slot')} in use"
    waiting = [*queue.queued, *queue.waiting]
    if not waiting:
        return f"{slots}, none waits"
    callers = sum(turn.priority == "caller" for turn in waiting)
    longest = human_ms(1e3 * max(turn.seconds for turn in waiting))
    others = f", {len(queue.waiting):,} for a kernel under way" if queue.waiting else ""
    return f"{slots}, {len(queue.queued):,} in the queue{others}; {counted(callers, 'caller')}, longest {longest}"


def _day_in_words(day: LastDay) -> str:
    compiles = f"{counted(day.compiles, 'compile')}, {day.compiles_per_hour:.3g} an hour"
    return f"{compiles}; {counted(day.promotions, 'promotion')}, {counted(day.demotions, 'demotion')}"


def _sent_in_words(d: store.Stats) -> str:
    return f"{counted(d.remote_sent, 'kernel')} sent, {d.remote_dropped:,} dropped"


def _length_in_words(one: Length) -> str:
    share = f"; {human_ms(one.total_ms)} in all, {one.share:.0%} of what misses took" if one.share is not None else ""
    return (
        f"{counted(one.count, 'time')}; half within {human_ms(one.p50_ms)}, 90 % {human_ms(one.p90_ms)}, "
        f"99 % {human_ms(one.p99_ms)}, 99.9 % {human_ms(one.p999_ms)}{share}"
    )


def _print_statistics(d: store.Stats) -> None:
    hits = ", ".join(f"{count:,} {_TIERS.get(tier, tier)}" for tier, count in d.hits.items()) or "none"
    rates = ", ".join(f"{tier} {human_rate(rate)}" for tier, rate in d.hit_rates.items())
    print_fields(
        {
            "entries": f"{d.entries:,} of {d.max_entries:,}",
            "on disk": f"{human_bytes(d.stored_bytes)} of {human_bytes(d.max_bytes)}",
            "journal": human_bytes(d.journal_bytes),
            "memory of a process": f"at most {human_bytes(d.max_memory_bytes)}",
            "hits": hits,
            "misses": f"{d.misses:,}",
            "hit rate": human_rate(d.hit_rate),
            "hit rate by tier": rates,
            "compile time spent": f"{human_ms(d.compile_ms)}, {counted(d.compiles, 'kernel')}",
            "compile time saved": human_ms(d.saved_ms),
            "evicted": f"{counted(d.evictions, 'entry', 'entries')}, {human_bytes(d.evicted_bytes)}",
            "corrupt entries": f"{d.corruptions:,}",
            "tier failures": ", ".join(f"{n:,} × {tier}" for tier, n in d.tier_failures.items()) or "none",
            "lock waits over 1 s": f"{d.lock_waits:,}, {d.lock_timeouts:,} timed out",
            **{_LENGTHS.get(span, span): _length_in_words(one) for span, one in d.lengths.items()},
            "compiled ahead": f"{counted(d.promotions, 'promotion')}, {counted(d.demotions, 'demotion')}",
            **({"to the remote": _sent_in_words(d)} if d.remote_sent or d.remote_dropped else {}),
            "last 24 hours": _day_in_words(d.last_24h),
            "compile queue": _queue_in_words(d.queue) if d.queue else "none, as there is no store",
            "save failures": f"{d.publish_failures:,}",
            "last kernel stored": human_age(time.time() - d.last_publish_at) if d.last_publish_at else "never",
        }
    )
    if d.architectures:
        print()
        print_table(
            {"target": LEFT, "entries": RIGHT, "code": RIGHT, "on disk": RIGHT, "compile time": RIGHT, "hits": RIGHT},
            [
                (
                    row.arch, row.entries, human_bytes(row.size_bytes), human_bytes(row.stored_bytes),
                    human_ms(row.compile_ms), row.hits,
                )
                for row in d.architectures
            ],
        )  # fmt: skip
