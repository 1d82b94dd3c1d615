"""SQL of users on the index: one query, read only, bounded in memory, time, rows and cells."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_engine.errors import IndexUnavailable, SearchStopped, UsageError
from cache_engine.index.sync import Index
from cache_engine.process import unforked
from cache_engine.units import defused

LIMIT_S, MOST_ROWS, MOST_TEXT = 20.0, 100_000, 20_000
"""The longest time of a query in seconds, the most rows of an answer, and the most characters of a query."""

TABLES = """
WITH described AS (
    SELECT table_name, comment FROM duckdb_tables() UNION ALL SELECT view_name, comment FROM duckdb_views()
)
SELECT table_name AS "table", described.comment AS "about the table", column_name AS "column", data_type AS "type",
       coalesce(columns.comment, max(columns.comment) OVER (PARTITION BY column_name)) AS "about the column"
FROM duckdb_columns() AS columns JOIN described USING (table_name)
WHERE described.comment IS NOT NULL
ORDER BY "table" NOT IN ('kernels', 'ours'), "table", column_index
"""
"""The SQL query that lists the tables that users can query, with their columns."""

EXAMPLES: Mapping[str, str] = {
    "Largest kernel of each target": """
SELECT arch, max(size_bytes) AS size_bytes, arg_max(name, size_bytes) AS name, arg_max(key, size_bytes) AS key
FROM ours GROUP BY arch ORDER BY size_bytes DESC
""",
    "Kernels with spills, by family": """
SELECT family, arch, count(*) AS kernels, max(spill_bytes) AS most_spilled, round(avg(registers)) AS registers
FROM ours WHERE spill_bytes > 0 GROUP BY ALL ORDER BY kernels DESC
""",
    "Compile time by toolchain": """
SELECT toolchain, count(*) AS kernels, round(median(compile_ms)) AS median_ms, round(max(compile_ms)) AS longest_ms
FROM ours GROUP BY toolchain ORDER BY median_ms DESC
""",
    "Hits of kernels used in the last week": """
SELECT name, arch, memory_hits + pack_hits + disk_hits + remote_hits AS hits, to_timestamp(last_used_at) AS last_used
FROM ours JOIN usage ON usage.key = ours.key AND usage.made_at = ours.created_at
WHERE last_used_at > epoch(now()) - 7 * 86400 ORDER BY hits DESC
""",
    "Size by shape of the weights": """
SELECT n, k, dtype, count(*) AS kernels, sum(stored_bytes) AS bytes_on_disk, list(DISTINCT arch) AS targets
FROM ours GROUP BY n, k, dtype ORDER BY bytes_on_disk DESC
""",
    "Problems with several configs": """
SELECT m, n, k, batch, dtype, layout, epilogue, arch, count(DISTINCT config) AS configs, list(DISTINCT config) AS which
FROM ours GROUP BY ALL HAVING configs > 1 ORDER BY configs DESC
""",
    "Misses and compile time by day": """
SELECT to_timestamp(start)::DATE AS day, sum(misses) AS misses, sum(compiles) AS compiles,
       sum(compile_us) / 1e6 AS compile_s
FROM periods GROUP BY day ORDER BY day DESC
""",
}
"""Examples of SQL queries, by title."""

_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from cache_engine.index.sql_process import main
main()
"""
_GRACE_S = 5.0  # for the start of the process, and for one that the alarm cannot end


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer: its name, which another column may have too, and its type in DuckDB."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a query.

    Attributes:
        columns: the columns of the answer.
        rows: the rows of the answer. A value is a number, a truth value, a text of at most 2,000 characters, or
            ``None``.
        is_cut: whether the query has more rows than the answer.
    """

    columns: list[Column]
    rows: list[list[str | float | bool | None]]
    is_cut: bool


def ask(
    index: Index, sql: str, *, limit_s: float = LIMIT_S, most_rows: int = 1000, most_characters: int = 32 * 2**20
) -> Answer:
    """Brings the index up to date, and runs one query on it in a process of its own.

    Queries on the same ``Index`` run one after the other: together, they could take all memory, and keep the index from
    its next sync.

    Raises:
        UsageError: when ``sql`` is not one query, or DuckDB refuses it; the text says why.
        SearchStopped: when the query takes too much time or memory.
        IndexUnavailable: when another process keeps the index busy, or the disk fails.
    """
    if len(sql) > MOST_TEXT:
        raise UsageError(f"a query has at most {MOST_TEXT:,} characters, and this one has {len(sql):,}")
    if not index.of_users.acquire(timeout=limit_s):
        raise SearchStopped("other queries are running on this store; ask again in a moment")
    try:
        index.sync()
        with index.file() as path:
            rows = min(most_rows, MOST_ROWS)
            question = {"path": str(path), "sql": sql, "rows": rows, "characters": most_characters, "limit_s": limit_s}
            answer = _answer_of(json.dumps(question).encode(), limit_s)
    finally:
        index.of_users.release()
    if "refused" in answer:
        raise UsageError(_in_one_line(answer["refused"]))
    if "stopped" in answer:
        raise SearchStopped(answer["stopped"])
    if "unreadable" in answer:
        said = _in_one_line(answer["unreadable"])
        raise IndexUnavailable(f"cannot read the index: {said}; gemm-cache store sync --rebuild creates it again")
    return Answer([Column(*column) for column in answer["columns"]], answer["rows"], answer["is_cut"])


def as_csv(answer: Answer) -> str:
    """An answer as CSV, with an apostrophe before texts that a spreadsheet would run as formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([defused(column.name) for column in answer.columns])
    writer.writerows([defused(cell) if isinstance(cell, str) else cell for cell in row] for row in answer.rows)
    return out.getvalue()


def _answer_of(question: bytes, limit_s: float) -> dict[str, Any]:
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    command = [sys.executable, "-I", *bytecode, "-c", _PROGRAM, *filter(os.path.isabs, sys.path)]
    pipe = subprocess.PIPE
    with unforked():  # in its own process group, so that Ctrl-C reaches only this process
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, process_group=0)
    is_late, answer = False, b""
    with process:
        try:
            answer, _ = process.communicate(question, timeout=limit_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            process.kill()
    if is_late or process.returncode in (-signal.SIGALRM, -signal.SIGXCPU):
        return {"stopped": f"the query was stopped after {limit_s:g} s; ask for less"}
    if process.returncode:
        return {"stopped": "the query ended DuckDB, mostly because it needs too much memory; ask for less"}
    found: dict[str, Any] = json.loads(answer)
    return found


def _in_one_line(text: str) -> str:
    """An error message of DuckDB in one line, without the part that repeats the query."""
    return re.sub(r"\s+", " ", text.partition("\n\nLINE ")[0])[:500].strip()
