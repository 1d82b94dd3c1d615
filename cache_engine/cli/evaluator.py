"""Verbs of the evaluator: how long a GEMM would take on an accelerator, and the results that are kept."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cache_engine.cli import terminal
from cache_engine.cli.support import FAILED, Size, SizedVerb, emit, json_option, open_cache, printing
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.inputs import open_input
from cache_engine.units import counted, human_age, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.evaluations import Answer, Evaluations
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.gpu import Gpu
    from cache_engine.evaluator.hardware import Hardware

Document = dict[str, Any]


@click.command("evaluate", cls=SizedVerb)
@click.argument("m", type=Size())
@click.argument("n", type=Size())
@click.argument("k", type=Size())
@click.option("--chip", required=True, metavar="NAME|FILE", help="A known accelerator, or a JSON file describing one.")
@click.option("--batch", type=Size(), default=1, show_default=True, help="Number of independent products.")
@click.option("--dtype", default="bf16", show_default=True, help=f"{', '.join(ITEMSIZE)}.")
@click.option("--out-dtype", default="", help="Element type of C. Default: that of A and B; bf16 for fp8 and int8.")
@click.option("--no-tile-search", is_flag=True, help="Use tiles of one cube.")
@click.option("--no-partition-search", is_flag=True, help="Use a square grid of cores over m and n.")
@click.option("--reduce-partial-sums", is_flag=True, help="Count adding up what cores that share k have.")
@click.option("--compute-rate", type=float, default=1.0, help="How many times its clock's rate this dtype runs at.")
@json_option
@click.pass_obj
def evaluate_verb(
    settings: Settings,
    /,
    m: int,
    n: int,
    k: int,
    chip: str,
    batch: int,
    dtype: str,
    out_dtype: str,
    no_tile_search: bool,
    no_partition_search: bool,
    reduce_partial_sums: bool,
    compute_rate: float,
    as_json: bool,
) -> None:
    """Predict how long a GEMM takes on an accelerator, and with which tiles, loop order and partition.

    C (M×N) = A (M×K) · B (K×N).
    """
    from cache_engine.evaluator.chips import load_chip
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.hardware import Hardware

    problem = EvaluationProblem(m, n, k, batch, dtype, out_dtype)
    mode = SearchMode(not no_tile_search, not no_partition_search, reduce_partial_sums, compute_rate)
    hardware = load_chip(chip)
    if not isinstance(hardware, Hardware):
        if mode != SearchMode():
            raise UsageError(f"{hardware.name} is a GPU; switches of the search are for the core-grid model")
        predicted = _predicted(problem, hardware)
        emit(predicted, as_json, lambda: _print_predicted(predicted))
        return
    answer = _answer(settings, problem, hardware, mode)
    document = _evaluated(problem, hardware, mode, answer)
    emit(document, as_json, lambda: _print_evaluated(document))


@click.group("evaluations", no_args_is_help=True)
def evaluations_verb() -> None:
    """Look into the kept results of evaluate, exchange and prune them."""


@evaluations_verb.command("ls")
@click.option("--chip", metavar="NAME|FILE|FINGERPRINT", help="List the results of this accelerator.")
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, chip: str | None, as_json: bool) -> None:
    """List accelerators that have results, or one's results."""
    with open_cache(settings, create=False) as cache:
        kept = cache.evaluations
        if chip is None:
            document: Document = {"architectures": kept.summaries()}
            emit(document, as_json, lambda: _print_summaries(document["architectures"]))
            return
        fingerprint = _fingerprint(kept, chip)
        rows = [{"key": key, **msgspec.to_builtins(entry)} for key, entry in kept.entries(fingerprint)]
        listed = {"arch_fingerprint": fingerprint, "total": len(rows), "rows": rows}
        emit(listed, as_json, lambda: _print_entries(rows))


