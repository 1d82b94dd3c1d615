"""A chip's own rate of a type holds for each call, is part of what the chip is, and of no key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cache_engine.errors import InvalidHardware
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.grouped import GroupedProblem, evaluate_work
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import key_of
from cache_engine.evaluator.search import evaluate
from cache_engine.store.layout import StoreLayout

CHIP = PRESETS["SG2262"]
FAST = Hardware.from_dict({**CHIP.to_dict(), "rates": {"int8": 2}})
FINGERPRINT = "9278c2c87cfae908dc2eec5e05c8c1ef"
INT8 = EvaluationProblem(4096, 7168, 2048, 1, "int8")


def test_a_chip_without_rates_is_the_chip_that_it_was() -> None:
    """Its results are stored under this fingerprint."""
    assert CHIP.fingerprint() == FINGERPRINT
    assert "rates" not in CHIP.to_dict()
    assert replace(FAST, rates=()) == CHIP
    assert Hardware.from_dict({**CHIP.to_dict(), "rates": {"int8": 1, "bf16": 1.0}}) == CHIP


def test_the_rate_of_a_type_is_that_of_each_call() -> None:
    once = evaluate(INT8, CHIP, SearchMode(compute_rate=2))
    always = evaluate(INT8, FAST)
    assert (always.latency_us, always.compute_us, always.tile) == (once.latency_us, once.compute_us, once.tile)
    assert always.effective_utilization == pytest.approx(once.effective_utilization / 2), "of the peak of that type"
    assert evaluate(replace(INT8, dtype="bf16", out_dtype="bf16"), FAST) == evaluate(
        replace(INT8, dtype="bf16", out_dtype="bf16"), CHIP
    )
    assert evaluate(INT8, FAST, SearchMode(compute_rate=2)).compute_us == pytest.approx(always.compute_us / 2)
    slow = SearchMode(tile_search=False, partition_search=False)
    assert evaluate(INT8, FAST, slow).compute_us == pytest.approx(evaluate(INT8, CHIP, slow).compute_us / 2)


def test_the_rate_holds_for_the_products_of_a_grouped_launch_too() -> None:
    work = GroupedProblem(((4096, 2), (130, 6)), 2048, 2048, "int8")
    once = evaluate_work(work, CHIP, SearchMode(compute_rate=2))
    always = evaluate_work(work, FAST)
    assert (always.latency_us, always.compute_us) == (once.latency_us, once.compute_us)
    assert always.effective_utilization == pytest.approx(once.effective_utilization / 2)


def test_results_are_kept_by_chip_with_the_same_keys(layout: StoreLayout) -> None:
    with Evaluations(layout) as kept:
        fast, plain = (kept.evaluate(INT8, chip) for chip in (FAST, CHIP))
        assert fast.key == plain.key == key_of(INT8, SearchMode())
        assert fast.evaluation.latency_us < plain.evaluation.latency_us
        assert sorted(kept.fingerprints()) == sorted([FAST.fingerprint(), CHIP.fingerprint()])
        exported = json.loads(kept.export(FAST.fingerprint()))
        assert Hardware.from_dict(exported["architecture"]) == FAST
        assert kept.import_file(json.dumps(exported).encode()).present == 1


@pytest.mark.parametrize(
    ("rates", "named"),
    [
        (2, "rates is 2"),
        (["int8"], "rates is"),
        ({"int9": 2}, "unknown type 'int9'"),
        ({"int8": 0}, "rates.int8 is 0"),
        ({"int8": True}, "rates.int8 is True"),
        ({"int8": "2"}, "rates.int8 is '2'"),
    ],
)
def test_rates_that_cannot_be_right_are_refused(rates: Any, named: str) -> None:
    with pytest.raises(InvalidHardware, match=named):
        Hardware.from_dict({**CHIP.to_dict(), "rates": rates})
