"""Queries: filters, words, pages and sums, against what Python finds in the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import msgspec
import pytest

from cache_engine.errors import UsageError
from cache_engine.index import queries, summaries
from cache_engine.index.queries import SORTS, KernelFilter
from cache_engine.index.sync import SCHEMA, SCHEMA_VERSION, Index
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.events import CLEAN, CORRUPT, DAY_S, DISCARD, EVICT, HOUR_S, PUBLISH, RECENT
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.measurement import Measurement
from cache_engine.store.codec import stored_bytes
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, fold
from cache_engine.store.timings import Timings
from tests.helpers import INVENTED_GPU, files_of, fill, invented_timing

COUNT = 60
LONG_AGO = 1_600_000_000.0
# By what each sort orders rows.
ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "last used": lambda row: row["last_used_at"],
    "created": lambda row: row["created_at"],
    "hits": lambda row: row["hits"],
    "compile time": lambda row: row["compile_ms"],
    "size": lambda row: row["size_bytes"],
    "size on disk": lambda row: row["stored_bytes"],
    "registers": lambda row: row["registers"],
    "name": lambda row: row["name"],
    "target": lambda row: int(row["arch"][3:]),
    "family": lambda row: row["family"],
    "dtype": lambda row: row["dtype"],
    "layout": lambda row: row["layout"],
    "shape": lambda row: (row["m"], row["n"], row["k"]),
    "batch": lambda row: row["batch"],
    "config": lambda row: row["config"],
    "spills": lambda row: row["spill_bytes"],
    "shared memory": lambda row: row["shared_bytes"],
    "compiler": lambda row: (row["compiler"], row["compiler_version"]),
    "time": lambda row: row["median_us"],
    "tflops": lambda row: row["tflops"],
    "share of library": lambda row: row["speed_ratio"],
}


def _timed(store: DiskStore, *timings: Measurement) -> None:
    there = Timings(store.layout, durable=False)
    there.add(timings)
    there.close()


def _timing(record: Record, median_us: float, *, m: int | None = None, **timing: Any) -> Measurement:
    """An invented timing of a record's kernel, of the problem that it was first asked for unless ``m`` is given."""
    made = invented_timing(GemmProblem(128, 256, 192, arch=record.arch), record.config, median_us, **timing)
    problem = record.problem if m is None else msgspec.structs.replace(record.problem, m=m)
    return msgspec.structs.replace(made, key=record.key, problem=problem)


@pytest.fixture
def records(store: DiskStore) -> list[Record]:
    fill(store, COUNT)
    return list(store.records())


@pytest.fixture
def connection(store: DiskStore, records: list[Record]) -> Iterator[Any]:
    journal = Journal(store.layout.journal, 3600.0)
    for number, record in enumerate(records[:5]):
        for _ in range(number + 1):
            journal.hit(CacheKey(record.key), "disk", made_at=record.created_at, saved_us=150_000)
    journal.hit(CacheKey(records[0].key), "memory", made_at=records[0].created_at)
    journal.hit(CacheKey(records[9].key), "disk", made_at=1.0)  # on an entry evicted since, and made again
    journal.event(PUBLISH, key=records[7].key, compile_us=150_000)
    journal.event(EVICT, key="gone", stored_bytes=10, detail="expired")
    journal.miss("sm_80")
    journal.miss("sm_75")
    journal.flush()
    long_ago = Journal(store.layout.journal, 3600.0, now=lambda: LONG_AGO)
    for _ in range(2):
        long_ago.miss("sm_90")
    long_ago.flush()
    _timed(
        store,
        *(
            _timing(record, 10.0 + number % 7, tflops=100.0 - number % 9, speed_ratio=0.5 + number % 5)
            for number, record in enumerate(records)
        ),
    )
    index = Index(store)
    index.sync()
    with index.read() as opened:
        yield opened


