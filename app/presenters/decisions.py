"""The log: decisions of the cache and acts of people; and the causes of the latest misses with their kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from urllib.parse import urlencode

from app.addresses import tab_address
from app.presenters.columns import Column
from app.presenters.overview import EVENTS
from app.presenters.shared import Row, kernel_address
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
"""For each kind of act, of people or of automatic cleanups, the words that are its kind in the log."""


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


def logged_names(decisions: Iterable[decision.Decision]) -> dict[str, str]:
    """Names of kernels by key, from the decisions that state a name; a decision to evict states only the key."""
    return {one.key: one.name for one in decisions if one.name}


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
    text = "\n".join((one.name or names.get(one.key, ""), _reason(one), one.detail, one.by)).casefold()
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


def miss_table(misses: Iterable[decision.Decision], compile_ms: Mapping[str, float]) -> list[Row]:
    """A row for each cause of misses and each kernel, sorted by the cause's compile time, the longest first.

    Args:
        misses: the misses, the latest first.
        compile_ms: the compile time of each kernel for which it is known.
    """
    costs = _grouped(misses, compile_ms, lambda miss: (miss.reason, miss.detail))
    rows = _grouped(misses, compile_ms, lambda miss: (miss.reason, miss.detail, miss.key))
    first = sorted(rows, key=lambda of: (-(costs[of[:2]]["ms"] or 0.0), of[:2], -(rows[of]["ms"] or 0.0)))
    return [rows[of] for of in first]


def cause_table(misses: Iterable[decision.Decision], compile_ms: Mapping[str, float]) -> list[Row]:
    """A row for each cause of misses, sorted by the compile time that its misses cost, the longest first.

    Args:
        misses, compile_ms: as for ``miss_table``.
    """
    rows = _grouped(misses, compile_ms, lambda miss: (miss.reason,)).values()
    whole = sum(row["ms"] or 0.0 for row in rows)
    return [
        {**row, "share": (row["ms"] or 0.0) / whole if whole else None}
        for row in sorted(rows, key=lambda one: -(one["ms"] or 0.0))
    ]


def _grouped(
    misses: Iterable[decision.Decision],
    compile_ms: Mapping[str, float],
    group: Callable[[decision.Decision], tuple[str, ...]],
) -> dict[tuple[str, ...], Row]:
    """A row for each group of misses: the latest, their number, their kernels, and their cost if any is known."""
    rows: dict[tuple[str, ...], Row] = {}
    for miss in misses:
        row = rows.setdefault(group(miss), {"latest": miss, "misses": 0, "keys": set(), "ms": None})
        row["misses"] += 1
        row["keys"].add(miss.key)
        if miss.key in compile_ms:
            row["ms"] = (row["ms"] or 0.0) + compile_ms[miss.key]
    return rows


def _why(row: Row) -> str:
    """The cause of a row's misses, in words."""
    reason: str = row["latest"].reason
    return WHY.get(reason, reason)


def _logged(row: Row) -> str:
    """The address of the log of decisions, filtered to the misses with a row's cause."""
    return f"storage?{urlencode({**tab_address('Log'), 'kind': decision.MISS, 'about': _why(row).lower()})}"


CAUSES = (
    Column("Why", _logged, "link", _why),
    Column("Misses", "misses", "count"),
    Column("Kernels", lambda row: len(row["keys"]), "count"),
    Column("Cost", "ms", "ms"),
    Column("Share of cost", "share", "share"),
    Column("Last", lambda row: row["latest"].at, "age"),
)
"""The columns of the rows of ``cause_table``."""


def miss_columns(titles: Mapping[str, str], nearest: Mapping[str, tuple[str, Sequence[str]]]) -> list[Column]:
    """The columns of the rows of ``miss_table``.

    Args:
        titles: the titles of kernels by key.
        nearest: for each kernel, the key of the nearest kernel that was stored before, and the names of the components
            in which that differs.
    """

    def named(row: Row) -> str:
        miss = row["latest"]
        return titles.get(miss.key) or miss.name or str(miss.key[:12])

    def comparison(row: Row) -> str | None:
        key = row["latest"].key
        return f"compare?{urlencode({'a': nearest[key][0], 'b': key})}" if key in nearest else None

    def differences(row: Row) -> str:
        key = row["latest"].key
        return ", ".join(nearest[key][1]) or "m or epilogue" if key in nearest else ""

    return [
        Column("Kernel", lambda row: f"{kernel_address(row['latest'].key)}&part=History", "link", named),
        Column("Why", _why),
        Column("What happened", lambda row: row["latest"].detail),
        *(column for column in CAUSES if column.name in ("Misses", "Cost", "Last")),
        Column("Nearest", comparison, "link", words="compare"),
        Column("Nearest kernel differs in", differences),
        Column("Key", lambda row: row["latest"].key),
    ]
