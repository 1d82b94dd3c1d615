"""Signals at random moments: closing a cache in a handler ends, and an exception out of one leaves nothing locked.

A process with everything imported forks a child for each trial, which works on a store until the signal comes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import read_journal
from cache_engine.store.lock import file_lock
from cache_engine.upkeep import integrity
from tests.faults.counting import report
from tests.faults.soundness import leftovers, tidy
from tests.helpers import fill

_TOO_LONG_S = 30
_PROGRAM = """
import json, os, random, signal, sys, time
import portalocker, cache_engine.store.journal.writer, cache_engine.store.results
from pathlib import Path
from cache_engine.cache import miss as engine
from cache_engine.cache.cache import open_cache
from cache_engine.cache.stages import COMPILE
from cache_engine.model.gemm import GemmProblem
from tests.helpers import INVENTED_GPU, invented_timing, make_entry
from cache_engine.model.kernel import KernelConfig

store, manner, trials, chance = sys.argv[1], sys.argv[2], int(sys.argv[3]), random.Random(sys.argv[4])

def compiled(_, stages):
    with stages(COMPILE):
        return make_entry(0)[1]

vars(engine).update(make_artifact=compiled)
vars(cache_engine.store.journal.writer).update(FLUSH_S=0.01)
CONFIG = KernelConfig(64, 64, 32, 2, 2, 3)

def work(number):
    done, hits = os.open(f"{store}/../hits", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 0
    cache = open_cache(store, durability="fast", memory_bytes=0 if number % 2 else 10**6)
    keys = list(cache.store.keys())

    def end(*_):
        if manner == "close":
            cache.close()
            os.write(done, f"{hits} ".encode())
            os._exit(0)
        raise {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[manner]

    signal.signal(signal.SIGTERM, end)
    problems = [GemmProblem(64, 8 * (1 + number), 8 * k, arch="sm_80") for k in range(1, 100)]
    try:
        os.write(1, b"ready")
        while True:
            for _ in range(30):
                cache.get(keys[hits % len(keys)])
                hits += 1
            hits += cache.get_or_compile(problems[hits % 99]).tier != "compiled"
            if hits % 7 == 0:
                cache.timings.add([invented_timing(problems[0], CONFIG, 10.0)])
            if hits % 5 == 0:
                cache.stats()
    except (KeyboardInterrupt, SystemExit):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cache.get(keys[0])  # it goes on
        hits += 1
        cache.close()
        os.write(done, f"{hits} ".encode())

for number in range(trials):
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writable, 1)
        work(number)
        os._exit(0)
    os.read(readable, 5)
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGTERM)
    sent = time.monotonic()
    deadline = sent + float(sys.argv[5])
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended = 0, -1
            break
        if manner != "close" and time.monotonic() > sent + 2:
            # Python ignores what is raised in a destructor or callback, so people press Ctrl-C again.
            os.kill(child, signal.SIGTERM)
            sent = time.monotonic()
        time.sleep(0.001)
    print(json.dumps(ended[1]), flush=True)
    os.close(readable), os.close(writable)
"""


@pytest.mark.parametrize("trials", [30, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("manner", ["close", "KeyboardInterrupt", "SystemExit"])
def test_a_signal_at_a_random_moment_neither_hangs_nor_harms(store: DiskStore, manner: str, trials: int) -> None:
    fill(store, 8)
    command = [sys.executable, "-c", _PROGRAM, str(store.layout.root), manner, str(trials), "7", str(_TOO_LONG_S)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=1800)
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert ends == [0] * trials, f"{ends.count(-1)} hung, others failed: {done.stderr[-3000:]}"
    report({"signals": trials, "seconds": round(time.monotonic() - started)})
    hits = [int(text) for text in (store.layout.root / ".." / "hits").read_text().split()]
    for path in store.layout.locks.iterdir():
        with file_lock(path, 0):
            pass
    counted = sum(read_journal(store.layout.journal).totals.hits.values())
    assert 0 < counted <= sum(hits) + len(hits)  # none twice, and the hit at hand may count
    tidy(store)
    assert leftovers(store) == []
    assert list(integrity.check(store)) == []
    with open_cache(store.layout.root) as cache:
        assert cache.get(next(store.keys())) is not None
