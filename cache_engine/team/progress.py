"""The present state of a farm, from its queue and its board. Reading takes bounded time and treats both as hostile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import msgspec

from cache_engine.background import BackgroundQueue
from cache_engine.cache.cache import Cache
from cache_engine.cache.miss import compile_of
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.insight.coverage import Covering
from cache_engine.model.shapes import Shape
from cache_engine.team.board import (
    COMPILED,
    DAY_S,
    FAILED,
    FAILURES,
    FOUND,
    GONE_S,
    HOUR,
    HOUR_S,
    MAIN,
    MOST_FAILURES,
    REFUSED,
    RUN,
    RUNS,
    WORKER,
    WORKERS,
    Board,
    Doing,
    Failed,
    Present,
    Run,
    eta_s,
)
from cache_engine.team.broker import FARMS, Keys, connected, is_job, reaching
from cache_engine.units import printable
from cache_engine.usage.compile_time import CompileTimes, fitted
from cache_engine.usage.demand import Ledger

HOURS = 24
MOST_WORKERS, MOST_RUNS = 200, 20
_MOST_PROCESSES = 256
_LONGEST = 4096  # characters of what one says
_WAIT_S = 1.0
RUNNING, CANCELED, ENDED, NOT_FOLLOWED = "running", "canceled", "ended", "not followed"
_T = TypeVar("_T", Present, Doing, Run, Failed)


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker that was active in the last day.

    Attributes:
        heard_s: seconds since its last sign of life.
        doing: the kernels that its processes compile now, the one begun first comes first.
    """

    name: str
    present: Present
    heard_s: float
    doing: tuple[Doing, ...]

    @property
    def is_here(self) -> bool:
        """Whether the worker showed a sign of life lately."""
        return self.heard_s < GONE_S


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run that was active in the last day.

    Attributes:
        heard_s: seconds since its submitter's last sign of life.
        canceled: whether it was canceled.
    """

    job: str
    run: Run
    heard_s: float
    canceled: bool

    @property
    def state(self) -> str:
        """``running``, ``canceled``, ``ended``, or ``not followed``: its submitter has not been heard of lately."""
        if self.canceled:
            return CANCELED
        if self.run.ended:
            return ENDED
        return RUNNING if self.heard_s < GONE_S else NOT_FOLLOWED


@dataclass(frozen=True, slots=True)
class Hour:
    """The numbers of messages by outcome in the hour that began at ``start``, in seconds since 1970.

    ``refused`` messages asked for no kernel.
    """

    start: int
    compiled: int
    found: int
    failed: int
    refused: int


@dataclass(frozen=True, slots=True)
class Farm:
    """The state of a farm.

    Attributes:
        keys: the names of the farm's keys in Redis, which identify the farm.
        at: the broker's time, in seconds since 1970.
        waiting: the number of messages that no worker has taken.
        workers: the workers of the last day, at most ``MOST_WORKERS``; the one with the latest sign of life comes
            first.
        runs: the runs of the last day; the one with the latest sign of life comes first.
        hours: the outcomes in each of the last 24 hours, the oldest first.
        failures: the last kernels that workers could not make, the newest first.
    """

    keys: Keys
    at: float
    waiting: int
    workers: tuple[SeenWorker, ...]
    runs: tuple[SeenRun, ...]
    hours: tuple[Hour, ...]
    failures: tuple[Failed, ...]

    @property
    def here(self) -> list[SeenWorker]:
        """The workers that showed a sign of life lately."""
        return [one for one in self.workers if one.is_here]

    @property
    def taken(self) -> int:
        """The number of kernels that the workers in ``here`` compile now."""
        return sum(len(one.doing) for one in self.here)

    @property
    def processes(self) -> int:
        """The number of kernels that the workers in ``here`` can compile at a time."""
        return sum(one.present.processes for one in self.here)


def look(url: str, remote: str | None, wait_s: float = _WAIT_S) -> Farm:
    """Reads the state of the farm that uses this broker and remote.

    Args:
        remote: the farm's remote; by default that of the broker's only farm.
        wait_s: seconds that each of five answers may take.

    Raises:
        UsageError: when this is not the URL of a broker, or it has several farms and no remote is named.
        ExtraMissing: when the extra ``team`` is not installed.
        RemoteError: when the broker does not answer, or not as Redis does.
    """
    client = connected(url, wait_s)
    try:
        with reaching(url):
            return _looked(client, _only(client) if remote is None else Keys.of(remote))
    finally:
        client.close()


def _only(client: Any) -> Keys:
    found = client.zrangebyscore(FARMS, client.time()[0] - DAY_S, "+inf", start=0, num=2)
    if len(found) > 1:
        raise UsageError(
            "several farms use this broker; name the remote of one with --remote, or with the setting remote"
        )
    return Keys(found[0].decode(errors="replace") if found else "")


def _looked(client: Any, keys: Keys) -> Farm:
    seconds, _ = client.time()
    at, hour = float(seconds), int(seconds) // HOUR_S
    starts = range(hour - HOURS + 1, hour + 1)
    with client.pipeline(transaction=False) as asked:
        asked.llen(keys.queue)
        asked.zrevrange(keys.name(WORKERS), 0, MOST_WORKERS - 1, withscores=True)
        asked.zrevrange(keys.name(RUNS), 0, MOST_RUNS - 1, withscores=True)
        asked.lrange(keys.name(FAILURES), 0, MOST_FAILURES - 1)
        for start in starts:
            asked.hmget(keys.name(HOUR, str(start)), COMPILED, FOUND, FAILED, REFUSED)
        waiting, workers, runs, failures, *counts = asked.execute()
    names, jobs = _scores(workers), _scores(runs)
    with client.pipeline(transaction=False) as asked:
        for name, _ in names:
            asked.hgetall(keys.name(WORKER, name))
        for job, _ in jobs:
            asked.getrange(keys.name(RUN, job), 0, _LONGEST)
            asked.exists(keys.name("canceled", job))
        said = asked.execute() if names or jobs else []
    of_runs = said[len(names) :]
    return Farm(
        keys,
        at,
        int(waiting),
        tuple(filter(None, (_worker(*name, at, told) for name, told in zip(names, said, strict=False)))),
        tuple(filter(None, (_run(*job, at, *of_runs[2 * n : 2 * n + 2]) for n, job in enumerate(jobs)))),
        tuple(Hour(start * HOUR_S, *map(_count, found)) for start, found in zip(starts, counts, strict=True)),
        tuple(one for text in failures if (one := _decoded(text, Failed)) is not None),
    )


def _scores(found: Iterable[tuple[bytes, float]]) -> list[tuple[str, float]]:
    return [(name.decode(errors="replace")[:_LONGEST], float(score)) for name, score in found]


def _worker(name: str, heard: float, at: float, said: dict[bytes, bytes]) -> SeenWorker | None:
    present = _decoded(said.get(MAIN.encode()), Present)
    if present is None:
        return None
    found = [_decoded(text, Doing) for pid, text in list(said.items())[:_MOST_PROCESSES] if pid.isdigit()]
    doing = sorted((one for one in found if one is not None), key=lambda one: one.since)
    return SeenWorker(printable(name), present, max(0.0, at - heard), tuple(doing))


def _run(job: str, heard: float, at: float, text: object, canceled: object) -> SeenRun | None:
    run = _decoded(text, Run)
    return None if run is None or not is_job(job) else SeenRun(job, run, max(0.0, at - heard), bool(canceled))


def _count(text: bytes | None) -> int:
    return max(0, int(text)) if text is not None and len(text) < 16 else 0


def _decoded(text: object, kind: type[_T]) -> _T | None:
    """Decodes an entry of the board, with its texts made safe for a terminal; ``None`` if the entry is not valid."""
    if not isinstance(text, bytes) or len(text) > _LONGEST:
        return None
    try:
        found = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    numbers = [one for one in msgspec.structs.astuple(found) if isinstance(one, int | float)]
    if not all(0 <= one < 1e15 for one in numbers):
        return None
    texts = {name: _plain(getattr(found, name)) for name in found.__struct_fields__}
    return msgspec.structs.replace(found, **texts)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [printable(one) for one in value]
    return printable(value) if isinstance(value, str) else value


class Watcher:
    """Reads the state of a farm for callers that must not wait long: at most a second if the broker is slow or down."""

    def __init__(self, url: str, remote: str | None) -> None:
        """Sends no request yet; raises as ``connected``."""
        connected(url, _WAIT_S)
        self._url, self._remote, self._lock = url, remote, Lock()
        self._looking = BackgroundQueue(most=1)
        self._is_old = False
        self._last: tuple[Farm, float] | None = None
        self._trouble = "this process can start no thread"

    def seen(self, wait_s: float = _WAIT_S, fresh_s: float = _WAIT_S) -> tuple[Farm | None, float, str]:
        """The last state read, its age in seconds, and why it is not newer; this reason is empty if the state is new.

        Args:
            wait_s: the most seconds to wait for the broker's answer.
            fresh_s: a state that is at most this many seconds old is returned without asking the broker.
        """
        with self._lock:
            if (
                self._last is not None
                and not self._is_old
                and not self._trouble
                and time.monotonic() - self._last[1] < fresh_s
            ):
                return self._last[0], time.monotonic() - self._last[1], ""
            self._looking.put(self._look)
        answered = self._looking.settle(wait_s)
        with self._lock:
            trouble = self._trouble if answered else f"the broker has not answered within {wait_s:g} s"
            if self._last is None:
                return None, 0.0, trouble
            return self._last[0], time.monotonic() - self._last[1], trouble

    def changed(self) -> None:
        """Notes that this process has changed the farm, so that the next reader asks the broker again."""
        with self._lock:
            self._is_old = True

    def _look(self) -> None:
        found, trouble = None, "looking at the broker failed"
        try:
            found, trouble = look(self._url, self._remote), ""
        except GemmCacheError as error:
            trouble = str(error)
        finally:
            with self._lock:
                self._is_old, self._trouble = False, trouble
                if found is not None:
                    self._last = (found, time.monotonic())


_EVERY_S = 1.0


def by_demand(kernels: Sequence[Covering], ledger: Ledger) -> list[Covering]:
    """Sorts kernels by the number of requests for the sizes that they serve, the most requested first.

    Kernels without requests keep their order.

    Requests for one target count for every target, because a store knows only the requests for this machine's GPU.
    """
    weights: dict[Shape, dict[int, float]] = {}
    for shape, sketch in ledger.sketches.items():
        sizes = weights.setdefault(_anywhere(shape), {})
        for m, asked in sketch.spread():
            sizes[m] = sizes.get(m, 0.0) + asked

    def weight(kernel: Covering) -> float:
        sizes = weights.get(_anywhere(Shape.of(kernel.selection.problem)), {})
        return sum(asked for m, asked in sizes.items() if any(m in ms for ms in kernel.ms))

    return sorted(kernels, key=lambda kernel: -weight(kernel))


def compile_times(cache: Cache) -> CompileTimes:
    """The model that predicts the time of compiles: from the records of the store, else published figures."""
    return fitted(cache.records() if cache.has_store else ())


class Following:
    """Predicts when a run ends, and writes the run's progress on the board."""

    def __init__(
        self, board: Board, job: str, table: str, selections: Sequence[Selection], times: CompileTimes
    ) -> None:
        """Stores the arguments; writes nothing yet.

        Args:
            selections: the kernels in the order in which they are sent; workers take them in the same order.
        """
        self._board, self._job = board, job
        self._seconds = [times.seconds(compile_of(one)) for one in selections]
        archs = list(dict.fromkeys(one.problem.arch or "" for one in selections))
        self._run = Run(table[:200], archs[:20], len(selections), 0, len(selections), board.now(), 0.0)
        self._started = self._said = 0.0
        self._first_s: float | None = None
        self.processes = 0

    def left(self, left: int) -> float:
        """Writes on the board how many kernels the remote lacks; returns the predicted seconds to the end."""
        now = time.monotonic()
        if self._first_s is None:
            self._first_s, self._started = self._left_s(left), now
            self._run = msgspec.structs.replace(self._run, present=len(self._seconds) - left)
        left_s = self._left_s(left)
        if now - self._said >= _EVERY_S or not left:
            takes = eta_s(left_s, self._first_s - left_s, now - self._started, self.processes)
            self._run = msgspec.structs.replace(self._run, left=left, eta_s=takes)
            self.processes = self._board.follows(self._job, self._run)
            self._said = time.monotonic()
        return eta_s(left_s, self._first_s - left_s, now - self._started, self.processes)

    def end(self) -> None:
        """Writes on the board that the run is no longer followed."""
        self._board.follows(self._job, msgspec.structs.replace(self._run, ended=True, eta_s=0.0))

    def _left_s(self, left: int) -> float:
        """The predicted seconds that one process would take to compile the last ``left`` kernels of the table."""
        return sum(self._seconds[len(self._seconds) - left :])


def _anywhere(shape: Shape) -> Shape:
    return msgspec.structs.replace(shape, arch="")
