"""Figures as plain values: what ``components.figure`` draws in the browser.

All text in them is drawn as text, so that of a store needs no escape. Each mark has its words, which a pointer shows;
every figure has its table next to it.
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
        words: what each bar says.
        pattern: so that colour is not the only difference.
    """

    name: str
    values: Sequence[float | None]
    words: Sequence[str]
    colour: str
    pattern: Pattern = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in groups: next to each other, or on each other.

    Attributes:
        groups: the name of each group, in order.
        unit: of the values, the title of their axis.
        across: the title of the axis of the groups.
        names: what that axis says of each group, nothing for those of which it says nothing; by default their names.
        height: in pixels.
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
        words: what each value says.
        height: in pixels.
    """

    title: str
    values: Sequence[float]
    words: Sequence[str]
    height: int = 56


Figure = Bars | Sparkline
