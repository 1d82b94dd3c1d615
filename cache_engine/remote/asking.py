"""Threads that ask, so that a caller can stop waiting for a client that hangs where its own limits do not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from cache_engine.process import Thread, renew_after_fork

_T = TypeVar("_T")
IDLE_S = 10.0
"""How long a thread waits for the next question: to start one takes longer than to give it one, 35 against 7 us."""


class Askers:
    """Threads of which each asks for one caller at a time. Safe to use from several; a forked child has its own."""

    def __init__(self) -> None:
        """Starts none yet."""
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: those there are, are the parent's."""
        self._idle: list[_Asker] = []
        self._left: set[_Asker] = set()

    @property
    def are_asking(self) -> bool:
        """Whether one still asks for which no caller waits any more."""
        return any(asker.thread.is_alive for asker in tuple(self._left))

    def ask(self, question: Callable[[], _T], wait_s: float) -> tuple[_T | None, BaseException | None]:
        """What the question returns, or what it raises, whatever that is.

        Raises:
            Empty: when it does neither in time.
            RuntimeError, MemoryError: when no thread can be started.
        """
        asker = self._free()
        answers: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()
        try:
            asker.questions.put((question, answers))
            answer = answers.get(timeout=wait_s)
        except BaseException:  # it is late, or the caller was interrupted
            asker.questions.put(None)
            self._left -= {each for each in tuple(self._left) if not each.thread.is_alive}
            self._left.add(asker)
            raise
        self._idle.append(asker)
        return answer

    def end(self) -> None:
        """Orders the end of the threads. Returns at once."""
        while self._idle:
            self._idle.pop().questions.put(None)

    def close(self, until: float) -> None:
        """Ends the threads; waits for those that still ask, until a time of ``time.monotonic``."""
        self.end()
        for asker in tuple(self._left):
            asker.thread.join(max(0.0, until - time.monotonic()))

    def _free(self) -> _Asker:
        while self._idle:
            asker = self._idle.pop()
            if asker.thread.is_alive:
                return asker
        return _Asker(self._idle)


class _Asker:
    """A thread, and the questions that it is given; ``None`` ends it."""

    def __init__(self, idle: list[_Asker]) -> None:
        self._idle = idle
        self.questions: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] = SimpleQueue()
        self.thread = Thread(self._work)

    def _work(self) -> None:
        is_taken = False
        while True:
            try:
                given = self.questions.get(timeout=IDLE_S)
            except Empty:
                if is_taken or self._is_leaving():
                    return
                is_taken = True  # and its question comes, unless who took it was interrupted
                continue
            if given is None:
                return
            question, answers = given
            answer: tuple[object, BaseException | None]
            try:
                answer = question(), None
            except BaseException as error:
                answer = None, error
            answers.put(answer)
            is_taken = False
            del given, question, answers, answer  # nothing of a lookup is held while it waits

    def _is_leaving(self) -> bool:
        """Whether it is idle; then no caller finds it any more."""
        try:
            self._idle.remove(self)
        except ValueError:
            return False
        return True
