"""The verbs ``toolchains`` and ``coverage``: what made the kernels of a store, and what a model still needs."""

from __future__ import annotations

import time

import click

from cache_engine.cli.documents import toolchains as documents
from cache_engine.cli.support import Verb, element_options, emit, input_dtype, json_option, open_cache
from cache_engine.cli.support.completion import models
from cache_engine.cli.support.targets import targets_option
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.evaluator.catalogue import TOKENS
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, printable


@click.command(
    "toolchains",
    cls=Verb,
    examples=("toolchains", "toolchains --json"),
    done="The toolchains are printed, or the store is empty.",
    missing="The extra dashboard is not installed.",
)
@json_option
@click.pass_obj
def toolchains_verb(settings: Settings, /, as_json: bool) -> None:
    """Show which toolchains compiled the kernels.

    For each, whether its kernels can be hit here, and if they never can, what has changed. clean --stale-toolchain
    deletes those; timings --from compares two.
    """
    from cache_engine.index import queries
    from cache_engine.insight.toolchains import made_by_toolchain

    with open_cache(settings, create=False) as cache:
        found = made_by_toolchain(cache, cache.query(queries.made_with))
    document = documents.toolchains(found)
    emit(document, as_json, lambda: _print_toolchains(document))


@click.command(
    "coverage",
    cls=Verb,
    examples=("coverage Llama-3.1-8B --arch sm_90a", "coverage shapes.csv --m 1-64 --missing --json"),
    done="The coverage is printed, whatever is missing.",
    missing="The compiler is not installed, so there are no keys.",
    completers={"table": models},
)
@click.argument("table", metavar="MODEL|FILE")
@targets_option
@click.option("--m", "ms", default=TOKENS, show_default=True, metavar="SIZES", help="Tokens, such as 1,16,64-512.")
@element_options
@click.option("--missing", is_flag=True, help="Only shapes of which a kernel is missing.")
@json_option
@click.pass_obj
def coverage_verb(
    settings: Settings, /, table: str, archs: tuple[str, ...], ms: str, dtype: str, scales: str, mode: str,
    missing: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show which kernels of a model are cached.

    For each shape and target, how many of the kernels that serve every m of --m are in the store. Compiles nothing;
    warm, with the same arguments, compiles what is missing.
    """
    from cache_engine.batch.warm import stored
    from cache_engine.evaluator.catalogue import shapes_of
    from cache_engine.insight.coverage import coverage, distinct, wanted
    from cache_engine.model.sizes import parse_sizes

    asked = wanted(shapes_of(table), input_dtype(dtype), archs or (None,), parse_sizes(ms), scales=scales, mode=mode)
    with open_cache(settings, create=False, optional=True) as cache:
        cells = coverage(cache, asked)
        cached = stored(cache, [kernel.key for kernel in distinct(cells)])
    document = documents.coverage(table, dtype, cells, cached, only_missing=missing)
    emit(document, as_json, lambda: _print_coverage(document))


# ---- For people ----


def _print_toolchains(d: documents.Toolchains) -> None:
    if not d.rows:
        print("The store is empty.")
        return
    columns: dict[str, Align] = {"toolchain": LEFT, "state": LEFT, "kernels": RIGHT, "on disk": RIGHT, "hits": RIGHT}
    now = time.time()
    print_table(
        {**columns, "last compiled": RIGHT, "stale because": LEFT, "build": LEFT},
        [
            (
                f"{row.compiler} {row.version}", row.state, f"{row.entries:,}", human_bytes(row.stored_bytes),
                f"{row.hits:,}", human_age(now - row.last_made_at), printable("; ".join(row.changed)),
                printable(row.build[:12]),
            )
            for row in d.rows
        ],
        dispensable=("build", "hits"),
    )  # fmt: skip


def _print_coverage(d: documents.Coverage) -> None:
    columns: dict[str, Align] = {"operation": LEFT, "n × k": RIGHT, "batch": RIGHT, "target": LEFT, "cached": RIGHT}
    print_table(
        {**columns, "": LEFT},
        [
            (
                printable(row.operation), f"{row.n} × {row.k}", f"{row.batch}", row.arch,
                "–" if row.refused else f"{row.cached:,} of {row.kernels:,}", printable(row.refused),
            )
            for row in d.rows
        ],
    )  # fmt: skip
    print(f"\n{d.cached:,} of {counted(d.kernels, 'kernel')} cached.")
