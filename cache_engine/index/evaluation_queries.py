"""Every query of the pages on stored results of the evaluator. Lists are paged here, in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.index.rows import fetch

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

_LAST_USED = "greatest(coalesce(last_used_at, 0), made_at)"

# Sort orders of lists: displayed name → SQL expression.
EVALUATION_SORTS = {
    "made": "made_at",
    "last used": _LAST_USED,
    "latency": "latency_us",
    "share of the peak": "utilization",
    "operations": "flops",
    "m": "m",
    "n": "n",
    "k": "k",
    "time of the search": "search_ms",
}

_USED = "evaluations AS e LEFT JOIN evaluation_usage AS u ON u.fingerprint = e.fingerprint AND u.key = e.key"


@dataclass(frozen=True, slots=True)
class EvaluationFilter:
    """A filter of results: of these accelerators and types, where any are named, and with sizes that ``text`` has.

    A word of ``text`` is one size, as in ``7168``, or sizes m×n×k with ``*`` for any, as in ``*x7168x2048``.
    """

    text: str = ""
    fingerprints: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[Any]]:
        """As an SQL condition and its parameters."""
        conditions, parameters = ["cause = ''"], list[Any]()
        for word in self.text.lower().replace("×", "x").split():
            sizes = word.split("x")
            if len(sizes) == 1:
                conditions.append("list_contains([m, n, k], ?)")
                parameters.append(_size(sizes[0]))
                continue
            for name, size in zip(("m", "n", "k"), sizes[:3], strict=False):
                if size not in ("", "*"):
                    conditions.append(f"{name} = ?")
                    parameters.append(_size(size))
        for column, values in (("e.fingerprint", self.fingerprints), ("dtype", self.dtypes)):
            if values:
                conditions.append(f"list_contains(?, {column})")
                parameters.append(list(values))
        return " AND ".join(conditions), parameters


def _size(text: str) -> int:
    """A size from text; one that no result has when the text is not a size."""
    return int(text) if text.isdecimal() and len(text) < 18 else -1


def count_evaluations(connection: duckdb.DuckDBPyConnection, chosen: EvaluationFilter) -> int:
    """The number of results that a filter selects."""
    condition, parameters = chosen.where()
    row = connection.execute(f"SELECT count(*) FROM evaluations AS e WHERE {condition}", parameters).fetchone()
    return int(row[0]) if row else 0


def evaluations(
    connection: duckdb.DuckDBPyConnection,
    chosen: EvaluationFilter,
    *,
    sort: str = "made",
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> list[Row]:
    """One page of results.

    Raises:
        UsageError: when ``sort`` is not one of ``EVALUATION_SORTS``.
    """
    if sort not in EVALUATION_SORTS:
        raise UsageError(f"cannot sort by {sort!r}; use one of: {', '.join(EVALUATION_SORTS)}")
    condition, parameters = chosen.where()
    direction = "DESC" if descending else "ASC"
    return fetch(
        connection,
        f"""
        SELECT e.* EXCLUDE (digest, cause), {_LAST_USED} AS last_used_at, chip
        FROM {_USED} LEFT JOIN accelerators AS a ON a.fingerprint = e.fingerprint
        WHERE {condition} ORDER BY {EVALUATION_SORTS[sort]} {direction}, e.fingerprint, e.key LIMIT ? OFFSET ?
        """,
        [*parameters, limit, offset],
    )


def accelerators(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """One row per accelerator with results: their number, damaged results, and lookups."""
    return fetch(
        connection,
        """
        SELECT a.* EXCLUDE (read_so_far), coalesce(results, 0) AS results, coalesce(damaged, 0) AS damaged
        FROM accelerators AS a LEFT JOIN (
            SELECT fingerprint, count(*) FILTER (cause = '') AS results, count(*) FILTER (cause <> '') AS damaged
            FROM evaluations GROUP BY fingerprint
        ) USING (fingerprint) ORDER BY lower(chip), fingerprint
        """,
    )


def evaluation_dtypes(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The types of A and B with results."""
    found = connection.execute("SELECT DISTINCT dtype FROM evaluations WHERE cause = '' ORDER BY dtype").fetchall()
    return [row[0] for row in found]
