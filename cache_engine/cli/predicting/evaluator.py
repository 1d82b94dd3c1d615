"""The verb ``evaluations``: the stored results of the evaluator."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cache_engine.cli.support import Verb, emit, json_option, named, open_cache, printing
from cache_engine.cli.support.output import write_file
from cache_engine.cli.support.verb import VerbGroup
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.errors import UsageError
from cache_engine.inputs import open_input
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.results import Evaluations
    from cache_engine.evaluator.validation import Validated

_LEFT_OUT = (
    "left out: {}, of --reduce-partial-sums, of --compute-rate or damaged, which format 2025.01 cannot have; "
    "--format own has all that are sound"
)


@click.group("evaluations", cls=VerbGroup, examples=("evaluations ls",), no_args_is_help=True)
def evaluations_verb() -> None:
    """List, export, import or prune stored results."""


@evaluations_verb.command(
    "ls",
    cls=Verb,
    examples=("evaluations ls", "evaluations ls --chip SG2262 --json"),
    done="The results are listed, if any.",
)
@click.option("--chip", metavar="NAME|FILE|FINGERPRINT", help="List the results of this accelerator.")
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, chip: str | None, as_json: bool) -> None:
    """List accelerators with results, or one's results.

    --chip lists the results of one accelerator.
    """
    from cache_engine.cli.documents import evaluator as documents

    with open_cache(settings, create=False) as cache:
        stored = cache.evaluations
        if chip is None:
            rows = msgspec.convert(stored.summaries(), list[documents.AcceleratorRow])
            emit(documents.Accelerators(architectures=rows), as_json, lambda: _print_summaries(rows))
            return
        fingerprint = _fingerprint(stored, chip)
        results = [documents.result_row(key, entry) for key, entry in stored.entries(fingerprint)]
    listed = documents.ResultList(arch_fingerprint=fingerprint, total=len(results), rows=results)
    emit(listed, as_json, lambda: _print_entries(results))


@evaluations_verb.command(
    "validate",
    cls=Verb,
    examples=(
        "evaluations validate measured.csv.gz --kept-out",
        "evaluations validate measured.csv --chip mine.json",
    ),
    done="The errors of the model are printed.",
    failed="The file cannot be read.",
    missing="The extra evaluate is not installed.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kept-out", is_flag=True, help="Only (N, K) pairs that no fit has used.")
@click.option("--chip", metavar="NAME|FILE", help="The GPU of all rows, in place of the column arch.")
@json_option
def validate_verb(file: Path, kept_out: bool, chip: str | None, as_json: bool) -> None:
    """Compare the GPU model with measured latencies.

    FILE is a CSV file, gzipped or not, with the columns arch, M, N, K and latency_us; dtype too unless all are bf16.
    The roofline model is compared as well.
    """
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.chips import load_gpu
    from cache_engine.evaluator.validation import read_measurements, validate

    gpu = None if chip is None else load_gpu(chip)
    measured = [one.only(one.kept_out()) if kept_out else one for one in read_measurements(file, gpu)]
    lines = [line for one in measured for line in validate(one)]
    document = documents.ValidationReport(file=str(file.absolute()), kept_out=kept_out, lines=lines)
    emit(document, as_json, lambda: _print_validated(lines))


@evaluations_verb.command(
    "export",
    cls=Verb,
    examples=("evaluations export results.json", "evaluations export - --chip SG2262 --format reference"),
    done="The results are written.",
    failed="The file cannot be written.",
)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--chip", metavar="NAME|FILE|FINGERPRINT", help="Accelerator. Default: the only one with results.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("own", "reference")),
    default="own",
    show_default=True,
    help="reference: that of the reference evaluator (2025.01).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def export_verb(settings: Settings, /, file: Path, chip: str | None, form: str, force: bool, as_json: bool) -> None:
    """Write the results of an accelerator to FILE, as JSON.

    Other tools can read the file. A name that ends in .zst gives a compressed file; - prints JSON.
    """
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.store.results import compress

    with open_cache(settings, create=False) as cache:
        stored = cache.evaluations
        fingerprint = _fingerprint(stored, chip)
        entries = total = len(stored.snapshot(fingerprint).cache_entries)
        if form == "own":
            data = stored.export(fingerprint)
        else:
            data, entries = stored.export_reference(fingerprint)
    if entries < total:
        print(_LEFT_OUT.format(counted(total - entries, "result")), file=sys.stderr)
    if str(file) == "-":
        with printing():
            sys.stdout.write(data.decode() + "\n")
        return
    data = compress(data) if file.suffix == ".zst" else data
    write_file(file, data, force=force)
    document = documents.ResultsExported(
        file=str(file.absolute()), arch_fingerprint=fingerprint, entries=entries, bytes=len(data)
    )
    emit(document, as_json, lambda: print(f"{counted(entries, 'result')} written to {file}, {human_bytes(len(data))}"))


@evaluations_verb.command(
    "import",
    cls=Verb,
    examples=("evaluations import results.json",),
    done="All results are in the store.",
    failed="Some results are refused, or the file cannot be read.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--chip", metavar="NAME|FILE", help="Chip of a file of the reference evaluator. Default: its chip_type.")
@json_option
@click.pass_obj
def import_verb(settings: Settings, /, file: Path, chip: str | None, as_json: bool) -> None:
    """Import the results of FILE.

    Results that the store has stay as they are; a result that cannot be right is refused. FILE may be an export, or of
    the reference evaluator (format 2025.01).
    """
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.chips import load_hardware
    from cache_engine.store.results import LARGEST_IMPORT_BYTES, decompress

    with named(file), open_input(file) as given:
        data = decompress(given.read(LARGEST_IMPORT_BYTES + 1), LARGEST_IMPORT_BYTES)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        taken = cache.evaluations.import_file(data, None if chip is None else load_hardware(chip))
    document = documents.results_imported(str(file.absolute()), taken)
    emit(document, as_json, lambda: _print_taken(document), failed=taken.refused)


@evaluations_verb.command(
    "prune",
    cls=Verb,
    examples=("evaluations prune --dry-run", "evaluations prune --unused-days 30"),
    done="The results are deleted; with --dry-run, they are listed.",
    failed="A file cannot be changed.",
)
@click.option("--max-entries", type=click.IntRange(0), help="Above this, delete the tenth unused longest.")
@click.option("--unused-days", type=click.FloatRange(0), help="Delete results unused for this many days.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; change nothing.")
@json_option
@click.pass_obj
def prune_verb(
    settings: Settings, /, max_entries: int | None, unused_days: float | None, dry_run: bool, as_json: bool
) -> None:
    """Delete results that are unused, or too many.

    By default: results unused for 90 days, and results above 10,000 of an accelerator.
    """
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.results import MAX_ENTRIES, UNUSED_DAYS

    with open_cache(settings, create=False) as cache:
        plan = cache.evaluations.plan_pruning(
            MAX_ENTRIES if max_entries is None else max_entries, UNUSED_DAYS if unused_days is None else unused_days
        )
        gone = None if dry_run else cache.evaluations.prune(plan)
    document = documents.Pruning(dry_run=dry_run, victims=plan, pruned=gone)
    emit(document, as_json, lambda: _print_pruned(document))


# ---- Shared ----


def _fingerprint(stored: Evaluations, chip: str | None) -> str:
    """The fingerprint that a name, a file or a fingerprint prefix stands for, among those with results."""
    from cache_engine.evaluator.chips import load_hardware

    known = stored.fingerprints()
    if chip is None:
        if len(known) != 1:
            raise UsageError(f"the store has results of {counted(len(known), 'accelerator')}; choose one with --chip")
        return known[0]
    matches = [fingerprint for fingerprint in known if len(chip) >= 4 and fingerprint.startswith(chip.lower())]
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} fingerprints start with {chip}; give a longer prefix")
    found = matches[0] if matches else load_hardware(chip).fingerprint()
    if found not in known:
        raise UsageError(f"no results of {chip}; gemm-cache evaluations ls lists accelerators with results")
    return found


# ---- For people ----


def _print_validated(lines: list[Validated]) -> None:
    from cache_engine.evaluator.validation import range_text

    errors = ("rows", "MAPE", "median", "bias", "within 20 %", "in interval", "roofline MAPE", "roofline bias")
    columns: dict[str, Align] = {"GPU": LEFT, "dtype": LEFT, "m": LEFT}
    print_table(
        columns | dict.fromkeys(errors, RIGHT),
        [
            (
                line.arch, line.dtype, range_text(line.m_from, line.m_to), f"{line.count:,}",
                *(f"{error:.1%}" for error in (line.model.mape, line.model.median, line.model.bias)),
                f"{line.model.within_20:.1%}", f"{line.inside:.1%}", f"{line.roofline.mape:.1%}",
                f"{line.roofline.bias:.1%}",
            )
            for line in lines
        ],
    )  # fmt: skip


def _print_summaries(rows: list[documents.AcceleratorRow]) -> None:
    if not rows:
        print("No results. gemm-cache evaluate M N K --chip NAME computes one.")
        return
    columns: dict[str, Align] = {"fingerprint": LEFT, "chip": LEFT}
    columns |= dict.fromkeys(("results", "hits", "misses", "search time", "updated"), RIGHT)
    now = time.time()
    print_table(
        columns,
        [
            (row.arch_fingerprint[:12], row.error, "", "", "", "", "")
            if row.error
            else (
                row.arch_fingerprint[:12], row.chip, f"{row.total_entries:,}", f"{row.cache_hits:,}",
                f"{row.cache_misses:,}", f"{(row.total_search_time_hours or 0) * 3600:.2f} s",
                human_age(now - row.last_updated) if row.last_updated else "unknown",
            )
            for row in rows
        ],
    )  # fmt: skip


def _print_entries(rows: list[documents.ResultRow]) -> None:
    columns: dict[str, Align] = {"G × M × K × N": RIGHT, "types": LEFT, "latency µs": RIGHT, "% of peak": RIGHT}
    columns |= dict.fromkeys(("tile", "order", "partition"), LEFT)
    print_table(
        columns,
        [
            (
                " × ".join(f"{getattr(row.shape, name)}" for name in "GMKN"), f"{row.dtypes.input}→{row.dtypes.output}",
                f"{row.result.latency_us:,.2f}", f"{row.result.effective_utilization:.1%}",
                "×".join(map(str, row.result.tile.values())), row.result.order,
                "×".join(map(str, row.result.partition.values())),
            )
            for row in rows
        ],
    )  # fmt: skip
    print(f"\n{counted(len(rows), 'result')}")


def _print_taken(d: documents.ResultsImported) -> None:
    print(f"Imported {counted(d.taken, 'result')}; {d.present:,} already in the store.")
    for refused in d.refused:
        print(printable(f"refused: {refused.key}: {refused.reason}"))


def _print_pruned(d: documents.Pruning) -> None:
    for victim in d.victims:
        print(printable(f"{victim.fingerprint[:12]}  {victim.key}  {victim.reason}"))
    if d.pruned is None:
        print(f"Would delete {counted(len(d.victims), 'result')}.")
    else:
        print(f"Deleted {counted(d.pruned, 'result')}.")
