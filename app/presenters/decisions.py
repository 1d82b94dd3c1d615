"""The log of decisions, and why lookups missed lately: the cause first, then the kernels that it cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.columns import Column, rows_of
from app.presenters.shared import Row, kernel_address, moment
from cache_engine.model import decision
from cache_engine.model.key import is_key
from cache_engine.units import counted, human_ms

_SHAPE = re.compile(r"(?:\d+x)?(\d+)x(\d+)")


DECISIONS = (
    Column("When", "at", "when"),
    Column("Decision", "kind"),
    Column("Reason", lambda one: _reason(one)),
    Column("Details", "detail"),
    Column("Runner-up", "runner_up"),
    Column("Margin", "margin", "share"),
    Column("By", "by"),
)


def logged_columns(names: Mapping[str, str]) -> list[Column]:
    """The columns of decisions on several kernels, with the kernel and a link to what the log says of it."""
    when, kind, *others = DECISIONS
    return [
        Column("Open", lambda one: f"{kernel_address(one.key)}&part=History" if is_key(one.key) else None, "link"),
        when,
        kind,
        Column("Kernel", lambda one: name_of(one, names) or one.key[:12]),
        *others,
    ]


def logged_file(decisions: Sequence[decision.Decision], names: Mapping[str, str], zone: tzinfo) -> list[Row]:
    """The same rows for a file: with whole keys in place of links."""
    return rows_of(decisions, [Column("Key", "key"), *logged_columns(names)[1:]], zone)


def logged_names(decisions: Iterable[decision.Decision]) -> dict[str, str]:
    """Names of kernels by key, from the lines that have one: an eviction has only the key."""
    return {one.key: one.name for one in decisions if one.name}


def name_of(one: decision.Decision, names: Mapping[str, str]) -> str:
    """The name of a decision's kernel, empty where it is not known."""
    return one.name or names.get(one.key, "")


def matching(
    decisions: Iterable[decision.Decision], names: Mapping[str, str], kinds: Collection[str], text: str
) -> list[decision.Decision]:
    """Decisions of some kinds, or of all, that have every word of a text.

    A word is in the kernel's name, starts its key, or is in the reason, the details or who decided. ``4096x7168`` and
    ``64x4096x7168`` also stand for kernels with that n and k.
    """
    words = [(word, _in_names(word)) for word in text.casefold().split()]
    found = [one for one in decisions if not kinds or one.kind in kinds]
    return [one for one in found if _has(one, names, words)] if words else found


def counts_text(decisions: Collection[decision.Decision], damaged: int) -> str:
    """The number of decisions of each kind, the most frequent first."""
    counts = Counter(one.kind if one.kind in decision.KINDS else "another" for one in decisions)
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in counts.most_common())
    skipped = f" {counted(damaged, 'line')} skipped: Integrity says why." if damaged else ""
    return f"{counted(len(decisions), 'decision')}. {kinds}.{skipped}"


def _has(one: decision.Decision, names: Mapping[str, str], words: Iterable[tuple[str, str]]) -> bool:
    text = "\n".join((name_of(one, names), _reason(one), one.detail, one.by)).casefold()
    return all(word in text or one.key.startswith(word) or (shape and shape in text) for word, shape in words)


def _in_names(word: str) -> str:
    """The n and k of a shape as names have them."""
    shape = _SHAPE.fullmatch(word)
    return f"_n{shape[1]}_k{shape[2]}" if shape else ""


def _reason(one: decision.Decision) -> str:
    return WHY[one.reason].lower() if one.kind == decision.MISS and one.reason in WHY else one.reason


# A reason that a newer version writes is shown as it is.
WHY = {
    decision.EVICTED: "Evicted before",
    decision.DAMAGED: "Damaged and quarantined",
    decision.NOT_STORED: "Could not be stored before",
    decision.NOT_COMPILED: "Could not be compiled before",
    decision.OTHER_TOOLCHAIN: "Another toolchain",
    decision.OTHER_CONFIG: "Another config was chosen since",
    decision.OTHER_FORMAT: "Another format version",
    decision.UNREADABLE: "Its record cannot be read",
    decision.MISSED_BEFORE: "Missed before",
    decision.FORCED: "Compiled again on request",
    decision.NEVER_SEEN: "Not in the log before",
}


def miss_table(
    misses: Sequence[decision.Decision],
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
        near = nearest.get(miss.key)
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
                "Nearest": f"compare?{urlencode({'a': near[0], 'b': miss.key})}" if near else None,
                "Nearest kernel differs in": (", ".join(near[1]) or "m or epilogue") if near else "",
                "Key": miss.key,
            },
        )
        row["Misses"] += 1
        if miss.key in compile_ms:
            row["Cost"] = (row["Cost"] or 0.0) + compile_ms[miss.key]
    first = sorted(rows.items(), key=lambda item: (-costs[item[0][:2]], item[0][:2], -(item[1]["Cost"] or 0.0)))
    return [row for _, row in first[:most]]


def miss_words(misses: Sequence[decision.Decision], compile_ms: Mapping[str, float]) -> str:
    """The number of misses and their cost, by cause."""
    counts: dict[str, int] = {}
    for miss in misses:
        words = WHY.get(miss.reason, "Another cause")
        counts[words] = counts.get(words, 0) + 1
    cost = human_ms(sum(compile_ms.get(miss.key, 0.0) for miss in misses))
    causes = ", ".join(
        f"{words.lower()}: {count:,}" for words, count in sorted(counts.items(), key=lambda one: -one[1])
    )
    return f"{counted(len(misses), 'miss', 'misses')}, which cost {cost} of compiling. By cause: {causes}."


MISSES = (
    Column("Why", "Why"),
    Column("What happened", "What happened"),
    Column("Misses", "Misses", "count"),
    Column("Cost", "Cost", "ms"),
    Column("Last", "Last", "age"),
    Column("Open", "Open", "link"),
    Column("Kernel", "Kernel"),
    Column("Nearest", "Nearest", "link", words="compare"),
    Column("Nearest kernel differs in", "Nearest kernel differs in"),
    Column("Key", "Key"),
)
"""The columns of the rows of ``miss_table``."""
