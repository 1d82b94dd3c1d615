"""Writes model_gemm_shapes.csv: the matrix multiplications of public language models, on one GPU.

Every number follows from the models' published ``config.json`` files (huggingface.co), of which model_configs.json has
the fields that matter. n and k are the output and input features of a layer; batch is the number of experts or heads
computed at once; a token goes to experts_per_token of the experts. Rows with an alternative are two ways of computing
the same; phase is where one of them is usual. epilogue is ``bias`` where the layer adds one (``attention_bias``, and
the router of gpt-oss). gpt-oss also has a bias for each expert, which the epilogue cannot add: it has one bias for the
whole batch.

    python sample_data/make_model_gemm_shapes.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from cache_engine.evaluator.catalogue.layers import layers_of
from cache_engine.evaluator.catalogue.model_configs import published

COLUMNS = (
    "model", "operation", "batch", "n", "k", "layers", "epilogue", "experts", "experts_per_token", "alternative",
    "phase",
)  # fmt: skip


def all_rows() -> list[list[str]]:
    """The whole table."""
    source = Path(__file__).with_name("model_configs.json")
    configs = json.loads(source.read_bytes())
    shapes = [shape for name, config in configs.items() for shape in layers_of(published(config, name, name))]
    values = [[getattr(shape, column) for column in COLUMNS] for shape in shapes]
    return [[str(value) if value != 0 else "" for value in row] for row in values]


def main() -> None:
    """Writes the table."""
    target = Path(__file__).with_name("model_gemm_shapes.csv")
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(all_rows())


if __name__ == "__main__":
    main()
