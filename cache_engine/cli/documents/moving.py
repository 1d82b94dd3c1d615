"""Documents of kernels that move between stores, packs and remotes, and of who signed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cache.remote.base import without_query
from cache_engine.cli.documents import filled
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP, Event, Tally
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.cache.remote.moving import Compared, Pushed
    from cache_engine.team.submitting import Farmed
    from cache_engine.upkeep.packs import Imported


class RemoteReport(msgspec.Struct, kw_only=True):
    """What ``remote status`` prints.

    Attributes:
        there, there_bytes: entries of the remote. only_here, only_there: entries that the other lacks.
        others: objects in the remote's folder that are no entries.
        mode: the setting ``remote_mode``.
        hits, failures: of lookups of this store's processes in any remote. sent, dropped: what they compiled.
        down_at, down_why: when a process last stopped asking this remote, in seconds since 1970, and why; up_at: when
            one last asked it again after that. 0 is never, as far as the journal knows.
        is_used: whether lookups ask this remote: the setting ``remote`` names it.
        held_until: until when processes that start do not ask this remote at first, as it has just failed another; 0
            where they ask.
    """

    url: str
    there: int
    there_bytes: int
    both: int
    only_here: int
    only_there: int
    others: int
    mode: str
    hits: int
    failures: int
    sent: int
    dropped: int
    down_at: float
    down_why: str
    up_at: float
    is_used: bool = False
    held_until: float = 0.0


class PushReport(msgspec.Struct, kw_only=True):
    """What ``remote push`` prints; ``present`` counts those that the remote had already."""

    url: str
    sent: int
    sent_bytes: int
    present: int
    refused: Sequence[Refused]


class PullReport(msgspec.Struct, kw_only=True):
    """What ``remote pull`` prints; ``present`` counts those that the store had already."""

    url: str
    dry_run: bool
    taken: int
    taken_bytes: int
    present: int
    refused: Sequence[Refused]


class RemoteVerifyReport(msgspec.Struct, kw_only=True):
    """What ``remote verify`` prints.

    Attributes:
        there: entries of the remote. checked: those of the sample. code_bytes: compiled code of those that are sound.
        refused: those that may not be served, each with the reason.
        rebuilt: how many were compiled again to the same bytes; not_rebuilt: how many could not be compiled here.
    """

    url: str
    there: int
    checked: int
    code_bytes: int
    refused: list[Refused]
    rebuilt: int
    not_rebuilt: int


class RemoteGcReport(msgspec.Struct, kw_only=True):
    """What ``remote gc`` prints; ``keys`` are those deleted, or that would be, the oldest first."""

    url: str
    dry_run: bool
    deleted: int
    deleted_bytes: int
    left: int
    left_bytes: int
    keys: list[str]


class FarmReport(msgspec.Struct, kw_only=True):
    """What ``farm compile`` prints.

    Attributes:
        kernels: that the model needs. present: those that the remote had before.
        compiled, found: those that workers compiled for this, and that came to the remote otherwise.
        workers: processes that answered. resent: messages that were sent again, as the broker had lost them.
        canceled: how many were left when the run was canceled from elsewhere.
    """

    url: str
    kernels: int
    present: int
    compiled: int
    found: int
    failed: list[Refused]
    workers: list[str]
    resent: int
    seconds: float
    canceled: int = 0


def remote_state(
    url: str, found: Compared, mode: str, tally: Tally, used: str | None, held_until: float = 0.0
) -> RemoteReport:
    """The document of a store and a remote side by side, and of what lookups did, by the store's journal.

    Args:
        used: the remote that lookups ask, if they ask one.
        held_until: until when processes that start do not ask it at first.
    """
    is_used = used is not None and without_query(used) == without_query(url)

    def last(kind: str) -> Event | None:
        # Events of older versions do not say which remote.
        its = (without_query(url), "") if is_used else (without_query(url),)
        return next((event for event in tally.recent if event.kind == kind and event.remote in its), None)

    down, up = last(REMOTE_DOWN), last(REMOTE_UP)
    if up is not None and down is not None and up.at < down.at:
        up = None
    totals = tally.totals
    return RemoteReport(
        url=url,
        there=found.both + len(found.there),
        there_bytes=found.there_bytes,
        both=found.both,
        only_here=len(found.here),
        only_there=len(found.there),
        others=found.others,
        mode=mode,
        hits=totals.hits.get(REMOTE, 0),
        failures=totals.failures.get(REMOTE, 0),
        sent=totals.remote_sent,
        dropped=totals.remote_dropped,
        down_at=down.at if down else 0.0,
        down_why=down.detail if down else "",
        up_at=up.at if up else 0.0,
        is_used=is_used,
        held_until=held_until,
    )


def pushed(url: str, found: Pushed, present: int) -> PushReport:
    """The document of a push; ``present`` are those that were not even offered."""
    return filled(PushReport, found, url=url, present=found.present + present)


def farmed(url: str, kernels: int, done: Farmed, seconds: float) -> FarmReport:
    """The document of a table that a farm compiled."""
    return FarmReport(
        url=url,
        kernels=kernels,
        present=done.present,
        compiled=done.compiled,
        found=done.found,
        failed=[Refused(key, why) for key, why in sorted(done.failed.items())],
        workers=sorted(done.workers),
        resent=done.resent,
        seconds=seconds,
        canceled=done.canceled,
    )


def pulled(url: str, found: Imported, present: int, *, dry_run: bool) -> PullReport:
    """The document of a pull; ``present`` are those that were not even asked for."""
    return filled(PullReport, found, url=url, dry_run=dry_run, present=found.present + present)
