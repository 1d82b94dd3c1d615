"""A model on several chips: what one of them computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import model_shapes, table_shapes
from cache_engine.evaluator.catalogue.layers import Parallel, layers_named
from cache_engine.model.shapes import parse_sizes

SHARED_BY_ALL = {"router", "q_a", "kv_a", "q_a+kv_a(fused)"}


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "Qwen3-30B-A3B", "gpt-oss-20b"])
@pytest.mark.parametrize("parallel", [Parallel(2), Parallel(4, 2), Parallel(2, 4, 2), Parallel(1, 2, 2)])
def test_chips_have_equal_parts_of_what_they_share(name: str, parallel: Parallel) -> None:
    """The weights of all chips are the model's, but for those that each chip has whole, and the copies'."""
    whole = {shape.operation: shape for shape in model_shapes(name)}
    for part in layers_named(name, parallel):
        all_weights = whole[part.operation].n * whole[part.operation].k * whole[part.operation].batch
        weights = part.n * part.k * part.batch
        if part.operation in SHARED_BY_ALL:
            assert weights == all_weights
        elif part.experts:
            assert weights * parallel.chips == all_weights
        else:
            assert weights * parallel.tensor == all_weights


def test_more_chips_than_kv_heads_have_the_same_ones() -> None:
    qkv = layers_named("Qwen3-30B-A3B", Parallel(8))[0]  # 32 query heads, 4 of keys and values, of 128
    assert qkv.n == (4 + 2) * 128


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        (Parallel(3), "num_attention_heads is 32, which the tensor parallel size 3 does not divide"),
        (Parallel(64, 64), "num_attention_heads is 32, which the tensor"),
        (Parallel(1, 256, 256), "the number of experts is 128, which the expert parallel size 256 does not divide"),
        (Parallel(1, 1, 5), "the experts' inner size is 768, which the tensor × data ÷ expert parallel size 5 does"),
    ],
)
def test_a_parallel_size_that_does_not_divide_is_refused(parallel: Parallel, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        layers_named("Qwen3-30B-A3B", parallel)
    assert said in str(caught.value)


def test_a_parallel_size_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="the expert parallel size 8 does not divide the number of chips, which is 4"):
        Parallel(4, 8)
    with pytest.raises(UsageError, match="the tensor parallel size is 0"):
        Parallel(0)


def test_an_experts_rows_are_its_share_of_the_tokens() -> None:
    expert = {shape.operation: shape for shape in model_shapes("DeepSeek-V3")}["expert down"]
    assert [expert.rows(tokens) for tokens in (1, 32, 33, 4096)] == [1, 1, 2, 128]
    assert expert.row_sizes(parse_sizes("1-8192")) == (range(1, 257),)
    assert expert.row_sizes(parse_sizes("1,16,4096,8000-8192")) == (range(1, 2), range(128, 129), range(250, 257))
    plain = {shape.operation: shape for shape in model_shapes("DeepSeek-V3")}["o"]
    assert plain.row_sizes(parse_sizes("1,4096")) == parse_sizes("1,4096")


def test_a_table_may_say_how_tokens_are_spread(tmp_path: Path) -> None:
    table = tmp_path / "shapes.csv"
    table.write_text("n,k,batch,layers,experts,experts_per_token\n64,32,8,3,8,2\n64,32,,,,\n")
    first, second = table_shapes(table)
    assert (first.layers, first.experts, first.rows(100)) == (3, 8, 25)
    assert (second.layers, second.experts, second.rows(100)) == (1, 0, 100)
    table.write_text("n,k,experts,experts_per_token\n64,32,8,9\n")
    with pytest.raises(UsageError, match="line 2: experts_per_token is 9, and there are only 8 experts"):
        table_shapes(table)
    table.write_text("n,k,experts\n64,32,8\n")
    with pytest.raises(UsageError, match="give both experts and experts_per_token"):
        table_shapes(table)
    with pytest.raises(UsageError, match="has the shapes of one chip"):
        layers_named(table_file(tmp_path), Parallel(2))


def table_file(folder: Path) -> Path:
    path = folder / "plain.csv"
    path.write_text("n,k\n64,32\n")
    return path