@evaluations_verb.command("validate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kept-out", is_flag=True, help="Only (N, K) pairs that no fit has seen.")
@json_option
def validate_verb(file: Path, kept_out: bool, as_json: bool) -> None:
    """Compare the GPU model with the latencies measured in FILE, a CSV, beside roofline.

    Columns: arch, M, N, K, latency_us.
    """
    from cache_engine.evaluator.validation import read_measurements, validate

    measured = [one.only(one.kept_out()) if kept_out else one for one in read_measurements(file)]
    lines = [asdict(line) for one in measured for line in validate(one)]
    document = {"file": str(file.absolute()), "kept_out": kept_out, "lines": lines}
    emit(document, as_json, lambda: _print_validated(lines))


@evaluations_verb.command("export")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--chip", metavar="NAME|FILE|FINGERPRINT", help="Whose results. Default: the only ones there are.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@json_option
@click.pass_obj
def export_verb(settings: Settings, /, file: Path, chip: str | None, force: bool, as_json: bool) -> None:
    """Write an accelerator's results to FILE, as JSON that other tools read; - prints them.

    A name that ends in .zst has them compressed.
    """
    from cache_engine.store.results.file import compress

    with open_cache(settings, create=False) as cache:
        kept = cache.evaluations
        fingerprint = _fingerprint(kept, chip)
        data = kept.export(fingerprint)
        entries = len(kept.snapshot(fingerprint).cache_entries)
    if str(file) == "-":
        with printing():
            sys.stdout.write(data.decode() + "\n")
        return
    data = compress(data) if file.suffix == ".zst" else data
    try:
        with file.open("wb" if force else "xb") as opened:
            opened.write(data)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already; --force replaces it") from error
    document = {"file": str(file.absolute()), "arch_fingerprint": fingerprint, "entries": entries, "bytes": len(data)}
    emit(
        document,
        as_json,
        lambda: print(f"{counted(entries, 'result')} written to {file}, {human_bytes(len(data))}"),
    )


@evaluations_verb.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.pass_obj
def import_verb(settings: Settings, /, file: Path, as_json: bool) -> None:
    """Merge the results of FILE; those that are there already stay. Exit 1 when some were refused."""
    from cache_engine.store.results.interchange import LARGEST_IMPORT_BYTES, decompress

    with open_input(file) as given:
        data = decompress(given.read(LARGEST_IMPORT_BYTES + 1), LARGEST_IMPORT_BYTES)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        taken = cache.evaluations.import_file(data)
    document = {
        "file": str(file.absolute()),
        "arch_fingerprint": taken.fingerprint,
        "taken": taken.taken,
        "present": taken.present,
        "refused": [{"key": key, "reason": reason} for key, reason in taken.refused],
    }
    emit(document, as_json, lambda: _print_taken(document))
    if taken.refused:
        click.get_current_context().exit(FAILED)


