"""Lists and entries as files to take away."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

MOST_ROWS = 100_000
"""Of a list as a file, which is made in memory: some 40 MB as CSV."""

# A spreadsheet takes a cell that begins with one of these for a formula, and runs it.
_FORMULA = r"^[=+\-@\t\r]"


def csv_file(batches: pyarrow.RecordBatchReader) -> bytes:
    """Rows as CSV, with an apostrophe before texts that a spreadsheet would take for formulas."""
    from pyarrow import csv

    file = io.BytesIO()
    with csv.CSVWriter(file, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(_defused(batch))
    return file.getvalue()


def _defused(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute as pc

    columns = [
        pc.if_else(pc.match_substring_regex(column, _FORMULA), pc.binary_join_element_wise("'", column, ""), column)
        if pyarrow.types.is_string(column.type)
        else column
        for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=batch.schema)
