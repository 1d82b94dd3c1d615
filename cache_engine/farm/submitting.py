"""A table of kernels sent to a farm and followed until the remote has each, whatever dies meanwhile."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cache_engine.engine.selection import Selection
from cache_engine.errors import RemoteError
from cache_engine.farm.board import Board
from cache_engine.farm.broker import QUEUE, TASK, Broker, application, reaching
from cache_engine.farm.executor import GIVE_UP_S, Farmed, Watched, keys_there, read_answer
from cache_engine.farm.messages import Answered, Asked, encode
from cache_engine.model.key import CacheKey
from cache_engine.remote.base import Remote

_T = TypeVar("_T")

_POLL_S = 0.5
_QUIET_S = 3.0
"""Without an answer for so long, the broker is asked whether it still has the work."""
_MOST_RESENT = 20
"""How often, on average, a message is sent again before the broker is taken for a liar."""


class Submission:
    """An executor: Celery, with a broker that the submitter asks about what it holds."""

    def __init__(self, broker: str, remote: Remote) -> None:
        """Sends nothing yet; raises as ``broker.application``."""
        self._app = application(broker)
        self._broker, self._remote, self.job = Broker(broker), remote, secrets.token_hex(16)
        self.board: Watched = Board(broker)

    def run(
        self,
        selections: Sequence[Selection],
        on_left: Callable[[int], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> Farmed:
        """As ``Executor.run``."""
        there = keys_there(self._remote)
        left = {one.key: one for one in selections if one.key not in there}
        done = Farmed(present=len({one.key for one in selections}) - len(left))
        on_left(len(left))
        self._patiently(lambda: self._send(left), on_trouble)
        heard = time.monotonic()
        while left and not done.canceled:
            texts = self._patiently(lambda: self._broker.answers(self.job, _POLL_S), on_trouble)
            for answer in filter(None, map(read_answer, texts)):
                heard = time.monotonic()
                if answer.key in left:
                    self._count(answer, left, done)
            if left and time.monotonic() - heard > _QUIET_S:
                self._look(left, done, on_trouble)
                heard = time.monotonic()
            if not left:
                self._confirm(selections, left, done, on_trouble)
            on_left(len(left))
        return done

    def cancel(self) -> int:
        """Withdraws what no worker has taken, and has workers drop what they have not begun.

        Returns:
            How many messages were withdrawn.

        Raises:
            RemoteError: when the broker does not answer.
        """
        self._broker.cancel(self.job)
        return self._broker.withdraw(self.job)

    def _send(self, selections: dict[CacheKey, Selection]) -> None:
        with reaching(self._broker.url):
            for key, selection in selections.items():
                text = encode(Asked.of(self.job, selection))
                self._app.send_task(TASK, args=[text], task_id=f"{self.job}-{key}", queue=QUEUE, retry=False)

    def _count(self, answer: Answered, left: dict[CacheKey, Selection], done: Farmed) -> None:
        key = left.pop(CacheKey(answer.key)).key
        done.workers.add(answer.worker)
        if answer.error:
            done.failed[key] = answer.error
        elif answer.compiled:
            done.compiled += 1
        else:
            done.found += 1

    def _look(self, left: dict[CacheKey, Selection], done: Farmed, on_trouble: Callable[[str], None]) -> None:
        """Where no answer comes: sends again what the broker has lost, and says when no worker takes anything."""
        if self._patiently(lambda: self._broker.is_canceled(self.job), on_trouble):
            self._patiently(self.cancel, on_trouble)
            done.canceled = len(left)
            return
        waiting, taken = self._patiently(self._broker.waiting, on_trouble)
        if taken:
            return
        if waiting:
            on_trouble(f"{waiting:,} kernels wait, and no worker takes them; gemm-cache farm worker starts one")
            return
        for key in keys_there(self._remote) & left.keys():
            del left[key]
            done.found += 1
        done.resent += len(left)
        self._patiently(lambda: self._send(left), on_trouble)

    def _confirm(
        self,
        selections: Sequence[Selection],
        left: dict[CacheKey, Selection],
        done: Farmed,
        on_trouble: Callable[[str], None],
    ) -> None:
        """What workers said counts for nothing until the remote has it: what it lacks is asked for again."""
        there = keys_there(self._remote)
        lacking = {one.key: one for one in selections if one.key not in there and one.key not in done.failed}
        if not lacking:
            return
        if done.resent > _MOST_RESENT * len(selections):
            raise RemoteError(f"workers say that {len(lacking):,} kernels are in the remote, which does not have them")
        done.compiled = max(0, done.compiled - len(lacking))
        done.resent += len(lacking)
        left.update(lacking)
        self._patiently(lambda: self._send(left), on_trouble)

    def _patiently(self, ask: Callable[[], _T], on_trouble: Callable[[str], None]) -> _T:
        """The answer of a broker, which may be away for a while."""
        until = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return ask()
            except RemoteError as error:
                if time.monotonic() > until:
                    raise
                on_trouble(str(error))
                time.sleep(1.0)
