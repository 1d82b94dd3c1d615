"""Sums that pages show: of measurements by GPU, of kernels by when they were made, of what compiling took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cache_engine.mirror.rows import fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb


def speed_by_arch(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """For each target and GPU: kernels and timings, their TFLOP/s, and their speed as a share of a library's.

    Of timings whose result was verified; also of kernels that were evicted since.
    """
    return fetch(
        connection,
        """
        SELECT arch, device, count(DISTINCT key) AS kernels, count(*) AS timings, median(tflops) AS median_tflops,
               max(tflops) AS best_tflops, count(speed_ratio) AS compared, median(speed_ratio) AS median_ratio,
               max(measured_at) AS measured_at
        FROM timings WHERE verified GROUP BY arch, device ORDER BY arch, device
        """,
    )


def made_over_time(connection: duckdb.DuckDBPyConnection, seconds: int) -> list[dict[str, Any]]:
    """The kernels that are in the store, and their bytes, by when they were made, in intervals of this length."""
    return fetch(
        connection,
        """
        SELECT (floor(created_at / $seconds) * $seconds)::BIGINT AS start, count(*) AS entries,
               sum(stored_bytes)::BIGINT AS stored_bytes
        FROM kernels WHERE created_at BETWEEN 0 AND 1e11 GROUP BY ALL ORDER BY ALL
        """,
        {"seconds": seconds},
    )


def compile_ms_of(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> dict[str, float]:
    """How long compiling took, of those of these kernels that the index knows."""
    found = fetch(
        connection,
        "SELECT key, max(compile_ms) AS ms FROM (SELECT key, compile_ms FROM kernels UNION ALL SELECT key, compile_ms "
        "FROM events WHERE compile_ms > 0) WHERE key IN (SELECT unnest(?)) GROUP BY key",
        [list(keys)],
    )
    return {row["key"]: row["ms"] for row in found}
