"""Why lookups missed lately: the cause first, then the kernels that it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.shared import Row, kernel_address, moment
from cache_engine.model.decision import (
    DAMAGED,
    EVICTED,
    FORCED,
    MISSED_BEFORE,
    NEVER_SEEN,
    NOT_COMPILED,
    NOT_STORED,
    OTHER_CONFIG,
    OTHER_FORMAT,
    OTHER_TOOLCHAIN,
    UNREADABLE,
    Decision,
)
from cache_engine.units import counted, human_ms

# A reason that a newer version writes is shown as it is.
WHY = {
    EVICTED: "Evicted before",
    DAMAGED: "Damaged and quarantined",
    NOT_STORED: "Could not be stored before",
    NOT_COMPILED: "Could not be compiled before",
    OTHER_TOOLCHAIN: "Another toolchain",
    OTHER_CONFIG: "Another config was chosen since",
    OTHER_FORMAT: "Another format version",
    UNREADABLE: "Its record cannot be read",
    MISSED_BEFORE: "Missed before",
    FORCED: "Compiled again on request",
    NEVER_SEEN: "Not in the log before",
}


def miss_table(
    misses: Sequence[Decision],
    compile_ms: Mapping[str, float],
    nearest: Mapping[str, tuple[str, Sequence[str]]],
    zone: tzinfo,
    most: int,
) -> list[Row]:
    """A row for each cause and kernel: those of the cause that cost the most first.

    Args:
        misses: the latest first.
        compile_ms: how long compiling took, of the kernels for which that is known.
        nearest: of kernels, the nearest that was stored before, and what that differs in.
        most: rows.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    costs: dict[tuple[str, str], float] = {}
    for miss in misses:
        cause = miss.reason, miss.detail
        costs[cause] = costs.get(cause, 0.0) + compile_ms.get(miss.key, 0.0)
        row = rows.setdefault(
            (*cause, miss.key),
            {
                "Why": WHY.get(miss.reason, miss.reason),
                "What happened": miss.detail,
                "Misses": 0,
                "Cost": None,
                "Last": moment(miss.at, zone),
                "Open": f"{kernel_address(miss.key)}&part=History",
                "Kernel": miss.name or miss.key[:12],
                "Nearest": _comparison(nearest.get(miss.key), miss.key),
                "Nearest kernel differs in": _differing(nearest.get(miss.key)),
                "Key": miss.key,
            },
        )
        row["Misses"] += 1
        if miss.key in compile_ms:
            row["Cost"] = (row["Cost"] or 0.0) + compile_ms[miss.key]
    first = sorted(rows.items(), key=lambda item: (-costs[item[0][:2]], item[0][:2], -(item[1]["Cost"] or 0.0)))
    return [row for _, row in first[:most]]


def _differing(near: tuple[str, Sequence[str]] | None) -> str:
    return "" if near is None else ", ".join(near[1]) or "m or epilogue"


def _comparison(near: tuple[str, Sequence[str]] | None, key: str) -> str | None:
    return None if near is None else f"compare?{urlencode({'a': near[0], 'b': key})}"


def miss_words(misses: Sequence[Decision], compile_ms: Mapping[str, float]) -> str:
    """How many misses there were, and what they cost, by cause."""
    counts: dict[str, int] = {}
    for miss in misses:
        words = WHY.get(miss.reason, "Another cause")
        counts[words] = counts.get(words, 0) + 1
    cost = human_ms(sum(compile_ms.get(miss.key, 0.0) for miss in misses))
    causes = ", ".join(
        f"{words.lower()}: {count:,}" for words, count in sorted(counts.items(), key=lambda one: -one[1])
    )
    return f"{counted(len(misses), 'miss', 'misses')}, which cost {cost} of compiling. By cause: {causes}."
