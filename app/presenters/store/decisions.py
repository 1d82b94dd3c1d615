"""The log of decisions: what was decided, when, and why in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import tzinfo

from app.presenters.shared import Row, kernel_address, moment
from app.presenters.store.misses import WHY
from cache_engine.model.decision import KINDS, MISS, Decision
from cache_engine.model.key import is_key
from cache_engine.units import counted

_SHAPE = re.compile(r"(?:\d+x)?(\d+)x(\d+)")


def decision_rows(decisions: Iterable[Decision], zone: tzinfo) -> list[Row]:
    """Decisions, a row each."""
    return [
        {
            "When": moment(one.at, zone),
            "Decision": one.kind,
            "Reason": _reason(one),
            "Details": one.detail,
            "Runner-up": one.runner_up,
            "Margin": one.margin,
            "By": one.by,
        }
        for one in decisions
    ]


def logged_rows(decisions: Sequence[Decision], names: Mapping[str, str], zone: tzinfo) -> list[Row]:
    """Decisions on several kernels, a row each, with the kernel and a link to what the log says of it."""
    return [
        {
            "Open": f"{kernel_address(one.key)}&part=History" if is_key(one.key) else None,
            "When": row.pop("When"),
            "Decision": row.pop("Decision"),
            "Kernel": name_of(one, names) or one.key[:12],
            **row,
        }
        for one, row in zip(decisions, decision_rows(decisions, zone), strict=True)
    ]


def logged_file(decisions: Sequence[Decision], names: Mapping[str, str], zone: tzinfo) -> list[Row]:
    """The rows of ``logged_rows`` for a file: with whole keys in place of links."""
    rows = logged_rows(decisions, names, zone)
    for one, row in zip(decisions, rows, strict=True):
        row["Open"] = one.key
    return [{"Key" if name == "Open" else name: value for name, value in row.items()} for row in rows]


def logged_names(decisions: Iterable[Decision]) -> dict[str, str]:
    """Names of kernels by key, from the lines that have one: an eviction has only the key."""
    return {one.key: one.name for one in decisions if one.name}


def name_of(one: Decision, names: Mapping[str, str]) -> str:
    """The name of a decision's kernel, empty where it is not known."""
    return one.name or names.get(one.key, "")


def matching(
    decisions: Iterable[Decision], names: Mapping[str, str], kinds: Collection[str], text: str
) -> list[Decision]:
    """Decisions of some kinds, or of all, that have every word of a text.

    A word is in the kernel's name, starts its key, or is in the reason, the details or who decided. ``4096x7168`` and
    ``64x4096x7168`` also stand for kernels with that n and k.
    """
    words = [(word, _in_names(word)) for word in text.casefold().split()]
    found = [one for one in decisions if not kinds or one.kind in kinds]
    return [one for one in found if _has(one, names, words)] if words else found


def counts_text(decisions: Collection[Decision], damaged: int) -> str:
    """The number of decisions of each kind, the most frequent first."""
    counts = Counter(one.kind if one.kind in KINDS else "another" for one in decisions)
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in counts.most_common())
    skipped = f" {counted(damaged, 'line')} skipped: Integrity says why." if damaged else ""
    return f"{counted(len(decisions), 'decision')}. {kinds}.{skipped}"


def _has(one: Decision, names: Mapping[str, str], words: Iterable[tuple[str, str]]) -> bool:
    text = "\n".join((name_of(one, names), _reason(one), one.detail, one.by)).casefold()
    return all(word in text or one.key.startswith(word) or (shape and shape in text) for word, shape in words)


def _in_names(word: str) -> str:
    """How a name says the n and k of a shape."""
    shape = _SHAPE.fullmatch(word)
    return f"_n{shape[1]}_k{shape[2]}" if shape else ""


def _reason(one: Decision) -> str:
    return WHY[one.reason].lower() if one.kind == MISS and one.reason in WHY else one.reason
