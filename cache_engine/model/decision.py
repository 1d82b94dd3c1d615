"""Decisions of a cache with their reasons, as lines of the log of decisions; finds the causes of misses in the log.

Does not access files: ``store.journal`` writes and reads the lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from cache_engine.model.artifact import Seconds
from cache_engine.model.events import CORRUPT, EVICT, UNPUBLISHED, Event
from cache_engine.model.key import Components

MISS, CHOICE, REFUSAL, EVICTION, QUARANTINE, PIN, UNPIN, PROMOTION, DEMOTION, SPECULATION, PROOF = KINDS = (
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
    "proof",
)
# Why a lookup missed: first the reasons that the store showed at the time, which are in the line;
FORCED, DAMAGED, UNREADABLE, OTHER_FORMAT, OTHER_CONFIG = (
    "forced",
    "damaged",
    "unreadable",
    "another format version",
    "another config",
)
# then the reasons from earlier events, which are found when the log is read.
EVICTED, NOT_STORED, NOT_COMPILED, MISSED_BEFORE, OTHER_TOOLCHAIN, NEVER_SEEN = (
    "evicted",
    "not stored",
    "not compiled",
    "missed before",
    "another toolchain",
    "never seen",
)

_OF_EVENTS = {EVICT: EVICTION, CORRUPT: QUARANTINE, UNPUBLISHED: REFUSAL}
# The components that an upgrade changes in a key. The others are the request.
_OF_TOOLCHAINS = ("schema", "template", "compiler_version", "compiler_build", "environment", "flags")


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A line of the log of decisions.

    Attributes:
        kind: one of ``KINDS``, or a kind that a newer version writes.
        at: the time, in seconds since 1970, UTC.
        key: the key of the entry.
        name: the name of the kernel.
        reason: the reason, a short text that does not change between versions. For a choice of config: what chose it.
        detail: more about the decision, for people.
        runner_up: for a choice, the config that was second best.
        margin: the extra time of the second best as a share of the best one's time: 0.1 is 10 % more. Predicted if the
            cost model chose, measured if timings chose.
        by: who decided: a user, or ``AUTOMATIC``.
        request: for a miss, a digest of the request without the compiler's build.
        toolchain: for a miss, the compiler with its version, and a digest of everything that an upgrade changes.
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
    """The decision that an event of the journal records; ``None`` if it records none."""
    kind = _OF_EVENTS.get(event.kind)
    if kind is None:
        return None
    if kind == REFUSAL:
        return Decision(kind=kind, at=event.at, key=event.key, reason=NOT_STORED, detail=event.detail, by=event.by)
    return Decision(kind=kind, at=event.at, key=event.key, reason=event.detail, by=event.by)


def standing(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """By key, each kernel's last promotion, speculation or demotion that no deletion of the kernel has followed."""
    last: dict[str, Decision] = {}
    for one in decisions:
        if one.kind in (PROMOTION, SPECULATION, DEMOTION):
            last[one.key] = one
        elif one.kind in (EVICTION, QUARANTINE):
            last.pop(one.key, None)
    return last


def request_of(components: Components) -> tuple[str, str]:
    """The values of ``Decision.request`` and ``Decision.toolchain`` for a kernel with these key components."""
    named = dict(components)
    asked = [pair for pair in components if pair[0] not in _OF_TOOLCHAINS]
    made = [(label, named.get(label, "")) for label in _OF_TOOLCHAINS]
    words = f"{named.get('compiler', '')} {named.get('compiler_version', '')}".strip()
    return _digest(asked), f"{words} {_digest(made)[:8]}"


class Causes:
    """Finds the cause of each miss in a log. Give it the lines one by one, oldest first.

    It uses the order of the lines, not their times, because clocks can jump.
    """

    def __init__(self, made_before: Callable[[Decision], str | None] = lambda _: None) -> None:
        """Starts without lines.

        Args:
            made_before: a function called for a miss whose request has no earlier line in the log. Returns the
                toolchain of an entry that was made for this request before the miss; ``None`` if there is none.
        """
        self._made_before = made_before
        self._last: dict[str, Decision] = {}  # by key, the last decision that made an entry or ended one
        self._made: dict[str, str] = {}  # by request, the toolchain of its last miss

    def explained(self, one: Decision) -> Decision:
        """Takes the next line of the log and returns it; a miss is returned with its cause."""
        explained = self._with_cause(one) if one.kind == MISS and not one.reason else one
        if one.kind == MISS:
            self._made[one.request] = one.toolchain
        elif one.reason == NOT_COMPILED and (miss := self._last.get(one.key)) is not None:
            self._made.pop(miss.request, None)  # the miss made no kernel
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
