"""GEMM shapes of models: the shape of one multiplication, the shapes of public models, and those in CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cache_engine.assets import shape_catalogue
from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.inputs import open_input
from cache_engine.model.gemm import NO_EPILOGUE, DType, DTypeLike, Epilogue, GemmProblem, Mode
from cache_engine.model.shapes import Sizes, joined_sizes
from cache_engine.units import human_bytes

_Row = TypeVar("_Row")

LARGEST_TABLE_BYTES = 4 * 2**20
MOST_SHAPES = 10_000
"""The most shapes in a table, by the limits on its bytes and lines. The largest model has a few dozen shapes."""


TOKENS = "1-8192"
"""The numbers of tokens that a model is prepared for by default: from one sequence's next token to the largest batch
that inference servers usually make.
"""


@dataclass(frozen=True, slots=True, repr=False)
class ModelShape:
    """The shape of one of a model's matrix multiplications.

    Attributes:
        operation: the name of the layer, such as ``"qkv"``.
        batch: number of experts or heads computed at once, on one chip.
        n, k: output and input features; the weight is stored n × k.
        layers: the number of times that the multiplication occurs in one pass of the model.
        m: the number of rows, if a table gives it; else ``None``.
        epilogue: the operation on the product: a bias, if the model has one for the whole batch.
        experts: the number of the model's experts, if each token goes to some of them only; else 0.
        experts_per_token: the number of experts that a token goes to; 0 without experts.
        alternative: if a layer can be computed in two ways, the way that has this multiplication: ``"fused"`` or
            ``"separate"``, ``"expanded"`` or ``"absorbed"``; else empty.
        phase: the phase in which that way is usual, ``"prefill"`` or ``"decode"``; empty for both.
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
        """The m for a number of tokens: all of them or, for an expert, an equal share of them, rounded up.

        In mode ``grouped``, it is the sum of the rows of all experts on this chip; in ``masked``, the number of all
        tokens, because all may go to one expert.
        """
        if not self.experts or mode is Mode.MASKED:
            return tokens
        shares = self.batch if mode is Mode.GROUPED else 1
        return -(-tokens * self.experts_per_token * shares // self.experts)

    def row_sizes(self, tokens: Sizes, mode: Mode = Mode.BATCHED) -> Sizes:
        """Every m for these numbers of tokens; for an expert, also each m in between, because its share varies."""
        if not self.experts or mode is Mode.MASKED:
            return tokens
        # An expert gets at most one row more for a further token, so a range makes a range.
        return joined_sizes([range(self.rows(each[0], mode), self.rows(each[-1], mode) + 1) for each in tokens])

    def problem(self, m: int, dtype: DTypeLike = DType.BF16, out_dtype: DTypeLike | None = None) -> GemmProblem:
        """The problem with m rows, without the shape's epilogue."""
        return GemmProblem(m, self.n, self.k, batch=self.batch, dtype=dtype, out_dtype=out_dtype)


def model_shapes(model: str | None = None) -> list[ModelShape]:
    """The shapes of one model or, without a name, of all models.

    Raises:
        UsageError: when there is no such model; the text lists the known models, the most similar first.
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
    """The shapes of a model, or those in a CSV file.

    ``model`` is a file if the path exists, has a slash or ends in ``.csv``.

    Raises:
        UsageError: as ``model_shapes`` or ``table_shapes``.
    """
    return table_shapes(Path(model)) if is_table(model) else model_shapes(str(model))


def is_table(model: str | Path) -> bool:
    """Whether ``shapes_of`` reads ``model`` as the path of a CSV file."""
    name = str(model)
    return isinstance(model, Path) or "/" in name or name.lower().endswith(".csv") or Path(name).is_file()


def table_shapes(path: Path, data: bytes | None = None) -> list[ModelShape]:
    """The shapes in a CSV file with the columns n and k, and optional ones.

    The optional columns are batch, m, epilogue, layers, experts and experts_per_token; all others are ignored.

    Args:
        data: the content of the file, if it is on another machine.

    Raises:
        UsageError: naming the line and its mistake, or the limit that the file exceeds.
    """
    shapes = _read(path, ("n", "k"), _TABLE_COLUMNS, _table_rows, data)
    if not shapes:
        raise UsageError(f"{path} holds no shape below the names of its columns")
    return shapes


def expert_counts(path: Path) -> tuple[float, ...]:
    """The numbers of tokens of all experts, from a CSV file with the column tokens and one line for each expert.

    The lines are in the order of the experts.

    Raises:
        UsageError: naming the line and its mistake, or the limit that the file exceeds.
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
    """The rows of a CSV file, converted by ``rows``. ``columns`` is the text for errors about the first line."""
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
    """Raises ``UsageError`` for numbers of experts that cannot be right."""
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