def test_acts_are_paged_by_kind_and_tell_who(store: DiskStore) -> None:
    journal = Journal(store.layout.journal, 3600.0, now=iter(range(1, 100)).__next__)
    for number in range(5):
        journal.event(CLEAN, detail=f"{number}", by="somebody", stored_bytes=number)
        journal.event(DISCARD, detail=f"{number}", by="another")
    index = Index(store)
    index.sync()
    with index.read() as opened:
        counts = opened.execute("SELECT kind, count(*) FROM events GROUP BY kind").fetchall()
        assert dict(counts) == {CLEAN: 5, DISCARD: 5}
        pages = [queries.acts(opened, limit=4, offset=offset) for offset in (0, 4, 8)]
        assert [len(page) for page in pages] == [4, 4, 2]
        times = [row["happened_at"] for page in pages for row in page]
        assert times == sorted(times, reverse=True)
        cleaned = queries.acts(opened, [CLEAN])
    assert [(row["detail"], row["done_by"], row["stored_bytes"]) for row in cleaned] == [
        (str(number), "somebody", number) for number in (4, 3, 2, 1, 0)
    ]


def test_acts_stay_in_the_mirror_when_other_events_are_many(store: DiskStore) -> None:
    journal = Journal(store.layout.journal, 3600.0, now=iter(range(1, 10_000)).__next__)
    journal.event(CLEAN, by="somebody")
    index = Index(store)
    index.sync()
    for _ in range(RECENT + 20):
        journal.event(EVICT, key="gone")
    index.sync()
    with index.read() as opened:
        assert opened.execute("SELECT count(*) FROM events").fetchone() == (RECENT + 1,)
        assert [row["done_by"] for row in queries.acts(opened)] == ["somebody"]


def test_sums_of_some_kernels_by_architecture(connection: Any, records: list[Record]) -> None:
    chosen = records[:20]
    rows = queries.sums_by_arch(connection, [*(record.key for record in chosen), "gone"])
    assert {row["arch"]: row["entries"] for row in rows} == Counter(record.arch for record in chosen)
    assert sum(row["stored_bytes"] for row in rows) == sum(stored_bytes(record) for record in chosen)
    assert [row["arch"] for row in rows] == ["sm_80", "sm_90", "sm_100", "sm_120"]


def test_the_mirror_describes_itself(connection: Any) -> None:
    state = queries.state(connection)
    assert state["schema_version"] == SCHEMA_VERSION
    assert state["rows"]["kernels"] == COUNT
    assert state["generation"] > 0
    assert state["synced_at"] > 0


def test_pages_together_are_the_whole_list_once(connection: Any, records: list[Record]) -> None:
    seen = []
    for offset in range(0, COUNT, 7):
        seen += [row["key"] for row in queries.kernels(connection, KernelFilter(), limit=7, offset=offset)]
    assert sorted(seen) == sorted(record.key for record in records)
    assert queries.count(connection, KernelFilter()) == COUNT


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_sorts(connection: Any, sort: str) -> None:
    down = queries.kernels(connection, KernelFilter(), sort=sort, limit=COUNT)
    up = queries.kernels(connection, KernelFilter(), sort=sort, descending=False, limit=COUNT)
    values = [ORDERS[sort](row) for row in down]
    assert values == sorted(values, reverse=True)
    assert [ORDERS[sort](row) for row in up] == sorted(values)


@pytest.mark.parametrize("descending", [True, False])
def test_kernels_that_sort_alike_are_in_the_order_of_their_keys(store: DiskStore, descending: bool) -> None:
    """Else a kernel may be on two pages and another on none. The index gets them in another order than that."""
    index = Index(store)
    for start in range(0, COUNT, 20):
        fill(store, 20, start)
        index.sync()
    expected = sorted(store.records(), key=lambda record: record.key)
    expected.sort(key=lambda record: int(record.arch[3:]), reverse=descending)
    how: dict[str, Any] = {"sort": "architecture", "descending": descending}
    with index.read() as opened:
        pages = [
            queries.kernels(opened, KernelFilter(), limit=7, offset=offset, **how) for offset in range(0, COUNT, 7)
        ]
        batches = queries.kernel_batches(opened, KernelFilter(), limit=COUNT, **how).read_all().to_pylist()
    assert [row["key"] for page in pages for row in page] == [record.key for record in expected]
    assert [row["key"] for row in batches] == [record.key for record in expected]


