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

from tests.faults.counting import report
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.problems import Case, ptx_of, source_of, what_is_wrong


@dataclass(frozen=True)
class Mistake:
    """One in a kernel.

    Attributes:
        case: the kernel that shows it, and how it is launched.
        what: is wrong, in words.
        make: returns the source or the PTX with the mistake in it, from the right one.
        what_is_wrong: launches a kernel as the case says, and returns what is wrong with C.
        is_in_ptx: whether ``make`` takes PTX.
    """

    case: Case
    what: str
    make: Callable[[str], str]
    what_is_wrong: Callable[[Any, Kernel], str]
    is_in_ptx: bool = False

    def __str__(self) -> str:
        return f"{self.case.family.name}: {self.what}"

    def source(self) -> str:
        """The source of the kernel; with the mistake, unless that is in the PTX."""
        source = source_of(self.case)
        return source if self.is_in_ptx else self.make(source)

    def is_seen(self) -> bool:
        """Whether the machine refuses what the kernel does, or its C is wrong."""
        ptx = ptx_of(self.source(), self.case.arch)
        kernel = Kernel(self.make(ptx) if self.is_in_ptx else ptx)
        try:
            is_seen = bool(self.what_is_wrong(self.case, kernel))
        except (Fault, AssertionError):
            is_seen = True
        report({"trials": 1, "seen": int(is_seen)})
        return is_seen


def in_templates(
    *rows: tuple[Case, str, str, str], what_is_wrong: Callable[[Any, Kernel], str] = what_is_wrong
) -> list[Mistake]:
    """Mistakes of rows that name a text of the source, and its replacement."""
    return [Mistake(case, what, partial(_replaced, right, wrong), what_is_wrong) for case, what, right, wrong in rows]


def in_ptx(*rows: tuple[Case, str, str, str, int | None]) -> list[Mistake]:
    """Mistakes of rows that name a pattern of the PTX, its replacement, and which match it replaces."""
    return [
        Mistake(case, what, partial(_edited, pattern, wrong, which), what_is_wrong, is_in_ptx=True)
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
