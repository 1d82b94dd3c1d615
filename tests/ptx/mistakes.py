"""Mistakes put into right kernels: the machine must see each of them, or it is worth nothing.

A table of mistakes has a row for each: the kernel that shows it, what is wrong in words, the text that is looked for in
the source and the text that takes its place. ``rows`` makes tests of a table::

    @pytest.mark.parametrize(("case", "right", "wrong"), rows(MISTAKES))
    def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
        assert_seen(spoilt(case, right, wrong), partial(check, case))

The test fails too when the source no longer holds the text, or holds it twice, and when the compiler refuses what comes
of it: then write the row again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from tests.faults.counting import report
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.problems import Case, ptx_of, source_of


def rows(mistakes: Sequence[tuple[Any, ...]], daily: Collection[str] | None = None) -> list[Any]:
    """What ``parametrize`` takes for a table: each row without its words, which are the name of the test.

    Args:
        daily: words of the rows that ``make test`` runs, where it leaves the others to ``make soak``; by default all.
    """
    assert set(daily or ()) <= {what for _, what, *_ in mistakes}, "one of those for every day is not in the table"
    return [
        pytest.param(case, *texts, id=what, marks=() if daily is None or what in daily else pytest.mark.soak)
        for case, what, *texts in mistakes
    ]


def kernels(mistakes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What mistakes of a table are put into, each once: it must be right before."""
    return list(dict.fromkeys(case for case, *_ in mistakes))


def spoilt(case: Case, right: str, wrong: str) -> str:
    """The PTX of a kernel in whose source one text is replaced."""
    source = source_of(case)
    assert source.count(right) == 1, "the template no longer holds, once, what is to be spoilt"
    return ptx_of(source.replace(right, wrong), case.arch)


def edited(ptx: str, pattern: str, replacement: str, which: int | None) -> str:
    """PTX with one of the places that match a pattern replaced, or all."""
    found = list(re.finditer(pattern, ptx))
    assert found, f"{pattern} is not in the PTX any more"
    for match in reversed(found if which is None else [found[which]]):
        ptx = ptx[: match.start()] + match.expand(replacement) + ptx[match.end() :]
    return ptx


def assert_seen(ptx: str, check: Callable[[Kernel], None]) -> None:
    """Fails unless the machine refuses what a kernel does, or its C is wrong."""
    kernel = Kernel(ptx)
    with pytest.raises((Fault, AssertionError)):
        check(kernel)
    report({"trials": 1, "seen": 1})
