"""The JSON documents of benchmarks, as ``--json`` prints them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from benchmarks.results import LeftOut, ReportLine, Result, Score, Size

if TYPE_CHECKING:
    from benchmarks.kernels.speed import Measured, Report, Summary


class TimeRow(msgspec.Struct, kw_only=True):
    """A measured time and its reference; see ``results.Result``."""

    name: str
    seconds: float
    beside: str
    beside_seconds: float
    goal_seconds: float | None
    goal_ratio: float | None
    ratio: float
    met: bool | None


class SizeRow(msgspec.Struct, kw_only=True):
    """A measured size and its reference; see ``results.Size``."""

    name: str
    size_bytes: float
    beside: str
    beside_bytes: float
    goal_ratio: float | None
    ratio: float
    met: bool | None


class Benchmark(msgspec.Struct, kw_only=True):
    """The document of a comparison. Times are medians in seconds."""

    machine: str
    results: list[TimeRow]
    sizes: list[SizeRow]
    scores: list[Score] = msgspec.field(default_factory=list)
    left_out: list[LeftOut]


class KernelBenchmark(msgspec.Struct, kw_only=True):
    """The document of ``kernels``: cases measured now, measured before, and not measured yet."""

    file: str
    measured: int
    kept: int
    left: int
    left_out: list[LeftOut]
    summary: list[Summary]
    measurements: list[Measured]


def benchmark(lines: Sequence[ReportLine]) -> Benchmark:
    """The document of a benchmark."""
    return Benchmark(
        machine=this_machine(),
        results=[
            TimeRow(**msgspec.to_builtins(line), ratio=line.ratio, met=line.met)
            for line in lines
            if isinstance(line, Result)
        ],
        sizes=[
            SizeRow(**msgspec.to_builtins(line), ratio=line.ratio, met=line.met)
            for line in lines
            if isinstance(line, Size)
        ],
        scores=[line for line in lines if isinstance(line, Score)],
        left_out=[line for line in lines if isinstance(line, LeftOut)],
    )


def this_machine() -> str:
    """The machine that was measured on, in words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"


def kernel_benchmark(report: Report, summaries: Sequence[Summary]) -> KernelBenchmark:
    """The document of a benchmark of kernels."""
    return KernelBenchmark(
        file=str(report.file),
        measured=report.measured,
        kept=report.kept,
        left=report.left,
        left_out=report.left_out,
        summary=list(summaries),
        measurements=report.measurements,
    )