@evaluations_verb.command("prune")
@click.option("--max-entries", type=click.IntRange(0), help="Above this number, the tenth longest unused goes.")
@click.option("--unused-days", type=click.FloatRange(0), help="What was not used for so long goes.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@click.pass_obj
def prune_verb(
    settings: Settings, /, max_entries: int | None, unused_days: float | None, dry_run: bool, as_json: bool
) -> None:
    """Take results out: by default above 10,000 of an accelerator, and those unused for 90 days."""
    from cache_engine.evaluations import MAX_ENTRIES, UNUSED_DAYS

    with open_cache(settings, create=False) as cache:
        plan = cache.evaluations.plan_pruning(
            MAX_ENTRIES if max_entries is None else max_entries, UNUSED_DAYS if unused_days is None else unused_days
        )
        gone = None if dry_run else cache.evaluations.prune(plan)
    document = {"dry_run": dry_run, "victims": [asdict(victim) for victim in plan], "pruned": gone}
    emit(document, as_json, lambda: _print_pruned(document))


# ---- Shared ----


def _answer(settings: Settings, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode) -> Answer:
    """A result: from the store and kept there, or with caching switched off just searched for."""
    if settings.enable_caching:
        with open_cache(settings) as cache:
            return cache.evaluations.evaluate(problem, hardware, mode)
    from cache_engine.evaluations import Answer
    from cache_engine.evaluations.entry import key_of
    from cache_engine.evaluator.search import evaluate

    started = time.perf_counter()
    evaluation = evaluate(problem, hardware, mode)
    search_ms = (time.perf_counter() - started) * 1e3
    return Answer(key_of(problem, mode), evaluation, False, search_ms, "caching is switched off")


def _evaluated(problem: EvaluationProblem, hardware: Hardware, mode: SearchMode, answer: Answer) -> Document:
    """What ``evaluate`` prints."""
    from cache_engine.evaluator.cost import EVALUATOR, MODEL_VERSION

    evaluation = answer.evaluation
    return {
        "key": answer.key,
        "chip": hardware.name,
        "arch_fingerprint": hardware.fingerprint(),
        "model": f"{EVALUATOR} {MODEL_VERSION}",
        "problem": asdict(problem),
        "mode": asdict(mode),
        **{name: value for name, value in asdict(evaluation).items() if not isinstance(value, tuple)},
        "tile": evaluation.tile._asdict(),
        "partition": evaluation.partition._asdict(),
        "cached": answer.cached,
        "search_ms": answer.search_ms,
        "unkept": answer.unkept,
    }


def _predicted(problem: EvaluationProblem, gpu: Gpu) -> Document:
    """What ``evaluate`` prints of a GPU. Predicting takes no longer than looking up, so nothing is kept."""
    from cache_engine.evaluator.gpu import EVALUATOR, MODEL_VERSION, predict

    prediction = predict(problem, gpu)
    return {
        "chip": gpu.name,
        "model": f"{EVALUATOR} {MODEL_VERSION}",
        "problem": asdict(problem),
        **asdict(prediction),
        "flops": problem.flops,
        "effective_utilization": problem.flops / (prediction.latency_us * 1e-6 * gpu.peak_flops),
    }


def _fingerprint(kept: Evaluations, chip: str | None) -> str:
    """What a chip's name, a file or the first digits of a fingerprint stand for, among those with results."""
    from cache_engine.evaluator.chips import load_hardware

    there = kept.fingerprints()
    if chip is None:
        if len(there) != 1:
            raise UsageError(f"there are results of {counted(len(there), 'accelerator')}; say which with --chip")
        return there[0]
    matches = [fingerprint for fingerprint in there if len(chip) >= 4 and fingerprint.startswith(chip.lower())]
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} fingerprints start with {chip}; give more digits")
    found = matches[0] if matches else load_hardware(chip).fingerprint()
    if found not in there:
        raise UsageError(f"there are no results of {chip}; gemm-cache evaluations ls lists what there is")
    return found


# ---- For people ----


def _print_evaluated(document: Document) -> None:
    d, p = document, document["problem"]
    tile, partition = d["tile"], d["partition"]
    terminal.print_fields(
        {
            "problem": _problem_text(p),
            "on": f"{d['chip']}, predicted by {d['model']}",
            "latency": f"{d['latency_us']:,.3f} µs",
            "computing": f"{d['compute_us']:,.3f} µs, {d['arch_utilization']:.1%} of it",
            "moving data": f"{d['memory_us']:,.3f} µs, {human_bytes(d['traffic_bytes'])} in all",
            "of the peak": f"{d['effective_utilization']:.1%}; {d['alignment_efficiency']:.1%} would be left of it by "
            "padding alone",
            "tile": f"m {tile['m']} × n {tile['n']} × k {tile['k']}, loop order {d['order']}",
            "partition": f"g {partition['g']} × m {partition['m']} × n {partition['n']} × k {partition['k']}",
            "this time": "found among kept results" if d["cached"] else f"searched in {d['search_ms']:.2f} ms",
            **({"not kept": d["unkept"]} if d["unkept"] else {}),
        }
    )


