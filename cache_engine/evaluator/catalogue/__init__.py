"""GEMM shapes to compile many of and to evaluate together: those of language models, and tables of one's own.

- ``shape`` -- one of a model's matrix multiplications
- ``searching`` -- what words of a search mean
- ``tables`` -- those of public models by name, and of CSV files
- ``published`` -- what a model's ``config.json`` says
- ``layers`` -- the matrix multiplications that follow from it, on one chip or on several
"""

from cache_engine.evaluator.catalogue.fields import TOKENS, ModelShape
from cache_engine.evaluator.catalogue.tables import (
    LARGEST_TABLE_BYTES,
    MOST_SHAPES,
    model_shapes,
    read_search,
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
