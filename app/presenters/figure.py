"""Figures as plain values: what ``components.figure`` draws in the browser.

All text in a figure is drawn as plain text, so text from a store needs no escape. Each mark has words that are shown
when the reader points at it; every figure has a table of its numbers next to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Pattern = Literal["", "/", "x", "+", "."]


@dataclass(frozen=True, slots=True)
class Series:
    """Bars of one name, one for each group; ``None`` has no bar.

    Attributes:
        words: the text for each bar, shown when the reader points at it.
        pattern: the pattern of the bars, so that colour is not the only difference between series.
    """

    name: str
    values: Sequence[float | None]
    words: Sequence[str]
    colour: str
    pattern: Pattern = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups: next to each other, or stacked.

    Attributes:
        groups: the name of each group, in order.
        unit: the unit of the values, which is the title of their axis.
        across: the title of the groups' axis.
        names: the label of each group on that axis, empty for a group without a label; by default the groups' names.
        height: the height in pixels.
    """

    title: str
    groups: Sequence[str]
    series: Sequence[Series]
    unit: str
    across: str = ""
    stacked: bool = False
    names: Sequence[str] = ()
    height: int = 250


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The course of one number, of at least two values: a line from its least to its greatest value, without axes.

    Attributes:
        words: the text for each value, shown when the reader points at it.
        height: the height in pixels.
    """

    title: str
    values: Sequence[float]
    words: Sequence[str]
    height: int = 56


Figure = Bars | Sparkline
