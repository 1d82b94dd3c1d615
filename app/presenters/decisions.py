"""The log: decisions of the cache and acts of people; and the causes of the latest misses with their kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import tzinfo
from operator import itemgetter
from urllib.parse import urlencode

from app.addresses import tab_address
from app.presenters.columns import Column, rows_of
from app.presenters.overview import EVENTS
from app.presenters.shared import Row, kernel_address, moment
from cache_engine.model import decision
from cache_engine.model.events import ACTS, SET_ASIDE
from cache_engine.model.key import is_key
from cache_engine.units import counted, human_bytes

_SHAPE = re.compile(r"(?:\d+x)?(\d+)x(\d+)")


DECISIONS = (
    Column("When", "at", "age"),
    Column("Decision", "kind"),
    Column("Reason", lambda one: _reason(one)),
    Column("Details", "detail"),
    Column("Runner-up", "runner_up"),
    Column("Margin", "margin", "share"),
    Column("By", "by"),
)


ACTED = {kind: EVENTS[kind] for kind in (*ACTS, SET_ASIDE)}
"""The kinds of acts of people and of automatic cleanups in the log, each with its words, which are its kind there."""


def acted(event: Row) -> decision.Decision:
    """An event of the index about an act, as an entry of the log."""
    size = human_bytes(event["stored_bytes"]) if event["stored_bytes"] else ""
    detail = ", ".join(filter(None, (event["detail"], size)))
    at, by = event["happened_at"] or 0.0, event["done_by"] or "unknown"
    return decision.Decision(kind=ACTED[event["kind"]], at=at, key=event["key"], detail=detail, by=by)


def logged_columns(names: Mapping[str, str]) -> list[Column]:
    """The columns of decisions on several kernels: each kernel is a link to all decisions about that kernel.

    Args:
        names: the names of kernels, by key.
    """
    when, kind, *others = DECISIONS
    kernel = Column(
        "Kernel",
        lambda one: f"{kernel_address(one.key)}&part=History" if is_key(one.key) else None,
        "link",
        lambda one: names.get(one.key) or one.name or one.key[:12],
    )
    return [when, Column("What", kind.of), kernel, *others]


def logged_file(decisions: Sequence[decision.Decision], names: Mapping[str, str], zone: tzinfo) -> list[Row]:
    """The decisions as rows for a file: the columns of ``logged_columns``, and the whole keys."""
    return rows_of(decisions, [Column("Key", "key"), *logged_columns(names)], zone)


def logged_names(decisions: Iterable[decision.Decision]) -> dict[str, str]:
    """Names of kernels by key, from the decisions that state a name; a decision to evict states only the key."""
    return {one.key: one.name for one in decisions if one.name}


def name_of(one: decision.Decision, names: Mapping[str, str]) -> str:
    """The name of a decision's kernel, empty where it is not known."""
    return one.name or names.get(one.key, "")


def matching(
    decisions: Iterable[decision.Decision], names: Mapping[str, str], kinds: Collection[str], text: str
) -> list[decision.Decision]:
    """Decisions of some kinds, or of all, that have every word of a text.

    A decision has a word if its kernel's name, its reason, its details or the name of who decided contains the word, or
    if its kernel's key begins with the word. ``4096x7168`` and ``64x4096x7168`` also find kernels with that n and k.
    """
    words = [(word, _in_names(word)) for word in text.casefold().split()]
    found = [one for one in decisions if not kinds or one.kind in kinds]
    return [one for one in found if _has(one, names, words)] if words else found


def counts_text(decisions: Collection[decision.Decision], damaged: int) -> str:
    """The number of entries of each kind, the most frequent first."""
    known = {*decision.KINDS, *ACTED.values()}
    counts = Counter(one.kind if one.kind in known else "another" for one in decisions)
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in counts.most_common())
    skipped = f" {counted(damaged, 'line')} skipped: Integrity says why." if damaged else ""
    return f"{counted(len(decisions), 'entry', 'entries')}. {kinds}.{skipped}"


def _has(one: decision.Decision, names: Mapping[str, str], words: Iterable[tuple[str, str]]) -> bool:
    text = "\n".join((name_of(one, names), _reason(one), one.detail, one.by)).casefold()
    return all(word in text or one.key.startswith(word) or (shape and shape in text) for word, shape in words)


def _in_names(word: str) -> str:
    """The n and k of a shape as the names of kernels contain them: ``_n4096_k7168``."""
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
    """A row for each cause of misses and each kernel, sorted by the cause's compile time, the longest first.

    Args:
        misses: the misses, the latest first.
        compile_ms: the compile time of each kernel for which it is known.
        nearest: for each kernel, the key of the nearest kernel that was stored before, and the names of the components
            in which that differs.
        most: the largest number of rows.
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


def cause_table(misses: Iterable[decision.Decision], compile_ms: Mapping[str, float]) -> list[Row]:
    """A row for each cause of misses, sorted by the compile time that its misses cost, the longest first.

    Args:
        misses: the misses, the latest first.
        compile_ms: the compile time of each kernel for which it is known.
    """
    rows: dict[str, Row] = {}
    for miss in misses:
        row = rows.setdefault(
            miss.reason, {"reason": miss.reason, "misses": 0, "keys": set(), "ms": 0.0, "last": miss.at}
        )
        row["misses"] += 1
        row["keys"].add(miss.key)
        row["ms"] += compile_ms.get(miss.key, 0.0)
    whole = sum(row["ms"] for row in rows.values())
    return [
        {**row, "share": row["ms"] / whole if whole else None}
        for row in sorted(rows.values(), key=lambda one: -one["ms"])
    ]


def _logged(row: Row) -> str:
    """The address of the log of decisions, filtered to the misses with a row's cause."""
    about = str(WHY.get(row["reason"], row["reason"])).lower()
    return f"storage?{urlencode({**tab_address('Log'), 'kind': decision.MISS, 'about': about})}"


CAUSES = (
    Column("Why", _logged, "link", lambda row: WHY.get(row["reason"], row["reason"])),
    Column("Misses", "misses", "count"),
    Column("Kernels", lambda row: len(row["keys"]), "count"),
    Column("Cost", "ms", "ms"),
    Column("Share of cost", "share", "share"),
    Column("Last", "last", "age"),
)
"""The columns of the rows of ``cause_table``."""
MISSES = (
    Column("Kernel", "Open", "link", itemgetter("Kernel")),
    Column("Why", "Why"),
    Column("What happened", "What happened"),
    Column("Misses", "Misses", "count"),
    Column("Cost", "Cost", "ms"),
    Column("Last", "Last", "age"),
    Column("Nearest", "Nearest", "link", words="compare"),
    Column("Nearest kernel differs in", "Nearest kernel differs in"),
    Column("Key", "Key"),
)
"""The columns of the rows of ``miss_table``."""