def _print_predicted(document: Document) -> None:
    d, p = document, document["problem"]
    whose = "all measured GPUs" if d["calibrated_on"] == "all" else d["calibrated_on"]
    terminal.print_fields(
        {
            "problem": _problem_text(p),
            "on": f"{d['chip']}, predicted by {d['model']}, calibrated on measurements of {whose}",
            "latency": f"{d['latency_us']:,.2f} µs",
            "roofline": f"{d['roofline_us']:,.2f} µs",
            "of the peak": f"{d['effective_utilization']:.1%}",
            "in the model": f"tile {d['tile_m']} × {d['tile_n']}, k split in {d['split_k']}",
        }
    )


def _print_validated(lines: list[Document]) -> None:
    from cache_engine.evaluator.validation import range_text

    columns = {"GPU": "left", "m": "left"}
    for name in ("rows", "MAPE", "median", "bias", "within 20 %", "roofline MAPE", "its bias", "its within 20 %"):
        columns[name] = "right"
    terminal.print_table(
        columns,
        [
            (
                line["arch"], range_text(line["m_from"], line["m_to"]), f"{line['count']:,}",
                *(f"{line['model'][name]:.1%}" for name in ("mape", "median", "bias", "within_20")),
                *(f"{line['roofline'][name]:.1%}" for name in ("mape", "bias", "within_20")),
            )
            for line in lines
        ],
    )  # fmt: skip


def _problem_text(p: Document) -> str:
    return f"{p['m']} × {p['n']} × {p['k']}, batch {p['batch']}, {p['dtype']} in, {p['out_dtype']} out"


def _print_summaries(rows: list[Document]) -> None:
    if not rows:
        print("There are no results. gemm-cache evaluate M N K --chip NAME makes one.")
        return
    columns = {"fingerprint": "left", "chip": "left", "results": "right", "hits": "right", "misses": "right",
               "searched for": "right", "last one": "right"}  # fmt: skip
    now = time.time()
    terminal.print_table(
        columns,
        [
            (row["arch_fingerprint"][:12], row["error"], "", "", "", "", "")
            if "error" in row
            else (
                row["arch_fingerprint"][:12], row["chip"], f"{row['total_entries']:,}", f"{row['cache_hits']:,}",
                f"{row['cache_misses']:,}", f"{row['total_search_time_hours'] * 3600:.2f} s",
                human_age(now - row["last_updated"]) if row["last_updated"] else "unknown",
            )
            for row in rows
        ],
    )  # fmt: skip


def _print_entries(rows: list[Document]) -> None:
    columns = {"G × M × K × N": "right", "types": "left", "latency µs": "right", "of peak": "right", "tile": "left",
               "order": "left", "partition": "left"}  # fmt: skip
    terminal.print_table(
        columns,
        [
            (
                " × ".join(f"{row['shape'][name]}" for name in "GMKN"),
                f"{row['dtypes']['input']}→{row['dtypes']['output']}", f"{row['result']['latency_us']:,.2f}",
                f"{row['result']['effective_utilization']:.1%}", "×".join(map(str, row["result"]["tile"].values())),
                row["result"]["order"], "×".join(map(str, row["result"]["partition"].values())),
            )
            for row in rows
        ],
    )  # fmt: skip
    print(f"\n{counted(len(rows), 'result')}")


def _print_taken(document: Document) -> None:
    print(f"{counted(document['taken'], 'result')} taken in, {document['present']:,} were there already")
    for refused in document["refused"]:
        print(printable(f"refused: {refused['key']}: {refused['reason']}"))


def _print_pruned(document: Document) -> None:
    for victim in document["victims"]:
        print(printable(f"{victim['fingerprint'][:12]}  {victim['key']}  {victim['reason']}"))
    would = "would go" if document["dry_run"] else "were found"
    print(f"{counted(len(document['victims']), 'result')} {would}")
    if document["pruned"] is not None:
        print(f"{counted(document['pruned'], 'result')} pruned")
