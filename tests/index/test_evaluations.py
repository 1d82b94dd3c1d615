"""Stored evaluator results in the index: equal to their files after any history, listed by page, disposable."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_engine.errors import UsageError
from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import key_of
from cache_engine.index import evaluations as queries
from cache_engine.index.evaluations import EVALUATION_SORTS, EvaluationFilter
from cache_engine.index.sync import Index
from cache_engine.store.disk import DiskStore
from tests.helpers import fill, make_store

CHIP, OTHER = PRESETS["SG2262"], PRESETS["SG2261"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
TABLES = ("evaluations", "evaluation_usage", "accelerators")
FOUND = search.evaluate(PROBLEM, CHIP)


def content(index: Index) -> dict[str, list[Any]]:
    with index.read() as connection:
        return {table: sorted(connection.execute(f"FROM {table}").fetchall(), key=repr) for table in TABLES}


def rebuilt(store: DiskStore) -> dict[str, list[Any]]:
    index = Index(store)
    index.sync(rebuild=True)
    return content(index)


def keep(store: DiskStore, count: int, first: int = 1) -> None:
    with Evaluations(store.layout, durable=False) as kept:
        for m in range(first, first + count):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), FOUND, 0.1 * m) is None


def ask(index: Index, question: str, *arguments: Any, **options: Any) -> Any:
    index.sync()
    with index.read() as connection:
        return getattr(queries, question)(connection, *arguments, **options)


def test_results_are_taken_over_as_they_are(store: DiskStore) -> None:
    index = Index(store)
    with Evaluations(store.layout) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        kept.evaluate(PROBLEM, CHIP)
    assert index.sync().results == 2, "a result, and its accelerator"
    (row,) = ask(index, "evaluations", EvaluationFilter())
    assert (row["m"], row["n"], row["k"], row["batch"], row["dtype"]) == (64, 2112, 7168, 1, "bf16")
    assert (row["key"], row["latency_us"], row["flops"]) == (answer.key, FOUND.latency_us, FOUND.flops)
    assert (row["tile"], row["partition"]) == ("×".join(map(str, FOUND.tile)), "×".join(map(str, FOUND.partition)))
    assert row["last_used_at"] > row["made_at"]
    (chip,) = ask(index, "accelerators")
    assert (chip["chip"], chip["results"], chip["hits"], chip["misses"]) == ("SG2262", 1, 1, 1)
    assert not index.sync().changed


def test_only_new_results_are_copied(store: DiskStore) -> None:
    keep(store, 50)
    index = Index(store)
    index.sync()
    kept = Evaluations(store.layout, durable=False)
    kept.put(replace(PROBLEM, m=1000), CHIP, SearchMode(), FOUND)
    assert index.sync().results == 2
    kept._sets[CHIP.fingerprint()].file.change(lambda _: None)
    assert index.sync().results == 1, "the same results, in another file"
    assert content(index) == rebuilt(store)


def test_deleting_the_mirror_loses_nothing(store: DiskStore) -> None:
    keep(store, 30)
    with Evaluations(store.layout) as kept:
        kept.evaluate(replace(PROBLEM, m=3), CHIP)
        kept.flush()
        index = Index(store)
        index.sync()
        before, exported = content(index), kept.export(CHIP.fingerprint())
        index.path.unlink()
        assert kept.export(CHIP.fingerprint()) == exported
    Index(store).sync()
    assert content(Index(store)) == before


def test_results_are_read_where_the_mirror_is_busy(store: DiskStore) -> None:
    keep(store, 3)
    index = Index(store)
    index.sync()
    with index.read(), Evaluations(store.layout) as kept:
        assert kept.put(replace(PROBLEM, m=9), CHIP, SearchMode(), FOUND) is None
        assert len(list(kept.entries(CHIP.fingerprint()))) == 4
        assert kept.summaries()[0]["total_entries"] == 4


@pytest.mark.parametrize("change", [{"flops": 10**400}, {"order": "kmn"}, {"tile": {"m": 1}}])
def test_a_damaged_result_is_counted_and_does_not_stop_the_rest(store: DiskStore, change: dict[str, Any]) -> None:
    keep(store, 5)
    path = store.layout.results_file(CHIP.fingerprint())
    stored = json.loads(path.read_bytes())
    entry = stored["cache_entries"][key_of(replace(PROBLEM, m=2), SearchMode())]
    entry["result"].update(change)
    entry["metadata"]["checksum"] = ""
    path.write_text(json.dumps(stored))
    index = Index(store)
    assert ask(index, "count_evaluations", EvaluationFilter()) == 4
    (chip,) = ask(index, "accelerators")
    assert (chip["results"], chip["damaged"]) == (4, 1)
    assert not index.sync().changed


def test_results_of_another_format_are_a_line_of_their_own(store: DiskStore) -> None:
    keep(store, 2)
    index = Index(store)
    index.sync()
    path = store.layout.results_file(CHIP.fingerprint())
    path.write_text(path.read_text().replace('"cache_format_version":"1.0"', '"cache_format_version":"9.0"'))
    (chip,) = ask(index, "accelerators")
    assert "9.0" in chip["error"]
    assert ask(index, "count_evaluations", EvaluationFilter()) == 0
    assert not index.sync().changed
    for gone in store.layout.evaluations.iterdir():
        gone.unlink()
    assert ask(index, "accelerators") == []


def test_pages_are_filtered_and_sorted(store: DiskStore) -> None:
    with Evaluations(store.layout, durable=False) as kept:
        for m in (16, 64, 7168):
            for hardware in (CHIP, OTHER):
                kept.evaluate(EvaluationProblem(m, 2112, 7168), hardware)
        kept.evaluate(EvaluationProblem(16, 512, 1024, dtype="fp8"), CHIP)
    index = Index(store)
    for text, count in (("7168", 6), ("7168x*", 2), ("16x512x1024", 1), ("16×512", 1), ("word", 0), ("", 7)):
        assert ask(index, "count_evaluations", EvaluationFilter(text)) == count, text
    assert ask(index, "count_evaluations", EvaluationFilter(fingerprints=(OTHER.fingerprint(),))) == 3
    assert ask(index, "count_evaluations", EvaluationFilter("16", dtypes=("fp8",))) == 1
    assert ask(index, "evaluation_dtypes") == ["bf16", "fp8"]
    for sort in EVALUATION_SORTS:
        pages = [ask(index, "evaluations", EvaluationFilter(), sort=sort, limit=2, offset=at) for at in range(0, 8, 2)]
        listed = [(row["fingerprint"], row["key"]) for page in pages for row in page]
        assert len(set(listed)) == 7, sort
    slowest = ask(index, "evaluations", EvaluationFilter(), sort="latency", limit=1)[0]
    assert (slowest["m"], slowest["chip"]) == (7168, "SG2261")
    with pytest.raises(UsageError, match="sort by"):
        ask(index, "evaluations", EvaluationFilter(), sort="key; DROP TABLE evaluations")


STEPS = st.lists(st.sampled_from(["put", "hit", "prune", "sync", "kernel"]), max_size=12)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_after_any_history_it_equals_a_rebuilt_one(
    steps: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, chance = make_store(tmp_path_factory.mktemp("any") / "store"), random.Random(seed)
    index = Index(store)
    for step in steps:
        with Evaluations(store.layout, durable=False) as kept:
            problem = replace(PROBLEM, m=chance.randrange(1, 6))
            if step == "put":
                kept.put(problem, CHIP, SearchMode(), FOUND, chance.random())
            elif step == "hit":
                kept.evaluate(problem, CHIP)
            elif step == "prune":
                kept.prune(kept.plan_pruning(max_entries=3))
            elif step == "kernel":
                fill(store, 1)
        if step == "sync":
            index.sync()
    index.sync()
    assert content(index) == rebuilt(store)
