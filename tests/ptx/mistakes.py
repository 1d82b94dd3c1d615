"""Mistakes put into correct kernels. The machine must see each of them.

A table has a row for each mistake: the kernel that shows it, what is wrong in words, the text in the source, and its
replacement. ``rows`` makes tests of a table::

    @pytest.mark.parametrize(("case", "right", "wrong"), rows(MISTAKES))
    def test_every_mistake_is_seen(case: Case, right: str, wrong: str) -> None:
        assert_seen(spoilt(case, right, wrong), partial(check, case))

The test also fails if the source does not have the text exactly once, or if the compiler refuses the result. Then
write the row again.
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
    """The rows of a table for ``parametrize``. The words of a row become the test's id.

    Args:
        daily: words of the rows that ``make test`` runs; only ``make soak`` runs the others. Default: all are daily.
    """
    assert set(daily or ()) <= {what for _, what, *_ in mistakes}, "one of those for every day is not in the table"
    return [
        pytest.param(case, *texts, id=what, marks=() if daily is None or what in daily else pytest.mark.soak)
        for case, what, *texts in mistakes
    ]


def kernels(mistakes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The kernels of a table, each once. They must be right without the mistakes."""
    return list(dict.fromkeys(case for case, *_ in mistakes))


def spoilt(case: Case, right: str, wrong: str) -> str:
    """The PTX of a kernel in whose source one text is replaced."""
    source = source_of(case)
    assert source.count(right) == 1, "the template no longer holds this text exactly once"
    return ptx_of(source.replace(right, wrong), case.arch)


def edited(ptx: str, pattern: str, replacement: str, which: int | None) -> str:
    """PTX in which one match of a pattern is replaced, or every match if ``which`` is ``None``."""
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
