"""One look at a store serves several plans."""

from __future__ import annotations

from typing import Any

import pytest

from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.upkeep.plan import Limits
from cache_engine.upkeep.survey import Survey, plan_cleaning
from tests.helpers import fill, publish

RULES = [
    Limits(),
    Limits(max_entries=2),
    Limits(archs=frozenset({"sm_80"})),
    Limits(everything=True),
    Limits(stale_toolchain=True),
    Limits(max_entries=3, order="value"),
]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the records that were opened, in this order."""
    keys: list[str] = []
    read = DiskStore.record

    def record(store: DiskStore, key: CacheKey) -> Any:
        keys.append(key)
        return read(store, key)

    monkeypatch.setattr(DiskStore, "record", record)
    return keys


@pytest.mark.parametrize("first", RULES, ids=str)
def test_plans_from_one_survey_are_those_of_a_survey_each(store: DiskStore, first: Limits) -> None:
    fill(store, 6)
    now = 2e9
    survey = Survey(store, now, lambda record: record.arch == "sm_80")
    for limits in (first, *RULES):
        alone = plan_cleaning(store, limits, now, lambda record: record.arch == "sm_80")
        assert survey.plan(limits) == alone
    assert len(survey.plan(Limits(everything=True)).victims) == len(survey) == 6


def test_a_record_is_opened_once_for_all_rules(store: DiskStore, opened: list[str]) -> None:
    fill(store, 6)
    survey = Survey(store)
    assert not opened
    counts: list[int] = []
    survey.plan(Limits(max_entries=4), counts.append)
    assert (len(opened), counts) == (2, [1, 2])
    counts.clear()
    survey.plan(Limits(everything=True), counts.append)
    assert (len(opened), counts) == (6, [1, 2, 3, 4])
    survey.plan(Limits(archs=frozenset({"sm_80"})), counts.append)
    assert (len(opened), len(counts)) == (6, 4)
    assert len(set(opened)) == 6


def test_what_came_later_is_in_no_plan(store: DiskStore) -> None:
    fill(store, 2)
    survey = Survey(store)
    publish(store, 50)
    assert len(survey.plan(Limits(everything=True)).victims) == 2
