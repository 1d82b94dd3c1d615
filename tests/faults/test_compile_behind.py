"""A process is killed while it compiles behind a kernel that serves: its slot is free, and the next compiles once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cache_engine import open_cache
from cache_engine.cache.queue import queue_state
from cache_engine.model.gemm import DType, GemmProblem, Specialisation
from cache_engine.store.journal import read_journal
from cache_engine.store.lock import file_lock
from cache_engine.upkeep import integrity
from cache_engine.upkeep.findings import FindingKind

PROBLEM = GemmProblem(40, 192, 128, dtype=DType.FP32, arch="sm_80")
SLOTS = 1

# Prints the kernel that serves, and when the other one's compile is under way, which then takes for ever.
_PROGRAM = """
import sys, threading
from cache_engine import open_cache
from cache_engine.compilers import COMPILERS
from tests.faults.test_compile_behind import PROBLEM, SLOTS

under_way = threading.Event()

def compile_for_ever(source, arch):
    under_way.set()
    threading.Event().wait()

cache = open_cache(sys.argv[1], compile_slots=SLOTS)
COMPILERS["nvrtc"].compile = compile_for_ever
kernel = cache.get_or_compile(PROBLEM, wait_ms=0)
under_way.wait()
print(kernel.key, kernel.better.key, flush=True)
threading.Event().wait()
"""


def test_a_kill_while_a_kernel_is_compiled_behind_leaves_nothing_held_and_the_next_process_compiles_it_once(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    with open_cache(folder) as cache:
        serves = cache.get_or_compile(replace(PROBLEM, specialisation=Specialisation.DYNAMIC)).key
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout is not None
        served, wanted = process.stdout.readline().split()
        layout = cache.layout
        under_way = [turn.key for turn in queue_state(layout, SLOTS).compiling]
        os.kill(process.pid, signal.SIGKILL)
    assert (served, under_way) == (serves, [wanted])

    assert queue_state(layout, SLOTS).compiling == ()
    for path in layout.locks.iterdir():
        with file_lock(path, 0):
            pass
    with open_cache(folder, compile_slots=SLOTS) as one, open_cache(folder, compile_slots=SLOTS) as other:
        assert {finding.kind for finding in one.admin.check()} == {FindingKind.STALE_TEMPORARY}  # its ticket, for one
        assert one.get_or_compile(PROBLEM, wait_ms=0).key == serves
        with ThreadPoolExecutor(2) as callers:
            kernels = list(callers.map(lambda cache: cache.get_or_compile(PROBLEM), (one, other)))
        assert {kernel.key for kernel in kernels} == {wanted}
        one.admin.clean()
    assert read_journal(layout.journal).totals.compiles == 2  # with that of the kernel that serves
    assert list(layout.temp.iterdir()) == []
    assert list(integrity.check(one.store)) == []
