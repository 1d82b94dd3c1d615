"""Lists of kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import tzinfo

from app.presenters.shared import Row, dtypes, moment


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


def picked_keys(before: Iterable[str], shown: Sequence[str], ticked: Collection[int]) -> tuple[str, ...]:
    """The kernels picked, now that these rows of a list are ticked: in it what is ticked, else what was before."""
    now = [key for index, key in enumerate(shown) if index in ticked]
    kept = [key for key in before if key in now or key not in shown]
    return tuple(dict.fromkeys([*kept, *now]))
