"""``gemm-cache evaluations``: the stored results of the evaluator."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from cache_engine.cli.support import Verb, emit, json_option, named, only_with, open_cache, printing, write_file
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table
from cache_engine.errors import UsageError
from cache_engine.evaluator.results.entry import is_to_validate
from cache_engine.inputs import open_input
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.evaluator.results import Evaluations, Pruned, Taken
    from cache_engine.evaluator.results.entry import Entry

_LEFT_OUT = (
    "left out: {}, of --reduce-partial-sums, of --compute-rate or damaged, which format 2025.01 cannot have; "
    "--format own has all that are sound"
)


@click.command(
    "evaluations",
    cls=Verb,
    examples=(
        "evaluations",
        "evaluations --chip SG2262 --json",
        "evaluations results.json",
        "evaluations - --chip SG2262 --format reference",
        "evaluations --import results.json",
        "evaluations --delete --days 30 --yes",
    ),
    done="The results are listed, written or imported; with --yes, they are deleted.",
    failed="Some results are refused, or a file cannot be read, written or changed.",
    argument_texts={"file": "The file to write: JSON, compressed if its name ends in .zst; - is standard output."},
)
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--chip",
    metavar="NAME|FILE|FINGERPRINT",
    help="List or write only the results of this accelerator. --import: the chip of a file of the reference evaluator. "
    "Default: its chip_type.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("own", "reference")),
    default="own",
    show_default=True,
    help="With FILE: reference is that of the reference evaluator (2025.01).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--import", "act", flag_value="import", help="Import the results of FILE instead.")
@click.option("--delete", "act", flag_value="delete", help="Show the results that --yes deletes.")
@click.option("--max-entries", type=click.IntRange(0), help="--delete: above this, the tenth unused longest.")
@click.option("--days", type=click.FloatRange(0), help="--delete: results unused for this many days.")
@click.option("--yes", is_flag=True, help="--delete: delete them.")
@click.option("--dry-run", is_flag=True, hidden=True)
@json_option
@click.pass_obj
def evaluations_verb(
    settings: Settings, /, file: Path | None, chip: str | None, form: str, force: bool, act: str | None,
    max_entries: int | None, days: float | None, yes: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """List, write, import or delete stored results.

    Lists the accelerators that have results; with --chip, the results of one. With FILE, writes them to it, so that
    other tools can read them.

    --import takes a file that this verb wrote, or one of the reference evaluator (format 2025.01). Results already in
    the store stay as they are; a result that cannot be right is refused.

    --delete shows results unused for 90 days and, if an accelerator has more than 10,000 results, the tenth of them
    that was unused longest.
    """
    only_with("--delete", act == "delete", ("max_entries", "days", "yes"))
    only_with("", act != "delete", ("file", "chip"), instead="--delete")
    only_with("FILE, without --import", file and not act, ("form", "force"))
    if act == "delete":
        _delete(settings, max_entries, days, delete=yes and not dry_run, as_json=as_json)
    elif act == "import":
        if file is None:
            raise UsageError("give the FILE with the results to import")
        _import(settings, file, chip, as_json=as_json)
    elif file is not None:
        _export(settings, file, chip, form, force=force, as_json=as_json)
    else:
        _list(settings, chip, as_json=as_json)


def _list(settings: Settings, chip: str | None, *, as_json: bool) -> None:
    with open_cache(settings, create=False) as cache:
        stored = cache.evaluations
        if chip is None:
            rows = stored.summaries()
            emit({"architectures": rows}, as_json, lambda: _print_summaries(rows))
            return
        fingerprint = _fingerprint(stored, chip)
        results = dict(stored.entries(fingerprint))
    rows = [{"key": key, **asdict(one), "to_validate": is_to_validate(one)} for key, one in results.items()]
    listed = {"arch_fingerprint": fingerprint, "total": len(rows), "rows": rows}
    emit(listed, as_json, lambda: _print_entries(list(results.values())))


def _export(settings: Settings, file: Path, chip: str | None, form: str, *, force: bool, as_json: bool) -> None:
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
    document = {
        "file": str(file.absolute()), "arch_fingerprint": fingerprint, "entries": entries, "bytes": len(data),
    }  # fmt: skip
    done = printable(f"{counted(entries, 'result')} written to {file}, {human_bytes(len(data))}")
    emit(document, as_json, lambda: print(done))


def _import(settings: Settings, file: Path, chip: str | None, *, as_json: bool) -> None:
    from cache_engine.evaluator.chips import load_hardware
    from cache_engine.store.results import LARGEST_IMPORT_BYTES, decompress

    with named(file), open_input(file) as given:
        data = decompress(given.read(LARGEST_IMPORT_BYTES + 1), LARGEST_IMPORT_BYTES)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        taken = cache.evaluations.import_file(data, None if chip is None else load_hardware(chip))
    document = {
        "file": str(file.absolute()),
        "arch_fingerprint": taken.fingerprint,
        "taken": taken.taken,
        "present": taken.present,
        "refused": [{"key": key, "reason": reason} for key, reason in taken.refused],
    }
    emit(document, as_json, lambda: _print_taken(taken), failed=taken.refused)


def _delete(settings: Settings, max_entries: int | None, days: float | None, *, delete: bool, as_json: bool) -> None:
    from cache_engine.evaluator.results import MAX_ENTRIES, UNUSED_DAYS

    with open_cache(settings, create=False) as cache:
        plan = cache.evaluations.plan_pruning(
            MAX_ENTRIES if max_entries is None else max_entries, UNUSED_DAYS if days is None else days
        )
        gone = cache.evaluations.prune(plan) if delete else None
    document = {"dry_run": gone is None, "victims": plan, "pruned": gone}
    emit(document, as_json, lambda: _print_pruned(plan, gone))


# ---- Shared ----


def _fingerprint(stored: Evaluations, chip: str | None) -> str:
    """The full fingerprint of an accelerator with results; ``chip`` is its name or file, or begins the fingerprint."""
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
        raise UsageError(f"no results of {chip}; gemm-cache evaluations lists accelerators with results")
    return found


# ---- For people ----


def _print_summaries(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("No results. gemm-cache evaluate M N K --chip NAME computes one.")
        return
    columns: dict[str, Align] = {"fingerprint": LEFT, "chip": LEFT}
    columns |= dict.fromkeys(("results", "hits", "misses", "search time", "updated"), RIGHT)
    now = time.time()
    print_table(
        columns,
        [
            (row["arch_fingerprint"][:12], row["error"], "", "", "", "", "")
            if "error" in row
            else (
                row["arch_fingerprint"][:12], row["chip"], f"{row['total_entries']:,}", f"{row['cache_hits']:,}",
                f"{row['cache_misses']:,}", f"{(row['total_search_time_hours'] or 0) * 3600:.2f} s",
                human_age(now - row["last_updated"]) if row["last_updated"] else "unknown",
            )
            for row in rows
        ],
    )  # fmt: skip


def _print_entries(rows: list[Entry]) -> None:
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


def _print_taken(taken: Taken) -> None:
    print(f"Imported {counted(taken.taken, 'result')}; {taken.present:,} already in the store.")
    for key, reason in taken.refused:
        print(printable(f"refused: {key}: {reason}"))


def _print_pruned(victims: list[Pruned], gone: int | None) -> None:
    for victim in victims:
        print(printable(f"{victim.fingerprint[:12]}  {victim.key}  {victim.reason}"))
    if gone is None:
        print(f"Would delete {counted(len(victims), 'result')}.{' --yes does it.' if victims else ''}")
    else:
        print(f"Deleted {counted(gone, 'result')}.")