def test_an_unknown_sort_is_refused_listing_those_there_are(connection: Any) -> None:
    with pytest.raises(UsageError, match="last used, created"):
        queries.kernels(connection, KernelFilter(), sort="key; DROP TABLE kernels")


def test_filters_select_the_named_values(connection: Any, records: list[Record]) -> None:
    chosen = KernelFilter(archs=("sm_90", "sm_80"), dtypes=("bf16",), families=("tensor_core",), compilers=("nvrtc",))
    page = queries.kernels(connection, chosen, limit=COUNT)
    expected = {record.key for record in records if record.arch in ("sm_90", "sm_80")}
    assert {row["key"] for row in page} == expected
    assert queries.kernels(connection, KernelFilter(dtypes=("fp64",))) == []


@pytest.mark.parametrize(
    "text", ["sm_90", "SM_90", "tensor_core bf16", "64x128x256", "64×128×256", "nt sm_120 n128", "64x64x32_w2x2"]
)
def test_search_finds_kernels_that_match_every_word(connection: Any, records: list[Record], text: str) -> None:
    def matches(record: Record) -> bool:
        p = record.problem
        searched = f"{record.name} {record.arch} {record.family} {p.dtype} {p.layout} {p.m}x{p.n}x{p.k} {record.config}"
        return all(word in searched for word in text.lower().replace("×", "x").split())

    found = {row["key"] for row in queries.kernels(connection, KernelFilter(text=text), limit=COUNT)}
    assert found == {record.key for record in records if matches(record)}
    assert found


def test_search_finds_a_key_by_its_digits(connection: Any, records: list[Record]) -> None:
    page = queries.kernels(connection, KernelFilter(text=records[3].key[:12]))
    assert [row["key"] for row in page] == [records[3].key]


@pytest.mark.parametrize("text", ["%", "_", "'", '"', "'; DROP TABLE kernels; --", "\\", "\x00", "💥", "sm_90'"])
def test_a_hostile_search_is_only_text(connection: Any, text: str) -> None:
    expected = COUNT if text == "_" else 0
    assert len(queries.kernels(connection, KernelFilter(text=text), limit=COUNT)) == expected
    assert queries.count(connection, KernelFilter(text=text)) == expected
    assert queries.count(connection, KernelFilter()) == COUNT


def test_one_kernel_with_its_usage(connection: Any, records: list[Record]) -> None:
    row = queries.kernel(connection, records[0].key)
    assert row is not None
    assert (row["memory_hits"], row["disk_hits"], row["hits"]) == (1, 1, 2)
    assert row["last_used_at"] > row["created_at"]
    assert queries.kernel(connection, "0" * 64) is None


def test_a_kernels_time_is_the_latest_correct_one_of_its_own_m(store: DiskStore, records: list[Record]) -> None:
    first, second, third = records[:3]
    other_m = first.problem.m + 1
    _timed(
        store,
        _timing(first, 10.0, measured_at=1.0, tflops=5.0, speed_ratio=0.5),
        _timing(first, 20.0, measured_at=2.0, tflops=6.0),
        _timing(first, 30.0, measured_at=3.0, verified=False),
        _timing(first, 40.0, measured_at=4.0, m=other_m),
        _timing(second, 50.0, m=second.problem.m + 1),
        _timing(third, 60.0, verified=False),
    )
    index = Index(store)
    index.sync()
    with index.read() as opened:
        rows = {row["key"]: row for row in queries.kernels(opened, KernelFilter(), sort="time", limit=COUNT)}
        assert next(iter(rows)) == first.key, "kernels without a time come last"
        speed = [rows[first.key][name] for name in ("median_us", "tflops", "speed_ratio", "device")]
        assert speed == [20.0, 6.0, None, INVENTED_GPU.name], "nothing of an older timing"
        assert [rows[each.key]["median_us"] for each in (second, third)] == [None, None]
        one = queries.kernel(opened, first.key)
        assert one is not None
        assert one["median_us"] == 20.0


