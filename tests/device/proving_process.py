"""A process that proves a family on NumPy before it serves, for tests that kill it or run two of them at once.

Its arguments are a store and a step. It prints ``started`` and the number of its process of canaries, and waits for a
line; ``locking`` before it takes the proof's lock; and the family that serves. At the step it kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache import proving
from cache_engine.cache.cache import open_cache
from cache_engine.cache.proving import watchdog
from cache_engine.cache.proving.watchdog import CASE, LANDED, LAUNCH, RIGHT, UNTIMED, Line, Order, Verdict, Watchdog
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.store.proofs import write_proof
from tests.device import numpy_gpu

PROBLEM = GemmProblem(40, 72, 96, arch="sm_90a")
STARTED, WRITING, WRITTEN = "started", "writing", "written"
STEPS = (STARTED, CASE, LAUNCH, LANDED, RIGHT, UNTIMED, WRITING, WRITTEN)


def main(store: str, last: str) -> None:
    """Proves the family; kills itself at the step ``last``."""
    patch = pytest.MonkeyPatch()
    numpy_gpu.install(patch)
    patch.setattr(proving, "current_gpu", lambda: (0, numpy_gpu.DEVICE))
    take, locked = watchdog.Watchdog._take, proving.Proofs._locked

    def reach(step: str) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def start(order: Order) -> Watchdog:
        started = Watchdog(order, [sys.executable, "-m", "tests.device.canary_process", "right"])
        print(STARTED, started._process.pid, flush=True)
        sys.stdin.readline()
        reach(STARTED)
        return started

    def taken(found: Verdict, line: Line) -> None:
        reach(line.kind)
        take(found, line)

    def written(*given: Any, **options: Any) -> None:
        reach(WRITING)
        write_proof(*given, **options)
        reach(WRITTEN)

    def locking(proving: proving.Proofs, name: CacheKey) -> AbstractContextManager[None]:
        print("locking", flush=True)
        return locked(proving, name)

    patch.setattr(proving, "Watchdog", start)
    patch.setattr(watchdog.Watchdog, "_take", staticmethod(taken))
    patch.setattr(proving, "write_proof", written)
    patch.setattr(proving.Proofs, "_locked", locking)
    with open_cache(Path(store), durability="fast", prove="before") as cache:
        print(cache.get_to_launch(PROBLEM).record.family, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
