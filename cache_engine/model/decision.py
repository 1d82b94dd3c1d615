"""Decisions of a cache, and their reasons: the lines of the log, and the causes of misses that they tell.

Pure. ``store.journal`` writes and reads the lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from cache_engine.model.artifact import Seconds
from cache_engine.model.events import CORRUPT, EVICT, UNPUBLISHED, Event
from cache_engine.model.key import Components

MISS, CHOICE, REFUSAL, EVICTION, QUARANTINE, PIN, UNPIN, PROMOTION, DEMOTION, SPECULATION = KINDS = (
    "miss",
    "choice",
    "refusal",
    "eviction",
    "quarantine",
    "pin",
    "unpin",
    "promotion",
    "demotion",
    "speculation",
)
# Why a lookup missed. What the store showed at the time is in the line;
FORCED, DAMAGED, UNREADABLE, OTHER_FORMAT, OTHER_CONFIG = (
    "forced",
    "damaged",
    "unreadable",
    "another format version",
    "another config",
)
# what happened before is found when the log is read.
EVICTED, NOT_STORED, NOT_COMPILED, MISSED_BEFORE, OTHER_TOOLCHAIN, NEVER_SEEN = (
    "evicted",
    "not stored",
    "not compiled",
    "missed before",
    "another toolchain",
    "never seen",
)

_OF_EVENTS = {EVICT: EVICTION, CORRUPT: QUARANTINE, UNPUBLISHED: REFUSAL}
# What an upgrade changes in a key. The rest says what was asked for.
_OF_TOOLCHAINS = ("schema", "template", "compiler_version", "compiler_build", "environment", "flags")


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """One line of the log.

    Attributes:
        kind: one of ``KINDS``, or one that a newer version writes.
        at: seconds since 1970, UTC.
        key: the entry concerned.
        name: the kernel's.
        reason: why, in few words that stay the same between versions. Of a choice: what chose.
        detail: more about it, for people.
        runner_up: of a choice, the config that came second.
        margin: by how much more time the second takes than the first, as a share: 0.1 is a tenth more. Predicted where
            the cost model chose, measured where timings did.
        by: who decided it: a user, or ``AUTOMATIC``.
        request: of a miss, a digest of what was asked for, whatever compiler makes it.
        toolchain: of a miss, what would make it: the compiler with its version, and a digest of all that an upgrade
            changes.
    """

    kind: str
    at: Seconds
    key: str = ""
    name: str = ""
    reason: str = ""
    detail: str = ""
    runner_up: str = ""
    margin: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    by: str = ""
    request: str = ""
    toolchain: str = ""


def decision_of(event: Event) -> Decision | None:
    """The decision in an event of the journal; ``None`` for an event that is no decision."""
    kind = _OF_EVENTS.get(event.kind)
    if kind is None:
        return None
    if kind == REFUSAL:
        return Decision(kind=kind, at=event.at, key=event.key, reason=NOT_STORED, detail=event.detail, by=event.by)
    return Decision(kind=kind, at=event.at, key=event.key, reason=event.detail, by=event.by)


def standing(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """By key, the last promotion, speculation or demotion of each kernel that has not gone since; the oldest first."""
    last: dict[str, Decision] = {}
    for one in decisions:
        if one.kind in (PROMOTION, SPECULATION, DEMOTION):
            last[one.key] = one
        elif one.kind in (EVICTION, QUARANTINE):
            last.pop(one.key, None)
    return last


def request_of(components: Components) -> tuple[str, str]:
    """``request`` and ``toolchain`` of a kernel whose key is hashed from these components."""
    named = dict(components)
    asked = [pair for pair in components if pair[0] not in _OF_TOOLCHAINS]
    made = [(label, named.get(label, "")) for label in _OF_TOOLCHAINS]
    words = f"{named.get('compiler', '')} {named.get('compiler_version', '')}".strip()
    return _digest(asked), f"{words} {_digest(made)[:8]}"


class Causes:
    """Finds the cause of each miss of a log, given line by line, the oldest first.

    The order of the lines counts, not their times: clocks jump.
    """

    def __init__(self, made_before: Callable[[Decision], str | None] = lambda _: None) -> None:
        """Knows nothing yet.

        Args:
            made_before: the toolchain of an entry that had been made for the request of a miss by then, where the log
                does not go back that far.
        """
        self._made_before = made_before
        self._last: dict[str, Decision] = {}  # by key, of what makes an entry or ends one
        self._made: dict[str, str] = {}  # by request, the toolchain that missed last

    def explained(self, one: Decision) -> Decision:
        """The next line of the log; a miss with its cause."""
        explained = self._with_cause(one) if one.kind == MISS and not one.reason else one
        if one.kind == MISS:
            self._made[one.request] = one.toolchain
        elif one.reason == NOT_COMPILED and (miss := self._last.get(one.key)) is not None:
            self._made.pop(miss.request, None)  # it made nothing
        if one.key and one.kind in (MISS, EVICTION, QUARANTINE, REFUSAL):
            self._last[one.key] = one
        return explained

    def _with_cause(self, miss: Decision) -> Decision:
        before = self._last.get(miss.key)
        reason, detail, by = NEVER_SEEN, "", ""
        if before is None:
            toolchain = self._made.get(miss.request) or self._made_before(miss)
            if toolchain is not None and toolchain != miss.toolchain:
                reason, detail = OTHER_TOOLCHAIN, f"made by {toolchain}, asked for from {miss.toolchain}"
        elif before.kind == EVICTION:
            reason, detail, by = EVICTED, before.reason, before.by
        elif before.kind == QUARANTINE:
            reason, detail = DAMAGED, before.reason
        elif before.kind == REFUSAL:
            reason, detail = before.reason, before.detail
        else:
            reason, detail = MISSED_BEFORE, "the log does not say whether it was stored then, or where it went"
        return msgspec.structs.replace(miss, reason=reason, detail=detail, by=by)


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256(repr([tuple(pair) for pair in pairs]).encode()).hexdigest()[:16]
