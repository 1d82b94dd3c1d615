"""Queries that compute sums: of demand, of timings, and of kernels made and their compile times."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from cache_engine.index.rows import fetch
from cache_engine.model.gemm.fields import FIELDS, Options
from cache_engine.model.shapes import Shape
from cache_engine.usage.demand import MOST_COUNTERS, Counter, Ledger, Sketch

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

# As Timeline.ledger does: a period counts as asked for in its middle, and one in the future as now.
_AGE = "greatest($now - (start + least(start + seconds, greatest($now, start))) / 2, 0)"
_WEIGHT = f"sum(requests * pow(2, -{_AGE} / $half_life_s))"


def ledger(connection: duckdb.DuckDBPyConnection, half_life_s: float, now: float, since: float | None = None) -> Ledger:
    """The ledger of demand, the weighted number of requests by shape and size, at the time ``now``.

    With ``since``, in seconds since 1970, counts only the periods of demand that end later.
    """
    found = Ledger(half_life_s)
    # An exponent of an infinite half-life: nothing decays.
    given = {"now": now, "half_life_s": min(half_life_s, 1e300), "since": -math.inf if since is None else since}
    later = "start + seconds > $since"
    # As many m as a sketch has; the others by power of two.
    shape_columns = ", ".join(Shape.__struct_fields__)
    weighted = connection.execute(
        f"""
        WITH weighted AS (
                 SELECT {shape_columns}, m, power, {_WEIGHT} AS weight FROM demand WHERE {later} GROUP BY ALL),
             ranked AS (
                 SELECT *, row_number() OVER (PARTITION BY {shape_columns}, m = 0 ORDER BY weight DESC, m) AS place
                 FROM weighted)
        SELECT {shape_columns}, if(place <= {MOST_COUNTERS}, m, 0) AS counted, power, sum(weight)
        FROM ranked GROUP BY ALL ORDER BY ALL
        """,
        given,
    )
    for row in weighted.fetchall():
        *values, m, power, weight = row
        shape = Shape(**dict(zip(Shape.__struct_fields__, values, strict=True)))
        sketch = found.sketches.setdefault(shape, Sketch())
        if m:
            sketch.counters[m] = Counter(weight)
        else:
            sketch.tail[power] += weight
    (dropped,) = connection.execute(
        f"SELECT coalesce({_WEIGHT}, 0) FROM demand_dropped WHERE {later}", given
    ).fetchall()[0]
    first = connection.execute(
        "SELECT greatest((SELECT since FROM demand_read), (SELECT min(start) FROM demand WHERE start + seconds > ?))",
        [given["since"]],
    ).fetchone()
    found.dropped, found.at = float(dropped), now
    found.since = min(now, now if first is None or first[0] is None or not found.sketches else float(first[0]))
    return found


def compile_times(connection: duckdb.DuckDBPyConnection, keys: Collection[str]) -> dict[str, float]:
    """The compile time in milliseconds of each existing kernel among ``keys``, by key."""
    found = connection.execute("SELECT key, compile_ms FROM ours WHERE list_contains(?, key)", [list(keys)])
    return dict(found.fetchall())


def speed_by_arch(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """For each target and GPU, the numbers of kernels and timings, and their TFLOP/s, also as a share of a library's.

    Uses only timings whose result was verified, also those of kernels that have been evicted since.
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


def made_over_time(connection: duckdb.DuckDBPyConnection, seconds: int) -> list[Row]:
    """The number and bytes of the stored kernels by the time they were made, in intervals of this many seconds."""
    return fetch(
        connection,
        """
        SELECT (floor(created_at / $seconds) * $seconds)::BIGINT AS start, count(*) AS entries,
               sum(stored_bytes)::BIGINT AS stored_bytes
        FROM ours WHERE created_at BETWEEN 0 AND 1e11 GROUP BY ALL ORDER BY ALL
        """,
        {"seconds": seconds},
    )


