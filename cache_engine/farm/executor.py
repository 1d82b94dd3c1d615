"""What every engine that carries work to a farm does, and what became of a table of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cache_engine.engine.selection import Selection
from cache_engine.errors import UsageError
from cache_engine.farm.board import Run
from cache_engine.farm.messages import Answered, answered
from cache_engine.model.key import CacheKey
from cache_engine.remote.base import Remote
from cache_engine.remote.entries import FOLDER, key_in

GIVE_UP_S = 600.0
"""How long a broker or a scheduler may be away."""


@dataclass(slots=True)
class Farmed:
    """What became of a table.

    Attributes:
        present: kernels that the remote had before.
        compiled: those that workers compiled for this, and
        found: those that came to the remote otherwise meanwhile.
        failed: why others could not be made, by key.
        workers: processes that answered.
        resent: messages that were sent again, as the broker had lost them.
        canceled: how many kernels were left when the run was canceled from elsewhere, as on the page Farm.
    """

    present: int
    compiled: int = 0
    found: int = 0
    failed: dict[CacheKey, str] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    resent: int = 0
    canceled: int = 0


class Watched(Protocol):
    """Where a run is seen, and the farm's size."""

    def now(self) -> float:
        """The time by which runs begin, in seconds since 1970."""
        ...

    def follows(self, job: str, run: Run, /) -> int:
        """Says how far a run is; returns how many processes the workers have, 0 where that is not known."""
        ...


class Executor(Protocol):
    """One run of a farm: ``job`` names it, ``board`` is where it is seen."""

    job: str
    board: Watched

    def run(
        self,
        selections: Sequence[Selection],
        on_left: Callable[[int], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> Farmed:
        """Has the remote have these kernels.

        Args:
            on_left: called with how many the remote lacks, first for all that it has from before.
            on_trouble: called with what keeps work from going on, in words.

        Raises:
            RemoteError: when the remote does not answer, or the engine for ten minutes.
        """
        ...

    def cancel(self) -> int:
        """Withdraws what no worker has begun.

        Returns:
            How many kernels were withdrawn.

        Raises:
            RemoteError: when the engine does not answer.
        """
        ...


def keys_there(remote: Remote) -> set[CacheKey]:
    """What a remote has, which alone says what is done; raises ``RemoteError``."""
    return {key for name, _ in remote.sizes(FOLDER) if (key := key_in(name)) is not None}


def read_answer(text: object) -> Answered | None:
    """An answer; ``None`` for what is none, since a broker may hold anything."""
    try:
        return answered(text)
    except UsageError:
        return None
