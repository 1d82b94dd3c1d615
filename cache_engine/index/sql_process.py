"""The process that runs one SQL query of a user on an index, and ends. ``sql.ask`` starts it.

DuckDB opens the index for reading only, without other files, extensions and the network, and its settings are locked.
The operating system bounds memory, time and files of the process once more: a query that finds a hole, or a fault, in
DuckDB ends this process and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import string
import sys
from typing import Any

import duckdb

MEMORY_BYTES = 768 * 2**20
"""The most bytes of memory of the process; DuckDB stops at ``_DUCKDB_MEMORY``, but does not count all that it takes."""
MOST_CELL, MOST_COLUMNS = 2000, 500
"""The most characters of a cell, and columns of an answer."""
_DUCKDB_MEMORY = "384MB"
_CONFIG: dict[str, Any] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": _DUCKDB_MEMORY,
    "temp_directory": "",
    "threads": 2,
    "lock_configuration": True,
}
_NUMBERS = frozenset(
    (
        "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
        "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE",
    )
)  # fmt: skip


def main() -> None:
    """Answers the question on standard input: ``{"path", "sql", "rows", "limit_s"}``, all as JSON."""
    asked = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what DuckDB prints must not get into the answer
    _bind(asked["limit_s"])
    try:
        answer = _answer(asked["path"], asked["sql"], asked["rows"], asked["characters"])
    except (duckdb.OutOfMemoryException, MemoryError):
        answer = {"stopped": "the query needs more memory than a query may use; ask for less"}
    except duckdb.Error as error:
        answer = {"refused": str(error)}
    answers.write(json.dumps(answer))
    answers.flush()
    os._exit(0)  # closing the file takes longer, and nothing was changed


def _bind(limit_s: float) -> None:
    """Limits this process: its memory, files and processor time; an alarm ends it after ``limit_s`` seconds."""
    limits = {
        resource.RLIMIT_DATA: MEMORY_BYTES,
        resource.RLIMIT_CPU: math.ceil(2 * limit_s) + 1,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 1,  # 1 also stops dumps to a pipe
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(10)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def _answer(path: str, sql: str, most: int, most_characters: int) -> dict[str, Any]:
    try:
        connection = duckdb.connect(path, read_only=True, config=_CONFIG)
    except (duckdb.IOException, duckdb.SerializationException) as error:
        return {"unreadable": str(error)}
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        return {"refused": f"write one query; these are {len(statements)}"}
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        return {"refused": f"{kind.name} is not a query: use SELECT, WITH, FROM, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN"}
    relation = connection.sql(sql.rstrip(f"{string.whitespace};"))
    columns = [*zip(relation.columns, map(str, relation.types), strict=True)]
    if len(columns) > MOST_COLUMNS:
        return {"refused": f"the answer has {len(columns):,} columns, and the most are {MOST_COLUMNS}; name fewer"}
    # By position: two columns may have one name.
    relation = relation.project(", ".join(_bounded(at, kind) for at, (_, kind) in enumerate(columns, 1)))
    relation = relation.limit(most + 1)
    rows: list[list[Any]] = []
    size, is_cut = 0, False
    for row in relation.iter_rows():
        size += sum(len(str(value)) for value in row)
        if len(rows) == most or size > most_characters:
            is_cut = True
            break
        rows.append([_plain(value) for value in row])
    named = [(name[:MOST_CELL], kind[:MOST_CELL]) for name, kind in columns]
    return {"columns": named, "rows": rows, "is_cut": is_cut}


def _bounded(at: int, kind: str) -> str:
    if kind in _NUMBERS:
        return f"#{at}"
    return f"#{at}::DOUBLE" if kind.startswith("DECIMAL") else f"left(#{at}::VARCHAR, {MOST_CELL})"


def _plain(value: Any) -> Any:
    """A cell's value in a form that JSON has: no infinite number, and no whole number beyond 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value
