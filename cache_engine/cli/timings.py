"""Verbs that measure configs against each other, and that look into what was measured."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cache_engine.cli import documents, terminal
from cache_engine.cli.support import (
    FAILED,
    SizedVerb,
    asked_problem,
    emit,
    json_option,
    open_cache,
    printing,
    shape_options,
    to_json,
)
from cache_engine.cli.terminal_timings import print_timings, print_tuning
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import check_prefix
from cache_engine.model.measurement import Measurement
from cache_engine.units import counted

if TYPE_CHECKING:
    from cache_engine.batch.tuning import Candidate, Tuned
    from cache_engine.engine.cache import Cache
    from cache_engine.engine.selection import Selection

Document = dict[str, Any]


@click.command("tune", cls=SizedVerb)
@shape_options
@click.option(
    "--family", multiple=True, help="Of this family. May be given several times. Default: the one that serves."
)
@click.option("--compiler", help="What compiles: nvrtc, nvcc or triton. Default: what each family needs.")
@click.option(
    "--top", type=click.IntRange(1, 1000), default=8, show_default=True, help="Configs of each family to time."
)
@click.option("--jobs", type=click.IntRange(1), help="Compiles at a time. Default: one per processor.")
@click.option("--dry-run", is_flag=True, help="Only say what would be timed; needs no GPU.")
@json_option
@click.pass_obj
def tune_verb(
    settings: Settings,
    /,
    family: tuple[str, ...],
    compiler: str | None,
    top: int,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Time the configs that the cost model thinks best on the local GPU; the fastest serves from then on.

    Every one is checked, and every timing kept. Exit 1 when one failed.
    """
    from cache_engine.batch.tuning import MODEL_CLOCK_KHZ, candidates, tune
    from cache_engine.device.probe import gpu, require_gpu

    if not dry_run:
        require_gpu("timing kernels")
    problem = asked_problem(asked)
    device = gpu()
    clock_khz = device.clock_khz if isinstance(device, DeviceFingerprint) else MODEL_CLOCK_KHZ
    started = time.perf_counter()
    with open_cache(settings, create=not dry_run) as cache:
        problem = cache.targeted(problem)
        chosen = candidates(cache, problem, family, compiler, top)
        tuned: list[Tuned] = []
        if not dry_run:
            with terminal.progress("Compiling kernels", len(chosen)) as (bar, compiling):
                timing = bar.add_task("Timing kernels", total=len(chosen))
                tuned = tune(cache, chosen, jobs, lambda: bar.advance(compiling), lambda: bar.advance(timing))
        rows = [_candidate(one, clock_khz) for one in chosen]
        for row, one in zip(rows, tuned, strict=False):
            row.update(_measured(row, one))
        document: Document = {
            "dry_run": dry_run,
            "problem": msgspec.to_builtins(problem),
            "device": device.name if isinstance(device, DeviceFingerprint) else None,
            "clock_mhz": clock_khz / 1e3,
            "candidates": rows,
            "chosen": _selected(cache.select(problem)),
            "failed": sum(bool(one.trouble) for one in tuned),
            "seconds": time.perf_counter() - started,
        }
    emit(document, as_json, lambda: print_tuning(document))
    if document["failed"]:
        click.get_current_context().exit(FAILED)


@click.group("timings", no_args_is_help=True)
def timings_verb() -> None:
    """Look into the kept results of time and tune."""


def _filters(verb: Any) -> Any:
    for decorate in (
        click.option(
            "--device", help="Only on this GPU: its name, or a part of it, or the first digits of its fingerprint."
        ),
        click.option("--key", help="Only of this kernel; may be shortened to its first digits."),
    ):
        verb = decorate(verb)
    return verb


@timings_verb.command("ls")
@_filters
@json_option
@click.pass_obj
def ls_verb(settings: Settings, /, key: str | None, device: str | None, as_json: bool) -> None:
    """List timings, the newest first; also of kernels that were evicted since."""
    with open_cache(settings, create=False) as cache:
        found = _found(cache, key, device)
        document = {
            "devices": msgspec.to_builtins(cache.timings.devices()),
            "total": len(found),
            "rows": [documents.measurement(one) for one in found],
        }
    emit(document, as_json, lambda: _print_list(found))


@timings_verb.command("export")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_filters
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@json_option
@click.pass_obj
def export_verb(
    settings: Settings, /, file: Path, key: str | None, device: str | None, force: bool, as_json: bool
) -> None:
    """Write timings to FILE: as CSV when its name ends in .csv, else as JSON; - prints them."""
    with open_cache(settings, create=False) as cache:
        rows = [documents.measurement(one) for one in _found(cache, key, device)]
    text = _csv(rows) if file.suffix.lower() == ".csv" else to_json(rows) + "\n"
    if str(file) == "-":
        with printing():
            sys.stdout.write(text)
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8", newline="") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already; --force replaces it") from error
    document = {"file": str(file.absolute()), "timings": len(rows)}
    emit(document, as_json, lambda: print(f"{counted(len(rows), 'timing')} written to {file}"))


def _found(cache: Cache, key: str | None, device: str | None) -> list[Measurement]:
    prefix = "" if key is None else check_prefix(key)
    wanted = (device or "").lower()
    return [
        one
        for one in cache.timings
        if one.key.startswith(prefix)
        and (wanted in one.device.name.lower() or (len(wanted) >= 4 and one.device.digest().startswith(wanted)))
    ]


def _candidate(one: Candidate, clock_khz: int) -> Document:
    return {
        **{name: value for name, value in _selected(one.selection).items() if name != "config_from"},
        "tier": one.tier,
        "predicted_cycles": one.predicted_cycles,
        "predicted_us": one.predicted_us(clock_khz),
    }


def _selected(selection: Selection) -> Document:
    return {
        "key": selection.key,
        "family": selection.family.name,
        "compiler": selection.compiler.name,
        "config": msgspec.to_builtins(selection.config),
        "config_text": str(selection.config),
        "config_from": selection.config_from,
    }


def _measured(row: Document, one: Tuned) -> Document:
    timing = one.timing
    return {
        "median_us": None if timing is None else timing.median_us,
        "ratio": None if timing is None else timing.median_us / row["predicted_us"],
        "tflops": None if timing is None else timing.tflops,
        "verified": timing is not None and timing.verified,
        "trouble": one.trouble,
    }


def _print_list(found: list[Measurement]) -> None:
    if not found:
        print("There are no such timings. On a machine with a GPU gemm-cache time and tune make some.")
        return
    print_timings(found)
    print(f"\n{counted(len(found), 'timing')}")


def _csv(rows: Iterable[Document]) -> str:
    """Rows with nested fields side by side, such as ``config.block_m``."""
    flat = [dict(_flattened(row)) for row in rows]
    columns = dict.fromkeys(name for row in flat for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), restval="")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flattened(row: Document, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{_defused(name)}.")
        else:
            yield f"{prefix}{_defused(name)}", _defused(value) if isinstance(value, str) else value


def _defused(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
