"""Messages of a farm: whatever a broker sends, it asks for a kernel of ours or for nothing."""

from __future__ import annotations

import json

import pytest

from cache_engine.cache.cache import Cache
from cache_engine.errors import UsageError
from cache_engine.team.broker import Answered, CompileMessage, answered, asked, encode
from tests.conftest import SAMPLE

JOB, KEY = "0" * 32, "a" * 64


def test_a_message_asks_for_the_very_kernel_that_was_selected(cache: Cache) -> None:
    for problem in SAMPLE:
        selection = cache.select(problem)
        found = asked(encode(CompileMessage.of(JOB, selection)))
        again = cache.select(found.gemm, family=found.family, compiler=found.compiler, config=found.config)
        assert (again.key, found.key) == (selection.key, selection.key)


@pytest.mark.parametrize(
    "change",
    [
        {"job": "x"}, {"job": "../../etc"}, {"key": "A" * 64}, {"key": KEY[:-1]}, {"more": 1}, {"arch": 5},
        {"problem": {}}, {"problem": None}, {"config": ["x"]}, {"family": None},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_message_is_refused(cache: Cache, change: dict[str, object]) -> None:
    good = json.loads(encode(CompileMessage.of(JOB, cache.select(SAMPLE[0]))))
    with pytest.raises(UsageError):
        asked(json.dumps({**good, **change}))


_NO_MESSAGE = ("", "[]", "{", '"x"', "[" * 4000, "\ud800", None, 5, b"{}", {"a": 1}, "x" * 5000)


@pytest.mark.parametrize("text", _NO_MESSAGE, ids=range(len(_NO_MESSAGE)))
def test_bytes_of_any_kind_are_refused(text: object) -> None:
    for read in (asked, answered):
        with pytest.raises(UsageError):
            read(text)


def test_an_answer_is_bounded_and_safe_for_a_terminal() -> None:
    found = answered(encode(Answered(KEY, "\x1b[31m" + "e" * 9000, "host:1", False, 1.5)))
    assert len(found.error) < 1000
    assert "\x1b" not in found.error
    with pytest.raises(UsageError, match="impossible time"):
        answered(json.dumps({"key": KEY, "error": "", "worker": "w", "compiled": True, "seconds": -1}))
