"""One of a model's matrix multiplications; and the fields of kernels in a search.

Fields are written ``hits>0``, ``size>=64KB``, ``created<1d``, ``config=64x*``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import date
from difflib import get_close_matches

from cache_engine.errors import UsageError
from cache_engine.model.gemm import NO_EPILOGUE, DType, DTypeLike, Epilogue, GemmProblem, Mode
from cache_engine.model.gemm.fields import FIELDS
from cache_engine.model.sizes import Sizes, joined_sizes
from cache_engine.settings.kinds import parse_bytes
from cache_engine.units import read_seconds

TOKENS = "1-8192"
"""Numbers of tokens that a model is prepared for unless others are named: from one sequence's next token to the largest
batch that inference servers usually make at once."""


@dataclass(frozen=True, slots=True, repr=False)
class ModelShape:
    """One of a model's matrix multiplications.

    Attributes:
        operation: what the layer is called, such as ``"qkv"``.
        batch: number of experts or heads computed at once, on one chip.
        n, k: output and input features; the weight is stored n × k.
        layers: how often it occurs in one pass.
        m: number of rows, where a table says it; else it is left open.
        epilogue: what the layer does to the product: a bias, where the model has one for the whole batch.
        experts: of the model, where each token goes to some of them only; else 0.
        experts_per_token: how many a token goes to; 0 where there are none.
        alternative: the way of computing that it is part of, where there are two: ``"fused"`` or ``"separate"``,
            ``"expanded"`` or ``"absorbed"``.
        phase: the phase that this way is usual in, ``"prefill"`` or ``"decode"``; empty for both.
    """

    model: str
    operation: str
    batch: int
    n: int
    k: int
    layers: int
    m: int | None = None
    epilogue: Epilogue = NO_EPILOGUE
    experts: int = 0
    experts_per_token: int = 0
    alternative: str = ""
    phase: str = ""

    def __repr__(self) -> str:
        said = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return f"ModelShape({', '.join(f'{name}={value!r}' for name, value, usual in said if value != usual)})"

    def rows(self, tokens: int, mode: Mode = Mode.BATCHED) -> int:
        """The m for so many tokens: all of them; of an expert, its share when all get as many, rounded up.

        Of experts in mode ``grouped`` the rows of all that are here; in ``masked`` all tokens, as all may choose one.
        """
        if not self.experts or mode is Mode.MASKED:
            return tokens
        shares = self.batch if mode is Mode.GROUPED else 1
        return -(-tokens * self.experts_per_token * shares // self.experts)

    def row_sizes(self, tokens: Sizes, mode: Mode = Mode.BATCHED) -> Sizes:
        """Every m that these numbers of tokens make; of ``grouped`` also those between them."""
        if not self.experts or mode is Mode.MASKED:
            return tokens
        # An expert gets at most one row more for a further token, so a range makes a range.
        return joined_sizes([range(self.rows(each[0], mode), self.rows(each[-1], mode) + 1) for each in tokens])

    def problem(self, m: int, dtype: DTypeLike = DType.BF16, out_dtype: DTypeLike | None = None) -> GemmProblem:
        """The problem for m rows, without the epilogue."""
        return GemmProblem(m, self.n, self.k, batch=self.batch, dtype=dtype, out_dtype=out_dtype)


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
