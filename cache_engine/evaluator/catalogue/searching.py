"""What the words of a search for kernels mean: models, GPUs, architectures, fields, patterns, or else plain text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue.fields import NAMES, Condition, read_comparison
from cache_engine.evaluator.catalogue.tables import model_shapes
from cache_engine.evaluator.gpus import TARGETS
from cache_engine.model.architecture import ARCHITECTURES, compiled_for, runs_on
from cache_engine.units import counted

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
    """What a text asks for; a kernel must fulfil all of it.

    Attributes:
        words: what its name, key, shape, target, types, family, compiler and config must contain.
        patterns: in lower case; each must match one whole word of these. ``*`` is any characters.
        shapes: for each model the (n, k), of which it must have one.
        targets: for each GPU or architecture the targets, of which it must have one.
        conditions: on its fields.
        meanings: what words stand for, for people: ``"hopper: sm_90, sm_90a"``.
    """

    words: str
    patterns: tuple[str, ...] = ()
    shapes: tuple[Shapes, ...] = ()
    targets: tuple[tuple[str, ...], ...] = ()
    conditions: tuple[Condition, ...] = ()
    meanings: tuple[str, ...] = ()


def read_search(text: str, now: float | None = None) -> Search:
    """Reads a search.

    A word may be the name of a model or its start (``deepseek``), a GPU (``H100``: every target whose code it runs), an
    architecture (``hopper``: the targets of its chips), a field (``n=7168``, ``created<1d``) or a pattern
    (``tensor_*``). Case does not count.

    Args:
        now: in seconds since 1970, from which ages count. Default: the time of the call.

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
    """What to change in a search that finds nothing.

    Args:
        matches: how many kernels match a text.
        known: words that kernels have, such as their targets.
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
    """What a word may have meant; in a comparison such as ``dtype=bf17``, what its value may have meant."""
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
    """The model of this name, else those whose names start so. What could be digits of a key is no start of a name."""
    if word in _names():
        return (word,)
    if len(word) < _SHORTEST_START or re.fullmatch("[0-9a-f]+", word):
        return ()
    return tuple(name for name in _names() if name.startswith(word))


@lru_cache(maxsize=1)
def _gpus() -> dict[str, str]:
    """GPUs by name, each with the plain target of its chip."""
    examples = {
        chip.example.partition("(")[0].replace(" ", ""): name
        for name, chip in ARCHITECTURES.items()
        if name[-1].isdigit() and "(" not in chip.example
    }
    return {**examples, **TARGETS}


def target_of(name: str) -> str:
    """The target to compile for a chip, such as ``H100``; any other name as it is."""
    chip = {each.lower(): target for each, target in _gpus().items()}.get(name.lower())
    return name if chip is None else compiled_for(chip)


def targets_called(word: str) -> tuple[str, ...]:
    """The targets whose code a GPU, or the chips of an architecture, run; the name is in lower case."""
    capabilities = ARCHITECTURE_NAMES.get(word)
    if capabilities is not None:
        return tuple(name for name, chip in ARCHITECTURES.items() if chip.compute_capability in capabilities)
    own = {name.lower(): target for name, target in _gpus().items()}.get(word)
    if own is None:
        return ()
    return tuple(name for name in ARCHITECTURES if own in {chip.name for chip in runs_on(name)})
