"""One of a model's matrix multiplications."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cache_engine.model.gemm import NO_EPILOGUE, DType, DTypeLike, Epilogue, GemmProblem, Mode
from cache_engine.model.sizes import Sizes, joined_sizes

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
