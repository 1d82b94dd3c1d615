"""Sets of GEMM shapes, to compile or evaluate together: those of language models, and those of a user's table.

- ``tables`` -- shapes of matrix multiplications: those of public models by name, and those in CSV files
- ``search`` -- the search language for kernels
- ``model_configs`` -- reads a model's ``config.json``
- ``layers`` -- the matrix multiplications of such a model, on one chip or on one of several
"""

from cache_engine.evaluator.catalogue.search import read_search
from cache_engine.evaluator.catalogue.tables import (
    LARGEST_TABLE_BYTES,
    MOST_SHAPES,
    TOKENS,
    ModelShape,
    model_shapes,
    shapes_of,
    table_shapes,
)

__all__ = [
    "LARGEST_TABLE_BYTES",
    "MOST_SHAPES",
    "TOKENS",
    "ModelShape",
    "model_shapes",
    "read_search",
    "shapes_of",
    "table_shapes",
]
