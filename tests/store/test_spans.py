"""How long things take: counted in fixed buckets, exactly, and read back as quantiles within 9 %."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine import GemmProblem, open_cache
from cache_engine.model.events import USE, Event, Tally
from cache_engine.store.journal.snapshot import fold, read_journal
from cache_engine.store.journal.spans import BUCKETS, Distribution, Spans, bucket_of, ceiling_s, distributions
from cache_engine.store.journal.writer import NoJournal

SLACK = 2 ** (1 / 8) * 1.0001


@given(st.floats(1e-6, 1e12))
def test_a_length_is_below_its_buckets_edge_and_not_below_that_of_the_one_before(ms: float) -> None:
    bucket = bucket_of(ms)
    assert 0 <= bucket < BUCKETS
    if bucket < BUCKETS - 1:
        assert ms / 1e3 <= ceiling_s(bucket) * 1.0001
    assert bucket == 0 or ms / 1e3 >= ceiling_s(bucket - 1) * 0.9999


@pytest.mark.parametrize("ms", [0.0, -1.0, 1e-9])
def test_what_takes_no_time_falls_into_the_first_bucket(ms: float) -> None:
    spans = Spans()
    spans.add("disk", ms)
    assert bucket_of(ms) == 0
    assert spans.take()["disk/0"] == 1


@given(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_that_of_the_lengths_within_nine_percent(lengths: list[float], share: float) -> None:
    spans = Spans()
    for ms in lengths:
        spans.add("compile", ms)
    found = distributions(spans.take())["compile"]
    true = sorted(lengths)[max(0, -int(-share * len(lengths) // 1) - 1)]
    assert found.count == len(lengths)
    assert true / SLACK <= found.quantile_ms(share) <= true * SLACK
    assert found.total_s == pytest.approx(sum(lengths) / 1e3, abs=1e-9, rel=1e-9)


def test_what_is_counted_is_taken_once_whoever_counts() -> None:
    spans = Spans()

    def count() -> None:
        for _ in range(2000):
            spans.add("memory", 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = [spans.take() for _ in range(50)]
    for thread in threads:
        thread.join()
    taken.append(spans.take())
    bucket = f"memory/{bucket_of(0.001)}"
    assert sum(each.get(bucket, 0) for each in taken) == 8000
    assert spans.take() == {}


def test_sums_of_many_journals_are_exact_in_any_order() -> None:
    rng = random.Random(3)
    events = []
    for _ in range(20):
        spans = Spans()
        for _ in range(50):
            spans.add(rng.choice(("memory", "disk", "compile")), rng.lognormvariate(0, 3))
        events.append(Event(kind=USE, at=1e9, spans=spans.take()))
    tallies = []
    for _ in range(2):
        tally = Tally()
        rng.shuffle(events)
        for event in events:
            tally.add(event)
        tallies.append(tally.totals.spans)
    assert tallies[0] == tallies[1]
    assert sum(found.count for found in distributions(tallies[0]).values()) == 1000


@given(
    st.dictionaries(
        st.text(max_size=8) | st.sampled_from(["disk/61", "disk/999", "disk/-1", "disk/ns", "x/1"]),
        st.integers(0, 2**53),
    )
)
def test_counts_of_other_programs_are_skipped(counts: dict[str, int]) -> None:
    found = distributions(counts)
    assert set(found) <= {"disk"}
    assert found.get("disk", Distribution({}, 0)).count == counts.get("disk/61", 0)


def test_folding_keeps_sums_and_drops_names_that_no_program_wrote(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_cache(root, durability="fast") as cache:
        cache.get_or_compile(GemmProblem(64, 64, 64, arch="sm_90"))
        layout = cache.layout
    (file,) = layout.journal.glob("*.jsonl")
    hostile = Event(kind=USE, at=1e9, spans={f"made-up/{number}": 1 for number in range(50)} | {"disk/40": 3})
    with file.open("ab") as journal:
        journal.write(msgspec.json.encode(hostile) + b"\n")
    before = distributions(read_journal(layout.journal).totals.spans)
    assert fold(layout.journal, layout.temp, lambda _: True) == 1
    after = read_journal(layout.journal).totals.spans
    assert distributions(after) == before
    assert before["disk"].count == 3
    assert not any(name.startswith("made-up") for name in after)


def test_a_store_counts_lookups_by_tier_and_the_work_of_misses(tmp_path: Path) -> None:
    problem = GemmProblem(64, 64, 64, arch="sm_90")
    with open_cache(tmp_path / "store", durability="fast") as cache:
        made = cache.get_or_compile(problem)
        for _ in range(5):
            cache.get_or_compile(problem)
    with open_cache(tmp_path / "store") as cache:
        cache.get_or_compile(problem)
        found = distributions(cache.stats().totals.spans)
    assert {name: one.count for name, one in found.items()} == {
        "memory": 5, "disk": 1, "lock": 1, "select": 1, "queue": 1, "generate": 1, "compile": 1, "publish": 1,
    }  # fmt: skip
    compile_ms = made.record.compile_ms
    assert compile_ms / SLACK <= found["compile"].quantile_ms(0.5) <= compile_ms * SLACK
    assert all(one.quantile_ms(0.5) > 0 for one in found.values())


def test_without_a_store_the_process_counts_for_itself() -> None:
    journal = NoJournal()
    journal.spans.add("pack", 1.0)
    for _ in range(2):
        journal.flush()
        assert distributions(journal.totals.spans)["pack"].count == 1
