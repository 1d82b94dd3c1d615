"""Mistakes put into correct kernels. The machine must see each of them.

``in_templates`` makes mistakes of rows: the kernel that shows one, what is wrong in words, the text in the source, and
its replacement::

    (_BOXES, "the bias beyond the last column", "if (is_inside) bias =", "bias =")

``in_ptx`` changes what the compiler made, where a template's text shows nothing: the kernel, what is wrong, the pattern
that is looked for in the PTX, its replacement, and which of the matches it replaces (``None``: all). The tables are
``tensor_core_mistakes.py``, ``hopper_mistakes.py``, and the end of ``grouped.py``; ``test_mistakes.py`` runs them.

A test fails if the source does not have the text exactly once, or if the compiler refuses the result. Then write the
row again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.faults.counting import report
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.problems import Case, check, ptx_of, source_of


@dataclass(frozen=True)
class Mistake:
    """One in a kernel.

    Attributes:
        case: the kernel that shows it, and how it is launched.
        what: is wrong, in words.
        make: returns the source or the PTX with the mistake in it, from the right one.
        check: launches a kernel as the case says, and fails where C is wrong.
        is_in_ptx: whether ``make`` takes PTX.
    """

    case: Case
    what: str
    make: Callable[[str], str]
    check: Callable[[Any, Kernel], None]
    is_in_ptx: bool = False

    def __str__(self) -> str:
        return f"{self.case.family.name}: {self.what}"

    def source(self) -> str:
        """The source of the kernel; with the mistake, unless that is in the PTX."""
        source = source_of(self.case)
        return source if self.is_in_ptx else self.make(source)

    def assert_seen(self) -> None:
        """Fails unless the machine refuses what the kernel does, or its C is wrong."""
        ptx = ptx_of(self.source(), self.case.arch)
        kernel = Kernel(self.make(ptx) if self.is_in_ptx else ptx)
        with pytest.raises((Fault, AssertionError)):
            self.check(self.case, kernel)
        report({"trials": 1, "seen": 1})


def in_templates(*rows: tuple[Case, str, str, str], check: Callable[[Any, Kernel], None] = check) -> list[Mistake]:
    """Mistakes of rows that name a text of the source, and its replacement."""
    return [Mistake(case, what, partial(_replaced, right, wrong), check) for case, what, right, wrong in rows]


def in_ptx(*rows: tuple[Case, str, str, str, int | None]) -> list[Mistake]:
    """Mistakes of rows that name a pattern of the PTX, its replacement, and which match it replaces."""
    return [
        Mistake(case, what, partial(_edited, pattern, wrong, which), check, is_in_ptx=True)
        for case, what, pattern, wrong, which in rows
    ]


def _replaced(right: str, wrong: str, source: str) -> str:
    """A source in which a text that it has once is replaced."""
    assert source.count(right) == 1, "the template no longer holds this text exactly once"
    return source.replace(right, wrong)


def _edited(pattern: str, replacement: str, which: int | None, ptx: str) -> str:
    """PTX in which one match of a pattern is replaced, or every match if ``which`` is ``None``."""
    found = list(re.finditer(pattern, ptx))
    assert found, f"{pattern} is not in the PTX any more"
    for match in reversed(found if which is None else [found[which]]):
        ptx = ptx[: match.start()] + match.expand(replacement) + ptx[match.end() :]
    return ptx
