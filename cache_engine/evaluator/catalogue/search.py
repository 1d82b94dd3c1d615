"""Reads searches for kernels: words that name models, GPUs, architectures, fields or patterns, or plain text.

Fields are written ``hits>0``, ``size>=64KB``, ``created<1d``, ``config=64x*``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import lru_cache

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue.tables import model_shapes
from cache_engine.evaluator.chips import TARGETS
from cache_engine.model.architecture import ARCHITECTURES, compiled_for, runs_on
from cache_engine.model.gemm.fields import FIELDS
from cache_engine.settings.kinds import parse_bytes
from cache_engine.units import counted, read_seconds

NUMBERS = (*(field.searched_as for field in FIELDS if field.kind is int), "registers", "hits")
SIZES = ("size", "disk", "shared", "spills")
"""Fields in bytes: size of the code, size on disk, shared memory per block, spills per thread."""
TIMES = ("compile",)
"""Fields in milliseconds."""
MOMENTS = ("created", "used")
WORDS = (
    "target", *(field.searched_as for field in FIELDS if field.kind is not int),
    "family", "compiler", "config", "name", "key", "note", "tag",
)  # fmt: skip
YES_OR_NO = tuple(field.searched_as for field in FIELDS if field.kind is bool)
"""The fields among ``WORDS`` that have only two values."""
OTHER_NAMES = {"groups": "batch", "compile_ms": "compile", "arch": "target"}
NAMES = (*NUMBERS, "groups", *SIZES, *TIMES, "compile_ms", *MOMENTS, "target", "arch", *WORDS[1:])
"""The names of all fields, as users write them."""

_DAY_S = 86_400
_COMPARISON = re.compile(r"(?P<name>[a-z_]+)(?P<operator><=|>=|!=|=|<|>)(?P<value>.*)", re.DOTALL)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_YES_OR_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}  # documents have true and false
_MOST = 2**62  # what a column of the index holds, and more than any size


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field with a value.

    Attributes:
        field: one of ``NUMBERS``, ``SIZES``, ``TIMES``, ``MOMENTS`` and ``WORDS``.
        operator: ``=`` or ``!=``; for numbers also ``<``, ``<=``, ``>`` or ``>=``.
        value: a number (sizes in bytes, times in ms, moments in seconds since 1970), or a word in lower case, in which
            ``*`` stands for any characters.
    """

    field: str
    operator: str
    value: float | str


