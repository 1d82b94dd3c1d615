"""The matrix multiplications of a model, from its published ``config.json``.

The names of fields, and their defaults, are those of the models' configuration classes in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.assets import model_configs
from cache_engine.errors import UsageError
from cache_engine.inputs import open_input
from cache_engine.units import human_bytes, printable

LARGEST_CONFIG_BYTES = 2**20
_MOST = 10**7
_MOST_LAYERS = 10_000
_MOST_EXPERTS = 10_000


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2 and later).

    Attributes:
        q_rank: the rank of the queries' low-rank product; 0 if the queries are one product.
        kv_rank: the rank of the keys' and values' low-rank product.
        rope, nope, value: the features of a head: of its key with position, of its key without position, and of its
            value.
    """

    q_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of some layers.

    Attributes:
        count, per_token: the number of experts in a layer, and the number of experts that a token goes to.
        inner: the features between the two products of one expert.
        shared: the inner features of all shared experts together; every token goes to the shared experts.
        layers: the number of layers with experts; the others are dense.
    """

    count: int
    per_token: int
    inner: int
    shared: int
    layers: int


@dataclass(frozen=True, slots=True)
class Published:
    """A decoder model, as described by its configuration.

    Attributes:
        hidden, layers, vocabulary: the features of a token between layers, the number of layers, and the number of
            different tokens.
        heads, kv_heads, head: the number of attention heads, the number of key-value heads, and the features of one
            head.
        inner: the features between the two products of a dense layer.
        biased: the operations that add a bias.
        latent: the sizes of latent attention, if the model has it.
        experts: the mixture of experts, if the model has one.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    biased: frozenset[str]
    latent: Latent | None = None
    experts: Experts | None = None


def read_config(path: Path) -> Published:
    """The model that a ``config.json`` describes. Its name is that of the file's folder.

    Raises:
        UsageError: naming the field that is missing, impossible or contradicts another, or the unknown architecture.
    """
    try:
        with open_input(path) as file:
            data = file.read(LARGEST_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {reason}") from error
    if len(data) > LARGEST_CONFIG_BYTES:
        raise UsageError(f"{path} is larger than {human_bytes(LARGEST_CONFIG_BYTES)}; a model's config.json is small")
    try:
        config = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return published(config, path.absolute().parent.name or path.stem, str(path))


@lru_cache(maxsize=64)
def published_of(name: str) -> Published:
    """A model of the catalogue, by its exact name."""
    configs = msgspec.json.decode(model_configs().read_bytes(), type=dict[str, Any])
    return published(configs[name], name, name)


def published(config: Any, name: str, source: str) -> Published:
    """The model that the content of a ``config.json`` describes. Raises as ``read_config``."""
    if not isinstance(config, dict):
        raise UsageError(f"{source} is no model's config.json: it is not a JSON object")
    kind, inside = config.get("model_type"), config.get("text_config")
    if isinstance(inside, dict) and not (isinstance(kind, str) and kind in _FAMILIES):
        config = inside  # of a model that reads images too: the language model
        kind = config.get("model_type")
    if not isinstance(kind, str):
        raise UsageError(f"{source} is no model's config.json: it has no field model_type")
    read = _FAMILIES.get(kind)
    if read is None:
        raise UsageError(
            f"{source}: the layers of model_type {printable(kind)[:60]!r} are not known; known are "
            f"{', '.join(_FAMILIES)}. Give its shapes as a CSV file with the columns n, k and layers"
        )
    found: Published = read(_Fields(config, source), name)
    return found


class _Fields:
    """Reads fields of a configuration; an error names the wrong field."""

    def __init__(self, config: dict[str, Any], source: str) -> None:
        self._config, self._source = config, source

    def whole(self, *names: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        """The whole number in the first of these fields that exists; a field with null is taken as missing."""
        for name in names:
            value = self._config.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                    raise self.wrong(f"{name} is {value!r:.60}; it must be a whole number from {least} to {most:,}")
                return value
        if default is None:
            raise self.wrong(f"the field {names[0]} is missing")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """The truth value in a field; the default if the field is missing or null."""
        value = self._config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(f"{name} is {value!r:.60}; it must be true or false")
        return value

    def numbers(self, name: str) -> list[int]:
        """The list of layer numbers in a field; empty if the field is missing or null."""
        value = self._config.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, int) for one in value):
            raise self.wrong(f"{name} must be a list of whole numbers")
        return value

    def wrong(self, reason: str) -> UsageError:
        """An error that names this file."""
        return UsageError(f"{self._source}: {reason}")


