"""The document of the compile queue, a part of ``stats``."""

from __future__ import annotations

import msgspec

from cache_engine.queue.tickets import QueueState


class TurnRow(msgspec.Struct, kw_only=True):
    """A compile, or a wait for one; ``seconds`` is for how long, ``priority`` such as ``caller`` or ``warm``."""

    state: str
    priority: str
    key: str
    pid: int
    seconds: float


class Queue(msgspec.Struct, kw_only=True):
    """Who compiles and who waits now; see ``queue.tickets.QueueState``."""

    slots: int
    compiling: list[TurnRow]
    queued: list[TurnRow]
    waiting: list[TurnRow]


def queue_of(found: QueueState) -> Queue:
    """The document of the queue at one moment."""
    compiling, queued, waiting = (
        [
            TurnRow(
                state=turn.state, priority=turn.priority.name.lower(), key=turn.key, pid=turn.pid, seconds=turn.seconds
            )
            for turn in turns
        ]
        for turns in (found.compiling, found.queued, found.waiting)
    )
    return Queue(slots=found.slots, compiling=compiling, queued=queued, waiting=waiting)