def read_comparison(word: str, now: float) -> tuple[Condition, ...]:
    """The conditions that a word such as ``hits>0`` stands for; none if the word is not a comparison.

    Args:
        now: the time from which ages count, in seconds since 1970.

    Raises:
        UsageError: when the field does not exist, or does not take this value or operator.
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
        if field in YES_OR_NO:
            if value not in _YES_OR_NO:
                raise UsageError(f"{word[:80]}: {name} takes yes or no")
            value = _YES_OR_NO[value]
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
    """Converts an age or a day to moments, rounded to whole seconds.

    Without the rounding, a repeated search would be another search, and the dashboard could not use its cached answer.
    """
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
    """The number of a day such as ``2026-11-01``, in UTC, counted from 1970-01-01; ``None`` for other text."""
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return None
    try:
        return date.fromisoformat(value).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None


Shapes = tuple[tuple[int, int], ...]

# Source: NVIDIA, "CUDA GPU Compute Capability", and the white papers of the architectures.
ARCHITECTURE_NAMES = {
    "volta": {(7, 0)},
    "turing": {(7, 5)},
    "ampere": {(8, 0), (8, 6), (8, 7), (8, 8)},
    "ada": {(8, 9)},
    "hopper": {(9, 0)},
    "blackwell": {(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)},
    "rubin": {(10, 7)},
}

_SHORTEST_START = 3  # of a model's name
_MOST_WORDS = 8  # that are tried one by one
_LONGEST_PATTERN, _LONGEST = 200, 2_000  # letters of a pattern, and of a search


@dataclass(frozen=True, slots=True)
class Search:
    """The conditions of a search text; a kernel must fulfil all of them.

    Attributes:
        words: words that the kernel's name, key, shape, target, types, family, compiler or config must contain.
        patterns: lower-case patterns; each must match one whole word of the texts that ``words`` lists. ``*`` is any
            characters.
        shapes: for each model named, its (n, k); the kernel must have one of them.
        targets: for each GPU or architecture named, its targets; the kernel must have one of them.
        conditions: conditions on the kernel's fields.
        meanings: explanations of words, for people: ``"hopper: sm_90, sm_90a"``.
    """

    words: str
    patterns: tuple[str, ...] = ()
    shapes: tuple[Shapes, ...] = ()
    targets: tuple[tuple[str, ...], ...] = ()
    conditions: tuple[Condition, ...] = ()
    meanings: tuple[str, ...] = ()


def read_search(text: str, now: float | None = None) -> Search:
    """Reads the text of a search.

    Args:
        now: the time from which ages count, in seconds since 1970. Default: the time of the call.

    Raises:
        UsageError: when a word names an unknown field, or gives a field a value that it does not take, or when a
            pattern, or the search, is too long.
    """
    if len(text) > _LONGEST:
        raise UsageError(f"{text[:20]}… is too long for a search; it may have {_LONGEST:,} characters")
    now = time.time() if now is None else now
    words: list[str] = []
    patterns: dict[str, None] = {}
    shapes: dict[str, Shapes] = {}
    targets: dict[str, tuple[str, ...]] = {}
    conditions: dict[Condition, None] = {}
    meanings: dict[str, None] = {}
    for word in text.split():
        lower = word.lower()
        models = _models_called(lower)
        if models:
            shapes[lower] = tuple(dict.fromkeys(shape for model in models for shape in _shapes_by_model()[model]))
            if models != (lower,):
                meanings[f"{word}: shapes of {', '.join(_names()[model] for model in models)}"] = None
        elif found := targets_called(lower):
            targets[lower] = found
            meanings[f"{word}: {', '.join(found)}"] = None
        elif compared := read_comparison(word, now):
            conditions.update(dict.fromkeys(compared))
        elif "*" in word:
            if len(word) > _LONGEST_PATTERN:
                raise UsageError(f"{word[:20]}… is too long for a pattern; it may have {_LONGEST_PATTERN} characters")
            patterns[lower.replace("×", "x")] = None
        else:
            words.append(word)
    return Search(
        " ".join(words), tuple(patterns), tuple(shapes.values()), tuple(targets.values()), tuple(conditions),
        tuple(meanings),
    )  # fmt: skip


def advice(text: str, matches: Callable[[str], int], known: Iterable[str]) -> list[str]:
    """Hints for a search that finds nothing.

    Args:
        matches: a function that returns the number of kernels that match a text.
        known: words that the store's kernels have, such as their targets.
    """
    words = list(dict.fromkeys(text.split()))[:_MOST_WORDS]
    lost = [word for word in words if not matches(word)]
    if words and not lost:
        return ["Each word matches kernels, but no kernel matches all of them. Leave one out."]
    values = {name.lower(): name for name in known}
    names = {name.lower(): name for name in _vocabulary()} | values
    found = []
    for word in lost:
        alike = _alike(word, names, values)
        hint = f" Did you mean {' or '.join(alike)}?" if alike else ""
        found.append(f"No kernel matches {word}.{hint}")
    others = " ".join(word for word in words if word not in lost)
    if others and (count := matches(others)):
        found.append(f"Without that, {counted(count, 'kernel')} would match: {others}")
    return found


def _alike(word: str, names: Mapping[str, str], values: Mapping[str, str]) -> list[str]:
    """Known words that resemble a misspelt one; for a comparison such as ``dtype=bf17``, known values of the field."""
    if compared := read_comparison(word, 0.0):
        field, operator, value = compared[0].field, compared[0].operator, compared[0].value
        close = get_close_matches(value, values, 3, 0.6) if isinstance(value, str) else []
        return [f"{field}{operator}{values[each]}" for each in close]
    return [names[each] for each in get_close_matches(word.lower(), names, 3, 0.6)]


def _vocabulary() -> Iterator[str]:
    yield from _names().values()
    yield from ARCHITECTURE_NAMES
    yield from _gpus()
    yield from (f"{field}=" for field in NAMES)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {shape.model.lower(): shape.model for shape in model_shapes()}


@lru_cache(maxsize=1)
def _shapes_by_model() -> dict[str, dict[tuple[int, int], None]]:
    found: dict[str, dict[tuple[int, int], None]] = {}
    for shape in model_shapes():
        found.setdefault(shape.model.lower(), {})[shape.n, shape.k] = None
    return found


def _models_called(word: str) -> tuple[str, ...]:
    """The model with this name, else the models whose names begin with it.

    A word that could be the digits of a key is not taken as the beginning of a name.
    """
    if word in _names():
        return (word,)
    if len(word) < _SHORTEST_START or re.fullmatch("[0-9a-f]+", word):
        return ()
    return tuple(name for name in _names() if name.startswith(word))


@lru_cache(maxsize=1)
def _gpus() -> dict[str, str]:
    """The known GPUs by lower-case name, each with the plain target of its chip."""
    examples = {
        chip.example.partition("(")[0].replace(" ", ""): name
        for name, chip in ARCHITECTURES.items()
        if name[-1].isdigit() and "(" not in chip.example
    }
    return {**examples, **TARGETS}


def target_of(name: str) -> str:
    """The target to compile for a chip, such as ``H100``; a name that is no chip's is returned unchanged."""
    chip = {each.lower(): target for each, target in _gpus().items()}.get(name.lower())
    return name if chip is None else compiled_for(chip)


def targets_called(word: str) -> tuple[str, ...]:
    """The targets whose code a GPU, or the chips of an architecture, can run. The name is in lower case."""
    capabilities = ARCHITECTURE_NAMES.get(word)
    if capabilities is not None:
        return tuple(name for name, chip in ARCHITECTURES.items() if chip.compute_capability in capabilities)
    own = {name.lower(): target for name, target in _gpus().items()}.get(word)
    if own is None:
        return ()
    return tuple(name for name in ARCHITECTURES if own in {chip.name for chip in runs_on(name)})
