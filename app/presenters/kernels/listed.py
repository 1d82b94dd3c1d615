"""Lists of kernels: filters, rows and pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import tzinfo

from app.presenters.shared import Row, dtypes, moment
from cache_engine.catalogue import named_shapes
from cache_engine.mirror.queries import FACETS, KernelFilter

FACET_LABELS = dict(zip(FACETS, ("Target", "Dtype", "Family", "Compiler", "Layout", "Compiler build"), strict=True))
_LONG_WORD, _SHOWN_OF_IT = 16, 8


def kernel_filter(text: str, chosen: Mapping[str, Sequence[str]]) -> KernelFilter:
    """The filter for a search text, model names included, and the chosen values of each facet."""
    words, shapes = named_shapes(text)
    archs, dtypes, families, compilers, layouts, toolchains = (tuple(chosen.get(facet, ())) for facet in FACETS)
    return KernelFilter(words, archs, dtypes, families, compilers, layouts, toolchains, shapes)


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


def kernel_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Kernels, a row each."""
    return [
        {
            "Key": row["key"][:12],
            "Target": row["arch"],
            "Family": row["family"],
            "Dtype": dtypes(row),
            "Layout": row["layout"],
            "m × n × k": f"{row['m']} × {row['n']} × {row['k']}",
            "Batch": row["batch"],
            "Config": row["config"],
            "Registers": row["registers"],
            "Spills": row["spill_bytes"],
            "Cubin size": row["size_bytes"] / 1024,
            "Compile time": row["compile_ms"],
            "Hits": row["hits"],
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def page_number(asked: str, pages: int) -> int:
    """The page number that an address names: 1 where it is invalid, the last page where it is too large."""
    return min(int(asked), pages) if re.fullmatch("[1-9][0-9]{0,15}", asked) else 1


def picked_keys(before: Iterable[str], shown: Sequence[str], ticked: Collection[int]) -> tuple[str, ...]:
    """The selected kernels, now that these rows of a list are ticked; kernels outside the list stay as they were."""
    now = [key for index, key in enumerate(shown) if index in ticked]
    kept = [key for key in before if key in now or key not in shown]
    return tuple(dict.fromkeys([*kept, *now]))


def _short(word: str) -> str:
    return f"{word[:_SHOWN_OF_IT]}…" if len(word) > _LONG_WORD else word