def test_versions_are_the_kernels_for_one_problem_and_target(connection: Any) -> None:
    every = queries.kernels(connection, KernelFilter(), limit=COUNT)
    ways = {"m", "specialisation", "opt_level"}
    same = ("arch", *(name for name in RecordedProblem.__struct_fields__ if name not in ways))
    for row in every[:10]:
        expected = [one["key"] for one in every if all(one[name] == row[name] for name in same)]
        found = queries.versions(connection, row["key"])
        assert sorted(one["key"] for one in found) == sorted(expected)
        assert [one["created_at"] for one in found] == sorted((one["created_at"] for one in found), reverse=True)
    assert queries.versions(connection, "0" * 64) == []


def test_facets_are_the_values_there_are(connection: Any) -> None:
    assert queries.facets(connection) == {
        "arch": ["sm_80", "sm_90", "sm_100", "sm_120"],
        "dtype": ["bf16"],
        "family": ["tensor_core"],
        "compiler": ["nvrtc"],
        "framework": [],
    }


@pytest.mark.parametrize(
    "chosen",
    [
        KernelFilter(),
        KernelFilter(text="n128"),
        KernelFilter(archs=("sm_90", "sm_80")),
        KernelFilter(archs=("sm_90",), dtypes=("fp64",)),
        KernelFilter(text="n256", archs=("sm_90",), layouts=("nt",), shapes=(((256, 256), (512, 256)),)),
        KernelFilter(archs=("no such",)),
    ],
)
def test_a_facet_counts_what_choosing_its_value_alone_would_find(connection: Any, chosen: KernelFilter) -> None:
    counts = queries.facet_counts(connection, chosen)
    assert counts.total == queries.count(connection, chosen)
    everything = queries.facet_counts(connection, KernelFilter()).values
    for facet, values in counts.values.items():

        def alone(value: str, field: str = {"family": "families"}.get(facet, f"{facet}s")) -> int:
            changed: dict[str, Any] = {field: (value,)}
            return queries.count(connection, replace(chosen, **changed))

        assert values == {value: alone(value) for value in everything[facet] if alone(value)}
    assert list(everything["arch"]) == queries.facets(connection)["arch"]


def test_shapes_are_found_by_n_and_k(connection: Any, records: list[Record]) -> None:
    chosen = KernelFilter(shapes=(((128, 256), (384, 256), (128, 7)), ((384, 256),)))
    found = {row["key"] for row in queries.kernels(connection, chosen, limit=COUNT)}
    assert found == {record.key for record in records if record.problem.n == 384}
    assert found
    assert queries.kernels(connection, KernelFilter(shapes=((),))) == []


def test_batches_are_the_list_in_its_order(connection: Any) -> None:
    chosen = KernelFilter(archs=("sm_90",))
    whole = queries.kernels(connection, chosen, sort="registers", descending=False, limit=COUNT)
    batches = queries.kernel_batches(connection, chosen, sort="registers", descending=False, limit=COUNT)
    assert batches.read_all().to_pylist() == whole
    assert queries.kernel_batches(connection, KernelFilter(), limit=7).read_all().num_rows == 7
    with pytest.raises(UsageError):
        queries.kernel_batches(connection, chosen, sort="no such", limit=1)


def test_events_of_one_key(connection: Any, records: list[Record]) -> None:
    assert [row["kind"] for row in queries.events_of(connection, records[7].key)] == [PUBLISH]
    assert [row["detail"] for row in queries.events_of(connection, "gone")] == ["expired"]
    assert queries.events_of(connection, records[8].key) == []


