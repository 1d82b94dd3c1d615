"""SQL of users: each query ends with an answer or a sentence, and none writes or opens anything."""

from __future__ import annotations

import json
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import IndexUnavailable, SearchStopped, UsageError
from cache_engine.evaluator.catalogue import read_search
from cache_engine.index import queries, sql
from cache_engine.index.queries import KernelFilter
from cache_engine.index.sql_process import MEMORY_BYTES, MOST_CELL, MOST_COLUMNS
from cache_engine.index.sync import Index
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from tests.adapters.made import put_kernel
from tests.helpers import fill, make_store

COUNT = 12


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index that no test changes."""
    store = make_store(tmp_path_factory.mktemp("asked") / "store")
    fill(store, COUNT)
    found = Index(store)
    found.sync()
    return found


@pytest.fixture(scope="module")
def store_with_use(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index with hits, and with kernels that another framework put into the store."""
    folder = tmp_path_factory.mktemp("used")
    store = make_store(folder / "store")
    fill(store, COUNT)
    journal = Journal(store.layout.journal, 3600.0)
    for record in list(store.records())[:5]:
        journal.hit(CacheKey(record.key), "disk", made_at=record.created_at, saved_us=150_000)
    journal.hit(put_kernel(store.layout, folder), "disk", made_at=1_700_000_000.0)
    journal.close()
    found = Index(store)
    found.sync()
    return found


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS kernels FROM ours",
        "select count(*) AS kernels from ours;; \n ;",
        "WITH few AS (SELECT 1) SELECT count(*) AS kernels FROM kernels -- ; DROP TABLE kernels",
        "/* SELECT 2; */ FROM ours SELECT count(*) AS kernels",
    ],
)
def test_one_query_gets_its_answer(index: Index, query: str) -> None:
    assert sql.ask(index, query) == sql.Answer([sql.Column("kernels", "BIGINT")], [[COUNT]], is_cut=False)


@pytest.mark.parametrize(
    "query", ["DESCRIBE kernels", "SHOW TABLES", "SUMMARIZE kernels", "EXPLAIN SELECT 1", "VALUES (1)"]
)
def test_other_statements_that_only_read_are_queries_too(index: Index, query: str) -> None:
    answer = sql.ask(index, query)
    assert answer.rows
    assert {len(row) for row in answer.rows} == {len(answer.columns)}


def test_values_are_numbers_truth_values_texts_or_nothing(index: Index) -> None:
    answer = sql.ask(
        index,
        "SELECT 1 AS a, 'x' AS a, true, NULL, 1.5, 'inf'::DOUBLE, sum(2), 2::HUGEINT ** 100, to_timestamp(0), [1, 2], "
        "'\\x00'::BLOB, {'a': 1}, 170141183460469231731687303715884105727",
    )
    assert answer.rows == [
        [1, "x", True, None, 1.5, None, 2, 2.0**100, "1970-01-01 00:00:00+00", "[1, 2]", "\\x00", "{'a': 1}", 2.0**127]
    ]
    assert [column.name for column in answer.columns][:2] == ["a", "a"]
    assert json.loads(json.dumps(answer.rows)) == answer.rows


def test_rows_and_cells_are_bounded(index: Index) -> None:
    answer = sql.ask(index, "SELECT repeat('x', 1000000) || range AS text FROM range(30)", most_rows=3)
    assert answer.is_cut
    assert [len(str(cell)) for (cell,) in answer.rows] == [MOST_CELL] * 3
    assert not sql.ask(index, "FROM range(3)", most_rows=3).is_cut
    wide = sql.ask(
        index, f"SELECT repeat('x', {MOST_CELL}) FROM range(1000000)", most_rows=10**9, most_characters=2**20
    )
    assert wide.is_cut
    assert len(wide.rows) == 2**20 // MOST_CELL


