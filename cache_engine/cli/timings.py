"""``gemm-cache timings``: lists, exports or compares by toolchain the times measured by ``time`` and ``tune``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.support import Verb, emit, json_option, only_with, open_cache, printing, write_file
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_table, printed_number, printed_us
from cache_engine.errors import UsageError
from cache_engine.insight.toolchains import timing_row, timings_csv
from cache_engine.model.documents import to_json
from cache_engine.model.key import check_prefix
from cache_engine.model.measurement import Measurement
from cache_engine.settings import Settings
from cache_engine.units import counted, human_age, printable

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.insight.toolchains import Regressions


@click.command(
    "timings",
    cls=Verb,
    examples=(
        "timings",
        "timings --device H100 --json",
        "timings timings.csv",
        'timings --from "nvrtc 13.4" --to "nvrtc 13.5" --threshold 0.05',
    ),
    done="The timings are listed or written; or nothing is worse by more than the threshold.",
    failed="Something is worse, no kernel was made by both toolchains, or the file cannot be written.",
    argument_texts={"file": "The file to write: CSV, or JSON; - is standard output."},
)
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--key", help="Only this kernel; a key prefix is enough.")
@click.option("--device", help="Only this GPU: its name or a part of it, or a prefix of its fingerprint.")
@click.option("--from", "from_", metavar="TOOLCHAIN", help="Compare the kernels of this toolchain with those of --to.")
@click.option("--to", metavar="TOOLCHAIN", help="The toolchain to judge.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=0.1,
    show_default=True,
    help="With --from: by which share a figure may grow; 0.1 is 10 %.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def timings_verb(
    settings: Settings,
    /,
    file: Path | None,
    key: str | None,
    device: str | None,
    from_: str | None,
    to: str | None,
    threshold: float,
    force: bool,
    as_json: bool,
) -> None:
    """List timings, write them, or compare toolchains.

    Newest first. Timings of evicted kernels are listed too, because configs are chosen by them. With FILE, writes the
    timings to it, as CSV if its name ends in .csv, else as JSON; - prints JSON.

    TOOLCHAIN is the beginning of a compiler and version, such as "nvrtc 13.4", or of the digits of its build. The
    kernels that both made are compared: registers, spills, code size, compile time, and timings on GPUs of one name.
    """
    if from_ is not None or to is not None:
        if from_ is None or to is None:
            raise UsageError("give both --from and --to: two toolchains are compared")
        only_with("", False, ("file", "key", "device", "force"), instead="--from")
        _compare(settings, from_, to, threshold, as_json=as_json)
        return
    only_with("--from and --to", False, ("threshold",))
    only_with("FILE", file, ("force",))
    with open_cache(settings, create=False) as cache:
        found, devices = _found(cache, key, device), cache.timings.devices()
    rows = [timing_row(one) for one in found]
    if file is None:
        emit({"devices": devices, "total": len(rows), "rows": rows}, as_json, lambda: _print_list(found))
        return
    text = timings_csv(rows) if file.suffix.lower() == ".csv" else to_json(rows) + "\n"
    if str(file) == "-":
        with printing():
            sys.stdout.write(text)
        return
    write_file(file, text.encode(), force=force)
    document = {"file": str(file.absolute()), "timings": len(rows)}
    emit(document, as_json, lambda: print(printable(f"{counted(len(rows), 'timing')} written to {file}")))


def _found(cache: Cache, key: str | None, device: str | None) -> list[Measurement]:
    prefix = "" if key is None else check_prefix(key)
    wanted = (device or "").lower()
    return [
        one
        for one in cache.timings
        if one.key.startswith(prefix)
        and (wanted in one.device.name.lower() or (len(wanted) >= 4 and one.device.digest().startswith(wanted)))
    ]


def _compare(settings: Settings, from_: str, to: str, threshold: float, *, as_json: bool) -> None:
    from cache_engine.insight.toolchains import regressions

    with open_cache(settings, create=False) as cache:
        found = regressions(cache.records(), cache.timings, from_, to, threshold)
    emit(found, as_json, lambda: _print_regressions(found), failed=found.worse or not found.kernels)


# ---- For people ----


def _print_list(found: list[Measurement]) -> None:
    if not found:
        print("No timing matches. On a machine with a GPU, gemm-cache time and gemm-cache tune measure some.")
        return
    print_timings(found)
    print(f"\n{counted(len(found), 'timing')}")


def print_timings(timings: Sequence[Measurement]) -> None:
    """Prints timings, a line each."""
    now = time.time()
    columns: dict[str, Align] = {
        "key": LEFT, "device": LEFT, "m × n × k": RIGHT, "batch": RIGHT, "types": LEFT, "target": LEFT, "family": LEFT,
        "config": LEFT, "median": RIGHT, "p10": RIGHT, "p90": RIGHT, "TFLOP/s": RIGHT, "× reference": RIGHT,
        "result": LEFT, "config source": LEFT, "measured": RIGHT,
    }  # fmt: skip
    print_table(
        columns,
        [
            (
                one.key[:12], one.device.name, f"{one.problem.m} × {one.problem.n} × {one.problem.k}",
                one.problem.batch, f"{one.problem.dtype}→{one.problem.out_dtype}", one.arch, one.family, one.config,
                *(printed_us(one.timing.get(name)) for name in ("median_us", "p10_us", "p90_us")),
                printed_number(one.timing.get("tflops")), printed_number(one.timing.get("speed_ratio")),
                "correct" if one.verified else "WRONG", one.config_from, human_age(now - one.measured_at),
            )
            for one in timings
        ],
        dispensable=("config source", "p10", "p90", "batch", "types", "family", "target"),
    )  # fmt: skip


def _print_regressions(d: Regressions) -> None:
    print(printable(f"from {d.from_toolchain}"))
    print(printable(f"to   {d.to_toolchain}"))
    print(f"{counted(d.kernels, 'kernel')} made by both; more than {d.threshold:.0%} counts.")
    if not d.kernels:
        print("Nothing was compared: compile the same kernels with both, such as with warm, and run this again.")
        return
    print_table(
        {"figure": LEFT, "compared": RIGHT, "median ratio": RIGHT, "worse": RIGHT, "better": RIGHT},
        [
            (row.metric, row.compared, _ratio(row.median_ratio) if row.compared else "–", row.worse, row.better)
            for row in d.summaries
        ],
    )
    if d.worse:
        print()
        print_table(
            {"worse": LEFT, "figure": LEFT, "before": RIGHT, "after": RIGHT, "ratio": RIGHT, "where": LEFT},
            [
                (row.name, row.metric, f"{row.before:,.4g}", f"{row.after:,.4g}", _ratio(row.ratio), row.where)
                for row in d.worse
            ],
            dispensable=("where",),
        )


def _ratio(ratio: float | None) -> str:
    return "new" if ratio is None or math.isinf(ratio) else f"{ratio:.3f}"
