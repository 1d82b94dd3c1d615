"""Programs that fork, as training and serving programs do: no ghost of a lock, and no count lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.process import OwnFile
from cache_engine.store.journal import read_journal
from cache_engine.store.lock import try_lock
from cache_engine.store.pack import write_pack
from cache_engine.upkeep.packs import export_pack
from tests.helpers import fill, make_store


def _run(code: str, *arguments: object) -> str:
    """What a program prints. Forking is done there, where no test framework's thread is in the way."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[1],
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


def test_a_child_forked_during_a_compile_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    """Neither the key's, nor that of a file being written, nor that of the journal's."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from cache_engine import GemmProblem, open_cache; from cache_engine.cache import miss as engine\n"
        "def compiling(*_):\n"
        "    if os.fork(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "    os.write(1, b'forked'); os.read(0, 1); os._exit(0)\n"
        "vars(engine).update(make_artifact=compiling)\n"
        "cache = open_cache(sys.argv[1])\n"
        "cache.journal.event('publish')\n"
        "from cache_engine.store.publish import stage; staged = stage(cache.layout.temp)\n"
        "cache.get_or_compile(GemmProblem(64, 48, 80, dtype='fp32', arch='sm_90'))\n"
    )
    store = tmp_path / "store"
    command = [sys.executable, "-c", code, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.read(6) == b"forked"
        assert parent.wait(600) == -signal.SIGKILL
        layout = make_store(store).layout
        locks = list(layout.locks.glob("key-*"))
        assert locks
        for path in (*locks, *layout.journal.iterdir(), *layout.temp.iterdir()):
            with path.open("r+b") as file:
                assert try_lock(file.fileno()), path
        parent.stdin.write(b".")


def test_a_program_that_is_executed_gets_no_file_of_the_store(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from cache_engine import open_cache; from cache_engine.store.lock import file_lock\n"
        "cache = open_cache(sys.argv[1], packs=(Path(sys.argv[2]),))\n"
        "cache.journal.event('publish')\n"
        "def opened(): return [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[:-1]]\n"
        "with file_lock(cache.layout.maintenance_lock, 0):\n"
        "    print(sum(sys.argv[3] in path for path in opened()), flush=True)\n"
        "    subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False)\n"
    )
    write_pack(tmp_path / "a.gemmpack", [])
    mine, *theirs = _run(code, tmp_path / "store", tmp_path / "a.gemmpack", tmp_path).splitlines()
    assert int(mine) == 3
    assert theirs
    assert str(tmp_path) not in "".join(theirs)


def test_a_file_that_cannot_be_identified_is_closed_once_and_without_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing the half-made object must do nothing: the number may be that of another file by then."""

    def refuse(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "the disk says no")

    closed: list[int] = []
    close = os.close

    def note(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", refuse)
        patch.setattr(os, "close", note)
        with pytest.raises(OSError, match="the disk says no"):
            OwnFile.open(tmp_path / "a.lock", os.O_RDWR | os.O_CREAT)
    assert len(closed) == 1


def test_after_the_program_has_closed_all_descriptors_its_own_files_stay_as_they_are(tmp_path: Path) -> None:
    """As a program does that becomes a daemon. The cache goes on, packs included."""
    filled = make_store(tmp_path / "filled")
    keys = fill(filled, 2)
    export_pack(filled, tmp_path / "a.gemmpack")
    code = (
        "import os, sys; from pathlib import Path\n"
        "from cache_engine import open_cache; from cache_engine.store.lock import file_lock\n"
        "from cache_engine.evaluator.hardware import PRESETS\n"
        "from cache_engine.evaluator.problem import EvaluationProblem\n"
        "from tests.helpers import invented_timing, publish; from cache_engine import GemmProblem\n"
        "from cache_engine.model.kernel import KernelConfig\n"
        "cache = open_cache(sys.argv[1], packs=(Path(sys.argv[2]),), memory_bytes=0)\n"
        "def use(seed):\n"
        "    print(cache.look_up(sys.argv[4 + seed]).tier)\n"
        "    cache.get(sys.argv[4]); cache.journal.flush()\n"
        "    publish(cache.store, seed)\n"
        "    cache.evaluations.evaluate(EvaluationProblem(64, 64 + seed, 64), next(iter(PRESETS.values())))\n"
        "    cache.timings.add([invented_timing(GemmProblem(64, 64, 64), KernelConfig(64, 64, 32, 2, 2, 3), 1.0)])\n"
        "use(0)\n"
        "with file_lock(cache.layout.index_lock, 0):\n"
        "    os.closerange(3, 1000)\n"
        "    theirs = [os.open(f'{sys.argv[3]}/{n}', os.O_RDWR | os.O_CREAT) for n in range(30)]\n"
        "use(1)\n"
        "cache.close(); del cache\n"
        "print(sum(os.fstat(n).st_size for n in theirs))\n"  # all are open still, and empty
    )
    (tmp_path / "theirs").mkdir()
    told = _run(code, tmp_path / "store", tmp_path / "a.gemmpack", tmp_path / "theirs", *keys)
    assert told.split() == ["pack", "pack", "0"]
    with open_cache(tmp_path / "store") as cache:
        assert cache.stats().totals.hits == {"pack": 2}
        assert len(list(cache.timings)) == 2
        (fingerprint,) = cache.evaluations.fingerprints()
        assert len(list(cache.evaluations.entries(fingerprint))) == 2


@pytest.mark.parametrize(
    "make",
    [
        "from cache_engine.store.base import MemoryTier; tier = MemoryTier(9); lock = tier._lock\n"
        "def use(): return tier.get('0' * 64)\n",
        "from cache_engine.store.journal import Journal; journal = Journal(Path(sys.argv[1]), 9)\n"
        "lock = journal._lock\n"
        "def use(): journal.miss(); journal.flush()\n",
        "from cache_engine.compilers import COMPILERS; nvrtc = COMPILERS['nvrtc']; lock = nvrtc._lock\n"
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
def test_hits_of_a_worker_process_are_counted(tmp_path: Path, method: str) -> None:
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


_WORK_OF_ANOTHER = {
    "a compile by NVRTC": (
        "from cache_engine.compilers import nvrtc\n"
        "nvrtc._program = lambda *_: work()\n"
        "call = lambda: nvrtc.Nvrtc().compile('', 'sm_90')\n"
    ),
    "the start of a tool": (
        "from cache_engine.compilers import disassembly\n"
        "disassembly.subprocess.Popen = lambda *_, **__: work()\n"
        "call = lambda: disassembly._printed(Path('/tool'), [], b'')\n"
    ),
    "the start of nvcc": (
        "import subprocess; from types import SimpleNamespace; from cache_engine.compilers import nvcc\n"
        "subprocess.Popen = lambda *_, **__: work()\n"
        "call = lambda: nvcc._execute((), SimpleNamespace(folder='/', lock=0))\n"
    ),
    "the imports of a miss": (
        "from cache_engine import open_cache; from cache_engine.cache import serving\n"
        "serving.import_module = lambda _: work()\n"
        "cache = open_cache(sys.argv[1])\n"
        "call = lambda: cache._serving._key_lock('0' * 64, 0)\n"
    ),
}


@pytest.mark.parametrize("what", _WORK_OF_ANOTHER)
def test_a_fork_waits_for_what_a_child_could_not_end(tmp_path: Path, what: str) -> None:
    """The child would wait for a lock of the library for ever, or keep the pipes of the program open."""
    code = (
        "import os, sys, time; from pathlib import Path; from threading import Event, Thread\n"
        "began, forks, ended = Event(), Event(), []\n"
        "def work():\n"
        "    began.set()\n"
        "    assert forks.wait(60)\n"
        "    time.sleep(0.1)\n"  # without a lock that the fork waits for, it would be done first
        "    ended.append(True)\n"
        "    raise InterruptedError\n"
        f"{_WORK_OF_ANOTHER[what]}"
        "def run():\n"
        "    try: call()\n"
        "    except Exception as error: assert 'Interrupted' in repr(error) + repr(error.__cause__), error\n"
        "Thread(target=run).start()\n"
        "assert began.wait(60)\n"
        "os.register_at_fork(before=forks.set)\n"  # the last that is registered is called first
        "if not os.fork(): os._exit(0 if ended else 3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert _run(code, tmp_path) == "0\n"


def test_a_body_that_forks_waits_for_no_end_of_itself(tmp_path: Path) -> None:
    code = (
        "import os\nfrom cache_engine import process\nfrom cache_engine.process import unforked\n"
        "process._FORK_S = 600.0\n"
        "with unforked():\n"
        "    child = os.fork()\n"
        "with unforked(): pass\n"
        "if not child: os._exit(0 if os.fork() == 0 or os.wait() else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert _run(code, tmp_path) == "0\n"