def _decoder(
    fields: _Fields,
    name: str,
    *,
    square: bool = False,
    biased: Sequence[str] = (),
    may_be_biased: Sequence[str] = (),
    experts: Any = None,
) -> Published:
    """A decoder with grouped-query attention.

    Args:
        square: whether all heads together must have as many features as a token.
        biased, may_be_biased: the operations that always have a bias, and those that have one if ``attention_bias`` is
            set.
        experts: a function that reads the experts, for a model that may have some.
    """
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.wrong(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    head = fields.whole("head_dim", default=0)
    if not head and hidden % heads:
        raise fields.wrong(f"num_attention_heads {heads} does not divide hidden_size {hidden}, and head_dim is missing")
    if head and square and head * heads != hidden:
        raise fields.wrong(
            f"num_attention_heads {heads} × head_dim {head} is not hidden_size {hidden}, as in every model of this "
            "family; where it is meant, write model_type mistral, whose layers are the same but for biases"
        )
    head = head or hidden // heads
    bias = {*biased, *(may_be_biased if fields.flag("attention_bias", default=False) else ())}
    layers = fields.whole("num_hidden_layers", most=_MOST_LAYERS)
    mixture = experts(fields, layers) if experts else None
    dense = mixture is None or mixture.layers < layers
    return Published(
        name, hidden, layers, fields.whole("vocab_size"), heads, kv_heads, head,
        fields.whole("intermediate_size") if dense else 0, frozenset(bias), experts=mixture,
    )  # fmt: skip


def _latent(fields: _Fields, name: str) -> Published:
    """Reads DeepSeek V2, V3 and R1, and Kimi K2: latent attention, and experts after the first layers."""
    layers, heads = fields.whole("num_hidden_layers", most=_MOST_LAYERS), fields.whole("num_attention_heads")
    latent = Latent(
        fields.whole("q_lora_rank", default=0), fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim"),
        fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim"),
    )  # fmt: skip
    mixture = _after_dense_layers(fields, layers)
    # Its attention_bias is of the products before the low-rank ones.
    biased = ("q_a", "kv_a", "q_a+kv_a(fused)", "o") if fields.flag("attention_bias", default=False) else ()
    return Published(
        name, fields.whole("hidden_size"), layers, fields.whole("vocab_size"), heads, heads, latent.nope + latent.rope,
        fields.whole("intermediate_size") if mixture.layers < layers else 0, frozenset(biased), latent, mixture,
    )  # fmt: skip


def _chatglm(fields: _Fields, name: str) -> Published:
    """Reads ChatGLM2 up to the first form of GLM-4; these models have their own field names."""
    heads, head = fields.whole("num_attention_heads"), fields.whole("kv_channels")
    hidden = fields.whole("hidden_size")
    if heads * head != hidden:
        raise fields.wrong(f"num_attention_heads {heads} × kv_channels {head} is not hidden_size {hidden}")
    grouped = fields.flag("multi_query_attention", default=False)
    kv_heads = fields.whole("multi_query_group_num") if grouped else heads
    if heads % kv_heads:
        raise fields.wrong(f"multi_query_group_num {kv_heads} does not divide num_attention_heads {heads}")
    biased = ["qkv"] if fields.flag("add_qkv_bias", default=False) else []
    if fields.flag("add_bias_linear", default=False):
        biased = ["qkv", "o", "gate+up", "down"]
    return Published(
        name, hidden, fields.whole("num_layers", most=_MOST_LAYERS), fields.whole("padded_vocab_size"), heads, kv_heads,
        head, fields.whole("ffn_hidden_size"), frozenset(biased),
    )  # fmt: skip


def _experts(fields: _Fields, count: str, inner: str, layers: int, shared: int = 0) -> Experts:
    experts = fields.whole(count, most=_MOST_EXPERTS)
    per_token = fields.whole("num_experts_per_tok", "experts_per_token", most=_MOST_EXPERTS)
    if per_token > experts:
        raise fields.wrong(f"num_experts_per_tok is {per_token}, and {count} only {experts}")
    return Experts(experts, per_token, fields.whole(inner), shared, layers)


def _in_every_layer(fields: _Fields, layers: int) -> Experts:
    """The experts of Mixtral and gpt-oss, which every layer has."""
    return _experts(fields, "num_local_experts", "intermediate_size", layers)


def _in_some_layers(fields: _Fields, layers: int) -> Experts:
    """The experts of Qwen2-MoE and Qwen3-MoE: every layer has them, unless the file names layers without."""
    dense, step = set(fields.numbers("mlp_only_layers")), fields.whole("decoder_sparse_step", default=1)
    sparse = sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
    shared = fields.whole("shared_expert_intermediate_size", default=0, least=0)
    return _experts(fields, "num_experts", "moe_intermediate_size", sparse, shared)


def _after_dense_layers(fields: _Fields, layers: int) -> Experts:
    """The experts of DeepSeek, Kimi K2 and GLM-4.5: the first layers are dense, and some experts are shared."""
    first = fields.whole("first_k_dense_replace", default=0, least=0, most=_MOST_LAYERS)
    step = fields.whole("moe_layer_freq", default=1)
    sparse = sum(layer >= first and layer % step == 0 for layer in range(layers))
    shared = fields.whole("n_shared_experts", default=0, least=0, most=_MOST_EXPERTS)
    inner = fields.whole("moe_intermediate_size")
    return _experts(fields, "n_routed_experts", "moe_intermediate_size", sparse, shared * inner)


_FAMILIES: dict[str, Any] = {
    "llama": partial(_decoder, square=True, may_be_biased=("qkv", "o")),
    "mistral": _decoder,
    "mixtral": partial(_decoder, square=True, experts=_in_every_layer),
    "qwen2": partial(_decoder, square=True, biased=("qkv",)),
    "qwen2_moe": partial(_decoder, square=True, biased=("qkv",), experts=_in_some_layers),
    "qwen3": partial(_decoder, may_be_biased=("qkv", "o")),
    "qwen3_moe": partial(_decoder, may_be_biased=("qkv", "o"), experts=_in_some_layers),
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "kimi_k2": _latent,
    "gpt_oss": partial(_decoder, biased=("router",), may_be_biased=("qkv", "o"), experts=_in_every_layer),
    "glm": partial(_decoder, may_be_biased=("qkv",)),
    "glm4": partial(_decoder, may_be_biased=("qkv",)),
    "glm4_moe": partial(_decoder, may_be_biased=("qkv",), experts=_after_dense_layers),
    "chatglm": _chatglm,
}
"""For each ``model_type``, the function that reads its configuration."""