def compile_spread(connection: duckdb.DuckDBPyConnection, seconds: int, since: float) -> list[Row]:
    """The number of stored kernels by the time when they were made, in intervals of ``seconds``, and by compile time.

    The ``class`` of compile times is 0 below 0.1 s, 1 below 0.3 s, then 1 s, 3 s, 10 s; 5 for longer.
    """
    return fetch(
        connection,
        """
        SELECT (floor(created_at / $seconds) * $seconds)::BIGINT AS start,
               len(list_filter([100, 300, 1000, 3000, 10000], lambda limit_ms: compile_ms >= limit_ms)) AS class,
               count(*) AS kernels
        FROM ours WHERE created_at BETWEEN greatest($since, 0) AND 1e11 GROUP BY ALL ORDER BY ALL
        """,
        {"seconds": seconds, "since": since},
    )


def shapes_of(connection: duckdb.DuckDBPyConnection, keys: Collection[str]) -> dict[str, Shape]:
    """The shape of each stored kernel among ``keys``, by key."""
    names = Shape.__struct_fields__
    found = connection.execute(f"SELECT key, {', '.join(names)} FROM ours WHERE list_contains(?, key)", [list(keys)])
    return {key: Shape(**dict(zip(names, values, strict=True))) for key, *values in found.fetchall()}


def nearest_of(connection: duckdb.DuckDBPyConnection, keys: Collection[str]) -> dict[str, tuple[str, list[str]]]:
    """For each stored kernel among ``keys``: the nearest kernel that was made before it, and the differences.

    The nearest is, among kernels with the same n and k, the one that differs in the fewest of target, types and so on;
    then the newest.
    """
    named = (
        ("toolchain", "toolchain"), ("target", "arch"), ("types", "dtype || out_dtype"), ("layout", "layout"),
        *((field.label.lower(), field.name) for field in FIELDS if field.name in Options.__struct_fields__),
        ("family", "family"), ("config", "config"), ("template", "template"), ("flags", "flags"), ("batch", "batch"),
    )  # fmt: skip
    differing = ", ".join(
        f"if(({sql}) IS DISTINCT FROM other_{number}, '{name}', NULL)" for number, (name, sql) in enumerate(named)
    )
    others = ", ".join(f"({sql}) AS other_{number}" for number, (_, sql) in enumerate(named))
    found = connection.execute(
        f"""
        WITH missed AS (SELECT key AS missed, n AS missed_n, k AS missed_k, created_at AS missed_at, {others}
                        FROM ours WHERE list_contains(?, key)),
             pairs AS (SELECT missed, key, created_at, list_filter([{differing}], lambda x: x IS NOT NULL) AS differs
                       FROM ours JOIN missed ON n = missed_n AND k = missed_k AND created_at < missed_at)
        SELECT missed, arg_min(key, rank), arg_min(differs, rank)
        FROM (SELECT *, {{'count': len(differs), 'age': -created_at, 'key': key}} AS rank FROM pairs) GROUP BY missed
        """,
        [list(keys)],
    ).fetchall()
    return {missed: (key, differs) for missed, key, differs in found}


def compile_ms_of(connection: duckdb.DuckDBPyConnection, keys: Collection[str]) -> dict[str, float]:
    """The compile time in milliseconds of each kernel among ``keys`` that the index knows."""
    found = fetch(
        connection,
        "SELECT key, max(compile_ms) AS ms FROM (SELECT key, compile_ms FROM ours UNION ALL SELECT key, compile_ms "
        "FROM events WHERE compile_ms > 0) WHERE key IN (SELECT unnest(?)) GROUP BY key",
        [list(keys)],
    )
    return {row["key"]: row["ms"] for row in found}


def timings(connection: duckdb.DuckDBPyConnection, key: str) -> list[Row]:
    """The timings of a kernel, the newest first."""
    return fetch(
        connection,
        """
        SELECT key, device, arch, driver, m, n, k, batch, median_us, p10_us, p90_us, tflops, reference_median_us,
               speed_ratio, max_rel_error, verified, measured_at
        FROM timings WHERE key = ? ORDER BY measured_at DESC, m, timing
        """,
        [key],
    )
