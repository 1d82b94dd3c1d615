"""A process that proves a family on NumPy before it serves, for tests that kill it or run two of them at once.

Its arguments are a store and a step. It prints ``started`` and the number of its process of canaries, and waits for a
line; ``locking`` before it takes the proof's lock; and the family that serves. At the step it kills itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache import proving
from cache_engine.cache.cache import open_cache
from cache_engine.cache.proving import watchdog
from cache_engine.cache.proving.watchdog import Order, Verdict
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.proofs import write_proof
from tests.device import numpy_gpu

PROBLEM = GemmProblem(40, 72, 96, arch="sm_90a")
STARTED, CASE, LAUNCHED, RIGHT, UNTIMED, OVER = "started", "case", "launched", "right", "untimed", "over"
WRITING, WRITTEN = "writing", "written"
STEPS = (STARTED, CASE, LAUNCHED, RIGHT, UNTIMED, OVER, WRITING, WRITTEN)


def main(store: str, last: str) -> None:
    """Proves the family; kills itself at the step ``last``."""
    patch = pytest.MonkeyPatch()
    numpy_gpu.install(patch)
    patch.setattr(proving, "current_gpu", lambda: (0, numpy_gpu.DEVICE))
    begin, decode, locked = watchdog._started, msgspec.json.decode, proving.Proofs._locked

    def reach(step: str) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def start(order: Order, command: object) -> subprocess.Popen[bytes]:
        started = begin(order, [sys.executable, "-m", "tests.device.canary_process", "right"])
        print(STARTED, started.pid, flush=True)
        sys.stdin.readline()
        reach(STARTED)
        return started

    def decoded(data: bytes, **options: Any) -> Any:
        found = decode(data, **options)
        if isinstance(found, Verdict):
            steps = {CASE: found.case, LAUNCHED: found.is_launched, RIGHT: found.cases, UNTIMED: found.untimed}
            for step in (step for step, is_reached in {**steps, OVER: found.is_over}.items() if is_reached):
                reach(step)
        return found

    def written(*given: Any, **options: Any) -> None:
        reach(WRITING)
        write_proof(*given, **options)
        reach(WRITTEN)

    def locking(proving: proving.Proofs, name: CacheKey) -> AbstractContextManager[None]:
        print("locking", flush=True)
        return locked(proving, name)

    patch.setattr(watchdog, "_started", start)
    patch.setattr(msgspec.json, "decode", decoded)
    patch.setattr(proving, "write_proof", written)
    patch.setattr(proving.Proofs, "_locked", locking)
    with open_cache(Path(store), durability="fast", prove="before") as cache:
        print(cache.get_to_launch(PROBLEM).record.family, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
