"""The queue of all work in the background: order, bounds, waits, ends, failures, forks; and its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from cache_engine import background
from cache_engine.background import BackgroundQueue, Thread
from cache_engine.process import weak
from tests.remote.waiting import until


class Gate:
    """Work that begins, and ends when it is let."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.begun: list[int] = []
        self.most = self._now = 0
        self._lock = threading.Lock()

    def work(self, number: int = 0) -> Callable[[], None]:
        """Work of this number."""

        def work() -> None:
            with self._lock:
                self.begun.append(number)
                self._now += 1
                self.most = max(self.most, self._now)
            assert self.is_open.wait(600)
            with self._lock:
                self._now -= 1

        return work


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.is_open.set()


def test_no_caller_waits_and_what_was_put_first_is_done_first(gate: Gate) -> None:
    queue = BackgroundQueue()
    assert all(queue.put(gate.work(number)) for number in range(9))
    until(lambda: gate.begun == [0])
    assert not queue.is_idle
    gate.is_open.set()
    assert queue.settle()
    assert (gate.begun, gate.most) == ([*range(9)], 1)
    assert queue.put(gate.work(9))  # its thread has ended, or is about to
    assert queue.settle()
    assert gate.begun[-1] == 9


def test_no_more_at_a_time_than_there_are_threads_and_all_in_the_end(gate: Gate) -> None:
    queue = BackgroundQueue(3)
    for number in range(20):
        queue.put(gate.work(number))
    until(lambda: len(gate.begun) == 3)
    gate.is_open.set()
    assert queue.settle()
    assert (gate.most, sorted(gate.begun)) == (3, [*range(20)])


def test_too_much_is_refused_and_counts_what_is_being_done(gate: Gate) -> None:
    queue = BackgroundQueue(most=2)
    assert queue.put(gate.work(0))
    until(lambda: gate.begun == [0])
    assert [queue.put(gate.work(number)) for number in (1, 2)] == [True, False]
    gate.is_open.set()
    assert queue.settle()
    assert gate.begun == [0, 1]
    assert queue.put(gate.work(4))


