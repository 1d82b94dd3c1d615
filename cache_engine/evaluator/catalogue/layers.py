"""The matrix multiplications of a model, on one chip or on one of several chips that share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue.model_configs import Experts, Latent, Published, published_of
from cache_engine.evaluator.catalogue.tables import ModelShape, is_table, shapes_of
from cache_engine.model.gemm import NO_EPILOGUE, Epilogue

_BIAS = Epilogue(bias=True)


@dataclass(frozen=True, slots=True)
class Parallel:
    """The way in which a model is spread over ``tensor · data`` chips.

    Args:
        tensor: the number of chips that share the heads and inner features of each layer.
        expert: the number of groups of chips; each group has its own experts, and its chips share their inner
            features. With 1, all chips share every expert. The tokens of all chips go to the experts, as in vLLM.
        data: the number of copies of all weights but the experts'; each copy gets an equal share of the tokens.

    Raises:
        UsageError: when a number is not a whole number of at least 1, or ``expert`` does not divide the number of
            chips.
    """

    tensor: int = 1
    expert: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "expert", "data"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 2**20:
                raise UsageError(f"the {name} parallel size is {size!r}; it must be a whole number from 1 to {2**20:,}")
        if self.chips % self.expert:
            raise UsageError(
                f"the expert parallel size {self.expert} does not divide the number of chips, which is "
                f"{self.tensor} (tensor) × {self.data} (data)"
            )

    @property
    def chips(self) -> int:
        """The number of chips."""
        return self.tensor * self.data

    @property
    def of_expert(self) -> int:
        """The number of chips that share an expert."""
        return self.chips // self.expert


ALONE = Parallel()


def layers_of(model: Published, parallel: Parallel = ALONE) -> list[ModelShape]:
    """A model's matrix multiplications on one chip; if a layer can be computed in two ways, those of both ways.

    Raises:
        UsageError: naming the field that a parallel size does not divide.
    """
    split = _Split(model, parallel)
    attention = _latent(model, model.latent, split) if model.latent else _grouped(model, split)
    rows = [*attention, *_feed_forward(model, split)]
    vocabulary = split.by_tensor("vocab_size", model.vocabulary)
    return [*rows, ModelShape(model.name, "lm_head", 1, vocabulary, model.hidden, 1)]


def layers_named(model: str | Path, parallel: Parallel = ALONE) -> list[ModelShape]:
    """The matrix multiplications of a model on one chip, given by its name or by a CSV file for one chip.

    Raises:
        UsageError: as ``shapes_of`` and ``layers_of``, or when a table is to be spread over chips.
    """
    shapes = shapes_of(model)
    if not is_table(model):
        return layers_of(published_of(shapes[0].model), parallel)
    if parallel != ALONE:
        raise UsageError(
            f"{model} has the shapes of one chip; a parallel size needs a model by its name or config.json"
        )
    return shapes


class _Split:
    """Computes the sizes that one chip has."""

    def __init__(self, model: Published, parallel: Parallel) -> None:
        self._model, self.parallel = model, parallel

    def by_tensor(self, field: str, size: int) -> int:
        """A chip's share of a size that is divided among the chips of one copy."""
        return self._share(field, size, self.parallel.tensor, "tensor")

    def kv_heads(self) -> int:
        """The number of a chip's key-value heads: at least one, so several chips may have the same head."""
        heads, tensor = self._model.kv_heads, self.parallel.tensor
        if tensor > heads and tensor % heads == 0:
            return 1
        return self.by_tensor("num_key_value_heads", heads)

    def experts(self, experts: Experts) -> tuple[int, int]:
        """The number of experts on a chip, and the number of inner features that it has of each."""
        count = self._share("the number of experts", experts.count, self.parallel.expert, "expert")
        inner = self._share("the experts' inner size", experts.inner, self.parallel.of_expert, "tensor × data ÷ expert")
        return count, inner

    def _share(self, field: str, size: int, chips: int, kind: str) -> int:
        if size % chips:
            raise UsageError(
                f"{self._model.name}: {field} is {size}, which the {kind} parallel size {chips} does not divide"
            )
        return size // chips

    def row(
        self, operation: str, n: int, k: int, layers: int, batch: int = 1, alternative: str = "", phase: str = ""
    ) -> ModelShape:
        """The shape of one operation, with a bias if the model has one in that operation."""
        bias = _BIAS if operation in self._model.biased else NO_EPILOGUE
        return ModelShape(
            self._model.name, operation, batch, n, k, layers, epilogue=bias, alternative=alternative, phase=phase
        )


def _grouped(model: Published, split: _Split) -> Iterator[ModelShape]:
    heads = split.by_tensor("num_attention_heads", model.heads)
    yield split.row("qkv", (heads + 2 * split.kv_heads()) * model.head, model.hidden, model.layers)
    yield split.row("o", model.hidden, heads * model.head, model.layers)


def _latent(model: Published, latent: Latent, split: _Split) -> Iterator[ModelShape]:
    layers, hidden, heads = model.layers, model.hidden, split.by_tensor("num_attention_heads", model.heads)
    q, kv = heads * (latent.nope + latent.rope), latent.kv_rank + latent.rope
    if latent.q_rank:
        yield split.row("q_a+kv_a(fused)", latent.q_rank + kv, hidden, layers, alternative="fused")
        yield split.row("q_a", latent.q_rank, hidden, layers, alternative="separate")
        yield split.row("kv_a", kv, hidden, layers, alternative="separate")
        yield split.row("q_b", q, latent.q_rank, layers)
    else:
        yield split.row("q", q, hidden, layers)
        yield split.row("kv_a", kv, hidden, layers)
    # Prefill expands keys and values for each head; decode multiplies queries and sums by the two halves of kv_b.
    expanded = heads * (latent.nope + latent.value)
    yield split.row("kv_b", expanded, latent.kv_rank, layers, alternative="expanded", phase="prefill")
    yield split.row("o", hidden, heads * latent.value, layers)
    yield split.row("W_UK absorb", latent.kv_rank, latent.nope, layers, heads, "absorbed", "decode")
    yield split.row("W_UV absorb", latent.value, latent.kv_rank, layers, heads, "absorbed", "decode")


def _feed_forward(model: Published, split: _Split) -> Iterator[ModelShape]:
    experts, hidden = model.experts, model.hidden
    dense = model.layers - (experts.layers if experts else 0)
    if dense:
        prefix = "dense " if experts else ""
        inner = split.by_tensor("intermediate_size", model.inner)
        yield split.row(f"{prefix}gate+up", 2 * inner, hidden, dense)
        yield split.row(f"{prefix}down", hidden, inner, dense)
    if experts is None or not experts.layers:
        return
    yield split.row("router", experts.count, hidden, experts.layers)
    if experts.shared:
        shared = split.by_tensor("the shared experts' inner size", experts.shared)
        yield split.row("shared gate+up", 2 * shared, hidden, experts.layers)
        yield split.row("shared down", hidden, shared, experts.layers)
    count, inner = split.experts(experts)
    for operation, n, k in (("expert gate+up", 2 * inner, hidden), ("expert down", hidden, inner)):
        yield ModelShape(
            model.name, operation, count, n, k, experts.layers, experts=experts.count,
            experts_per_token=experts.per_token,
        )  # fmt: skip
