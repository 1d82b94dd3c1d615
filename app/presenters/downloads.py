"""Lists and kernels as files to download."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.selection import Selection
from cache_engine.errors import CompileError
from cache_engine.model.key import CacheKey
from cache_engine.units import FORMULA

if TYPE_CHECKING:
    import pyarrow

MOST_ROWS = 100_000
"""The most rows of a list as a file, which is built in memory: about 40 MB as CSV."""


def csv_file(batches: pyarrow.RecordBatchReader) -> bytes:
    """Rows as CSV, with an apostrophe before texts that a spreadsheet would run as formulas."""
    from pyarrow import csv

    file = io.BytesIO()
    with csv.CSVWriter(file, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(_defused(batch))
    return file.getvalue()


def parquet_file(batches: pyarrow.RecordBatchReader) -> bytes:
    """Rows as Parquet, unchanged: no program runs its texts as formulas."""
    from pyarrow import parquet

    file = io.BytesIO()
    with parquet.ParquetWriter(file, batches.schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
    return file.getvalue()


LIST_FILES: dict[str, tuple[str, Callable[[pyarrow.RecordBatchReader], bytes]]] = {
    "CSV": ("text/csv", csv_file),
    "Parquet": ("application/vnd.apache.parquet", parquet_file),
}
"""The file types of a list: MIME type, and the function that builds the file."""


def pack_file(cache: Cache, keys: Iterable[str]) -> bytes:
    """Kernels as a pack, without those that are deleted or corrupt."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.gemmpack")
        cache.admin.export(path, keys=map(CacheKey, keys))
        return path.read_bytes()


def dump_file(selection: Selection) -> bytes:
    """A debug dump as a ZIP file: the kernel is compiled again, and no store changes.

    The dump of a compile that fails says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "dump")
        with suppress(CompileError), open_cache(enable_caching=False) as cache:
            cache.get_or_compile(
                selection.problem,
                family=selection.family.name,
                compiler=selection.compiler.name,
                config=selection.config,
                debug_dump=place,
            )
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(place.iterdir()):
                packed.write(path, path.name)
        return file.getvalue()


def _defused(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute as pc

    columns = [
        pc.if_else(pc.match_substring_regex(column, FORMULA), pc.binary_join_element_wise("'", column, ""), column)
        if pyarrow.types.is_string(column.type)
        else column
        for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=batch.schema)