def test_a_process_without_threads_refuses_all(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    queue = BackgroundQueue(2)
    with monkeypatch.context() as patch:
        patch.setattr(background, "start_new_thread", refuse)
        assert not queue.put(gate.work(1))
        assert queue.settle()
    assert queue.put(gate.work(2))
    until(lambda: gate.begun == [2])
    monkeypatch.setattr(background, "start_new_thread", refuse)
    assert queue.put(gate.work(3))  # the other thread will do it
    gate.is_open.set()
    assert queue.settle()
    assert gate.begun == [2, 3]


def test_settling_waits_for_what_was_put_before_and_no_longer_than_it_may(gate: Gate) -> None:
    queue, done = BackgroundQueue(), list[str]()
    queue.put(gate.work())
    queue.put(lambda: done.append("before"))
    assert not queue.settle(0.0)
    assert not queue.settle(0.01)
    gate.is_open.set()
    assert queue.settle()
    assert done == ["before"]


def test_settling_does_not_wait_for_what_is_put_later(gate: Gate) -> None:
    queue, first = BackgroundQueue(), Gate()
    queue.put(first.work())
    settled: list[bool] = []
    settling = threading.Thread(target=lambda: settled.append(queue.settle()))
    settling.start()
    until(lambda: bool(queue._settling))
    queue.put(gate.work())
    first.is_open.set()
    settling.join(600)
    assert settled == [True]
    assert not queue.is_idle


def test_work_waits_and_is_done_again_until_it_says_no_more() -> None:
    queue, waits, done = BackgroundQueue(), [0.001, 0.0, None], list[float | None]()

    def work() -> float | None:
        done.append(waits[len(done)])
        return done[-1]

    queue.put(work, 600.0)
    queue.put(work, 0.001)
    until(lambda: len(done) == 3)
    assert done == waits
    assert not queue.settle(0.01)  # the first is not due yet
    queue.close()
    assert queue.is_idle
    assert len(done) == 3


def test_what_is_due_now_does_not_wait_for_what_is_due_later(gate: Gate) -> None:
    class Bell(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            if timeout:
                is_waited_for.set()
            return super().get(block, timeout)

    queue, is_waited_for = BackgroundQueue(), threading.Event()
    queue._bell = Bell()
    queue.put(gate.work(1), 600.0)
    assert is_waited_for.wait(600)
    queue.put(gate.work(2))
    until(lambda: gate.begun == [2])


def test_work_that_fails_is_logged_and_lost_unless_it_repeats(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, tried = BackgroundQueue(), list[str]()

    def fail(name: str, times: int) -> Callable[[], None]:
        def work() -> None:
            tried.append(name)
            if tried.count(name) <= times:
                raise ValueError(name)

        return work

    queue.put(fail("once", 1))
    queue.put(fail("repeated", 2), 0.001)
    until(lambda: any(one.wait_s == 1.0 for one in tuple(queue._waiting)))  # longer than after a success
    assert (tried, len(queue._waiting)) == (["once", "repeated"], 1)
    assert "ValueError: once" in caplog.text
    assert "ValueError: repeated" in caplog.text
    monkeypatch.setattr(background, "_PAUSE_S", 0.001)
    queue = BackgroundQueue()
    queue.put(fail("again", 2), 0.001)
    until(lambda: queue.is_idle)
    assert tried.count("again") == 3


def test_a_thread_that_work_has_ended_is_replaced(gate: Gate) -> None:
    queue = BackgroundQueue()
    queue.put(sys.exit)
    (thread,) = queue._threads
    until(lambda: not thread.is_alive)
    gate.is_open.set()
    assert queue.put(gate.work(1))
    assert queue.settle(600)
    assert gate.begun == [1]


def test_an_end_drops_what_has_not_begun_and_takes_no_more(gate: Gate) -> None:
    queue = BackgroundQueue()
    for number in range(5):
        queue.put(gate.work(number))
    until(lambda: gate.begun == [0])
    queue.end()
    assert queue._waiting == []  # what it would do is freed at once, with the locks that it holds
    assert not queue.put(gate.work(9))
    assert not queue.settle(0.01)
    gate.is_open.set()
    queue.close()
    assert queue.is_idle
    assert gate.begun == [0]


def test_until_a_later_end_what_is_due_is_done_and_what_waits_is_not(gate: Gate) -> None:
    queue = BackgroundQueue()
    queue.put(gate.work(1), 0.01)
    queue.put(gate.work(2))
    queue.put(gate.work(3))
    until(lambda: gate.begun == [2])
    queue.end(time.monotonic() + 600)
    assert not queue.put(gate.work(9))
    gate.is_open.set()
    assert queue.settle()
    assert {2, 3} <= set(gate.begun) <= {1, 2, 3}


@pytest.mark.parametrize("again_s", [0.0, 600.0])
def test_after_an_end_was_ordered_nothing_is_done_again(again_s: float) -> None:
    queue, done = BackgroundQueue(), list[None]()

    def work() -> float:
        done.append(None)
        return again_s

    queue.put(work)
    until(lambda: bool(done))
    queue.end(time.monotonic() + 600)
    until(lambda: not any(thread.is_alive for thread in queue._threads))
    at_end = len(done)
    assert queue.is_idle
    assert not queue.put(work)
    assert len(done) == at_end


def test_after_a_later_end_nothing_begins(gate: Gate) -> None:
    queue = BackgroundQueue()
    queue.put(gate.work(1))
    queue.put(gate.work(2))
    until(lambda: gate.begun == [1])
    queue.end(time.monotonic() + 0.01)
    until(lambda: time.monotonic() > queue._ends_at)
    gate.is_open.set()
    queue.settle()
    assert queue.is_idle
    assert gate.begun == [1]


def test_closing_leaves_no_thread(gate: Gate) -> None:
    """One stopped by the end of the interpreter keeps the locks it has, and who waits for them waits for ever."""
    queue = BackgroundQueue(2)
    for _ in range(2):
        queue.put(gate.work(), 600.0)
    threads = queue._threads
    assert [thread.is_alive for thread in threads] == [True, True]
    until(queue._bell.empty)
    queue.close(60.0)
    assert not any(thread.is_alive for thread in threads)
    assert gate.begun == []


def test_work_of_a_freed_owner_is_not_done_again() -> None:
    class Owner:
        def work(self) -> float:
            done.append(None)
            return 0.0

    queue, done, owner = BackgroundQueue(), list[None](), Owner()
    queue.put(weak(owner.work))
    until(lambda: len(done) > 2)
    del owner
    assert queue.settle()
    until(lambda: queue.is_idle)


def test_a_forked_child_does_nothing_of_its_parent_and_can_go_on(gate: Gate) -> None:
    queue, done = BackgroundQueue(), list[str]()
    queue.put(gate.work())
    queue.put(lambda: done.append("the parent's"))
    until(lambda: gate.begun == [0])
    child = os.fork()
    if child == 0:
        try:
            is_fresh = queue.is_idle and queue.settle()
            queue.put(lambda: done.append("its own"))
            os._exit(0 if is_fresh and queue.settle(600.0) and done == ["its own"] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.is_open.set()
    assert queue.settle()
    assert done == ["the parent's"]


def test_a_process_that_ends_waits_for_nothing() -> None:
    code = (
        "import os, threading\n"
        "from cache_engine.background import BackgroundQueue\n"
        "queue, begun = BackgroundQueue(2), threading.Event()\n"
        "def work():\n"
        "    begun.set(); threading.Event().wait()\n"
        "for _ in range(100): queue.put(work)\n"
        "begun.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_has_ended_though_its_error_is_held() -> None:
    """As handlers that collect log records do: the error holds all frames of the thread."""
    errors = []

    def fail() -> None:
        try:
            raise ValueError
        except ValueError as error:
            errors.append(error)

    thread = Thread(fail)
    thread.join(60)
    assert len(errors) == 1
    assert not thread.is_alive


def test_a_thread_without_memory_to_run_keeps_nothing_waiting(tmp_path: Path) -> None:
    """Its stack fits into what the address space may grow by, and its first frame does not.

    ``threading.Thread.start`` hangs then.
    """
    code = (
        "import os, resource, sys, threading; from pathlib import Path\n"
        "from cache_engine.background import Thread; from cache_engine.store import lock\n"
        "threading.stack_size(2**16)\n"
        "path, seen, spare = Path(sys.argv[1]), set(), int(sys.argv[2])\n"
        "with lock.file_lock(path, 5): pass\n"
        "file = os.open(path, os.O_RDWR)\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "ran = []\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + spare, -1))\n"
        "try:\n"
        "    thread = Thread(ran.append, 1)\n"
        "except (RuntimeError, MemoryError):\n"
        "    seen = 'no thread'\n"
        "else:\n"
        "    thread.join(20)\n"
        "    seen = 'alive' if thread.is_alive else 'ran' if ran else 'died'\n"
        "acquired = lock._wait_in_line(file, 20, False)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "print(seen, acquired)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    seen = {
        subprocess.run([*command, str(spare * 1024)], capture_output=True, text=True, timeout=60).stdout.strip()
        for spare in range(60, 100, 4)
    }
    assert "died True" in seen
    assert seen <= {"no thread True", "died True", "ran True"}
