"""Failures that were seen: later ones are warned of, and no doubt counts as seen."""

from __future__ import annotations

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.model.events import ACTS, SEEN
from cache_engine.store.journal import read_journal
from cache_engine.upkeep.decisions import FAILURES, in_words, of_words, since

ZERO = dict.fromkeys(FAILURES, 0)


def test_what_was_seen_survives_as_words() -> None:
    seen = {name: number * 1000 for number, name in enumerate(FAILURES)}
    assert of_words(in_words({**seen, "hits": 7})) == seen


@pytest.mark.parametrize(
    "detail",
    ["", "3 of 5", "publish_failures 1", in_words(ZERO)[:-1] + "x", in_words(ZERO) + ", other 1", "\0"],
    ids=["empty", "other", "one", "no number", "more", "control"],
)
def test_words_that_name_something_else_acknowledge_nothing(detail: str) -> None:
    assert of_words(detail) == {}


def test_only_later_failures_are_left() -> None:
    lately, totals = {**ZERO, "corruptions": 3}, {**ZERO, "corruptions": 10}
    assert since(lately, totals, {}) == lately
    assert since(lately, totals, {**ZERO, "corruptions": 10}) == ZERO
    assert since(lately, totals, {**ZERO, "corruptions": 9})["corruptions"] == 1
    assert since(lately, totals, {**ZERO, "corruptions": 2})["corruptions"] == 3, "older than the last days"


def test_after_counting_began_again_nothing_counts_as_seen() -> None:
    lately = {**ZERO, "corruptions": 1, "publish_failures": 2}
    assert since(lately, lately, {**ZERO, "corruptions": 5}) == lately


def test_it_is_an_act_of_the_audit_log(cache: Cache) -> None:
    cache.admin.acknowledge({**ZERO, "corruptions": 4}, by="ada")
    (event,) = read_journal(cache.layout.journal).recent
    assert (event.kind, event.by, of_words(event.detail)["corruptions"]) == (SEEN, "ada", 4)
    assert SEEN in ACTS
