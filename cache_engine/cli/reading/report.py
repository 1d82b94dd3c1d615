"""The verb that writes one HTML file to send: ``report``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.documents import store
from cache_engine.cli.moved import BENCHMARKS
from cache_engine.cli.support import Verb, emit, json_option, open_cache, printing
from cache_engine.cli.support.completion import keys as some_keys
from cache_engine.cli.support.output import write_file
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.units import human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.insight.report.page import Report


@click.command(
    "report",
    cls=Verb,
    examples=(
        "report -o store.html",
        "report 3f2a -o kernel.html",
        "report 3f2a 91bc -o compared.html",
    ),
    done="The report is written.",
    failed="No kernel has such a key prefix, several have it, or an entry is damaged.",
    completers={"keys": some_keys},
)
@click.argument("keys", metavar="[KEY] [KEY]", nargs=-1)
@click.option("--replay", type=click.Path(path_type=Path), hidden=True)
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, allow_dash=True), required=True, metavar="FILE",
    help="The HTML file to write; - prints it.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def report_verb(
    settings: Settings, /, keys: tuple[str, ...], replay: Path | None, file: Path, force: bool, as_json: bool
) -> None:
    """Write one HTML file about a kernel, two, or the store.

    Without KEY, the store; with two, a comparison. The file holds all it shows: figures, tables, code and the command
    that makes it again. It has no script and loads nothing, so it opens anywhere, also offline, and prints.
    """
    if replay is not None:
        raise UsageError(f"{BENCHMARKS} report")
    if len(keys) > 2:
        raise UsageError("give one KEY, two to compare, or none for the whole store")
    if str(file) == "-" and as_json:
        raise UsageError("--output - prints the report itself; give it a file name, or leave --json out")
    from cache_engine.insight.report.page import written

    now = time.time()
    report = _report(settings, keys, now)
    text = written(report, now).encode()
    if str(file) == "-":
        with printing():
            sys.stdout.buffer.write(text)
        return
    write_file(file, text, force=force)
    document = store.Reported(file=str(file), title=report.title, bytes=len(text))
    emit(document, as_json, lambda: print(printable(f"{document.title}: {file}, {human_bytes(len(text))}.")))


def _report(settings: Settings, keys: tuple[str, ...], now: float) -> Report:
    with open_cache(settings, create=False) as cache:
        if not keys:
            from cache_engine.insight.report.kernels import store_report

            return store_report(cache, now)
        from cache_engine.insight.report.kernels import comparison_report, kernel_report

        records = [cache.find(key) for key in keys]
        return kernel_report(cache, records[0]) if len(records) == 1 else comparison_report(cache, *records)
