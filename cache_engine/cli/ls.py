"""The verb ``ls``: the kernels of the store, all of them or those that match a search."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import click

from cache_engine.cli.support import Verb, emit, json_option, only_targets_option, open_cache
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.index.queries import OLD_SORTS, SORTS
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, human_ms, printable

_DISPENSABLE = ("compile time", "batch", "regs", "layout", "size", "config", "family", "hits")
_DISPENSABLE_OF_OTHERS = ("config", "compile time", "code", "regs", "version", "on disk", "hits")
_UNKNOWN = "–"
_SORTS = [name.replace(" ", "-") for name in SORTS]


@click.command(
    "ls",
    cls=Verb,
    examples=(
        "ls --arch sm_90a --dtype bf16",
        "ls --sort hits --limit 10",
        "ls deepseek h100",
        "ls 4096x7168 'registers>200'",
        "ls hits=0 'created>30d'",
        "ls 'tensor_*' 'compile>1s' 'size>=64KB' specialise=exact",
        "ls --kind triton --json",
    ),
    done="The kernels are listed, or none matches.",
    missing="The extra dashboard is not installed.",
)
@click.argument("text", nargs=-1)
@only_targets_option
@click.option("--dtype", multiple=True, help="Only this element type (repeatable).")
@click.option("--family", multiple=True, help="Only this family (repeatable).")
@click.option("--compiler", multiple=True, help="Only this compiler (repeatable).")
@click.option("--kind", multiple=True, help="Only kernels of this framework (repeatable).")
@click.option(
    "--sort", type=click.Choice([*_SORTS, *OLD_SORTS]), metavar="BY", default=_SORTS[0], show_default=True,
    help=f"Sort order, one of: {', '.join(_SORTS)}.",
)  # fmt: skip
@click.option("--ascending", is_flag=True, help="Smallest, oldest or A first. Default: last.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows to print.")
@click.option("--offset", type=click.IntRange(0, 10**9), default=0, help="Number of rows to skip.")
@json_option
@click.pass_obj
def ls_verb(
    settings: Settings, /, text: tuple[str, ...], archs: tuple[str, ...], dtype: tuple[str, ...],
    family: tuple[str, ...], compiler: tuple[str, ...], kind: tuple[str, ...], sort: str, ascending: bool,
    limit: int, offset: int, as_json: bool,
) -> None:  # fmt: skip
    """List kernels, or those matching every word of TEXT.

    The most recently used come first. Prints 50 kernels, unless --limit says otherwise, and how many there are; then
    likewise the kernels that other frameworks keep in this store, unless --dtype, --family or --compiler is given. On a
    narrow terminal some columns are left out; a file or a pipe gets all of them.

    TEXT searches name, key, shape, target, dtype, family, compiler and config. In a word, * is any characters, and the
    whole word must match. A model or the start of its name stands for the n and k of its shapes, a GPU (H100) or an
    architecture (hopper) for its targets; for the family of that name use --family hopper. FIELD=VALUE compares, as do
    !=, <, <=, > and >=. Fields are:

    \b
    m, n, k, batch, groups, level, registers   numbers
    hits                                       hits=0: never hit
    size, disk, shared, spills                 bytes, or 64KB, 2MiB
    compile, compile_ms                        ms, or 250us, 1.5s, 2min
    created, used                              an age, <1d: in the last day,
                                               or a day of UTC, >2026-11-01
    target, arch, dtype, out, layout,          a word, also with *: 64x*
    epilogue, scales, mode, specialise,
    fast_math, family, compiler, config,
    name, key, note
    tag                                        a tag of pin --tag

    Quote words with *, < or >, because shells interpret these. Kernels of other frameworks match by name, key, target,
    framework, version or config.
    """  # noqa: D301 (click reads the backspace as: leave these lines as they are)
    from cache_engine.evaluator.catalogue import read_search
    from cache_engine.evaluator.catalogue.search import advice
    from cache_engine.index import queries

    words = " ".join(text)
    search = read_search(words)
    chosen = queries.KernelFilter.of(search, archs, dtype, family, compiler)
    # Kernels of other frameworks have no dtype or family that would be known, and ours have no framework.
    others = replace(chosen, frameworks=kind)
    has_ours = not kind
    page: dict[str, Any] = {
        "sort": sort.replace("-", " "), "descending": not ascending, "limit": limit, "offset": offset,
    }  # fmt: skip
    with open_cache(settings, create=False) as cache:
        cache.index.reads_often = True  # five times
        ours = Page(
            cache.query(queries.count, chosen) if has_ours else 0,
            cache.query(queries.kernels, chosen, **page) if has_ours else [],
        )
        adapted = Page(cache.query(queries.count, others), cache.query(queries.kernels, others, **page))
        skipped = cache.query(queries.state)["skipped"]
        there: dict[str, list[str]] = {}
        if not ours.rows and not adapted.rows:
            there = cache.query(queries.facets)
            there["hint"] = advice(
                words,
                lambda one: cache.query(queries.count, queries.KernelFilter.of(read_search(one))),
                chain.from_iterable(there.values()),
            )
    document = {
        "total": ours.total, "offset": offset, "rows": ours.rows, "adapted": adapted._asdict(), "skipped": skipped,
    }  # fmt: skip
    emit(document, as_json, lambda: print_kernels(ours, adapted, offset, there, search.meanings))
    if skipped and not as_json:
        print(f"\n{counted(skipped, 'item')} of the store cannot be indexed; gemm-cache verify names each.")


class Page(NamedTuple):
    """A page of a list: the number of all kernels in the list, and the rows of this page, by the index's columns."""

    total: int
    rows: Sequence[Mapping[str, Any]]


