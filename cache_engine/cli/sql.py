"""The verb ``sql``: one query on the index, read only; without a query, the tables that it can ask."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import click

from cache_engine.cli.support import Verb, emit, json_option, open_cache, printing
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import counted, printable

if TYPE_CHECKING:
    from cache_engine.index.sql import Answer

_MOST = 100_000
_WIDEST = 60


@click.command(
    "sql",
    cls=Verb,
    examples=(
        "sql",
        "sql 'SELECT arch, count(*) AS kernels FROM ours GROUP BY arch'",
        "sql 'SUMMARIZE kernels' --json",
        "sql 'FROM timings ORDER BY tflops DESC' --format csv --limit 100000",
    ),
    done="The answer is printed, also if it has no rows.",
    failed="The query takes too much time or memory.",
    missing="The extra dashboard is not installed.",
    argument_texts={"query": "One query in the SQL of DuckDB; - reads it from standard input."},
)
@click.argument("query", required=False)
@click.option(
    "--format", "form", type=click.Choice(("table", "csv")), default="table", help="csv: print the answer as CSV."
)
@click.option("--limit", type=click.IntRange(1, _MOST), default=1000, show_default=True, help="The most rows.")
@json_option
@click.pass_obj
def sql_verb(settings: Settings, /, query: str | None, form: str, limit: int, as_json: bool) -> None:
    """Ask the index with SQL; without QUERY, list its tables.

    The index is a copy in DuckDB of what the store's files say: kernels, their use, events, timings, demand, and
    entries of other frameworks' caches. A query can only read the index: it opens no file and no network, and ends
    after 20 s or with 0.8 GB of memory. SELECT, WITH, FROM, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are queries.

    On a terminal, a long text is cut off at 60 characters; CSV and JSON have up to 2,000. ls prints kernels without
    SQL. The dashboard's page Kernels has a view SQL, with examples.
    """
    if form == "csv" and as_json:
        raise UsageError("--json and --format csv exclude each other; choose one")
    from cache_engine.index import sql

    if query == "-":
        query = sys.stdin.read(sql.MOST_TEXT + 1)
    with open_cache(settings, create=False) as cache:
        answer = sql.ask(cache.index, sql.TABLES if query is None else query, most_rows=limit)
    if form == "csv":
        with printing():
            sys.stdout.write(sql.as_csv(answer))
        if answer.is_cut:
            print(f"The first {counted(len(answer.rows), 'row')}; see --limit.", file=sys.stderr)
    else:
        emit(answer, as_json, lambda: _print_answer(answer) if query is not None else _print_tables(answer))


def _print_answer(answer: Answer) -> None:
    numbers = [column.type not in ("VARCHAR", "BOOLEAN") for column in answer.columns]
    # Two columns may have one name; a table has a column for each name.
    names = [f"{column.name}{' ' * sum(one.name == column.name for one in answer.columns[:at])}"
             for at, column in enumerate(answer.columns)]  # fmt: skip
    columns = {name: RIGHT if number else LEFT for name, number in zip(names, numbers, strict=True)}
    if answer.rows:
        print_table(columns, [[_cell(value) for value in row] for row in answer.rows])
        print()
    print(
        f"{'The first ' if answer.is_cut else ''}{counted(len(answer.rows), 'row')}{'; see --limit' * answer.is_cut}."
    )


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _print_tables(answer: Answer) -> None:
    before: object = None
    for (table, about), rows in itertools.groupby(answer.rows, key=lambda row: row[:2]):
        print(printable(f"{table}: {about}"))
        columns = [(f"  {name}", *others) for _, _, name, *others in rows]
        if columns == before:
            print("  columns as above")
        else:
            print_table({"  column": LEFT, "type": LEFT, "description": LEFT}, columns)
        before = columns
        print()
