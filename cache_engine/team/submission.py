"""Sends a table of kernels to a farm and follows it until the remote has them all, even if processes die."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cache_engine.cache.remote.base import FOLDER, Remote, key_in
from cache_engine.cache.selection import Selection
from cache_engine.errors import RemoteError, UsageError
from cache_engine.model.key import CacheKey
from cache_engine.team.board import Board
from cache_engine.team.broker import Answered, Broker, CompileMessage, Keys, answered, encode
from cache_engine.units import counted

_T = TypeVar("_T")

GIVE_UP_S = 600.0
"""Seconds after which a run gives up, if the broker does not answer."""
MOST_SENT = 10
"""The most times that a kernel is requested, if workers die while compiling it or wrongly say that the remote has it.
"""
_POLL_S = 0.5
_QUIET_S, _LONG_S = 3.0, 48.0
"""Seconds without an answer after which the remote and the broker are asked about the other kernels. The wait doubles
each time, from the first number to the second.
"""


@dataclass(slots=True)
class Farmed:
    """The result of a run.

    Attributes:
        present: the number of kernels that the remote had before the run.
        compiled: the number of kernels that workers compiled for this run.
        found: the number of kernels that came to the remote during the run in other ways.
        failed: by key, the reason for each kernel that could not be made.
        workers: the processes of workers that answered, each as ``HOST:PID``.
        resent: the number of messages that were sent again, because the broker or a worker had lost them.
        canceled: the number of kernels left when the run was cancelled by someone else, for example on the page Farm.
    """

    present: int
    compiled: int = 0
    found: int = 0
    failed: dict[CacheKey, str] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    resent: int = 0
    canceled: int = 0


def keys_there(remote: Remote) -> set[CacheKey]:
    """The keys of the kernels in a remote; a kernel of a run is done once its key is among them.

    Raises ``RemoteError``.
    """
    return {key for name, _ in remote.sizes(FOLDER) if (key := key_in(name)) is not None}


class Submission:
    """One run of a farm. ``job`` is its name; ``board`` shows its progress."""

    def __init__(self, broker: str, remote: Remote) -> None:
        """Sends no message yet; raises as ``broker.connected``."""
        keys = Keys.of(remote.url)
        self._broker, self._remote, self.job = Broker(broker, keys), remote, secrets.token_hex(16)
        self.board = Board(broker, keys)
        self._wanted: dict[CacheKey, Selection] = {}
        self._answers: dict[CacheKey, Answered] = {}
        self._sent = Counter[CacheKey]()

    def run(
        self,
        selections: Sequence[Selection],
        on_left: Callable[[int], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> Farmed:
        """Sends requests for the kernels, and waits until the remote has them.

        Args:
            on_left: called with the number of kernels that the remote lacks; the first call is before any
                kernel is requested.
            on_trouble: called with a sentence about the reason why the run cannot go on.

        Raises:
            RemoteError: when the remote does not answer, or the broker for ten minutes.
        """
        self._wanted = {one.key: one for one in selections}
        there = before = keys_there(self._remote)
        left = {key for key in self._wanted if key not in before}
        on_left(len(left))
        self._send([key for key in self._wanted if key in left], on_trouble)
        quiet_s, heard = _QUIET_S, time.monotonic()
        while left:
            if answered_now := self._hear(left, on_trouble):
                left -= answered_now
                quiet_s, heard = _QUIET_S, time.monotonic()
            is_quiet = time.monotonic() - heard > quiet_s
            if is_quiet and self._patiently(lambda: self._broker.is_canceled(self.job), on_trouble):
                self._patiently(self.cancel, on_trouble)
                break
            if is_quiet or not left:
                there = keys_there(self._remote)
                left = self._lacking(there, on_trouble)
                quiet_s, heard = min(2 * quiet_s, _LONG_S), time.monotonic()
            on_left(len(left))
        if quiet := {key for key in self._wanted if key in there and key not in before and key not in self._answers}:
            self._hear(quiet, on_trouble)  # an answer comes just after its kernel
        return self._sum(before, there, canceled=len(left))

    def cancel(self) -> int:
        """Withdraws the requests that no worker has taken, and tells workers to drop those taken but not begun.

        Returns:
            The number of messages withdrawn.

        Raises:
            RemoteError: when the broker does not answer.
        """
        self._broker.cancel(self.job)
        return self._broker.withdraw(self.job)

    def _hear(self, awaited: set[CacheKey], on_trouble: Callable[[str], None]) -> set[CacheKey]:
        """Waits for workers' answers; returns those of ``awaited`` that were answered."""
        texts = self._patiently(lambda: self._broker.answers(self.job, _POLL_S), on_trouble)
        answers = {CacheKey(one.key): one for one in map(_read, texts) if one is not None and one.key in awaited}
        self._answers |= answers
        return set(answers)

    def _send(self, keys: Sequence[CacheKey], on_trouble: Callable[[str], None]) -> None:
        texts = [encode(CompileMessage.of(self.job, self._wanted[key])) for key in keys]
        self._patiently(lambda: self._broker.send(texts), on_trouble)
        self._sent.update(keys)

    def _lacking(self, there: set[CacheKey], on_trouble: Callable[[str], None]) -> set[CacheKey]:
        """The kernels that the remote lacks, except those that a worker failed to make.

        A worker's answer that the remote has a kernel is not believed: ``there``, the keys in the remote, decides.

        A kernel that is neither queued nor being compiled is requested again: the broker lost the message, a worker
        ended with it, or a worker wrongly says that the remote has it.

        Raises:
            RemoteError: where workers answer again and again that the remote has a kernel that it lacks.
        """
        lacking = [key for key in self._wanted if key not in there]
        queued = {key for _, key in self._patiently(lambda: self._broker.queued(self.job), on_trouble)}
        at_work = self._patiently(lambda: self._broker.leased(lacking), on_trouble)
        if queued and not at_work:
            waiting = counted(len(queued), "kernel")
            on_trouble(f"no worker of this remote takes {waiting} from the queue; gemm-cache farm worker starts one")
        elif at_work:
            on_trouble(f"waiting for {counted(len(at_work), 'kernel')} that workers compile")
        lost = [key for key in lacking if key not in queued and key not in at_work and not self._error(key)]
        too_often = {key for key in lost if self._sent[key] >= MOST_SENT}
        if liars := [key for key in too_often if key in self._answers]:
            raise RemoteError(
                f"workers say that {counted(len(liars), 'kernel')} are in the remote, which does not have them"
            )
        for key in too_often:
            why = f"it was asked for {MOST_SENT} times, and no worker answered; see what the workers print"
            self._answers[key] = Answered(key, why, "", False, 0.0)
        self._send([key for key in lost if key not in too_often], on_trouble)
        return {key for key in lacking if key in queued or key in at_work or not self._error(key)}

    def _error(self, key: CacheKey) -> str:
        return self._answers[key].error if key in self._answers else ""

    def _sum(self, before: set[CacheKey], there: set[CacheKey], canceled: int) -> Farmed:
        """The result of the run, from the keys in the remote before it and at its end."""
        made = self._wanted.keys() & there - before
        compiled = sum(self._answers[key].compiled for key in made if key in self._answers)
        return Farmed(
            present=len(self._wanted.keys() & before),
            compiled=compiled,
            found=len(made) - compiled,
            failed={key: self._error(key) for key in self._wanted if key not in there and self._error(key)},
            workers={one.worker for one in self._answers.values() if one.worker},
            resent=self._sent.total() - len(self._sent),
            canceled=canceled,
        )

    def _patiently(self, ask: Callable[[], _T], on_trouble: Callable[[str], None]) -> _T:
        """Calls ``ask`` until the broker answers, for at most ``GIVE_UP_S`` seconds; returns the answer."""
        until = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return ask()
            except RemoteError as error:
                if time.monotonic() > until:
                    raise
                on_trouble(str(error))
                time.sleep(1.0)


def _read(text: str) -> Answered | None:
    """Decodes an answer; ``None`` if the text is not one, since a broker may hold anything."""
    try:
        return answered(text)
    except UsageError:
        return None
