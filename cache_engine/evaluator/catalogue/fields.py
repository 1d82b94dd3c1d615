"""Fields of kernels in a search: ``hits>0``, ``size>=64KB``, ``created<1d``, ``config=64x*``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches

from cache_engine.errors import UsageError
from cache_engine.model.gemm.fields import FIELDS
from cache_engine.settings.kinds import parse_bytes
from cache_engine.units import read_seconds

NUMBERS = (*(field.searched_as for field in FIELDS if field.kind is int), "registers", "hits")
SIZES = ("size", "disk", "shared", "spills")
"""In bytes: of the code, on disk, of shared memory per block, of spills per thread."""
TIMES = ("compile",)
"""In ms."""
MOMENTS = ("created", "used")
WORDS = (
    "target", *(field.searched_as for field in FIELDS if field.kind is not int),
    "family", "compiler", "config", "name", "key",
)  # fmt: skip
OTHER_NAMES = {"groups": "batch", "compile_ms": "compile", "arch": "target"}
NAMES = (*NUMBERS, "groups", *SIZES, *TIMES, "compile_ms", *MOMENTS, "target", "arch", *WORDS[1:])
"""Names of all fields, as people read and write them."""

_DAY_S = 86_400
_COMPARISON = re.compile(r"(?P<name>[a-z_]+)(?P<operator><=|>=|!=|=|<|>)(?P<value>.*)", re.DOTALL)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MOST = 2**62  # what a column of the index holds, and more than any size


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field with a value.

    Attributes:
        field: one of ``NUMBERS``, ``SIZES``, ``TIMES``, ``MOMENTS`` and ``WORDS``.
        operator: ``=`` or ``!=``, and of numbers ``<``, ``<=``, ``>`` or ``>=``.
        value: a number, for sizes in bytes, for times in ms, for moments in seconds since 1970; or a word in lower
            case, in which ``*`` stands for any characters.
    """

    field: str
    operator: str
    value: float | str


def read_comparison(word: str, now: float) -> tuple[Condition, ...]:
    """The conditions that a word such as ``hits>0`` stands for; none if it is not of the form of a comparison.

    Args:
        now: in seconds since 1970, from which ages count.

    Raises:
        UsageError: when there is no such field, or it does not take such a value or operator.
    """
    found = _COMPARISON.fullmatch(word.lower())
    if found is None:
        return ()
    name, operator, value = found["name"], found["operator"], found["value"]
    field = OTHER_NAMES.get(name, name)
    if name not in NAMES:
        close = get_close_matches(name, NAMES, 1, 0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UsageError(
            f"{word[:80]}: there is no field {name[:80]}.{hint} Fields: {', '.join(NAMES)}. "
            "To find this text itself, put it between two *."
        )
    if field in WORDS:
        if operator not in ("=", "!=") or not value:
            raise UsageError(f"{word[:80]}: {name} takes = or != and a word, such as {name}=a*; * is any characters")
        return (Condition(field, operator, value),)
    if field in MOMENTS:
        return _moments(word, field, operator, value, now)
    return (Condition(field, operator, _number(word, name, value)),)


def _number(word: str, name: str, value: str) -> float:
    field = OTHER_NAMES.get(name, name)
    if field in SIZES:
        try:
            return min(parse_bytes(value), _MOST)
        except UsageError as error:
            raise UsageError(f"{word[:80]}: {name} takes a size, such as {name}>64KB, 2MiB or 1000 (bytes)") from error
    if field in TIMES:
        seconds = read_seconds(value, "ms")
        if seconds is None:
            raise UsageError(f"{word[:80]}: {name} takes a time, such as {name}>250 (ms), 1.5s or 2min")
        return seconds * 1e3
    if not re.fullmatch("[0-9]{1,15}", value):
        raise UsageError(f"{word[:80]}: {name} takes a whole number, such as {name}>0")
    return int(value)


def _moments(word: str, field: str, operator: str, value: str, now: float) -> tuple[Condition, ...]:
    """Turns an age or a day into moments, in whole seconds: the dashboard caches answers, so questions must repeat."""
    age = read_seconds(value)
    if age is not None and operator in _TURNED:
        return (Condition(field, _TURNED[operator], int(now) - age),)
    day = _day(value)
    if day is None or operator == "!=":
        raise UsageError(
            f"{word[:80]}: {field} takes <, <=, > or >= and an age, such as {field}<1d or {field}>12h; or a day, such "
            f"as {field}>=2026-11-01"
        )
    start, end = day * _DAY_S, (day + 1) * _DAY_S
    if operator == "=":
        return Condition(field, ">=", start), Condition(field, "<", end)
    bound = end if operator in ("<=", ">") else start  # the day itself is in <= and >=
    return (Condition(field, "<" if operator.startswith("<") else ">=", bound),)


def _day(value: str) -> int | None:
    """The number of a day such as ``2026-11-01``, in UTC, counted from 1970-01-01."""
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return None
    try:
        return date.fromisoformat(value).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None
