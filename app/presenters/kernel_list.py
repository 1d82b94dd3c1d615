"""Lists of kernels: filters, rows and pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from app.presenters.columns import Column
from app.presenters.shared import Row, dtypes
from cache_engine.evaluator.catalogue import read_search
from cache_engine.index.queries import FACETS, KernelFilter

FACET_LABELS = dict(zip(FACETS, ("Target", "Dtype", "Family", "Compiler", "Layout", "Compiler build"), strict=True))
_LONG_WORD, _SHOWN_OF_IT = 16, 8
_FIRST = 4


def kernel_filter(text: str, chosen: Mapping[str, Sequence[str]]) -> KernelFilter:
    """The filter for a search text and the chosen values of each facet.

    Raises:
        UsageError: when the text names an unknown field, or gives a field an impossible value.
    """
    return KernelFilter.of(read_search(text), *(tuple(chosen.get(facet, ())) for facet in FACETS))


def facet_choices(counts: Mapping[str, int], chosen: Iterable[str]) -> dict[str, str]:
    """The values of a facet, each with its label: the value and its count. Chosen values always stay in the list.

    Labels are unique. Compiler builds are long, so long words are shortened where the label stays unique.
    """
    values = dict.fromkeys((*counts, *chosen))
    short = {value: " ".join(map(_short, value.split(" "))) for value in values}
    alike = Counter(short.values())
    return {
        value: f"{short[value] if alike[short[value]] == 1 else value} ({counts.get(value, 0):,})" for value in values
    }


def first_choices(choices: Mapping[str, str]) -> str:
    """The first labels of a facet's choices, a line each, and the number of further choices."""
    labels = list(choices.values())
    if len(labels) > _FIRST + 1:  # the line that says how many are left may as well be the last of them
        labels[_FIRST:] = [f"and {len(labels) - _FIRST:,} more"]
    return "\n".join(labels)


def timed_on(row: Row) -> str:
    """The words that explain the kernel's measured speed; empty if it was not timed."""
    return f"Measured on {row['device']} with this m, the latest correct result" if row["device"] else ""


COLUMNS = (
    Column("Key", lambda row: row["key"][:12], title=itemgetter("name")),
    Column("Target", "arch", sort="target"),
    Column("Family", "family", sort="family"),
    Column("Dtype", dtypes, sort="dtype"),
    Column("Layout", "layout", sort="layout"),
    Column("m × n × k", lambda row: f"{row['m']} × {row['n']} × {row['k']}", sort="shape"),
    Column("Batch", "batch", "count", sort="batch"),
    Column("Config", "config", sort="config"),
    Column("Registers", "registers", "count", sort="registers"),
    Column("Spills", "spill_bytes", "bytes", sort="spills", title=lambda _: _SPILLS),
    Column("Cubin size", "size_bytes", "bytes", sort="size"),
    Column("Compile time", "compile_ms", "ms", sort="compile time"),
    Column("Time", "median_us", "us", sort="time", title=timed_on),
    Column("TFLOP/s", "tflops", "decimal", sort="tflops", title=timed_on),
    Column("% of library", "speed_ratio", "share", sort="share of library", title=timed_on),
    Column("Tags", "tags", title=lambda row: row["note"] or ""),
    Column("Hits", "hits", "count", sort="hits"),
    Column("Last used", "last_used_at", "age", sort="last used"),
    Column("Compiled", "created_at", "age", sort="created", hidden=True),
    Column("Size on disk", "stored_bytes", "bytes", sort="size on disk", hidden=True),
    Column("Shared memory", "shared_bytes", "bytes", sort="shared memory", hidden=True),
    Column("Compiler", lambda row: f"{row['compiler']} {row['compiler_version']}", sort="compiler", hidden=True),
    Column("Name", "name", sort="name", hidden=True),
    Column("Note", "note", hidden=True),
)
_OF_FEW = ("median_us", "tflops", "speed_ratio", "tags")
"""The fields that few kernels have a value of: those of timings, and the tags."""
_SPILLS = "Register spills to local memory, bytes per thread."


def kernel_columns(rows: Sequence[Row]) -> Sequence[Column]:
    """The columns of a list of kernels; those that few kernels have are hidden at first where no kernel has them."""
    empty = {name for name in _OF_FEW if not any(row[name] for row in rows)}
    return [replace(column, hidden=column.hidden or column.of in empty) for column in COLUMNS]


def page_number(asked: str, pages: int) -> int:
    """The page number that an address names: 1 where it is invalid, the last page where it is too large."""
    return min(int(asked), pages) if re.fullmatch("[1-9][0-9]{0,15}", asked) else 1


def _short(word: str) -> str:
    return f"{word[:_SHOWN_OF_IT]}…" if len(word) > _LONG_WORD else word
