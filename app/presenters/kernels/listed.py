"""Lists of kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import tzinfo

from app.presenters.shared import Row, dtypes, moment
from cache_engine.catalogue import named_shapes
from cache_engine.mirror.queries import FACETS, KernelFilter

FACET_LABELS = dict(zip(FACETS, ("Target", "Dtype", "Family", "Compiler", "Layout", "Toolchain"), strict=True))
_LONG_WORD, _SHOWN_OF_IT = 16, 8


def kernel_filter(text: str, chosen: Mapping[str, Sequence[str]]) -> KernelFilter:
    """What is looked for: words, models among them, and the values chosen of each facet."""
    words, shapes = named_shapes(text)
    archs, dtypes, families, compilers, layouts, toolchains = (tuple(chosen.get(facet, ())) for facet in FACETS)
    return KernelFilter(words, archs, dtypes, families, compilers, layouts, toolchains, shapes)


def facet_choices(counts: Mapping[str, int], chosen: Iterable[str]) -> dict[str, str]:
    """The values of a facet, each with what to call it: the value, and how many there are. What is chosen stays.

    No two are called the same. Builds of a compiler are long, so words of such length are cut where that is so.
    """
    values = dict.fromkeys((*counts, *chosen))
    short = {value: " ".join(map(_short, value.split(" "))) for value in values}
    alike = Counter(short.values())
    return {
        value: f"{short[value] if alike[short[value]] == 1 else value} ({counts.get(value, 0):,})" for value in values
    }


def kernel_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Kernels as the lists show them."""
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
            "Spilled": row["spill_bytes"],
            "Code": row["size_bytes"] / 1024,
            "Compiled in": row["compile_ms"],
            "Hits": row["hits"],
            "Last used": moment(row["last_used_at"], zone),
        }
        for row in rows
    ]


def page_number(asked: str, pages: int) -> int:
    """Which of so many pages an address asks for: the first if it is none, the last if it is beyond."""
    return min(int(asked), pages) if re.fullmatch("[1-9][0-9]{0,15}", asked) else 1


def picked_keys(before: Iterable[str], shown: Sequence[str], ticked: Collection[int]) -> tuple[str, ...]:
    """The kernels picked, now that these rows of a list are ticked: in it what is ticked, else what was before."""
    now = [key for index, key in enumerate(shown) if index in ticked]
    kept = [key for key in before if key in now or key not in shown]
    return tuple(dict.fromkeys([*kept, *now]))


def _short(word: str) -> str:
    return f"{word[:_SHOWN_OF_IT]}…" if len(word) > _LONG_WORD else word
