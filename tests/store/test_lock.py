"""Locks: one holder at a time, a bounded wait, and no ghost after a kill."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import portalocker
import pytest

from cache_engine import background
from cache_engine.errors import LockTimeout
from cache_engine.model.key import CacheKey
from cache_engine.store import lock
from cache_engine.store.lock import file_lock
from tests.remote.waiting import until

HOLD = (
    "import sys, time; from pathlib import Path; from cache_engine.store.lock import file_lock\n"
    "with file_lock(Path(sys.argv[1]), 5):\n    print('held', flush=True)\n    time.sleep(600)\n"
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
        with file_lock(path, 600):
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
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", refuse)
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
        "    with file_lock(Path(sys.argv[1]), 600): pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True); time.sleep(600)\n"
    )
    with _holder(path) as holder:
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waiting\n"
            until(lambda: f"-> FLOCK  ADVISORY  WRITE {waiting.pid} " in Path("/proc/locks").read_text())
            waiting.send_signal(signal.SIGINT)
            assert waiting.stdout.readline() == "interrupted\n"
            holder.kill()
            assert _is_free(path), "who was interrupted has it"
            waiting.kill()


def test_waiters_for_a_shared_lock_get_it_together(path: Path) -> None:
    together = threading.Barrier(2, timeout=600)
    met: list[int] = []

    def share() -> None:
        with file_lock(path, 20, shared=True):
            met.append(together.wait())

    sharers = [threading.Thread(target=share) for _ in range(2)]
    with file_lock(path, 5):
        for sharer in sharers:
            sharer.start()
    for sharer in sharers:
        sharer.join()
    assert sorted(met) == [0, 1]


def test_without_threads_a_shared_lock_is_waited_for_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_new_thread", none_left)
    with file_lock(path, 5, shared=True), open(path, "r+b") as file:
        assert lock._wait_in_line(file.fileno(), 5, True)
        assert not lock._wait_in_line(file.fileno(), 0.01, False)


def test_a_process_that_gave_up_a_wait_can_end(path: Path) -> None:
    """The thread that still waits does not hold it back."""
    code = (
        "import sys; from pathlib import Path; from cache_engine.errors import LockTimeout\n"
        "from cache_engine.store.lock import file_lock\n"
        "try:\n    with file_lock(Path(sys.argv[1]), 0.01): pass\nexcept LockTimeout: print('timeout')\n"
    )
    with file_lock(path, 5):
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=600)
    assert done.stdout == "timeout\n", done.stderr


def test_a_lock_that_comes_after_the_wait_is_free_though_a_fork_has_its_file(path: Path) -> None:
    """A descriptor that is duplicated stands for the one that a forked child has: closing ours releases nothing."""
    with file_lock(path, 5), path.open("r+b") as file:
        waiter = lock._Waiter(file.fileno(), False)
        thread = background.Thread(waiter.wait)
        assert not waiter.acquired_within(thread, 0.01)
        forked = os.dup(waiter._file.descriptor)
    try:
        until(lambda: not thread.is_alive)
        with file_lock(path, 0):
            pass
    finally:
        os.close(forked)


def test_where_waiting_does_not_work_the_error_is_that_of_the_file_system(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise portalocker.LockException("No locks available")

    monkeypatch.setattr(lock, "try_lock", lambda *_, **__: False)
    monkeypatch.setattr(portalocker, "lock", refused)
    with pytest.raises(OSError, match="do not work"), file_lock(path, 5):
        pass


def test_a_lock_that_cannot_be_unlocked_ends_with_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = fcntl.flock

    def refused(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError("refused")
        really(descriptor, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refused)
        with file_lock(path, 5):
            pass
    assert _is_free(path)


def test_a_child_starts_with_all_thread_locks_free() -> None:
    locks, key = lock.ThreadLocks(), CacheKey("ab" * 32)
    assert locks.of(key).acquire(blocking=False)
    assert not locks.of(key).acquire(blocking=False)
    locks.renew_after_fork()
    assert locks.of(key).acquire(blocking=False)


def test_threads_that_want_different_keys_rarely_share_a_lock() -> None:
    locks = lock.ThreadLocks()
    assert len({id(locks.of(CacheKey(f"{first:02x}" + "ab" * 31))) for first in range(256)}) == 64


def test_where_locks_do_not_work_the_error_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(OSError, match=r"^locks do not work on this file system: No locks available$"),
        file_lock(path, 5),
    ):
        pass


def test_a_link_in_the_place_of_a_lock_is_refused_by_name(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(PermissionError) as refused, file_lock(path, 0):
        pass
    assert (refused.value.errno, refused.value.strerror) == (errno.EPERM, f"{path} is a link, not a file")


def test_two_locks_are_made_at_once(path: Path) -> None:
    """Each locks the folder for that, shared with the other."""
    with lock.Held(lock._open_folder(path.parent), path.parent.name, 5, shared=True), file_lock(path, 0):
        assert path.exists()


def test_locking_does_not_import_redis_and_leaves_it_to_the_program(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    code = (
        "import os, sys\nfrom cache_engine.store import lock\n"
        "lock._wait(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), False)\nprint('redis' in sys.modules)\n"
        "from portalocker.redis import RedisLock\nprint(RedisLock.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], capture_output=True, text=True)
    assert done.stdout == "False\nRedisLock\n", done.stderr
