"""The verb ``calibrate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.documents import evaluator as documents
from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.cli.support.output import write_file
from cache_engine.cli.terminal import print_fields, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings

if TYPE_CHECKING:
    from cache_engine.evaluator.validation import Measurements


@click.command(
    "calibrate",
    cls=Verb,
    examples=(
        "calibrate measured.csv --output my_h100.json",
        "calibrate --chip my_gpu.json --output mine.json",
        "calibrate measured.csv --chip L40S --json",
    ),
    done="The factors are printed, and saved with --output.",
    failed="Predictions would not be better; nothing is saved.",
    missing="The extra evaluate is not installed.",
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--chip", metavar="NAME|FILE", help="The GPU. Default: the column arch, or the device of the timings.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Save the result as a chip file.")
@click.option("--name", default="", help="Name of the calibrated GPU. Default: the GPU's, with the word calibrated.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def calibrate_verb(
    settings: Settings,
    /,
    file: Path | None,
    chip: str | None,
    output: Path | None,
    name: str,
    force: bool,
    as_json: bool,
) -> None:
    """Fit the GPU model to measurements of a GPU.

    FILE is a CSV file, gzipped or not, with the columns arch (unless --chip is given), M, N, K and latency_us; without
    it, the timings of this store. Five factors are fitted: launch, compute, memory, steps along k, and epilogue. The
    error after is by cross-validation: each (N, K) is predicted without its own measurements. The saved file is a chip
    for evaluate and evaluations validate, whose results name the calibration.
    """
    from cache_engine.evaluator.calibrating import FITS, calibrate

    measured, source = _measured(settings, file, chip)
    with progress("Fitting", FITS) as (bar, task):
        found = calibrate(measured, source, name, lambda: bar.advance(task))
    saved = output if found.is_better else None
    if saved is not None:
        text = json.dumps({k: v for k, v in asdict(found.gpu).items() if v is not None}, indent=1) + "\n"
        write_file(saved, text.encode(), force=force)
    document = documents.calibrated(found, measured.gpu.name, saved)
    emit(document, as_json, lambda: _print(document), failed=not found.is_better)


def _measured(settings: Settings, file: Path | None, chip: str | None) -> tuple[Measurements, str]:
    from cache_engine.evaluator.calibrating import timings_of
    from cache_engine.evaluator.chips import load_gpu
    from cache_engine.evaluator.gpu import DTYPES
    from cache_engine.evaluator.validation import read_measurements

    gpu = None if chip is None else load_gpu(chip)
    if file is None:
        with open_cache(settings, create=False) as cache:
            return timings_of(cache.timings, gpu)
    measured = read_measurements(file, gpu)
    if len(measured) > 1:
        names = ", ".join(f"{one.gpu.name} in {one.dtype}" for one in measured)
        raise UsageError(f"{file} has measurements of {names}; leave those of one, since one is calibrated at a time")
    if measured[0].dtype not in DTYPES:
        raise UsageError(
            f"{file} has measurements in {measured[0].dtype}; a GPU is calibrated in {' or '.join(DTYPES)}"
        )
    return measured[0], file.name


def _print(d: documents.Calibrated) -> None:
    print_fields(
        {
            "GPU": f"{d.gpu}, with {d.rows:,} measurements of {d.source}",
            "before": f"mean error {d.error_before:.1%}, bias {d.bias_before:+.1%}",
            "after": f"mean error {d.error_after:.1%}, bias {d.bias_after:+.1%}, by cross-validation",
            "interval": f"{d.low:.2f} to {d.high:.2f} of the prediction; held {d.inside:.0%} of measurements, of 68 %",
            "factors": ", ".join(f"{name} × {factor:.2f}" for name, factor in d.factors.items()),
            "calibration": d.calibration,
            "saved": d.file or ("no: --output FILE saves it" if d.better else "no: predictions would not be better"),
        }
    )
