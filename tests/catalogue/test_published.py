"""Models from their published config.json: the shapes hold the parameters that their authors count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cache_engine.assets import model_configs
from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import ModelShape, model_shapes
from cache_engine.evaluator.catalogue.layers import layers_of
from cache_engine.evaluator.catalogue.model_configs import LARGEST_CONFIG_BYTES, Published, published, read_config

# From the models' cards and reports, in 10⁹; their config.json as far as it matters, unless model_configs.json has it.
MODELS = json.loads(Path(__file__).with_name("published_models.json").read_bytes())
OURS = json.loads(model_configs().read_bytes())
LLAMA = MODELS["Llama-3.2-1B"]["config"]
QWEN_MOE = OURS["Qwen3-30B-A3B"]


def config_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = MODELS[name]["config"] or OURS[name]
    return found


def usual(model: Published) -> list[ModelShape]:
    """The shapes whose weights are the model's; the others have the same weights in another form."""
    return [shape for shape in layers_of(model) if shape.alternative not in ("separate", "absorbed")]


@pytest.mark.parametrize("name", MODELS)
def test_a_models_shapes_hold_its_published_number_of_parameters(name: str) -> None:
    config = config_of(name)
    model = published(config, name, name)
    shapes = usual(model)
    embedding = model.vocabulary * model.hidden
    weights = sum(shape.n * shape.k * shape.batch * shape.layers for shape in shapes)
    total = weights + (0 if config.get("tie_word_embeddings") else embedding)
    assert total / 1e9 == pytest.approx(MODELS[name]["parameters_b"], rel=0.03)
    if model.experts:
        active = sum(shape.n * shape.k * (shape.experts_per_token or shape.batch) * shape.layers for shape in shapes)
        # Some authors count the embedding as active, some round down.
        least, most = active / 1e9, (active + embedding) / 1e9
        assert least * 0.93 <= MODELS[name]["active_b"] <= most * 1.005


def test_the_first_layers_of_some_models_are_dense() -> None:
    layers = {shape.operation: shape.layers for shape in layers_of(published(config_of("GLM-4.5"), "", ""))}
    assert (layers["qkv"], layers["dense down"], layers["expert down"], layers["shared down"]) == (92, 3, 89, 89)
    some = {**QWEN_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    layers = {shape.operation: shape.layers for shape in layers_of(published(some, "", ""))}
    assert (layers["dense down"], layers["expert down"]) == (25, 23)


def test_biases_are_those_of_the_family() -> None:
    def biased(config: dict[str, Any]) -> set[str]:
        return {shape.operation for shape in layers_of(published(config, "", "")) if str(shape.epilogue) == "bias"}

    assert biased(config_of("gpt-oss-20b")) == {"qkv", "o", "router"}
    assert biased(config_of("Qwen2.5-7B")) == biased(config_of("glm-4-9b")) == biased(config_of("GLM-4.5")) == {"qkv"}
    assert biased({**LLAMA, "attention_bias": True}) == {"qkv", "o"}
    assert biased(LLAMA) == set()


def test_the_catalogue_is_that_of_the_configs() -> None:
    for name, config in OURS.items():
        assert layers_of(published(config, name, name)) == model_shapes(name)


def test_the_language_model_inside_another_is_read() -> None:
    kinds: tuple[object, ...] = ("llava", ["llava"], {}, None)
    for kind in kinds:
        assert published({"model_type": kind, "text_config": LLAMA}, "x", "x") == published(LLAMA, "x", "x")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "not a JSON object"),
        ({}, "has no field model_type"),
        ({"model_type": 5}, "has no field model_type"),
        ({"model_type": "mamba2"}, "the layers of model_type 'mamba2' are not known; known are llama, "),
        ({"model_type": "llama"}, "the field hidden_size is missing"),
        ({**LLAMA, "hidden_size": "2048"}, "hidden_size is '2048'; it must be a whole number"),
        ({**LLAMA, "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({**LLAMA, "vocab_size": True}, "vocab_size is True"),
        ({**LLAMA, "intermediate_size": -1}, "intermediate_size is -1"),
        ({**LLAMA, "head_dim": 100}, "num_attention_heads 32 × head_dim 100 is not hidden_size 2048"),
        ({**LLAMA, "head_dim": None, "hidden_size": 2050}, "num_attention_heads 32 does not divide hidden_size 2050"),
        ({**LLAMA, "num_key_value_heads": 7}, "num_key_value_heads 7 does not divide num_attention_heads 32"),
        ({**LLAMA, "attention_bias": "no"}, "attention_bias is 'no'; it must be true or false"),
        ({**QWEN_MOE, "num_experts_per_tok": 129}, "num_experts_per_tok is 129, and num_experts only 128"),
        ({**QWEN_MOE, "mlp_only_layers": ["a"]}, "mlp_only_layers must be a list of whole numbers"),
        ({**config_of("Kimi-K2-Instruct"), "kv_lora_rank": None}, "the field kv_lora_rank is missing"),
        ({**config_of("glm-4-9b"), "kv_channels": 64}, "num_attention_heads 32 × kv_channels 64 is not hidden_size"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused_naming_the_field(config: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        published(config, "model", "there/config.json")
    assert str(caught.value).startswith("there/config.json")
    assert said in str(caught.value)


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(path)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
    path.write_text("{" * 100_000)
    with pytest.raises(UsageError, match=r"config\.json is not JSON"):
        read_config(path)
    path.write_text(json.dumps({**LLAMA, "padding": "x" * LARGEST_CONFIG_BYTES}))
    with pytest.raises(UsageError, match=r"is larger than 1\.0 MiB"):
        read_config(path)
    path.write_text(json.dumps(LLAMA))
    assert read_config(path) == published(LLAMA, tmp_path.name, "")