# ---- For people ----


def print_kernels(
    ours: Page, adapted: Page, offset: int, there: Mapping[str, Sequence[str]], meanings: Sequence[str] = ()
) -> None:
    """Prints a page of kernels; if the page is empty, prints hints, and ``there``: each filter's possible values."""
    for meaning in meanings:
        print(printable(meaning))
    total = ours.total + adapted.total
    if not ours.rows and not adapted.rows:
        print(f"Only {counted(total, 'row')}." if total else "No kernel matches.")
        for hint in there.get("hint", ()):
            print(printable(hint))
        for column, values in there.items():
            if values and not total and column != "hint":
                print(printable(f"  valid {column} values: {', '.join(values)}"))
    now = time.time()
    if ours.rows:
        _print_ours(ours, offset, now)
    if ours.rows and adapted.rows:
        print("\nKernels of other frameworks:\n")
    if adapted.rows:
        _print_adapted(adapted, offset, now)


def _print_ours(page: Page, offset: int, now: float) -> None:
    columns: dict[str, Align] = {
        "key": LEFT, "target": LEFT, "family": LEFT, "dtype": LEFT, "layout": LEFT, "m × n × k": RIGHT, "batch": RIGHT,
        "config": LEFT, "regs": RIGHT, "size": RIGHT, "compile time": RIGHT, "hits": RIGHT, "last used": RIGHT,
    }  # fmt: skip
    rows = [
        (
            row["key"][:12], row["arch"], row["family"],
            row["dtype"] if row["dtype"] == row["out_dtype"] else f"{row['dtype']}→{row['out_dtype']}",
            row["layout"], f"{row['m']} × {row['n']} × {row['k']}", row["batch"], row["config"], row["registers"],
            human_bytes(row["size_bytes"]), human_ms(row["compile_ms"]), row["hits"],
            human_age(now - row["last_used_at"]),
        )
        for row in page.rows
    ]  # fmt: skip
    print_table(columns, rows, dispensable=_DISPENSABLE)
    print(f"\n{offset + 1:,}–{offset + len(rows):,} of {page.total:,}")


def _print_adapted(page: Page, offset: int, now: float) -> None:
    columns: dict[str, Align] = {
        "key": LEFT, "framework": LEFT, "version": LEFT, "target": LEFT, "name": LEFT, "config": LEFT, "regs": RIGHT,
        "code": RIGHT, "on disk": RIGHT, "compile time": RIGHT, "hits": RIGHT, "last used": RIGHT,
    }  # fmt: skip
    rows = [
        (
            row["key"][:12], row["framework"], row["version"] or _UNKNOWN, row["arch"] or _UNKNOWN, row["name"],
            row["config"], _UNKNOWN if row["registers"] is None else row["registers"],
            _UNKNOWN if row["code_bytes"] is None else human_bytes(row["code_bytes"]),
            human_bytes(row["stored_bytes"]),
            _UNKNOWN if row["compile_ms"] is None else human_ms(row["compile_ms"]), row["hits"],
            human_age(now - row["last_used_at"]),
        )
        for row in page.rows
    ]  # fmt: skip
    print_table(columns, rows, dispensable=_DISPENSABLE_OF_OTHERS)
    print(f"\n{offset + 1:,}–{offset + len(rows):,} of {page.total:,}")