HOSTILE = [
    "", ";", "-- nothing", "/* SELECT 1", "SELECT 1; SELECT 2", "SELECT 1; -- \n DROP TABLE kernels", "SELECT '", "\0",
    "SELECT 1) ; DROP TABLE kernels --", "SELECT 1) FROM kernels; --", "DROP TABLE kernels", "DELETE FROM kernels",
    "UPDATE kernels SET name = ''", "INSERT INTO kernels SELECT * FROM kernels", "CREATE TABLE more AS SELECT 1",
    "CREATE TEMP TABLE more AS SELECT 1", "WITH gone AS (DELETE FROM kernels RETURNING *) SELECT * FROM gone",
    "EXPLAIN ANALYZE DELETE FROM kernels", "EXPLAIN ANALYZE COPY kernels TO '{0}/out.csv'",
    "COPY kernels TO '{0}/out.csv'", "COPY (SELECT 1) TO '{0}/out.parquet'", "COPY kernels FROM '/etc/passwd'",
    "EXPORT DATABASE '{0}/out'", "ATTACH '{0}/other.duckdb'", "DETACH memory", "USE memory", "CHECKPOINT", "VACUUM",
    "BEGIN", "INSTALL httpfs", "LOAD httpfs", "PRAGMA database_list", "PRAGMA memory_limit='99GB'",
    "CALL pragma_version()",
    "SET memory_limit = '99GB'", "SET enable_external_access = true", "RESET lock_configuration", "SET VARIABLE a = 1",
    "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')", "FROM '/etc/passwd'",
    "SELECT * FROM read_blob('/proc/self/environ')", "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_json('http://127.0.0.1:1/')", "SELECT * FROM read_parquet('s3://bucket/file')",
    "SELECT * FROM query('DROP TABLE kernels')", "SELECT getenv('HOME')", "SELECT connection", "FROM asked",
    "FROM rows",
    "PREPARE gone AS DROP TABLE kernels", "EXECUTE gone", "CREATE SECRET s (TYPE s3)", "CREATE MACRO one() AS 1",
    "SELECT * FROM kernels_that_are_not_there", "SELECT no_such_column FROM kernels", "SELECT error('my own')",
    "SELECT " + "(" * 9_000 + "1" + ")" * 9_000, "SELECT " + "1+" * 9_000 + "1", "SELECT " + "[" * 9_000 + "]" * 9_000,
    f"SELECT {', '.join('1' for _ in range(MOST_COLUMNS + 1))}", "SELECT 1" + " " * sql.MOST_TEXT,
    "PIVOT kernels ON key",
]  # fmt: skip


def test_what_is_no_query_is_refused_in_one_sentence_and_writes_nothing(index: Index, tmp_path: Path) -> None:
    """One loop, as each query takes a process."""
    folders = (tmp_path, index.path.parent)
    before = [path for folder in folders for path in sorted(folder.rglob("*"))]
    wrong = {}
    for query in HOSTILE:
        try:
            wrong[query] = str(sql.ask(index, query.replace("{0}", str(tmp_path))))
        except (UsageError, SearchStopped) as error:
            said = str(error)
            if not 10 < len(said) <= 500 or "\n" in said or "root:" in said:
                wrong[query] = said
    assert wrong == {}
    assert [path for folder in folders for path in sorted(folder.rglob("*"))] == before
    assert sql.ask(index, "SELECT count(*), count(DISTINCT key), min(name) <> '' FROM kernels").rows == [
        [COUNT, COUNT, True]
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM range(10000000) a, range(10000000) b",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT sum(range) FROM range(1000000000000)",
        "SELECT sum(regexp_matches(repeat('a', 1000000) || range, '(a*)*b')::INT) FROM range(10000000)",
    ],
)
def test_a_query_without_end_is_stopped(index: Index, query: str) -> None:
    with pytest.raises(SearchStopped):
        sql.ask(index, query, limit_s=1.0)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT list(range) FROM range(1000000000)",
        "SELECT repeat('x', 1000000000)",
        "SELECT repeat(repeat('x', 100000), 40000)",
        "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
        "SELECT * FROM range(100000000) ORDER BY hash(range) LIMIT 90000000",
        "SELECT range(100000000), range(100000000), range(100000000)",
        "SELECT DISTINCT hash(range)::VARCHAR FROM range(100000000)",
        "WITH RECURSIVE t AS (SELECT 'x' AS a UNION ALL SELECT a || a FROM t) SELECT max(length(a)) FROM t",
        "SELECT lpad('', 900000000, 'x'), rpad('', 900000000, 'x')",
    ],
)
def test_a_query_with_too_much_memory_is_stopped(index: Index, query: str) -> None:
    with pytest.raises(SearchStopped):
        sql.ask(index, query, limit_s=3.0, most_rows=sql.MOST_ROWS)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < MEMORY_BYTES + 200 * 2**20


