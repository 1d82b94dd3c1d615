"""The board: the state that workers and submitters of a farm write to Redis, for people to see.

No result depends on the board: if it cannot be written, kernels are compiled all the same. Times are the broker's,
because the clocks of the machines may differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.background import BackgroundQueue
from cache_engine.errors import RemoteError
from cache_engine.team.broker import FARMS, CompileMessage, Keys, connected, reaching

WORKERS, WORKER, RUNS, RUN, HOUR, FAILURES = "workers", "worker", "runs", "run", "hour", "failures"
"""Kinds of keys in Redis.

They hold: the names of all workers, one worker, the names of all runs, one run, the counts of an hour's outcomes, the
last failures.
"""
MAIN = "main"
HOUR_S, DAY_S = 3600, 86_400
BEAT_S = 5.0
GONE_S = 6 * BEAT_S
"""A worker without a sign of life for this many seconds has ended or is cut off."""
MOST_FAILURES = 50
MOST_WORKERS = 1000
_WAIT_S = 1.0
_PRIOR_S = 20.0
_LONGEST = 300  # characters of a text
COMPILED, FOUND, FAILED, REFUSED = "compiled", "found", "failed", "refused"


class Present(msgspec.Struct, frozen=True):
    """A worker: its machine, process, number of parallel compiles, and start (seconds since 1970)."""

    host: str
    pid: int
    processes: int
    since: float


class Doing(msgspec.Struct, frozen=True):
    """A kernel that a worker's process compiles now, and when the compile began (seconds since 1970)."""

    key: str
    kernel: str
    since: float


class Run(msgspec.Struct, frozen=True):
    """A table of kernels that a submitter follows.

    Attributes:
        table, archs: the requested table and targets.
        kernels, present, left: the numbers of kernels: all in the table, those that the remote had before the run, and
            those that it lacks now.
        since: the start of the run, in seconds since 1970.
        eta_s: the predicted seconds to the end of the run, as of the submitter's last entry.
        ended: whether the submitter followed the run to its end.
    """

    table: str
    archs: list[str]
    kernels: int
    present: int
    left: int
    since: float
    eta_s: float
    ended: bool = False


class Failed(msgspec.Struct, frozen=True):
    """A kernel that a worker could not make."""

    at: float
    key: str
    kernel: str
    error: str
    worker: str


def eta_s(left_s: float, done_s: float, elapsed_s: float, processes: int) -> float:
    """Predicts the seconds to the end of a run.

    Before any kernel is done, all processes are assumed to compile at the predicted speed. The observed speed then
    counts more and more: after ``_PRIOR_S`` seconds, half.

    Args:
        left_s, done_s: predicted seconds of compiling, one at a time, the kernels that are left and those that are
            done.
        elapsed_s: seconds since the start.
        processes: the number of processes of all workers.
    """
    speed = (max(1, processes) * _PRIOR_S + done_s) / (_PRIOR_S + elapsed_s)
    return left_s / speed


