"""GEMM shapes of public language models by name, and of CSV tables; searches for kernels."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cache_engine.assets import shape_catalogue
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.evaluator.catalogue.fields import NAMES, Condition, ModelShape, read_comparison
from cache_engine.evaluator.chips import TARGETS
from cache_engine.inputs import open_input
from cache_engine.model.architecture import ARCHITECTURES, compiled_for, runs_on
from cache_engine.model.gemm import DType, Epilogue
from cache_engine.units import counted, human_bytes

_Row = TypeVar("_Row")

LARGEST_TABLE_BYTES = 4 * 2**20
MOST_SHAPES = 10_000
"""Of a table: what its bytes and lines may be. The largest model has a few dozen shapes."""


def model_shapes(model: str | None = None) -> list[ModelShape]:
    """The shapes of one model, or of all.

    Raises:
        UsageError: when there is no such model; the text lists those there are, the most alike first.
    """
    shapes = list(_catalogue())
    if model is None:
        return shapes
    chosen = [shape for shape in shapes if shape.model.lower() == model.lower()]
    if not chosen:
        names = ", ".join(_most_alike_first(model, dict.fromkeys(shape.model for shape in shapes)))
        raise UsageError(f"unknown model {model!r}; use one of: {names}; or a CSV file with columns n and k")
    return chosen


@lru_cache(maxsize=1)
def _catalogue() -> tuple[ModelShape, ...]:
    with shape_catalogue().open(newline="", encoding="utf-8") as file:
        return tuple(
            ModelShape(
                row["model"],
                row["operation"],
                int(row["batch"]),
                int(row["n"]),
                int(row["k"]),
                int(row["layers"]),
                epilogue=Epilogue.parse(row["epilogue"]),
                experts=int(row["experts"] or 0),
                experts_per_token=int(row["experts_per_token"] or 0),
                alternative=row["alternative"],
                phase=row["phase"],
            )
            for row in csv.DictReader(file)
        )


def shapes_of(model: str | Path) -> list[ModelShape]:
    """The shapes of a model by its name, or of a CSV file: whatever exists, has a slash or ends in ``.csv``.

    Raises:
        UsageError: as ``model_shapes`` or ``table_shapes``.
    """
    return table_shapes(Path(model)) if is_table(model) else model_shapes(str(model))


def is_table(model: str | Path) -> bool:
    """Whether ``shapes_of`` reads a file."""
    name = str(model)
    return isinstance(model, Path) or "/" in name or name.lower().endswith(".csv") or Path(name).is_file()


def table_shapes(path: Path, data: bytes | None = None) -> list[ModelShape]:
    """The shapes of a CSV file with the columns n and k, and others of the catalogue's if wanted.

    Those are batch, m and epilogue, layers, experts and experts_per_token; any more are not looked at.

    Args:
        data: what is in the file, where it is on another machine.

    Raises:
        UsageError: naming the line and what is wrong with it, or the limit that the file is beyond.
    """
    shapes = _read(path, ("n", "k"), _TABLE_COLUMNS, _table_rows, data)
    if not shapes:
        raise UsageError(f"{path} holds no shape below the names of its columns")
    return shapes


def expert_counts(path: Path) -> tuple[float, ...]:
    """The number of tokens for each expert, from a CSV file with the column tokens: a line for each expert, in order.

    Raises:
        UsageError: naming the line and what is wrong with it, or the limit that the file is beyond.
    """
    counts = tuple(_read(path, ("tokens",), "tokens, with a line for each expert in order", _counted))
    if not any(counts):
        raise UsageError(f"{path} gives no expert any tokens")
    return counts


def _read(
    path: Path,
    needed: Sequence[str],
    columns: str,
    rows: Callable[[Path, csv.DictReader[str]], Iterator[_Row]],
    data: bytes | None = None,
) -> list[_Row]:
    """The rows of a CSV file, as ``rows`` makes them; ``columns`` says what its first line must name."""
    try:
        if data is None:
            with open_input(path) as file:
                data = file.read(LARGEST_TABLE_BYTES + 1)
        if len(data) > LARGEST_TABLE_BYTES:
            raise UsageError(f"{path} is larger than {human_bytes(LARGEST_TABLE_BYTES)}; split the table")
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True)
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(
                f"{path} has no column {' and no column '.join(missing)}; its first line must name the columns: "
                f"{columns}"
            )
        return list(rows(path, reader))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {reason}") from error


def _counted(path: Path, reader: csv.DictReader[str]) -> Iterator[float]:
    for number, row in enumerate(reader, start=1):
        if number > MOST_SHAPES:
            raise UsageError(f"{path} has more than {MOST_SHAPES:,} experts")
        text = (row.get("tokens") or "").strip()
        if not re.fullmatch("[0-9]{1,15}", text):
            where = f"{path}, line {reader.line_num}"
            raise UsageError(f"{where}: tokens is {text[:60]!r}; it must be a whole number from 0 on")
        yield float(text)


def _table_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[ModelShape]:
    for number, row in enumerate(reader, start=1):
        if number > MOST_SHAPES:
            raise UsageError(f"{path} has more than {MOST_SHAPES:,} shapes; split the table")
        where = f"{path}, line {reader.line_num}"
        sizes = {name: _size(where, name, (row.get(name) or "").strip()) for name in _WHOLE}
        n, k = sizes["n"], sizes["k"]
        if n is None or k is None:
            raise UsageError(f"{where}: {'n' if n is None else 'k'} is missing")
        try:
            epilogue = Epilogue.parse((row.get("epilogue") or "").strip())
            shape = ModelShape(
                path.stem, f"line {reader.line_num}", sizes["batch"] or 1, n, k, sizes["layers"] or 1, sizes["m"],
                epilogue, sizes["experts"] or 0, sizes["experts_per_token"] or 0,
            )  # fmt: skip
            check_routing(where, shape.experts, shape.experts_per_token)
            shape.problem(shape.m or 1, DType.BF16)
        except InvalidProblem as error:
            raise UsageError(f"{where}: {error}") from error
        yield shape


_TABLE_COLUMNS = "n, k and, if wanted, batch, m, epilogue, layers, experts and experts_per_token"
_WHOLE = ("n", "k", "batch", "m", "layers", "experts", "experts_per_token")


def check_routing(where: str, experts: int, per_token: int) -> None:
    """Refuses numbers of experts that cannot be right; raises ``UsageError``."""
    if bool(experts) != bool(per_token):
        raise UsageError(f"{where}: give both experts and experts_per_token, or neither")
    if per_token > experts:
        raise UsageError(f"{where}: experts_per_token is {per_token}, and there are only {experts} experts")


def _size(where: str, name: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,40}", text) or not int(text):
        raise UsageError(f"{where}: {name} is {text!r}; it must be a whole number from 1 on")
    return int(text)


def _most_alike_first(asked: str, names: Iterable[str]) -> list[str]:
    from difflib import SequenceMatcher  # only an error needs it

    return sorted(names, key=lambda name: -SequenceMatcher(None, asked.lower(), name.lower()).ratio())


# ---- The words of a search for kernels: models, GPUs, architectures, fields, patterns, or else plain text ----

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
    """Advice on a search that finds nothing.

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
    """Known words like a misspelt one; in a comparison such as ``dtype=bf17``, known values like its value."""
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
