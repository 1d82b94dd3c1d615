"""Locks: one holder at a time, a bounded wait, and no ghost after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_engine.errors import LockTimeout
from cache_engine.store.lock import file_lock

HOLD = (
    "import sys, time; from pathlib import Path; from cache_engine.store.lock import file_lock\n"
    "with file_lock(Path(sys.argv[1]), 5):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


@contextmanager
def _holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock; it is killed at the end of the body."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def _is_free(path: Path) -> bool:
    try:
        with file_lock(path, 5):
            return True
    except LockTimeout:
        return False


def test_a_lock_held_by_another_process_is_not_had(path: Path) -> None:
    with _holder(path):
        started = time.monotonic()
        with pytest.raises(LockTimeout, match=r"a\.lock was held"), file_lock(path, 0.2):
            pass
        assert time.monotonic() - started >= 0.2


def test_a_lock_ends_with_its_killed_holder(path: Path) -> None:
    with _holder(path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        assert _is_free(path)


def test_a_stopped_holder_keeps_its_lock_until_it_is_killed(path: Path) -> None:
    with _holder(path) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(LockTimeout), file_lock(path, 0.1):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        assert _is_free(path)


def test_threads_exclude_each_other(path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        for _ in range(20):
            with file_lock(path, 30):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1


def test_readers_share_and_exclude_a_writer(path: Path) -> None:
    shared = file_lock(path, 0, shared=True), file_lock(path, 0, shared=True)
    with shared[0], shared[1], pytest.raises(LockTimeout), file_lock(path, 0):
        pass
    with file_lock(path, 0), pytest.raises(LockTimeout), file_lock(path, 0, shared=True):
        pass


def test_a_lock_file_stays(path: Path) -> None:
    """Deleting one lets a second holder in."""
    with file_lock(path, 0):
        pass
    assert path.exists()


def test_a_lock_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), file_lock(tmp_path / "nowhere" / "a.lock", 0):
        pass


def test_an_error_in_the_body_releases_the_lock(path: Path) -> None:
    with pytest.raises(RuntimeError), file_lock(path, 0):
        raise RuntimeError
    with file_lock(path, 0):
        pass


def test_a_lock_that_comes_too_late_is_given_back(path: Path) -> None:
    with _holder(path) as holder:
        with pytest.raises(LockTimeout), file_lock(path, 0.05):
            pass
        assert holder.poll() is None
    assert _is_free(path)


def test_without_threads_it_is_polled_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with _holder(path) as holder:
        with pytest.raises(LockTimeout), file_lock(path, 0.05):
            pass
        holder.kill()
        assert _is_free(path)


def test_a_wait_that_is_interrupted_leaves_no_lock(path: Path) -> None:
    """Ctrl-C while waiting, as another thread would see it."""
    code = (
        "import sys, time; from pathlib import Path; from cache_engine.store.lock import file_lock\n"
        "print('waiting', flush=True)\n"
        "try:\n"
        "    with file_lock(Path(sys.argv[1]), 60): pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True); time.sleep(60)\n"
    )
    with _holder(path) as holder:
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            waiting.send_signal(signal.SIGINT)
            assert waiting.stdout.readline() == "interrupted\n"
            holder.kill()
            assert _is_free(path), "who was interrupted has it"
            waiting.kill()
