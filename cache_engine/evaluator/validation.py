"""The accuracy of the GPU model on measured latencies, compared with roofline."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cache_engine.errors import InvalidHardware, InvalidProblem, SearchStopped, UsageError
from cache_engine.evaluator.chips import GPUS, Gpu, gpu_called
from cache_engine.evaluator.gpu import (
    M_RANGES,
    RATED,
    Floats,
    check_rated,
    latencies_us,
    parameters_of,
    roofline_us,
    spread_of,
)
from cache_engine.inputs import open_input
from cache_engine.settings.extras import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy("numpy", "evaluate", "validation")

PUBLISHED_MAPE = {"A100": 6.6, "B200": 9.4, "H100": 6.2, "H200": 7.6}
"""Mean absolute error in percent, on measurements left out of the fit, by GPU: docs/evaluator.md, "The GPU model"."""
PUBLISHED_MAPE_UNMEASURED = (7.7, 16.1)
"""The mean absolute error in percent for a GPU without measurements, found by predicting each GPU from the others: the
lowest and the highest.
"""

_COLUMNS = ("arch", "M", "N", "K", "latency_us")
# What frameworks call them.
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8_e4m3fn": "fp8", "float8_e4m3": "fp8",
    "fp8_e4m3": "fp8", **{dtype: dtype for dtype in RATED},
}  # fmt: skip
_BATCH = 5_000
_MOST_LINES, _LONGEST_LINE = 1_000_000, 100_000

LARGEST_BYTES = 2**27
"""The largest size of a file of measurements, decompressed."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured latencies of one type on one GPU; all arrays have the same length."""

    gpu: Gpu
    m: Floats
    n: Floats
    k: Floats
    latency_us: Floats
    dtype: str = "bf16"

    def only(self, chosen: NDArray[np.bool_] | slice) -> Measurements:
        """The measurements that ``chosen``, a mask or a slice, selects."""
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in ("m", "n", "k", "latency_us")}
        return replace(self, **arrays)

    def every(self, stride: int) -> Measurements:
        """Every ``stride``-th measurement."""
        return self.only(slice(None, None, stride))

    def kept_out(self) -> NDArray[np.bool_]:
        """For each measurement, whether its (N, K) was left out of all fits: two in five pairs, by their hash."""
        pairs = {pair: is_kept_out(*pair) for pair in set(zip(self.n.tolist(), self.k.tolist(), strict=True))}
        return np.array([pairs[pair] for pair in zip(self.n.tolist(), self.k.tolist(), strict=True)], dtype=bool)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predicted times, as shares of the measured times.

    Attributes:
        mape, median: the mean and the median of the absolute errors.
        bias: the mean error; negative if predictions are too fast.
        within_20: the share of predictions that are off by at most 20 %.
    """

    mape: float
    median: float
    bias: float
    within_20: float


@dataclass(frozen=True, slots=True)
class Validated:
    """One line of a validation: a GPU, a type, a range of m, the number of rows, and both models' errors.

    Both ends of the range are 0 for all m.

    Attributes:
        calibrated_on: the GPU whose measurements the parameters were fitted to, or the source of the user's own
            calibration.
        inside: the share of measurements that lie in the interval of their prediction; it should be 68 %.
    """

    arch: str
    dtype: str
    m_from: int
    m_to: int
    count: int
    calibrated_on: str
    model: Errors
    roofline: Errors
    inside: float


def is_kept_out(n: float, k: float) -> bool:
    """Whether an (N, K) is one of the two in five that were left out of all fits."""
    return hashlib.sha256(f"{int(n)}x{int(k)}".encode()).digest()[0] < 0.4 * 256


def read_measurements(path: Path, gpu: Gpu | None = None) -> list[Measurements]:
    """The measurements in a CSV file, gzipped if its name ends in .gz, by GPU and type.

    The columns are arch, M, N, K, latency_us and, optionally, dtype (default bf16); others are ignored. ``arch`` is a
    known GPU, such as H100 or h100_sxm; ``dtype`` is bf16, fp16, fp8 or int8, or a framework's name, such as bfloat16.

    Args:
        gpu: the GPU of all measurements, in place of the column ``arch``, which must then be missing or the same in
            every line.

    Raises:
        UsageError: naming the invalid line, or the missing column.
    """
    try:
        with open_input(path) as file, as_text(file, str(path)) as text:
            return parse_measurements(text, str(path), gpu)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def as_text(file: IO[bytes], source: str) -> IO[str]:
    """A CSV file as a stream of text, decompressed if its name ends in .gz.

    Raises:
        UsageError: when the file is larger than ``LARGEST_BYTES``, or cannot be decompressed.
        OSError: when the file cannot be read.
    """
    try:
        with gzip.open(file) if source.endswith(".gz") else nullcontext(file) as opened:
            data = opened.read(LARGEST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{source} cannot be decompressed: {error}") from error
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{source} is larger than {LARGEST_BYTES // 2**20} MiB; validate it in parts")
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")


def parse_measurements(file: IO[str], source: str, gpu: Gpu | None = None) -> list[Measurements]:
    """Reads measurements from an open file; raises as ``read_measurements``, also for more than a million lines."""
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    gpus: dict[str, Gpu] = {}
    needed = _COLUMNS if gpu is None else _COLUMNS[1:]
    try:
        reader = csv.DictReader(_lines(file, source))
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(f"{source} lacks the column {missing[0]}; it needs: {', '.join(needed)}")
        for number, row in enumerate(reader, start=2):
            where, name = f"{source}, line {number}", str(row.get("arch"))
            if name not in gpus:
                gpus[name] = _gpu_of(name, where, gpu, gpus)
            dtype = _dtype_of(row.get("dtype"), gpus[name], where)
            rows.setdefault((gpus[name].name, dtype), []).append(_numbers(row, where))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as CSV: {error}") from error
    if not rows:
        raise UsageError(f"{source} has no measurements")
    by_name = {one.name: one for one in gpus.values()}
    measured = []
    for (name, dtype), values in rows.items():
        m, n, k, us = np.array(values).T
        measured.append(Measurements(by_name[name], m, n, k, us, dtype))
    return measured


def _gpu_of(arch: str, where: str, given: Gpu | None, seen: Mapping[str, Gpu]) -> Gpu:
    if given is not None:
        if seen:
            raise UsageError(
                f"{where}: arch is {arch[:40]!r}, after {next(iter(seen))[:40]!r}; a chip is given for one"
            )
        return given
    known = gpu_called(arch)
    if known is None:
        raise InvalidHardware(
            f"{where}: unknown arch {arch[:40]!r}; use one of: {', '.join(GPUS)}; or describe the GPU in a file"
        )
    return known


def _dtype_of(text: str | None, gpu: Gpu, where: str) -> str:
    if not text:
        return "bf16"
    dtype = _DTYPES.get(text.lower(), text[:40])
    try:
        check_rated(gpu, dtype)
    except InvalidProblem as error:
        raise UsageError(f"{where}: {error}") from error
    return dtype


def _lines(file: IO[str], source: str) -> Iterator[str]:
    """Yields the lines of a table, also empty ones. Refuses rows that would take gigabytes, or too many lines."""
    for number in range(1, _MOST_LINES + 1):
        line = file.readline(_LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > _LONGEST_LINE:
            raise UsageError(f"{source}, line {number} is longer than {_LONGEST_LINE:,} characters; this is no table")
        yield line
    if file.readline(1):
        raise UsageError(f"{source} has more than {_MOST_LINES:,} lines; validate it in parts")


def validate(measured: Measurements, may_go_on: Callable[[], bool] = lambda: True) -> Iterator[Validated]:
    """Yields the errors of predictions on a GPU in one type: over all m, then for each range of m.

    Raises:
        SearchStopped: when ``may_go_on`` returns false.
    """
    gpu = measured.gpu
    calibrated_on = gpu.calibration.source if gpu.calibration else parameters_of(gpu)[0]
    predicted = predictions(measured, may_go_on)
    ratios, inside = measured.latency_us / predicted, np.zeros(len(predicted), dtype=bool)
    for low, high in M_RANGES:
        least, most = spread_of(gpu, low, measured.dtype)
        inside |= (measured.m >= low) & (measured.m <= high) & (ratios >= least) & (ratios <= most)
    roofline = roofline_us(gpu, measured.m, measured.n, measured.k, dtype=measured.dtype)
    for low, high in ((0, 0), *M_RANGES):
        chosen = (measured.m >= low) & (measured.m <= high) if high else np.ones_like(measured.m, dtype=bool)
        if chosen.any():
            model, plain = (_errors(times[chosen] / measured.latency_us[chosen] - 1) for times in (predicted, roofline))
            share = float(inside[chosen].mean())
            rows = int(chosen.sum())
            yield Validated(gpu.name, measured.dtype, low, high, rows, calibrated_on, model, plain, share)


def range_text(m_from: int, m_to: int) -> str:
    """A range of m in words, from the two ends in a ``Validated``."""
    if not m_to:
        return "all"
    return f"{m_from:,} on" if m_to >= M_RANGES[-1][1] else f"{m_from:,}–{m_to:,}"


def predictions(measured: Measurements, may_go_on: Callable[[], bool] = lambda: True) -> Floats:
    """The model's time for each measurement, in microseconds.

    Args:
        may_go_on: called before every few thousand measurements; predicting stops when it returns false.

    Raises:
        SearchStopped: when ``may_go_on`` returns false.
    """
    _, parameters = parameters_of(measured.gpu)
    predicted = []
    for at in range(0, len(measured.m), _BATCH):
        if not may_go_on():
            raise SearchStopped(f"predicting {len(measured.m):,} measurements was stopped after {at:,}")
        part = measured.only(slice(at, at + _BATCH))
        predicted.append(latencies_us(parameters, part.gpu, part.m, part.n, part.k, dtype=part.dtype))
    return np.concatenate(predicted) if predicted else np.zeros(0)


def _errors(errors: Floats) -> Errors:
    absolute = np.abs(errors)
    return Errors(
        float(absolute.mean()), float(np.median(absolute)), float(errors.mean()), float((absolute <= 0.2).mean())
    )


def _numbers(row: dict[str, str], where: str) -> tuple[float, ...]:
    values = []
    for name in _COLUMNS[1:]:
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            value = math.nan
        if not 0 < value < 1e13:
            raise UsageError(f"{where}: {name} is {row[name]!r}; it must be a number above 0")
        values.append(value)
    return tuple(values)
