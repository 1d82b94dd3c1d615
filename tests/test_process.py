"""Programs that fork, as training and serving programs do: no ghost of a lock, and no count lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.store.journal import read_journal


def _run(code: str, *arguments: object) -> str:
    """What a program prints. Forking is done there, where no test framework's thread is in the way."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_forked_under_a_lock_neither_keeps_nor_ends_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from cache_engine.errors import LockTimeout; from cache_engine.store.lock import file_lock\n"
        "path = Path(sys.argv[1])\n"
        "asked, answered = os.pipe()\n"
        "def held():\n"
        "    try:\n"
        "        with file_lock(path, 0): return False\n"
        "    except LockTimeout: return True\n"
        "with file_lock(path, 0):\n"
        "    leaver = os.fork()\n"
        "    if leaver:\n"
        "        os.waitpid(leaver, 0)\n"
        "        print('held after a child left the body:', held())\n"
        "        stayer = os.fork()\n"
        "        if not stayer:\n"
        "            os.read(asked, 1)\n"  # still inside the body, with the file open
        "            os._exit(0)\n"
        "if not leaver: os._exit(0)\n"
        "print('held while a child stays in it:', held())\n"
        "os.write(answered, b'.'); os.waitpid(stayer, 0)\n"
    )
    assert (
        _run(code, tmp_path / "a.lock")
        == "held after a child left the body: True\nheld while a child stays in it: False\n"
    )


@pytest.mark.parametrize(
    "make",
    [
        "from cache_engine.store.memory import MemoryTier; tier = MemoryTier(9); lock = tier._lock\n"
        "def use(): return tier.get('0' * 64)\n",
        "from cache_engine.store.journal import Journal; journal = Journal(Path(sys.argv[1]), 9)\n"
        "lock = journal._lock\n"
        "def use(): journal.miss('0' * 64); journal.flush()\n",
        "from cache_engine.compilers import COMPILERS; nvrtc = COMPILERS['nvrtc']; lock = nvrtc._loading\n"
        "def use(): nvrtc.load()\n",
    ],
    ids=["memory", "journal", "nvrtc"],
)
def test_a_child_forked_while_another_thread_held_a_lock_can_go_on(tmp_path: Path, make: str) -> None:
    code = (
        f"import os, signal, sys; from pathlib import Path\n{make}"
        "with lock:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.alarm(20)\n"  # it would wait for ever
        "        use()\n"
        "        os._exit(0)\n"
        "    print(os.waitpid(child, 0)[1])\n"
    )
    assert _run(code, tmp_path) == "0\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_worker_used_is_counted(tmp_path: Path, method: str) -> None:
    """A worker of multiprocessing ends without running what atexit was given."""
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from cache_engine import GemmProblem, open_cache\n"
        "PROBLEM = GemmProblem(64, 48, 80, dtype='fp32', arch='sm_90')\n"
        "def work(store):\n"
        "    global kept\n"  # else it is closed when it goes out of scope
        "    kept = open_cache(store)\n"
        "    kept.get_or_compile(PROBLEM)\n"
        "if __name__ == '__main__':\n"
        "    with open_cache(sys.argv[1]) as cache: cache.get_or_compile(PROBLEM)\n"
        f"    workers = multiprocessing.get_context('{method}')\n"
        "    processes = [workers.Process(target=work, args=(sys.argv[1],)) for _ in range(2)]\n"
        "    for process in processes: process.start()\n"
        "    for process in processes: process.join()\n"
    )
    subprocess.run([sys.executable, str(script), str(tmp_path / "store")], check=True, timeout=120)
    totals = read_journal(tmp_path / "store" / "journal").totals
    assert (totals.misses, totals.hits) == (1, {"disk": 2})