class Board:
    """Writes the entries of workers and submitters on the board. A write that fails is dropped."""

    def __init__(self, url: str, keys: Keys) -> None:
        """Prepares a client, which connects at its first write; raises as ``broker.connected``."""
        self._url, self._redis, self._keys = url, connected(url, _WAIT_S), keys
        self._ahead_s: float | None = None

    def beat(self, name: str, present: Present) -> None:
        """Writes on the board that a worker lives; deletes the entries of its processes that have ended."""
        with self._writing() as redis:
            self._ahead_s = None  # a clock may have been set
            now = self._now()
            own = self._keys.name(WORKER, name)
            ended = [one for one in redis.hkeys(own) if one.isdigit() and not _lives(int(one))]
            with redis.pipeline(transaction=False) as several:
                if ended:
                    several.hdel(own, *ended)
                several.hset(own, MAIN, _encoded(present))
                several.expire(own, DAY_S)
                self._lists(several, WORKERS, name, now)
                several.execute()

    def gone(self, name: str) -> None:
        """Writes on the board that a worker ends."""
        with self._writing() as redis:
            redis.delete(self._keys.name(WORKER, name))
            redis.zrem(self._keys.name(WORKERS), name)

    def begins(self, name: str, message: CompileMessage) -> None:
        """Writes on the board that this process now compiles a kernel."""
        with self._writing() as redis:
            doing = Doing(message.key, kernel_text(message), self._now())
            redis.hset(self._keys.name(WORKER, name), str(os.getpid()), _encoded(doing))

    def ends(self, name: str, message: CompileMessage, *, compiled: bool, error: str) -> None:
        """Writes on the board the outcome of compiling a kernel."""
        with self._writing() as redis, redis.pipeline(transaction=False) as several:
            several.hdel(self._keys.name(WORKER, name), str(os.getpid()))
            self._counts(several, FAILED if error else COMPILED if compiled else FOUND)
            if error:
                failed = Failed(self._now(), message.key, kernel_text(message), error[:_LONGEST], name)
                several.lpush(self._keys.name(FAILURES), _encoded(failed))
                several.ltrim(self._keys.name(FAILURES), 0, MOST_FAILURES - 1)
            several.execute()

    def refuses(self) -> None:
        """Adds one to the board's count of messages that were refused because they ask for no kernel."""
        with self._writing() as redis, redis.pipeline(transaction=False) as several:
            self._counts(several, REFUSED)
            several.execute()

    def follows(self, job: str, run: Run) -> int:
        """Writes a run's progress on the board; returns the number of the workers' processes, 0 if unknown."""
        found = 0
        with self._writing() as redis:
            now = self._now()
            with redis.pipeline(transaction=False) as several:
                several.set(self._keys.name(RUN, job), _encoded(run), ex=DAY_S)
                self._lists(several, RUNS, job, now)
                several.zrangebyscore(self._keys.name(WORKERS), now - GONE_S, "+inf", start=0, num=MOST_WORKERS)
                *_, names = several.execute()
            with redis.pipeline(transaction=False) as several:
                for one in names:
                    several.hget(self._keys.name(WORKER, one.decode(errors="replace")), MAIN)
                said = several.execute()
            for text in said:
                with suppress(msgspec.MsgspecError, TypeError):
                    found += max(0, msgspec.json.decode(text, type=Present).processes)
        return found

    def now(self) -> float:
        """The broker's time, in seconds since 1970; this machine's time where the broker does not answer."""
        with self._writing():
            self._now()
        return time.time() + (self._ahead_s or 0.0)

    def _lists(self, several: Any, kind: str, name: str, now: float) -> None:
        """Writes the time at which a worker or run was last alive, and its farm; deletes entries older than a day."""
        for key, member in ((self._keys.name(kind), name), (FARMS, self._keys.farm)):
            several.zadd(key, {member: now})
            several.zremrangebyscore(key, "-inf", now - DAY_S)

    def _counts(self, several: Any, outcome: str) -> None:
        hour = self._keys.name(HOUR, str(int(self._now()) // HOUR_S))
        several.hincrby(hour, outcome, 1)
        several.expire(hour, 2 * DAY_S)

    def _now(self) -> float:
        if self._ahead_s is None:
            seconds, microseconds = self._redis.time()
            self._ahead_s = seconds + microseconds / 1e6 - time.time()
        return time.time() + self._ahead_s

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with suppress(RemoteError), reaching(self._url):
            yield self._redis


class Heart:
    """The heartbeat of a worker: a thread of its main process.

    At regular intervals it writes on the board that the worker is alive, but only while ``is_well`` says so.
    """

    def __init__(
        self, board: Board, name: str, present: Present, is_well: Callable[[], bool], file: Path | None
    ) -> None:
        """Starts the thread.

        Args:
            is_well: returns whether the main process still makes progress; if not, nothing is written.
            file: a file to touch each time, whether or not the broker answers.
        """
        self._board, self._name, self._present, self._is_well, self._file = board, name, present, is_well, file
        self._queue = BackgroundQueue()
        self._queue.put(self.beat)

    def beat(self) -> float:
        """Writes once that the worker lives, if the main process works; returns the seconds until the next time."""
        if self._is_well():
            if self._file is not None:
                with suppress(OSError):
                    self._file.touch()
            self._board.beat(self._name, self._present)
        return BEAT_S

    def stop(self) -> None:
        """Stops the thread, and writes on the board that the worker ends."""
        self._queue.close()
        self._board.gone(self._name)


def kernel_text(message: CompileMessage) -> str:
    """A short name for a kernel, for people."""
    p = message.problem
    return f"{p.m} × {p.n} × {p.k} {p.dtype} {message.arch}, {message.family}"[:_LONGEST]


def _encoded(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
