"""Processes of a farm that are killed: workers and submitters, forked by one that has everything imported.

Run as ``python -m tests.team.machines LOG BROKER REMOTE KEY``. It reads one JSON command per line and answers each with
one. What a worker does it says in the log, a line at a time: ``take`` a key's lease, ``start`` and ``finish`` a
compile, and ``end``, with the key, the machine and the process. A line is there before the next step begins, whenever
the process is killed.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import celery.app.amqp
import celery.concurrency.prefork
import celery.worker.consumer  # noqa: F401
import pytest
import redis  # noqa: F401

from cache_engine.cache import miss
from cache_engine.cache.cache import open_cache
from cache_engine.cache.remote.client_process import open_remote
from cache_engine.cache.selection import Selection
from cache_engine.compilers import nvrtc  # noqa: F401
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.settings import Settings
from cache_engine.store.signatures.signers import SigningKey
from cache_engine.team import worker as team_worker
from cache_engine.team.broker import Broker, asked
from cache_engine.team.submission import Submission

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
TABLE = 6


def table(number: int, store: Path) -> list[Selection]:
    """The kernels of a table, which no other table has."""
    settings = Settings.load(dir=store, durability="fast")
    with open_cache(settings=settings) as cache:
        sizes = range(48 + 16 * TABLE * number, 48 + 16 * TABLE * (number + 1), 16)
        return [cache.select(GemmProblem(16, n, 32, dtype=DType.FP32, arch="sm_80")) for n in sizes]


def main(log: str, broker: str, remote: str, key: str) -> None:
    """Serves until its input ends, then kills what is left."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(message)s")
    running: set[int] = set()
    acts: dict[str, Callable[[dict[str, Any]], object]] = {
        "worker": lambda command: _worker(command, log, broker, remote, key),
        "submitter": lambda command: _submitter(command, broker, remote),
    }
    for line in sys.stdin:
        command = json.loads(line)
        if (act := acts.get(command["do"])) is not None:
            pid = os.fork()
            if pid == 0:
                _child(lambda act=act, command=command: act(command))  # type: ignore[misc]
            with suppress(OSError):
                os.setpgid(pid, pid)  # here too, so that it is one before it may be killed
            running.add(pid)
            _say(pid)
        elif command["do"] == "kill":
            _kill(command["pid"])
            running.discard(command["pid"])
            _say(None)
        else:
            done, status = os.waitpid(command["pid"], os.WNOHANG)
            _say(status if done else None)
            running -= {done}
    for pid in running:
        _kill(pid)


def _kill(pid: int) -> None:
    """Kills a process with all its children, and returns when none is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)


def _child(act: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        os.dup2(2, 1)
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _worker(command: dict[str, Any], log: str, broker: str, remote: str, key: str) -> None:
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(what: str, kernel: str) -> None:
        os.write(said, f"{what} {kernel} {command['machine']} {os.getpid()}\n".encode())

    take, make, work = Broker.take, miss.make_artifact, team_worker.Worker.work

    def taking(broker: Broker, kernel: str, *rest: Any) -> bool:
        is_taken = take(broker, kernel, *rest)
        if is_taken:
            say("take", kernel)
        return is_taken

    def compiling(selection: Selection, *rest: Any) -> Any:
        say("start", selection.key)
        made = make(selection, *rest)
        say("finish", selection.key)
        return made

    def working_(worker: team_worker.Worker, text: object) -> None:
        work(worker, text)
        say("end", asked(text).key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broker, "take", taking)
        patch.setattr(miss, "make_artifact", compiling)
        patch.setattr(team_worker.Worker, "work", working_)
        settings = Settings.load(dir=command["store"], durability="fast").for_batch(1)
        worker = team_worker.Worker(settings, broker, remote, SigningKey.read(Path(key)))
        team_worker.serve(worker, processes=1)


def _submitter(command: dict[str, Any], broker: str, remote: str) -> None:
    selections = table(command["table"], Path(command["store"]))
    done = Submission(broker, open_remote(remote)).run(selections)
    if done.failed:
        raise SystemExit(f"failed: {done.failed}")


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
