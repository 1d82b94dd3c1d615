"""A process with everything imported, which forks a child for each trial: starting Python again would take a second.

Run as ``python -m tests.faults.zygote``. It reads one JSON command per line, and answers with lines of JSON: first the
child's id, then, after the order to continue, its outcome. The child prepares, waits for the order, and makes a system
call that nothing else makes (``getsid``) right before the operation and right after, for the trace to show where it is.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from tests.faults.getting_operations import selection
from tests.faults.result_operations import EVERY_OPERATION
from tests.helpers import make_store

GO = signal.SIGUSR1
TOO_LONG_S = 60
READY = b"ready\n"


def main() -> None:
    """Serves until its input ends."""
    _warm()
    signal.pthread_sigmask(signal.SIG_BLOCK, {GO})
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the middle would change the count of system calls
    _say({"threads": len(os.listdir("/proc/self/task"))})
    for line in sys.stdin:
        _trial(json.loads(line))
    os._exit(0)  # DuckDB would complain of what the collector did not collect


def _warm() -> None:
    """Has everything done that is done once per process, or the first trial would be unlike the others."""
    logging.getLogger().addHandler(logging.NullHandler())
    for name in ("portalocker", "duckdb", "pyarrow.dataset", "pandas"):  # the last is looked at by DuckDB
        importlib.import_module(name)
    selection()
    for operation in EVERY_OPERATION.values():
        if operation.indexed:
            continue  # DuckDB starts threads, and a process with threads cannot be forked safely
        with tempfile.TemporaryDirectory() as folder:
            store = make_store(Path(folder, "store"))
            operation.lay_out(store)
            operation.begin(store)()


def _trial(command: dict[str, str]) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(command, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        ready = answers.readline()
        _say({"pid": pid, "ready": ready == READY})
        sys.stdin.readline()
        os.kill(pid, GO)
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    _say({"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "answer": answer.decode()})


def _child(command: dict[str, str], writing: int) -> NoReturn:
    signal.alarm(TOO_LONG_S)
    act = EVERY_OPERATION[command["operation"]].begin(DiskStore(StoreLayout(Path(command["store"]))))
    os.write(writing, READY)
    signal.sigwait({GO})
    os.getsid(0)
    try:
        answer: dict[str, object] = {"value": act()}
    except BaseException as error:
        answer = {"error": repr(error), "types": [kind.__name__ for kind in type(error).__mro__]}
    os.getsid(0)
    # strace counts by thread: the n-th call of this one may come here only, and must be none that is refused.
    try:
        os.writev(writing, [json.dumps(answer).encode()])
    finally:
        os._exit(0)


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
