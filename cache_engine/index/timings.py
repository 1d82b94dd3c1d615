"""Copies measurements of kernels into the mirror. They are few: if any is new, all are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.errors import StoreError
from cache_engine.index import rows
from cache_engine.model.measurement import Measurement
from cache_engine.store.layout import StoreLayout
from cache_engine.store.timings import Timings

if TYPE_CHECKING:
    import duckdb

    from cache_engine.store.results.file import State

_LOCK_TIMEOUT_S = 10.0


def timings_state(layout: StoreLayout) -> State:
    """The state of all timing files. Equal states mean that nothing was written in between."""
    from cache_engine.store.results.file import files_state

    return files_state(layout.timings)


def sync_timings(connection: duckdb.DuckDBPyConnection, layout: StoreLayout) -> tuple[int, bool]:
    """Copies changes; returns the number of measurements read or removed, and whether all could be read."""
    # Before reading, so that an addition meanwhile is a change next time.
    state = msgspec.json.encode(timings_state(layout)).decode()
    known = connection.execute("SELECT state FROM timings_read").fetchone()
    if known == (state,):
        return 0, True
    skipped: dict[str, tuple[int, str]] = {}
    found, settled = _read(layout, skipped)
    gone = connection.execute("DELETE FROM timings RETURNING key").fetchall()
    connection.execute("DELETE FROM skipped WHERE source = ?", [rows.TIMINGS])
    rows.skip(connection, rows.TIMINGS, skipped)
    rows.insert_or_skip(connection, rows.TIMINGS, "timings", [_row(one) for one in found])
    connection.execute("DELETE FROM timings_read")
    if settled:
        rows.insert(connection, "timings_read", [(state,)])
    return len(found) + len(gone), settled


def _read(layout: StoreLayout, skipped: dict[str, tuple[int, str]]) -> tuple[list[Measurement], bool]:
    """All sound timings, and whether everything could be read; adds skipped ones to ``skipped``, by name."""
    from cache_engine.store.results.interchange import UnknownResults

    timings, found, settled = Timings(layout, durable=False, lock_timeout_s=_LOCK_TIMEOUT_S), [], True
    for fingerprint in timings.fingerprints():
        try:
            found += timings.read_device(fingerprint, lambda name, error: skipped.update({name: (1, str(error))}))
        except UnknownResults as error:
            skipped[fingerprint] = (1, str(error))  # permanently
        except (StoreError, OSError):
            settled = False
    return found, settled


def _row(one: Measurement) -> rows.Row:
    """The row of ``timings`` for a measurement, in the order of the columns."""
    numbers = ("p10_us", "p90_us", "tflops", "reference_median_us", "speed_ratio", "max_rel_error")
    return (
        one.key, one.family, one.compiler, one.arch, str(one.config), one.config_from,
        *msgspec.structs.astuple(one.problem), one.device.name, one.device.digest(), one.device.driver, one.median_us,
        *(_number(one.timing.get(name)) for name in numbers), one.verified, one.measured_at, one.measured_by,
        msgspec.json.encode(one.timing).decode(),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    """A value of another version may have another meaning, or a number that fits no column."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None
