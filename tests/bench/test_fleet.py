"""Fleets of machines, event by event: what follows from the plan alone, whatever the costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache_engine.bench.fleet.costs import Costs
from cache_engine.bench.fleet.events import PLANS, Assumed, Outcome, Plan, outcome

COSTS = Costs(kernels=5, compile_s=(0.4, 0.6), object_bytes=(1000, 3000), take_s=0.01)
NODES = 50


def _of(**how: object) -> Outcome:
    return outcome(Plan("a test", **how), NODES, COSTS)  # type: ignore[arg-type]  # fields of Plan


def test_without_a_store_every_machine_compiles_everything_and_asks_nothing() -> None:
    found = _of(uses_store=False)
    assert (found.requests, found.moved_bytes, found.compiles) == (0, 0, NODES * 5)
    assert found.duplicates == NODES * 5 - 5
    assert 5 * 0.4 <= found.warm_p50_s <= 5 * 0.6


def test_a_stocked_store_is_read_once_by_each_and_nothing_is_compiled() -> None:
    found = _of(is_stocked=True)
    assert (found.requests, found.compiles, found.gave_up) == (NODES * 5, 0, 0)
    assert found.moved_bytes == NODES * (3 * 1000 + 2 * 3000)
    least = 5 * (0.02 + 0.01)
    assert least < found.warm_p50_s < 2 * least
    assert sum(found.asked.values()) == found.requests
    assert max(found.asked.values()) == found.peak_requests


def test_a_pack_is_one_request_with_all_bytes() -> None:
    found = _of(is_stocked=True, as_pack=True)
    assert (found.requests, found.compiles, found.moved_bytes) == (NODES, 0, NODES * COSTS.pack_bytes)


def test_one_compile_per_key_means_no_duplicates_and_no_machine_without_a_kernel() -> None:
    found = _of(one_compile=True)
    assert (found.compiles, found.duplicates) == (5, 0)
    assert _of().duplicates > 0
    late = _of(within_s=1000.0, one_compile=True)
    assert late.duplicates == 0
    assert late.last_s > 900


def test_a_store_that_is_down_is_asked_once_and_then_left_alone() -> None:
    found = _of(is_stocked=True, down_s=3600.0)
    assert (found.requests, found.gave_up) == (NODES, NODES)
    assert (found.compiles, found.moved_bytes) == (NODES * 5, 0)
    assert found.warm_p50_s > 1.0 + 5 * 0.4


def test_a_store_that_is_asked_too_much_answers_too_late() -> None:
    slow = replace(Assumed(), store_requests_per_s=10.0)
    found = outcome(Plan("a test", is_stocked=True), NODES, COSTS, slow)
    assert found.gave_up > 0
    assert found.compiles > 0
    spread = outcome(Plan("a test", is_stocked=True, within_s=100.0), NODES, COSTS, slow)
    assert (spread.gave_up, spread.compiles) == (0, 0)


@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
def test_every_machine_gets_every_kernel_and_the_same_seed_gives_the_same(plan: Plan) -> None:
    first = outcome(plan, 20, COSTS, seed=3)
    assert first == outcome(plan, 20, COSTS, seed=3)
    assert first.warm_p50_s > 0
    assert first.duplicates == first.compiles - min(first.compiles, 5)
