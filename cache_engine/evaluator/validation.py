"""How well the GPU model predicts measured latencies, compared with roofline."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from cache_engine.errors import InvalidHardware, SearchStopped, UsageError
from cache_engine.evaluator.gpu import GPUS, Floats, Gpu, latencies_us, parameters_of, roofline_us
from cache_engine.extras import needing
from cache_engine.inputs import open_input

with needing("evaluate", "validation"):
    import numpy as np
    from numpy.typing import NDArray

M_RANGES = ((1, 16), (17, 64), (65, 256), (257, 1024), (1025, 4096), (4097, 10**12))

PUBLISHED_MAPE = {"A100": 7.0, "B200": 9.0, "H100": 6.0, "H200": 7.3}
"""Mean absolute error in percent on held-out measurements, by GPU: docs/evaluator.md, "The GPU model"."""
PUBLISHED_MAPE_UNMEASURED = (9.7, 18.9)
"""The same for a GPU without measurements: each GPU predicted from the others, the best and the worst."""

_COLUMNS = ("arch", "M", "N", "K", "latency_us")
_BATCH = 5_000
_MOST_LINES, _LONGEST_LINE = 1_000_000, 100_000

LARGEST_BYTES = 2**27
"""Of a file of measurements, decompressed."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured latencies on one GPU; arrays of the same length."""

    gpu: Gpu
    m: Floats
    n: Floats
    k: Floats
    latency_us: Floats

    def only(self, chosen: NDArray[np.bool_] | slice) -> Measurements:
        """Some of them."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name)[chosen] for field in fields(self)[1:]}
        return replace(self, **arrays)

    def every(self, stride: int) -> Measurements:
        """Every so many of them."""
        return self.only(slice(None, None, stride))

    def kept_out(self) -> NDArray[np.bool_]:
        """Which are of (N, K) pairs that no fit has seen: two in five, by a hash of the pair."""
        pairs = {pair: is_kept_out(*pair) for pair in set(zip(self.n.tolist(), self.k.tolist(), strict=True))}
        return np.array([pairs[pair] for pair in zip(self.n.tolist(), self.k.tolist(), strict=True)], dtype=bool)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions, as shares of what was measured.

    Attributes:
        mape, median: mean and median of absolute errors.
        bias: mean error; negative when predictions are too fast.
        within_20: share of predictions that are off by no more than 20 %.
    """

    mape: float
    median: float
    bias: float
    within_20: float


@dataclass(frozen=True, slots=True)
class Validated:
    """One line of a validation: a GPU, a range of m (both 0 for all), how many, and both models' errors."""

    arch: str
    m_from: int
    m_to: int
    count: int
    calibrated_on: str
    model: Errors
    roofline: Errors


def is_kept_out(n: float, k: float) -> bool:
    """Whether a pair is one of the two in five that no fit has seen."""
    return hashlib.sha256(f"{int(n)}x{int(k)}".encode()).digest()[0] < 0.4 * 256


def read_measurements(path: Path) -> list[Measurements]:
    """The measurements in a CSV file, gzipped if its name ends in .gz, by GPU.

    Columns arch, M, N, K, latency_us; others are ignored. ``arch`` is a known GPU, such as H100 or h100_sxm.

    Raises:
        UsageError: naming the invalid line, or what is missing.
    """
    try:
        with open_input(path) as file, as_text(file, str(path)) as text:
            return parse_measurements(text, str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def as_text(file: IO[bytes], source: str) -> IO[str]:
    """A CSV file as text, decompressed if its name ends in .gz.

    Raises:
        UsageError: when it is larger than ``LARGEST_BYTES``, or cannot be decompressed.
        OSError: when it cannot be read.
    """
    try:
        with gzip.open(file) if source.endswith(".gz") else nullcontext(file) as opened:
            data = opened.read(LARGEST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{source} cannot be decompressed: {error}") from error
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{source} is larger than {LARGEST_BYTES // 2**20} MiB; validate it in parts")
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")


def parse_measurements(file: IO[str], source: str) -> list[Measurements]:
    """The same, of a file that is open; raises as ``read_measurements``, or when it has more than a million lines."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    try:
        reader = csv.DictReader(_lines(file, source))
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(f"{source} lacks the column {missing[0]}; it needs: {', '.join(_COLUMNS)}")
        for number, row in enumerate(reader, start=2):
            name = str(row["arch"]).upper().removesuffix("_SXM")
            if name not in GPUS:
                known = ", ".join(GPUS)
                raise InvalidHardware(
                    f"{source}, line {number}: unknown arch {str(row['arch'])[:40]!r}; use one of: {known}"
                )
            rows.setdefault(name, []).append(_numbers(row, f"{source}, line {number}"))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{source} cannot be read as CSV: {error}") from error
    if not rows:
        raise UsageError(f"{source} has no measurements")
    return [Measurements(GPUS[name], *np.array(values).T) for name, values in rows.items()]


def _lines(file: IO[str], source: str) -> Iterator[str]:
    """The lines of a table, empty ones too: a row of many columns, or blank lines, would take gigabytes or minutes."""
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
    """Errors on a GPU in all, then by range of m; raises as ``predictions``."""
    calibrated_on, _ = parameters_of(measured.gpu)
    predicted = predictions(measured, may_go_on)
    roofline = roofline_us(measured.gpu, measured.m, measured.n, measured.k)
    for low, high in ((0, 0), *M_RANGES):
        chosen = (measured.m >= low) & (measured.m <= high) if high else np.ones_like(measured.m, dtype=bool)
        if chosen.any():
            model, plain = (_errors(times[chosen] / measured.latency_us[chosen] - 1) for times in (predicted, roofline))
            yield Validated(measured.gpu.name, low, high, int(chosen.sum()), calibrated_on, model, plain)


def range_text(m_from: int, m_to: int) -> str:
    """A range of m in words, as of a ``Validated``."""
    if not m_to:
        return "all"
    return f"{m_from:,} on" if m_to >= M_RANGES[-1][1] else f"{m_from:,}–{m_to:,}"


def predictions(measured: Measurements, may_go_on: Callable[[], bool] = lambda: True) -> Floats:
    """What the model says each of them takes, in microseconds.

    Args:
        may_go_on: asked before each few thousand.

    Raises:
        SearchStopped: when it says no.
    """
    _, parameters = parameters_of(measured.gpu)
    predicted = []
    for at in range(0, len(measured.m), _BATCH):
        if not may_go_on():
            raise SearchStopped(f"predicting {len(measured.m):,} measurements was stopped after {at:,}")
        part = measured.only(slice(at, at + _BATCH))
        predicted.append(latencies_us(parameters, part.gpu, part.m, part.n, part.k))
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
