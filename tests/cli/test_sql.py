"""``sql``: an answer as a table, JSON or CSV; a refused query is one line and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cache_engine.cli import support
from cache_engine.cli.main import commands
from cache_engine.errors import SearchStopped, UsageError
from cache_engine.index import sql


def _run(store: Path, *arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(commands, ["--store", str(store), "sql", *arguments], input=given)


def test_the_answer_as_table_json_and_csv(compiled_store: Path) -> None:
    query = "SELECT arch, count(*) AS kernels, '=x' AS kernels FROM ours GROUP BY arch ORDER BY arch"
    printed = _run(compiled_store, query).stdout.splitlines()
    assert printed[0].split() == ["arch", "kernels", "kernels"]
    assert printed[-1] == f"{len(printed) - 3} rows."
    document = json.loads(_run(compiled_store, query, "--json").stdout)
    assert [column["name"] for column in document["columns"]] == ["arch", "kernels", "kernels"]
    assert document["is_cut"] is False
    assert sum(row[1] for row in document["rows"]) == 4
    lines = _run(compiled_store, query, "--format", "csv").stdout.splitlines()
    assert lines[0] == "arch,kernels,kernels"
    assert [line.split(",") for line in lines[1:]] == [[row[0], str(row[1]), "'=x"] for row in document["rows"]]


def test_more_rows_than_the_limit_are_cut_off_and_said_to_be(compiled_store: Path) -> None:
    assert _run(compiled_store, "FROM range(9)", "--limit", "2").stdout.endswith("The first 2 rows; see --limit.\n")
    assert "see --limit" in _run(compiled_store, "-", "--limit", "2", "--format", "csv", given="FROM range(9)").stderr


def test_alone_it_lists_the_tables_and_each_of_their_columns(compiled_store: Path) -> None:
    printed = _run(compiled_store).stdout
    assert "kernels: Kernels in the store;" in printed
    assert "  spill_bytes       BIGINT   registers spilled to memory by a thread, in bytes\n" in printed
    assert "ours: The rows of kernels that were compiled here.\n  columns as above\n" in printed


def test_a_refused_query_is_a_wrong_usage_and_a_stopped_one_a_failure(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = _run(compiled_store, "DROP TABLE kernels").exception
    assert isinstance(refused, UsageError)
    assert str(refused) == "DROP is not a query: use SELECT, WITH, FROM, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN"
    assert isinstance(_run(compiled_store, "SELECT 1", "--json", "--format", "csv").exception, UsageError)
    monkeypatch.setattr(sql.ask, "__kwdefaults__", {**(sql.ask.__kwdefaults__ or {}), "limit_s": 0.5})
    stopped = _run(compiled_store, "SELECT count(*) FROM range(10000000) a, range(10000000) b").exception
    assert isinstance(stopped, SearchStopped)
    assert [support._code_of(one) for one in (refused, stopped)] == [2, 1]
