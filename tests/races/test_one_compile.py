"""Many processes and one kernel: one of them compiles it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.cache.queue import tickets

ASK = (
    "import json, sys, time\n"
    "from cache_engine import GemmProblem, open_cache\n"
    "from cache_engine.compilers import COMPILERS\n"
    "COMPILERS['nvrtc'].load()\n"
    "with open_cache(sys.argv[1]) as cache:\n"
    "    print('ready', flush=True)\n"
    "    sys.stdin.readline()\n"
    "    kernel = cache.get_or_compile(GemmProblem(4096, 7168, 2048, arch='sm_90'))\n"
    "    print(json.dumps({'tier': kernel.tier, 'key': kernel.key, 'size': len(kernel.cubin)}))\n"
)


def _ask_together(count: int, store: Path) -> list[dict[str, object]]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        answers.append(json.loads(output))
    return answers


@pytest.mark.parametrize("processes", [4, pytest.param(16, marks=pytest.mark.soak)])
def test_processes_compile_one_key_once(tmp_path: Path, processes: int) -> None:
    answers = _ask_together(processes, tmp_path / "store")
    assert [answer["tier"] for answer in answers].count("compiled") == 1
    assert [answer["tier"] for answer in answers].count("disk") == processes - 1
    assert len({(answer["key"], answer["size"]) for answer in answers}) == 1
    with open_cache(tmp_path / "store") as cache:
        totals = cache.stats().totals
        assert (totals.compiles, totals.misses, totals.hits) == (1, 1, {"disk": processes - 1})
        assert cache.admin.verify() == []


COMPILE_MANY = (
    "import sys, threading, time\n"
    "from cache_engine import GemmProblem, open_cache\n"
    "from cache_engine.compilers import COMPILERS\n"
    "compiler = COMPILERS['nvrtc']\n"
    "compiler.load()\n"
    "really = compiler.compile\n"
    "def compile(source, arch):\n"
    "    started = time.monotonic()\n"
    "    compiled = really(source, arch)\n"
    "    print(f'{started} {time.monotonic()}\\n', end='', flush=True)\n"  # one write: threads print side by side
    "    return compiled\n"
    "compiler.compile = compile\n"
    "first = int(sys.argv[2])\n"
    "with open_cache(sys.argv[1], compile_slots=2) as cache:\n"
    "    def ask(n):\n"
    "        assert cache.get_or_compile(GemmProblem(16, n, 64, dtype='fp32', arch='sm_80')).tier == 'compiled'\n"
    "    asking = [threading.Thread(target=ask, args=(64 * (first + n),)) for n in range(12)]\n"
    "    for thread in asking:\n"
    "        thread.start()\n"
    "    for thread in asking:\n"
    "        thread.join()\n"
)


def test_24_threads_of_two_processes_compile_24_keys_in_two_slots(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", COMPILE_MANY, str(tmp_path / "store")]
    processes = [subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE, text=True) for first in (1, 20)]
    spans = []
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        spans += [tuple(map(float, line.split())) for line in output.splitlines()]
    assert len(spans) == 24
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    assert max(accumulate(change for _, change in changes)) <= 2
    with open_cache(tmp_path / "store") as cache:
        assert (cache.stats().totals.compiles, cache.admin.verify()) == (24, [])
        assert tickets(cache.layout) == []
