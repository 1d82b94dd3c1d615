"""Many processes at once: one compile per key, no lost update, and every process gets its turn."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from tests.faults.counting import report

_ASK = """
import sys
from cache_engine import GemmProblem, open_cache
store, operations, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
problems = [GemmProblem(64, 48 + 16 * number, 80, dtype="fp32", arch="sm_90") for number in range(keys)]
with open_cache(store, memory_bytes=0, durability="fast") as cache:
    print("ready", flush=True)
    sys.stdin.readline()
    compiled = 0
    for operation in range(operations):
        kernel = cache.get_or_compile(problems[operation % keys])
        assert not kernel.unpublished, kernel.unpublished
        compiled += kernel.tier == "compiled"
print(compiled)
"""

_LOCK = """
import json, sys, time
from pathlib import Path
from cache_engine.store.lock import file_lock
import portalocker
path, seconds, turns = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
waits, end = [], time.time() + seconds
while (asked := time.time()) < end and len(waits) < turns:
    with file_lock(path, 60):
        waits.append(time.time() - asked)
        time.sleep(0.001)
print(json.dumps(waits))
"""


def _run(code: str, processes: int, *arguments: object) -> list[str]:
    """What so many processes print that run the code side by side, all of them from the same moment on."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return printed


def _turns(folder: Path, processes: int, seconds: float = math.inf, turns: float = math.inf) -> dict[str, float]:
    printed = _run(_LOCK, processes, folder / "some.lock", seconds, turns)
    waits = [json.loads(line) for line in printed]
    counts = [len(each) for each in waits]
    ordered = sorted(wait for each in waits for wait in each)
    return {
        "processes": processes,
        "turns": sum(counts),
        "fewest": min(counts),
        "most": max(counts),
        # Jain's index: 1 when all get the same, 1/n when one gets everything.
        "fairness": round(sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)), 4),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 2),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] * 1e3, 2),
        "max_ms": round(ordered[-1] * 1e3, 2),
    }


@pytest.mark.parametrize(
    ("processes", "operations", "keys"),
    [(4, 200, 2), *(pytest.param(16, 1000, keys, marks=pytest.mark.soak) for keys in (1, 16))],
)
def test_processes_that_ask_for_the_same_kernels_compile_each_once(
    tmp_path: Path, processes: int, operations: int, keys: int
) -> None:
    compiled = sum(map(int, _run(_ASK, processes, tmp_path / "store", operations, keys)))
    assert compiled == keys
    with open_cache(tmp_path / "store") as cache:
        totals = cache.stats().totals
        assert (totals.compiles, totals.misses) == (keys, keys)
        assert sum(totals.hits.values()) == processes * operations - keys
        assert totals.publish_failures == totals.corruptions == 0
        assert cache.admin.verify() == []
    asked = processes * operations
    report({"contention": f"{processes} processes, {keys} keys", "asked": asked, "compiled": compiled, "lost": 0})


def test_every_process_gets_the_lock(tmp_path: Path) -> None:
    """As often as it asks, and none waits a minute. How fair the turns are depends on the machine; soak measures it."""
    turns = _turns(tmp_path, processes=6, turns=100)
    assert (turns["fewest"], turns["most"]) == (100, 100)


@pytest.mark.soak
def test_the_turns_of_sixteen_processes_are_fair(tmp_path: Path) -> None:
    turns = _turns(tmp_path, processes=16, seconds=20)
    report({"lock": "held 1 ms at a time", **turns})
    assert turns["fairness"] >= 0.9, turns
