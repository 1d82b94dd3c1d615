"""GEMM shapes to compile many of and to evaluate together: those of language models, and tables of one's own.

- ``tables`` -- one of a model's matrix multiplications; those of public models by name, and of CSV files
- ``search`` -- the words of a search for kernels
- ``model_configs`` -- a model's ``config.json``
- ``layers`` -- the matrix multiplications that follow from it, on one chip or on several
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
