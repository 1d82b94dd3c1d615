"""Searches by field and pattern, compared with what Python finds in the same rows.

The examples of a test share one store and one index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache_engine.evaluator.catalogue.search import Condition, read_search
from cache_engine.index import queries
from cache_engine.index.queries import KernelFilter
from cache_engine.index.rows import compared
from cache_engine.index.sync import Index
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.notes import annotate
from tests.adapters.made import STAGES, put_kernel
from tests.helpers import fill

COUNT = 24
CREATED_AT = 1_700_000_000.0  # of the first, each of the others a second later; 2023-11-14
NOW = CREATED_AT + 3600.0
SEARCHES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "tensor_*": lambda _: True,
    "*_core": lambda _: True,
    "*_cor": lambda _: False,
    "core*": lambda _: False,
    "64x12*": lambda row: (row["m"], row["n"]) == (64, 128),
    "*x128x2*6": lambda row: row["n"] == 128,
    "sm_*0": lambda _: True,
    "sm_1*": lambda row: row["arch"] in ("sm_100", "sm_120"),
    "t*b*16": lambda _: False,  # a pattern matches within one word
    "*%*": lambda _: False,
    "sm.90*": lambda _: False,
    "hits>0": lambda row: row["hits"] > 0,
    "hits=0": lambda row: row["hits"] == 0,
    "hits!=0 hits<=3": lambda row: 0 < row["hits"] <= 3,
    "compile_ms>1": lambda _: True,
    "compile>=0.15s": lambda _: True,
    "compile>0.15s": lambda _: False,
    "size>1KB": lambda row: row["size_bytes"] > 1000,
    "disk<1MiB": lambda _: True,
    "registers>=70 spills=0": lambda row: row["registers"] >= 70,
    "created<1d": lambda _: True,
    "created>1d": lambda _: False,
    "created<=3590s": lambda row: row["created_at"] >= CREATED_AT + 10,
    "created=2023-11-14": lambda _: True,
    "created>2023-11-14": lambda _: False,
    "used>2023-11-14": lambda row: row["hits"] > 0,
    "specialise=nk level=3 out=BF16": lambda _: True,
    "out!=bf16": lambda _: False,
    "out=b*6 family=*": lambda _: True,
    "out!=*16": lambda _: False,
    "config=64x64*": lambda _: True,
    "config=64*w2": lambda _: False,
    "key=0*": lambda row: row["key"].startswith("0"),
    "name=' target=%": lambda _: False,
    "target!=sm_90": lambda row: row["arch"] != "sm_90",
    "m=70": lambda row: row["m"] == 70,
    "tag=prod": lambda row: "prod" in (row["tags"] or "").split(),
    "tag!=PROD": lambda row: "prod" not in (row["tags"] or "").split(),
    "tag=p*d": lambda row: bool({"prod", "pre-prod"} & {*(row["tags"] or "").split()}),
    "tag=p*-d": lambda _: False,  # a pattern matches within one tag
    "tag=pro": lambda _: False,
    "tag=.*": lambda _: False,
    "tag=*": lambda row: bool(row["tags"]),
    "note=*slow*": lambda row: row["note"] == "Slow on B200",
}
HOSTILE = ("(*", "*[", "a\\*b", "*?*+*", "(?i)*x", "a*" * 100, "*\x00*", "💥*é", "key='*'; --", "name=(*", "config=*\\")


@pytest.fixture
def connection(store: DiskStore) -> Iterator[Any]:
    """Kernels of which the first four have one to four hits."""
    journal = Journal(store.layout.journal, 3600.0)
    keys = fill(store, COUNT)
    for number, key in enumerate(keys[:4]):
        for _ in range(number + 1):
            journal.hit(key, "disk", made_at=CREATED_AT + number)
    journal.flush()
    annotate(store.layout, keys[0], text="Slow on B200", add=("prod", "check"))
    annotate(store.layout, keys[1], text="fast", add=("pre-prod", "p", "x-d"))
    annotate(store.layout, keys[2], add=("prod",))
    index = Index(store)
    index.sync()
    with index.read() as opened:
        yield opened


def test_fields_and_patterns_are_what_they_say(connection: Any) -> None:
    """In lists, counts, sums and exports alike."""
    every = queries.kernels(connection, KernelFilter(), limit=COUNT)
    assert sum(row["hits"] > 0 for row in every) == 4, "else some searches say nothing"
    for text, fits in SEARCHES.items():
        chosen = KernelFilter.of(read_search(text, NOW))
        expected = {row["key"] for row in every if fits(row)}
        assert {row["key"] for row in queries.kernels(connection, chosen, limit=COUNT)} == expected, text
        assert queries.count(connection, chosen) == len(expected), text
        assert queries.facet_counts(connection, chosen).total == len(expected), text
        assert sum(row["entries"] for row in queries.sizes_of(connection, chosen)) == len(expected), text
        batches = queries.kernel_batches(connection, chosen, limit=COUNT).read_all().to_pylist()
        assert {row["key"] for row in batches} == expected, text


def test_a_hostile_pattern_is_only_text_and_stars(connection: Any) -> None:
    for text in HOSTILE:
        assert queries.count(connection, KernelFilter.of(read_search(text))) == 0, text
    assert queries.count(connection, KernelFilter.of(read_search("*" * 200))) == COUNT
    assert queries.count(connection, KernelFilter(text="tensor_*")) == 0, "text that is no search has no pattern"
    assert queries.count(connection, KernelFilter(archs=("sm_*",))) == 0


def test_no_operator_gets_into_sql_but_those_there_are() -> None:
    with pytest.raises(ValueError, match="OR"):
        compared(Condition("hits", "= 1 OR 1", 1), "m")


def test_kernels_of_other_frameworks_have_some_of_the_fields(store: DiskStore, tmp_path: Path) -> None:
    key = put_kernel(store.layout, tmp_path)
    journal = Journal(store.layout.journal, 3600.0)
    journal.hit(CacheKey(key), "disk", made_at=CREATED_AT)
    journal.close()
    index = Index(store)
    index.sync()

    def found(text: str) -> int:
        chosen = replace(KernelFilter.of(read_search(text, NOW)), frameworks=())
        count = index.query(queries.count, chosen)
        assert len(index.query(queries.kernels, chosen)) == count
        return count

    ms = sum(STAGES.values())
    for text in ("til*", "*num_warps=4*", "hits>0", f"compile={ms}", "created<1d", "used>2023-11-14", "config=*ctas=1"):
        assert found(text) == 1, text
    for text in ("til*x", "hits=0", f"compile>{ms}", "created>1d", "config=*ctas", "dtype=*", "m>0", "name!=tile"):
        assert found(text) == 0, text
