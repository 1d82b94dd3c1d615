"""``gemm-cache calibrate``: fit the GPU model to measurements, or compare it with them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.support import Verb, emit, json_option, only_with, open_cache, write_file
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_fields, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.evaluator.chips import FACTORS, Calibration
from cache_engine.settings import Settings

if TYPE_CHECKING:
    from cache_engine.evaluator.calibration import Calibrated
    from cache_engine.evaluator.validation import Measurements, Validated


@click.command(
    "calibrate",
    cls=Verb,
    examples=(
        "calibrate measured.csv --output my_h100.json",
        "calibrate --chip my_gpu.json --output mine.json",
        "calibrate measured.csv --chip L40S --json",
        "calibrate measured.csv.gz --check kept-out",
    ),
    done="The factors are printed, and saved with --output; with --check, the errors of the model.",
    failed="Predictions would not be better, and nothing is saved; or the file cannot be read.",
    missing="The extra evaluate is not installed.",
    argument_texts={"file": "Measurements, as CSV. Default: the timings of this store."},
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--chip", metavar="NAME|FILE", help="The GPU. Default: the column arch, or the device of the timings.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Save the result as a chip file.")
@click.option("--name", default="", help="Name of the calibrated GPU. Default: the GPU's, with the word calibrated.")
@click.option(
    "--check",
    type=click.Choice(("all", "kept-out")),
    help="Compare the GPU model with FILE and fit nothing: with all, or with the (N, K) pairs that no fit has used.",
)
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
    check: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit the GPU model to measurements of a GPU.

    FILE is a CSV file, gzipped or not, with the columns arch (unless --chip is given), M, N, K and latency_us; without
    it, the timings of this store. Five factors are fitted: launch, compute, memory, steps along k, and epilogue. The
    error "after" comes from cross-validation: each (N, K) is predicted without its own measurements. Name the saved
    file as --chip of evaluate and of calibrate --check all; their results name the calibration.

    With --check FILE has the column dtype too, unless all are bf16, and the roofline model is compared as well.
    """
    if check:
        if file is None:
            raise UsageError("give the FILE with the measurements to compare with")
        only_with("", False, ("output", "name", "force"), instead="--check")
        _check(file, chip, as_json=as_json, kept_out=check == "kept-out")
        return
    from cache_engine.evaluator.calibration import FITS, calibrate

    measured, source = _measured(settings, file, chip)
    with progress("Fitting", FITS) as (bar, task):
        found = calibrate(measured, source, name, lambda: bar.advance(task))
    saved = output if found.is_better else None
    if saved is not None:
        text = json.dumps({k: v for k, v in asdict(found.gpu).items() if v is not None}, indent=1) + "\n"
        write_file(saved, text.encode(), force=force)
    fit = found.gpu.calibration
    if fit is None:
        raise UsageError(f"{measured.gpu.name} was not calibrated")
    document = {
        "calibration": fit.id,
        "gpu": measured.gpu.name,
        "name": found.gpu.name,
        **{
            name: getattr(fit, name)
            for name in ("source", "base", "rows", "error_before", "error_after", "low", "high")
        },
        "factors": {name: getattr(fit, name) for name in FACTORS},
        "bias_before": found.bias_before,
        "bias_after": found.bias_after,
        "inside": found.inside,
        "better": found.is_better,
        "file": "" if saved is None else str(saved.absolute()),
    }
    emit(document, as_json, lambda: _print(measured.gpu.name, found, fit, saved), failed=not found.is_better)


def _check(file: Path, chip: str | None, *, as_json: bool, kept_out: bool) -> None:
    from cache_engine.evaluator.chips import load_gpu
    from cache_engine.evaluator.validation import read_measurements, validate

    gpu = None if chip is None else load_gpu(chip)
    measured = [one.only(one.kept_out()) if kept_out else one for one in read_measurements(file, gpu)]
    lines = [line for one in measured for line in validate(one)]
    document = {"file": str(file.absolute()), "kept_out": kept_out, "lines": lines}
    emit(document, as_json, lambda: _print_checked(lines))


def _measured(settings: Settings, file: Path | None, chip: str | None) -> tuple[Measurements, str]:
    from cache_engine.evaluator.calibration import timings_of
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


# ---- For people ----


def _print(gpu: str, found: Calibrated, fit: Calibration, saved: Path | None) -> None:
    unsaved = "no: --output FILE saves it" if found.is_better else "no: predictions would not be better"
    print_fields(
        {
            "GPU": f"{gpu}, with {fit.rows:,} measurements of {fit.source}",
            "before": f"mean error {fit.error_before:.1%}, bias {found.bias_before:+.1%}",
            "after": f"mean error {fit.error_after:.1%}, bias {found.bias_after:+.1%}, by cross-validation",
            "interval": f"{fit.low:.2f} to {fit.high:.2f} of the prediction; held {found.inside:.0%} of measurements, "
            "of 68 %",
            "factors": ", ".join(f"{name} × {getattr(fit, name):.2f}" for name in FACTORS),
            "calibration": fit.id,
            "saved": unsaved if saved is None else str(saved.absolute()),
        }
    )


def _print_checked(lines: list[Validated]) -> None:
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
