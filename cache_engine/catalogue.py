"""GEMM shapes to compile many of: those of public language models, and tables of one's own."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_engine.assets import shape_catalogue
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.inputs import open_input
from cache_engine.model.gemm import NO_EPILOGUE, DType, Epilogue, GemmProblem
from cache_engine.units import human_bytes

LARGEST_TABLE_BYTES = 4 * 2**20
MOST_SHAPES = 10_000
"""Of a table: what its bytes and lines may be. The largest model has a few dozen shapes."""

TOKENS = "1-8192"
"""Numbers of tokens that a model is prepared for unless others are named: from one sequence's next token to the largest
batch that inference servers usually make at once."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One of a model's matrix multiplications.

    Attributes:
        operation: what the layer is called, such as ``"qkv"``.
        batch: number of experts or heads computed at once.
        n, k: output and input features; the weight is stored n × k.
        layers: how often it occurs in one pass.
        m: number of tokens, where a table says it; else it is left open.
        epilogue: what the layer does to the product: a bias, where the model has one for the whole batch.
    """

    model: str
    operation: str
    batch: int
    n: int
    k: int
    layers: int
    m: int | None = None
    epilogue: Epilogue = NO_EPILOGUE

    def problem(self, m: int, dtype: DType, out_dtype: DType | None = None) -> GemmProblem:
        """The problem for m tokens, without the epilogue."""
        return GemmProblem(m, self.n, self.k, batch=self.batch, dtype=dtype, out_dtype=out_dtype)


def model_shapes(model: str | None = None) -> list[ModelShape]:
    """The shapes of one model, or of all.

    Raises:
        UsageError: when there is no such model; the text lists those there are, the most alike first.
    """
    with shape_catalogue().open(newline="", encoding="utf-8") as file:
        shapes = [
            ModelShape(
                row["model"],
                row["operation"],
                int(row["batch"]),
                int(row["n"]),
                int(row["k"]),
                int(row["layers"]),
                epilogue=Epilogue.parse(row["epilogue"]),
            )
            for row in csv.DictReader(file)
        ]
    if model is None:
        return shapes
    chosen = [shape for shape in shapes if shape.model.lower() == model.lower()]
    if not chosen:
        names = ", ".join(_most_alike_first(model, dict.fromkeys(shape.model for shape in shapes)))
        raise UsageError(f"unknown model {model!r}; use one of: {names}; or a CSV file with columns n and k")
    return chosen


def shapes_of(model: str | Path) -> list[ModelShape]:
    """The shapes of a model by its name, or of a CSV file: whatever exists, has a slash or ends in ``.csv``.

    Raises:
        UsageError: as ``model_shapes`` or ``table_shapes``.
    """
    name = str(model)
    is_file = isinstance(model, Path) or "/" in name or name.lower().endswith(".csv") or Path(name).is_file()
    return table_shapes(Path(model)) if is_file else model_shapes(name)


def named_shapes(text: str) -> tuple[str, tuple[tuple[tuple[int, int], ...], ...]]:
    """Takes the words that are a model's whole name out of a text; returns the rest, and each model's (n, k)."""
    of_model: dict[str, dict[tuple[int, int], None]] = {}
    for shape in model_shapes():
        of_model.setdefault(shape.model.lower(), {})[shape.n, shape.k] = None
    words = text.split()
    named = dict.fromkeys(word.lower() for word in words if word.lower() in of_model)
    return " ".join(word for word in words if word.lower() not in named), tuple(
        tuple(of_model[model]) for model in named
    )


def table_shapes(path: Path) -> list[ModelShape]:
    """The shapes of a CSV file with the columns n and k, and batch, m and epilogue if wanted; others are not looked at.

    Raises:
        UsageError: naming the line and what is wrong with it, or the limit that the file is beyond.
    """
    try:
        with open_input(path) as file:
            data = file.read(LARGEST_TABLE_BYTES + 1)
        if len(data) > LARGEST_TABLE_BYTES:
            raise UsageError(f"{path} is larger than {human_bytes(LARGEST_TABLE_BYTES)}; split the table")
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True)
        missing = [name for name in ("n", "k") if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(
                f"{path} has no column {' and no column '.join(missing)}; its first line must name the columns: "
                "n, k and, if wanted, batch, m and epilogue"
            )
        shapes = list(_table_rows(path, reader))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {reason}") from error
    if not shapes:
        raise UsageError(f"{path} holds no shape below the names of its columns")
    return shapes


def _table_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[ModelShape]:
    for number, row in enumerate(reader, start=1):
        if number > MOST_SHAPES:
            raise UsageError(f"{path} has more than {MOST_SHAPES:,} shapes; split the table")
        where = f"{path}, line {reader.line_num}"
        sizes = {name: _size(where, name, (row.get(name) or "").strip()) for name in ("n", "k", "batch", "m")}
        n, k = sizes["n"], sizes["k"]
        if n is None or k is None:
            raise UsageError(f"{where}: {'n' if n is None else 'k'} is missing")
        try:
            epilogue = Epilogue.parse((row.get("epilogue") or "").strip())
            shape = ModelShape(path.stem, f"line {reader.line_num}", sizes["batch"] or 1, n, k, 1, sizes["m"], epilogue)
            shape.problem(shape.m or 1, DType.BF16)
        except InvalidProblem as error:
            raise UsageError(f"{where}: {error}") from error
        yield shape


def _size(where: str, name: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,40}", text) or not int(text):
        raise UsageError(f"{where}: {name} is {text!r}; it must be a whole number from 1 on")
    return int(text)


def _most_alike_first(asked: str, names: Iterable[str]) -> list[str]:
    from difflib import SequenceMatcher  # only an error needs it

    return sorted(names, key=lambda name: -SequenceMatcher(None, asked.lower(), name.lower()).ratio())