def test_overview_adds_up(connection: Any, store: DiskStore) -> None:
    row = queries.overview(connection)
    assert row["entries"] == COUNT
    assert row["stored_bytes"] == sum(path.stat().st_size for path in files_of(store))
    assert (row["disk_hits"], row["memory_hits"], row["saved_us"]) == (16, 1, 15 * 150_000)
    assert (row["compiles"], row["evictions"], row["evicted_bytes"], row["unreadable"]) == (1, 1, 10, 0)


def test_an_empty_mirror_answers_everything(store: DiskStore) -> None:
    index = Index(store)
    index.sync()
    with index.read() as connection:
        assert queries.overview(connection)["entries"] == 0
        assert queries.kernels(connection, KernelFilter()) == []
        assert queries.architectures(connection) == []
        assert queries.events(connection) == queries.busiest(connection) == []
        assert queries.facets(connection)["arch"] == []
        assert queries.made_with(connection) == queries.history(connection, HOUR_S) == []
        assert queries.names(connection, []) == {}
        assert queries.facet_counts(connection, KernelFilter()).total == 0
        assert queries.kernel_batches(connection, KernelFilter(), limit=5).read_all().num_rows == 0


def test_events_come_newest_first_with_names(connection: Any, records: list[Record]) -> None:
    rows = queries.events(connection)
    assert [row["kind"] for row in rows] == [EVICT, PUBLISH]
    assert [row["name"] for row in rows] == [None, records[7].name]


def test_the_busiest_come_first(connection: Any, records: list[Record]) -> None:
    rows = queries.busiest(connection, limit=2)
    assert [row["key"] for row in rows] == [records[4].key, records[3].key]


def test_architectures_add_up_to_the_whole(connection: Any, records: list[Record]) -> None:
    rows = queries.architectures(connection)
    by_arch = Counter(record.arch for record in records)
    assert {row["arch"]: row["entries"] for row in rows} == by_arch
    assert sum(row["hits"] for row in rows) == 16
    assert {row["arch"]: row["misses"] for row in rows} == {"sm_80": 1, "sm_90": 2, "sm_100": 0, "sm_120": 0}
    assert all((row["families"], row["dtypes"]) == (["tensor_core"], ["bf16"]) for row in rows)
    used = {record.arch: record.created_at for record in records}
    assert all(row["last_used_at"] >= used[row["arch"]] for row in rows)


def test_the_stock_differs_where_one_kernel_came_and_one_went(connection: Any, records: list[Record]) -> None:
    assert queries.stock(connection)[0] == len(records)
    with duckdb.connect() as made_up:
        stocks = [
            queries.stock(made_up.execute(f"CREATE OR REPLACE TABLE ours AS SELECT unnest({keys}) AS key"))
            for keys in (["a", "b"], ["b", "a"], ["a", "c"])
        ]
    assert stocks[0] == stocks[1], "in any order"
    assert (stocks[2][0], stocks[2][1] == stocks[0][1]) == (2, False)


def test_kernels_are_named_with_target_and_problem(connection: Any, records: list[Record]) -> None:
    (row,) = queries.named(connection, [records[1].key, "0" * 64])
    assert (row["name"], row["arch"], row["n"]) == (records[1].name, records[1].arch, records[1].problem.n)


def test_ways_of_making_add_up_to_the_whole(connection: Any, records: list[Record]) -> None:
    rows = queries.made_with(connection)
    by_arch = Counter(record.arch for record in records)
    assert {row["arch"]: row["entries"] for row in rows} == by_arch
    assert sum(row["hits"] for row in rows) == 16
    assert {row["toolchain"] for row in rows} == {"nvrtc 13.5 of a test"}
    assert min(row["first_made_at"] for row in rows) == min(record.created_at for record in records)


