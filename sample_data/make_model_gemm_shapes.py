"""Writes model_gemm_shapes.csv: the matrix multiplications of public language models, on one GPU.

Every number follows from the models' published ``config.json`` files (huggingface.co, field names as there), repeated
below. n and k are the output and input features of a layer; batch is the number of experts or heads computed at once.
epilogue is ``bias`` where the layer adds one (``attention_bias``, and the router of gpt-oss). gpt-oss also has a bias
for each expert, which the epilogue cannot add: it has one bias for the whole batch.

    python sample_data/make_model_gemm_shapes.py
"""

from __future__ import annotations

import csv
from pathlib import Path

Layer = tuple[str, str, int, int, int, int]
Row = tuple[str, str, int, int, int, int, str]
BIASED = {(model, operation) for model in ("gpt-oss-20b", "gpt-oss-120b") for operation in ("qkv", "o", "router")}

# model → hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, vocab_size, and either
# intermediate_size or (number of experts, moe_intermediate_size).
DENSE = {
    "Llama-3.1-8B": (4096, 32, 32, 8, 128, 128_256, 14_336),
    "Llama-3.1-70B": (8192, 80, 64, 8, 128, 128_256, 28_672),
    "Qwen3-0.6B": (1024, 28, 16, 8, 128, 151_936, 3072),
    "Qwen3-1.7B": (2048, 28, 16, 8, 128, 151_936, 6144),
    "Qwen3-8B": (4096, 36, 32, 8, 128, 151_936, 12_288),
    "Qwen3-32B": (5120, 64, 64, 8, 128, 151_936, 25_600),
}
MIXTURE_OF_EXPERTS = {
    "Qwen3-30B-A3B": (2048, 48, 32, 4, 128, 151_936, (128, 768)),
    "Qwen3-235B-A22B": (4096, 94, 64, 4, 128, 151_936, (128, 1536)),
    "Mixtral-8x7B": (4096, 32, 32, 8, 128, 32_000, (8, 14_336)),
    "Mixtral-8x22B": (6144, 56, 48, 8, 128, 32_000, (8, 16_384)),
    "gpt-oss-20b": (2880, 24, 64, 8, 64, 201_088, (32, 2880)),
    "gpt-oss-120b": (2880, 36, 64, 8, 64, 201_088, (128, 2880)),
}


def deepseek_v3() -> list[Layer]:
    """DeepSeek-V3: multi-head latent attention, three dense layers, then a shared and 256 routed experts."""
    model = "DeepSeek-V3"
    hidden, layers, dense_layers, heads, vocabulary = 7168, 61, 3, 128, 129_280
    q_lora, kv_lora, rope, nope, value = 1536, 512, 64, 128, 128
    dense, expert, experts = 18_432, 2048, 256
    sparse_layers = layers - dense_layers
    return [
        (model, "q_a+kv_a(fused)", 1, q_lora + kv_lora + rope, hidden, layers),
        (model, "q_a", 1, q_lora, hidden, layers),
        (model, "kv_a", 1, kv_lora + rope, hidden, layers),
        (model, "q_b", 1, heads * (nope + rope), q_lora, layers),
        (model, "kv_b", 1, heads * (nope + value), kv_lora, layers),
        (model, "o", 1, hidden, heads * value, layers),
        (model, "W_UK absorb", heads, kv_lora, nope, layers),
        (model, "W_UV absorb", heads, value, kv_lora, layers),
        (model, "dense gate+up", 1, 2 * dense, hidden, dense_layers),
        (model, "dense down", 1, hidden, dense, dense_layers),
        (model, "router", 1, experts, hidden, sparse_layers),
        (model, "shared gate+up", 1, 2 * expert, hidden, sparse_layers),
        (model, "shared down", 1, hidden, expert, sparse_layers),
        (model, "expert gate+up", experts, 2 * expert, hidden, sparse_layers),
        (model, "expert down", experts, hidden, expert, sparse_layers),
        (model, "lm_head", 1, vocabulary, hidden, 1),
    ]


def grouped_query(model: str, hidden: int, layers: int, heads: int, kv_heads: int, head: int, vocabulary: int,
                  feed_forward: list[tuple[str, int, int, int]]) -> list[Layer]:  # fmt: skip
    """A model with grouped-query attention; ``feed_forward`` gives operation, batch, n and k."""
    return [
        (model, "qkv", 1, (heads + 2 * kv_heads) * head, hidden, layers),
        (model, "o", 1, hidden, heads * head, layers),
        *((model, operation, batch, n, k, layers) for operation, batch, n, k in feed_forward),
        (model, "lm_head", 1, vocabulary, hidden, 1),
    ]


def all_rows() -> list[Row]:
    """The whole table."""
    rows = deepseek_v3()
    for model, (hidden, layers, heads, kv_heads, head, vocabulary, inner) in DENSE.items():
        feed_forward = [("gate+up", 1, 2 * inner, hidden), ("down", 1, hidden, inner)]
        rows += grouped_query(model, hidden, layers, heads, kv_heads, head, vocabulary, feed_forward)
    for model, (hidden, layers, heads, kv_heads, head, vocabulary, (experts, inner)) in MIXTURE_OF_EXPERTS.items():
        feed_forward = [
            ("router", 1, experts, hidden),
            ("expert gate+up", experts, 2 * inner, hidden),
            ("expert down", experts, hidden, inner),
        ]
        rows += grouped_query(model, hidden, layers, heads, kv_heads, head, vocabulary, feed_forward)
    return [(*row, "bias" if row[:2] in BIASED else "") for row in rows]


def main() -> None:
    """Writes the table beside this script."""
    target = Path(__file__).with_name("model_gemm_shapes.csv")
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "operation", "batch", "n", "k", "layers", "epilogue"])
        writer.writerows(all_rows())


if __name__ == "__main__":
    main()
