"""Stored timings, as JSON and CSV state them. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

from cache_engine.model.measurement import Measurement
from cache_engine.units import defused

TimingRow = dict[str, Any]
"""A stored timing: every field that the program which measured wrote, whatever its version, and what it is of."""


def timing_row(stored: Measurement) -> TimingRow:
    """A stored timing: what was measured, then of what, and on what."""
    about: dict[str, Any] = msgspec.to_builtins(stored)
    fingerprint, timing = about.pop("device"), about.pop("timing")
    return {**timing, **about, "device": fingerprint["name"], "device_fingerprint": fingerprint}


def timings_csv(rows: Iterable[TimingRow]) -> str:
    """Timings as CSV, with a column for each nested field, such as ``config.block_m``."""
    flat = [dict(_flattened(row)) for row in rows]
    columns = dict.fromkeys(name for row in flat for name in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), restval="")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _flattened(row: TimingRow, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{defused(name)}.")
        else:
            yield f"{prefix}{defused(name)}", defused(value) if isinstance(value, str) else value
