"""What a cache counts as demand: every request, whichever tier serves it, and nothing that is compiled ahead."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cache_engine import GemmProblem, NotCached, StoreUnusable, open_cache, warm
from cache_engine.cache.cache import Cache
from cache_engine.cache.queue import Priority

PROBLEM = GemmProblem(128, 256, 192, arch="sm_90")  # as compiled_store has it


@pytest.fixture
def place(compiled_store: Path, tmp_path: Path) -> Path:
    """A store with a kernel in it and no demand."""
    shutil.copytree(compiled_store, tmp_path / "copy", ignore=shutil.ignore_patterns("journal"))
    (tmp_path / "copy" / "demand.json").unlink(missing_ok=True)
    return tmp_path / "copy"


def asked(cache: Cache) -> dict[tuple[int, int, int], int]:
    """How often each m × n × k was asked for; what is this recent has lost next to nothing."""
    return {
        (m, shape.n, shape.k): round(one.weight)
        for shape, sketch in cache.demand.ledger().sketches.items()
        for m, one in sketch.counters.items()
    }


def test_hits_in_each_tier_misses_and_refusals_count_and_by_key_does_not(place: Path) -> None:
    with open_cache(place, enable_jit=False) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "disk"
        for _ in range(3):
            kernel = cache.get_or_compile(PROBLEM)
        assert kernel.tier == "memory"
        cache.get_or_compile(replace(PROBLEM, m=127))
        with pytest.raises(NotCached):
            cache.get_or_compile(replace(PROBLEM, n=264))
        cache.get(kernel.key)
        assert asked(cache) == {(128, 256, 192): 4, (127, 256, 192): 1, (128, 264, 192): 1}
        assert {shape.arch for shape in cache.demand.ledger().sketches} == {"sm_90"}


def test_it_survives_a_restart_and_a_fold(place: Path) -> None:
    for _ in range(2):
        with open_cache(place) as cache:
            cache.get_or_compile(PROBLEM)
    with open_cache(place) as cache:
        cache.admin.clean()
        assert cache.layout.demand.exists()
        assert asked(cache) == {(128, 256, 192): 2}


def test_what_is_compiled_ahead_is_no_demand(place: Path) -> None:
    with open_cache(place, enable_jit=False) as cache:
        cache.get_or_compile(PROBLEM, priority=Priority.WARM)
        with pytest.raises(NotCached):
            cache.get_or_compile(replace(PROBLEM, n=264), priority=Priority.SPECULATION)
        assert len(warm(cache, [PROBLEM])) == 1
        assert asked(cache) == {}
        assert cache.stats().hits == 2


def test_the_half_life_is_a_week(place: Path) -> None:
    with open_cache(place) as cache:
        assert cache.demand.ledger().half_life_s == 7 * 86_400


def test_without_a_store_there_is_no_ledger(tmp_path: Path) -> None:
    with open_cache(tmp_path, enable_caching=False) as cache, pytest.raises(StoreUnusable, match="no store"):
        cache.demand.ledger()
