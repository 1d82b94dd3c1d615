"""A farm on one machine: what a kernel costs more than compiling it, and what a second worker adds."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks.entries.subjects import PROBLEM, new_signer
from benchmarks.results import Report, Result
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.remote.base import Remote
from cache_engine.cache.remote.client_process import open_remote
from cache_engine.errors import RemoteError, ToolMissing
from cache_engine.model.gemm import GemmProblem
from cache_engine.settings.extras import require
from cache_engine.team.submission import Submission

OVERHEAD_GOAL_S, TOGETHER_GOAL = 0.05, 1 / 1.8
"""Of each kernel; and of two workers, compared with one."""
_START_S = 120.0
_SERVERS = ("redis-server", "valkey-server")


def farming(report: Report, place: Path, *, kernels: int = 12, rounds: int = 3) -> None:
    """Kernels compiled in this process, by one worker of one process, and by two such workers.

    Args:
        kernels: how many at a time, all of the same size and none of them twice.
        rounds: how often; the median counts.

    Raises:
        ExtraMissing: when an extra is not installed.
        ToolMissing: when there is no server of Redis.
        RemoteError: when a worker or the server does not start, or a kernel is not compiled.
    """
    require("team", "a farm")
    place.mkdir()
    new_signer(place)
    depths = count(PROBLEM.k, 64)

    def more(number: int = kernels) -> list[GemmProblem]:
        return [replace(PROBLEM, k=next(depths)) for _ in range(number)]

    with ExitStack() as ends:
        broker, remote = ends.enter_context(_redis(place)), open_remote(f"file://{place}/remote")
        farm = _Farm(broker, remote, ends.enter_context(open_cache(place / "here")))
        farm.here.get_or_compile(*more(1))
        ends.enter_context(_worker(place, "first", broker, remote))
        farm.await_processes(1, more)
        # In turn, so that what else the machine does bears on both.
        times = [(farm.compiled_here(more()), farm.compiled(more())) for _ in range(rounds)]
        here, alone = (statistics.median(column) / kernels for column in zip(*times, strict=True))
        name = "farm: a kernel's way through one worker"
        report(Result(name, alone - here, "compiling it", here, goal_seconds=OVERHEAD_GOAL_S))
        ends.enter_context(_worker(place, "second", broker, remote))
        farm.await_processes(2, more)
        together = statistics.median(farm.compiled(more()) for _ in range(rounds)) / kernels
        report(Result("farm: a kernel by two workers", together, "by one", alone, goal_ratio=TOGETHER_GOAL))


class _Farm:
    """The requests that are timed here."""

    def __init__(self, broker: str, remote: Remote, here: Cache) -> None:
        self._broker, self._remote, self.here = broker, remote, here

    def compiled_here(self, problems: Sequence[GemmProblem]) -> float:
        """Seconds until this process has compiled and stored all."""
        started = time.perf_counter()
        for problem in problems:
            self.here.get_or_compile(problem)
        return time.perf_counter() - started

    def compiled(self, problems: Sequence[GemmProblem]) -> float:
        """Seconds until the remote has all, from workers."""
        selections = [self.here.select(problem) for problem in problems]
        submission = Submission(self._broker, self._remote)
        started = time.perf_counter()
        done = submission.run(selections)
        took = time.perf_counter() - started
        if done.failed or done.compiled < len(problems):
            raise RemoteError(f"workers compiled {done.compiled} of {len(problems)} kernels: {done.failed}")
        return took

    def await_processes(self, number: int, problems: Callable[[int], Sequence[GemmProblem]]) -> None:
        """Has workers compile until so many processes have, so that none is still starting."""
        seen: set[str] = set()
        until = time.monotonic() + _START_S
        while len(seen) < number:
            if time.monotonic() > until:
                raise RemoteError(f"after {_START_S:g} s {len(seen)} of {number} workers compile")
            selections = [self.here.select(problem) for problem in problems(number)]
            seen |= Submission(self._broker, self._remote).run(selections).workers


@contextmanager
def _worker(place: Path, name: str, broker: str, remote: Remote) -> Iterator[None]:
    """A worker with a store of its own, which compiles one kernel at a time."""
    options = ("--broker", broker, "--remote", remote.url, "--sign", str(place / "key"), "--jobs", "1")
    command = [sys.executable, "-m", "cache_engine", "--store", str(place / name), "farm", "worker", *options]
    with (place / f"{name}.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()  # it lets its own processes finish


@contextmanager
def _redis(place: Path) -> Iterator[str]:
    """The URL of a server that keeps nothing on disk."""
    program = next(filter(None, map(shutil.which, _SERVERS)), None)
    if program is None:
        raise ToolMissing(f"a farm needs a broker, and none of {', '.join(_SERVERS)} is on the path; install one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(place), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + _START_S
            while not _listens(port):
                if server.poll() is not None or time.monotonic() > until:
                    raise RemoteError(f"{program} does not start")
                time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
