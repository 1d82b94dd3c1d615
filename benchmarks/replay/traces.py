"""Traces of requests to a language model, read from CSV."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from cache_engine.errors import UsageError
from cache_engine.inputs import open_input

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""Of the traces of Azure/AzurePublicDataset."""

MOST_REQUESTS = 10_000_000
MOST_TOKENS = 10_000_000
"""Of one request."""
LONGEST_S = 366 * 86_400.0
_LONGEST_LINE = 10_000
_EVERY = 10_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (the traces name no time zone)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by arrival.

    Attributes:
        arrivals_s: seconds after the first request, ascending.
        prompts, outputs: tokens of each request; at least 1.
    """

    arrivals_s: array[float] = field(default_factory=lambda: array("d"))
    prompts: array[int] = field(default_factory=lambda: array("l"))
    outputs: array[int] = field(default_factory=lambda: array("l"))

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def at_load(self, load: float) -> Trace:
        """The same requests, ``load`` times as many in each second."""
        return Trace(array("d", (arrival / load for arrival in self.arrivals_s)), self.prompts, self.outputs)


def read_trace(path: Path, on_rows: Callable[[int], None] = lambda _: None) -> Trace:
    """The trace in a CSV file, which may be compressed (``.gz``), with ``COLUMNS`` or ``AZURE_COLUMNS``.

    Requests may be in any order. Other columns are not looked at. Takes 16 to 24 bytes of memory for a request.

    Args:
        on_rows: is called with the number of rows read, from time to time.

    Raises:
        UsageError: naming the line and what is wrong with it, or the limit that the file is beyond.
    """
    try:
        with open_input(path) as file:
            trace = _read(path, file, on_rows)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"{path} cannot be read: {reason}; give a CSV file, which may be compressed with gzip"
        ) from error
    except ValueError as error:  # of open_input: it is no name of a file
        raise UsageError(f"{str(path)!r} is no name of a file; give a CSV file with {', '.join(COLUMNS)}") from error
    if not len(trace):
        raise UsageError(f"{path} has no request below the names of its columns")
    return trace


def _read(path: Path, file: BinaryIO, on_rows: Callable[[int], None]) -> Trace:
    compressed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    raw = gzip.GzipFile(fileobj=file) if compressed else file
    with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
        return _parse(path, text, on_rows)


def _parse(path: Path, text: io.TextIOWrapper, on_rows: Callable[[int], None]) -> Trace:
    reader = csv.reader(_lines(path, text), skipinitialspace=True, strict=True)
    names = [name.strip() for name in next(reader, [])]
    columns = next((wanted for wanted in (COLUMNS, AZURE_COLUMNS) if set(wanted) <= set(names)), None)
    if columns is None:
        raise UsageError(
            f"{path} has no columns {', '.join(COLUMNS)}, nor {', '.join(AZURE_COLUMNS)}; its first line must name them"
        )
    places = [names.index(name) for name in columns]
    arrival_of = _seconds if columns is COLUMNS else _timestamp
    trace = Trace()
    for row in reader:
        if not row:
            continue
        if len(trace) >= MOST_REQUESTS:
            raise UsageError(f"{path} has more than {MOST_REQUESTS:,} requests; split the trace")
        where = f"{path}, line {reader.line_num}"
        cells = [row[place].strip() if place < len(row) else "" for place in places]
        for name, cell in zip(columns, cells, strict=True):
            if not cell:
                raise UsageError(f"{where}: {name} is missing; remove the line or complete it")
        trace.arrivals_s.append(arrival_of(where, columns[0], cells[0]))
        trace.prompts.append(_tokens(where, columns[1], cells[1]))
        trace.outputs.append(max(1, _tokens(where, columns[2], cells[2], least=0)))
        if len(trace) % _EVERY == 0:
            on_rows(len(trace))
    on_rows(len(trace))
    return _from_the_first(path, trace)


def _lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a file, none of them too long to be one."""
    number = 0
    while line := text.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise UsageError(f"{path}, line {number}: it is longer than {_LONGEST_LINE:,} characters; this is no trace")
        yield line


def _seconds(where: str, name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_S or not text[-1].isdigit():
        raise UsageError(f"{where}: {name} is {text[:60]!r}; it must be a number of seconds from 0 to {LONGEST_S:,.0f}")
    return seconds


def _timestamp(where: str, name: str, text: str) -> float:
    """Seconds since 1970 in the clock of the trace; only differences matter."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{where}: {name} is {text[:60]!r}; it must be a date and time such as 2023-11-16 18:15:46.68"
        ) from None
    return (moment - _EPOCH).total_seconds()


def _tokens(where: str, name: str, text: str, least: int = 1) -> int:
    if not re.fullmatch("[0-9]{1,12}", text) or not least <= int(text) <= MOST_TOKENS:
        raise UsageError(f"{where}: {name} is {text[:60]!r}; it must be a whole number from {least} to {MOST_TOKENS:,}")
    return int(text)


def _from_the_first(path: Path, trace: Trace) -> Trace:
    """The requests in the order of arrival, counted from the first."""
    if not len(trace):
        return trace
    first, last = min(trace.arrivals_s), max(trace.arrivals_s)
    if last - first > LONGEST_S:
        raise UsageError(f"{path} covers {(last - first) / 86_400:,.0f} days; the limit is {LONGEST_S / 86_400:,.0f}")
    order = sorted(range(len(trace)), key=trace.arrivals_s.__getitem__)
    return Trace(
        array("d", (trace.arrivals_s[i] - first for i in order)),
        array("l", (trace.prompts[i] for i in order)),
        array("l", (trace.outputs[i] for i in order)),
    )