def test_a_long_answer_is_not_computed_to_its_end(index: Index) -> None:
    assert sql.ask(index, "SELECT range FROM range(1000000000000)", most_rows=2).rows == [[0], [1]]


def test_other_readers_and_syncs_go_on_after_a_stopped_query(store: DiskStore) -> None:
    fill(store, 1)
    index = Index(store)
    with pytest.raises(SearchStopped):
        sql.ask(index, "SELECT count(*) FROM range(10000000) a, range(10000000) b", limit_s=0.5)
    fill(store, 3)
    assert index.sync().changed
    assert sql.ask(index, "SELECT count(*) FROM kernels").rows == [[index.query(queries.count, KernelFilter())]]


def test_one_query_runs_at_a_time(index: Index) -> None:
    with index.of_users, pytest.raises(SearchStopped, match="other queries are running"):
        sql.ask(index, "SELECT 1", limit_s=0.01)
    asked: list[Any] = []
    threads = [threading.Thread(target=lambda: asked.append(sql.ask(index, "SELECT 1").rows)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == [[[1]]] * 4


def test_an_index_that_is_damaged_after_the_sync_is_a_sentence(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(store)
    index.sync()
    index.path.write_bytes(b"x" * 8192)
    monkeypatch.setattr(index, "sync", lambda: None)
    with pytest.raises(
        IndexUnavailable, match=r"^cannot read the index: .*; gemm-cache store sync --rebuild creates it"
    ):
        sql.ask(index, "SELECT 1")


def test_every_listed_column_has_a_line_of_description(index: Index) -> None:
    tables = sql.ask(index, sql.TABLES, most_rows=sql.MOST_ROWS)
    assert not tables.is_cut
    assert [row for row in tables.rows if not row[1] or not row[4] or "\n" in f"{row[1]}{row[4]}"] == []
    listed = {str(row[0]) for row in tables.rows}
    assert {"kernels", "ours", "usage", "events", "timings", "demand"} <= listed
    assert not {"shards", "sync_state", "journal_positions"} & listed


@pytest.mark.parametrize("title", sql.EXAMPLES)
def test_each_example_runs(index: Index, title: str) -> None:
    assert not sql.ask(index, sql.EXAMPLES[title]).is_cut


def test_csv_has_no_formula(index: Index) -> None:
    answer = sql.ask(index, "SELECT '=1+1' AS \"=a\", 'a,\"b', -5, NULL")
    assert sql.as_csv(answer).splitlines()[1] == '\'=1+1,"a,""b",-5,'
    assert sql.as_csv(answer).startswith("'=a,")


FILTERS: dict[str, tuple[KernelFilter, dict[str, Any]]] = {
    "all": (KernelFilter(), {}),
    "sorted": (KernelFilter(), {"sort": "hits", "descending": False}),
    "facets": (KernelFilter(archs=("sm_80", "sm_90"), families=("tensor_core",), dtypes=("it's",)), {}),
    "one facet": (KernelFilter(archs=("sm_80", "sm_90")), {"sort": "target"}),
    **{
        text: (KernelFilter.of(read_search(text)), {"sort": "compile time"})
        for text in (
            "bf16", "'; DROP TABLE kernels; --", "? ?? what?", "gemm_*", "*_nt_*x*", "h100", "Llama-3.1-8B", "hits=0",
            "hits>0 registers>1", "used<1d created>=2020-01-01", "config=6*x*", "name!=a?b'c*", "size>=1KB m<=128",
        )
    },
    "frameworks": (KernelFilter(frameworks=()), {}),
    "one framework": (KernelFilter(frameworks=("triton",)), {"sort": "name"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_the_sql_of_a_list_gives_its_very_rows(store_with_use: Index, name: str) -> None:
    chosen, order = FILTERS[name]
    rows = store_with_use.query(queries.kernels, chosen, **order, limit=1000)
    text = queries.as_sql(chosen, **order)
    assert sql.ask(store_with_use, text).rows == [[*row.values()] for row in rows]


def test_the_filters_above_find_kernels(store_with_use: Index) -> None:
    found = {name: store_with_use.query(queries.count, chosen) for name, (chosen, _) in FILTERS.items()}
    assert sum(map(bool, found.values())) > len(FILTERS) / 2, found