def test_history_is_summed_over_spans_from_a_time_on(connection: Any) -> None:
    totals = queries.overview(connection)
    for seconds in (HOUR_S, DAY_S, 28 * DAY_S):
        rows = queries.history(connection, seconds)
        assert len(rows) == 2
        assert rows[0]["start"] == LONG_AGO // seconds * seconds
        for name in ("memory_hits", "pack_hits", "disk_hits", "misses", "compiles", "compile_us", "saved_us"):
            assert sum(row[name] for row in rows) == totals[name], name
    assert [row["misses"] for row in queries.history(connection, DAY_S, since=LONG_AGO + DAY_S)] == [2]


def test_history_leaves_out_periods_known_less_closely(store: DiskStore) -> None:
    """A day's sum is not put into its first hour."""
    journal = Journal(store.layout.journal, 3600.0, now=lambda: LONG_AGO)
    journal.miss("sm_90")
    journal.spans.add("disk", 0.1)
    journal.close()
    fold(store.layout.journal, store.layout.temp, keep=lambda key: True)
    index = Index(store)
    index.sync()
    with index.read() as connection:
        assert queries.history(connection, DAY_S) == []
        (row,) = queries.history(connection, 28 * DAY_S)
        assert (row["misses"], row["lookups_1"], row["lookups_2"]) == (1, 0, 1)


def test_the_nearest_kernel_is_of_the_same_n_and_k_was_there_before_and_differs_in_the_least() -> None:
    with duckdb.connect() as connection:
        connection.execute(SCHEMA)
        for key, n, arch, config, at in (
            ("missed", 8, "sm_90", "one", 50.0),
            ("of another n", 9, "sm_90", "one", 40.0),
            ("far", 8, "sm_80", "another", 45.0),
            ("near", 8, "sm_80", "one", 20.0),
            ("near and newer", 8, "sm_75", "one", 30.0),
            ("later", 8, "sm_90", "one", 60.0),
        ):
            connection.execute(
                "INSERT INTO kernels (key, n, k, arch, config, created_at) VALUES (?, ?, 8, ?, ?, ?)",
                [key, n, arch, config, at],
            )
        found = summaries.nearest_of(connection, ["missed", "of another n", "later", "gone"])
    assert found == {"missed": ("near and newer", ["target"]), "later": ("missed", [])}


def test_kernels_that_left_are_known_by_their_last_event_and_those_that_came_back_are_not() -> None:
    with duckdb.connect() as connection:
        connection.execute(SCHEMA)
        for at, kind, key in (
            (1.0, PUBLISH, "evicted"),
            (2.0, EVICT, "evicted"),
            (3.0, CLEAN, "evicted"),
            (1.0, EVICT, "back"),
            (2.0, PUBLISH, "back"),
            (2.0, CORRUPT, "damaged"),
            (2.0, EVICT, "of no interest"),
        ):
            connection.execute("INSERT INTO events (happened_at, kind, key) VALUES (?, ?, ?)", [at, kind, key])
        found = queries.departed(connection, ["evicted", "back", "damaged", "never seen"])
    assert found == {"evicted": EVICT, "damaged": CORRUPT}


def test_compiles_are_counted_by_when_and_how_long() -> None:
    with duckdb.connect() as connection:
        connection.execute(SCHEMA)
        for key, at, ms in (("a", 10.0, 99.9), ("b", 19.0, 100.0), ("c", 20.0, 1e9), ("d", 5.0, 1.0), ("e", -5.0, 1.0)):
            connection.execute("INSERT INTO kernels (key, created_at, compile_ms) VALUES (?, ?, ?)", [key, at, ms])
        connection.execute("INSERT INTO kernels (key, created_at, framework) VALUES ('other', 10, 'triton')")
        found = summaries.compile_spread(connection, 10, 8.0)
    assert [(row["start"], row["class"], row["kernels"]) for row in found] == [(10, 0, 1), (10, 1, 1), (20, 5, 1)]
