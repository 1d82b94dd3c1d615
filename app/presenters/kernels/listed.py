"""Lists of kernels: filters, rows and pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo

from app.presenters.shared import Column, Line, Row, dtypes, when
from cache_engine.evaluator.catalogue import read_search
from cache_engine.index.queries import FACETS, KernelFilter
from cache_engine.units import human_age, human_bytes, human_ms

FACET_LABELS = dict(zip(FACETS, ("Target", "Dtype", "Family", "Compiler", "Layout", "Compiler build"), strict=True))
_LONG_WORD, _SHOWN_OF_IT = 16, 8
_FIRST = 4


def kernel_filter(text: str, chosen: Mapping[str, Sequence[str]]) -> KernelFilter:
    """The filter for a search text and the chosen values of each facet.

    Raises:
        UsageError: when the text names an unknown field, or gives a field a value that it does not take.
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
    """The first labels of ``facet_choices``, a line each, and how many more there are."""
    labels = list(choices.values())
    if len(labels) > _FIRST + 1:  # the line that says how many are left may as well be the last of them
        labels[_FIRST:] = [f"and {len(labels) - _FIRST:,} more"]
    return "\n".join(labels)


COLUMNS = (
    Column("Key"),
    Column("Target", "target"),
    Column("Family", "family"),
    Column("Dtype", "dtype"),
    Column("Layout", "layout"),
    Column("m × n × k", "shape"),
    Column("Batch", "batch", numeric=True),
    Column("Config", "config"),
    Column("Registers", "registers", numeric=True),
    Column("Spills", "spills", numeric=True),
    Column("Cubin size", "size", numeric=True),
    Column("Compile time", "compile time", numeric=True),
    Column("Hits", "hits", numeric=True),
    Column("Last used", "last used", numeric=True),
    Column("Compiled", "created", numeric=True, hidden=True),
    Column("Size on disk", "size on disk", numeric=True, hidden=True),
    Column("Shared memory", "shared memory", numeric=True, hidden=True),
    Column("Compiler", "compiler", hidden=True),
    Column("Name", "name", hidden=True),
)


def kernel_table(rows: Iterable[Row], zone: tzinfo, now: float) -> list[Line]:
    """Kernels, a line each.

    Args:
        now: in seconds since 1970.
    """
    return [
        Line(
            {
                "Key": row["key"][:12],
                "Target": row["arch"],
                "Family": row["family"],
                "Dtype": dtypes(row),
                "Layout": row["layout"],
                "m × n × k": f"{row['m']} × {row['n']} × {row['k']}",
                "Batch": f"{row['batch']:,}",
                "Config": row["config"],
                "Registers": f"{row['registers']:,}",
                "Spills": human_bytes(row["spill_bytes"]),
                "Cubin size": human_bytes(row["size_bytes"]),
                "Compile time": human_ms(row["compile_ms"]),
                "Hits": f"{row['hits']:,}",
                "Last used": human_age(now - row["last_used_at"]),
                "Compiled": human_age(now - row["created_at"]),
                "Size on disk": human_bytes(row["stored_bytes"]),
                "Shared memory": human_bytes(row["shared_bytes"]),
                "Compiler": f"{row['compiler']} {row['compiler_version']}",
                "Name": row["name"],
            },
            {
                "Key": row["name"],
                "Last used": when(row["last_used_at"], zone),
                "Compiled": when(row["created_at"], zone),
                "Spills": "Register spills to local memory, bytes per thread.",
            },
        )
        for row in rows
    ]


def page_number(asked: str, pages: int) -> int:
    """The page number that an address names: 1 where it is invalid, the last page where it is too large."""
    return min(int(asked), pages) if re.fullmatch("[1-9][0-9]{0,15}", asked) else 1


def _short(word: str) -> str:
    return f"{word[:_SHOWN_OF_IT]}…" if len(word) > _LONG_WORD else word
