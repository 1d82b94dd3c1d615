"""GEMM shapes of public language models."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from cache_engine.assets import shape_catalogue
from cache_engine.errors import UsageError
from cache_engine.model.gemm import DType, GemmProblem


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One of a model's matrix multiplications, m left open.

    Attributes:
        operation: what the layer is called, such as ``"qkv"``.
        batch: number of experts or heads computed at once.
        n, k: output and input features; the weight is stored n × k.
        layers: how often it occurs in one pass.
    """

    model: str
    operation: str
    batch: int
    n: int
    k: int
    layers: int

    def problem(self, m: int, dtype: DType, out_dtype: DType | None = None) -> GemmProblem:
        """The problem for m tokens."""
        return GemmProblem(m, self.n, self.k, batch=self.batch, dtype=dtype, out_dtype=out_dtype)


def model_shapes(model: str | None = None) -> list[ModelShape]:
    """The shapes of one model, or of all.

    Raises:
        UsageError: when there is no such model; the text lists those there are.
    """
    with shape_catalogue().open(newline="", encoding="utf-8") as file:
        shapes = [
            ModelShape(
                row["model"], row["operation"], int(row["batch"]), int(row["n"]), int(row["k"]), int(row["layers"])
            )
            for row in csv.DictReader(file)
        ]
    chosen = [shape for shape in shapes if model in (None, shape.model)]
    if not chosen:
        names = ", ".join(dict.fromkeys(shape.model for shape in shapes))
        raise UsageError(f"unknown model {model!r}; use one of: {names}")
    return chosen
