"""Compiles in the background: once for all that ask, none after the end, and a failure is not tried again at once."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

from cache_engine.cache.queue import PendingKernel
from cache_engine.cache.queue.slots import GivenUp
from cache_engine.cache.serving import stand_ins
from cache_engine.cache.serving.stand_ins import BackgroundCompiles
from cache_engine.errors import CompileError
from cache_engine.model.key import CacheKey
from tests.queue.test_slots import KEYS
from tests.remote.waiting import until


class Compiler:
    """Compiles when it is allowed to, and remembers what."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.began: list[CacheKey] = []

    def of(self, key: CacheKey, error: Exception | None = None) -> Callable[[Callable[[], bool]], str]:
        """What compiles a key, or fails."""

        def compile_it(is_wanted: Callable[[], bool]) -> str:
            self.began.append(key)
            assert self.allowed.wait(600)
            if error is not None:
                raise error
            return f"kernel {key[:3]}"

        return compile_it


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.allowed.set()


def start(
    behind: BackgroundCompiles[str], compiler: Compiler, key: CacheKey, error: Exception | None = None
) -> PendingKernel[str]:
    return behind.start(key, compiler.of(key, error), nullcontext)


def test_it_returns_at_once_and_the_handle_says_when_the_kernel_is_ready(compiler: Compiler) -> None:
    better = start(BackgroundCompiles(1), compiler, KEYS[1])
    assert (better.ready, better.done, better.kernel, better.failure) == (False, False, None, None)
    assert not better.wait(0)
    assert not better.wait(0.02)
    compiler.allowed.set()
    assert better.wait()
    assert better.wait()  # a second time too
    assert (better.ready, better.kernel, better.failure) == (True, "kernel 001", None)


def test_one_compile_serves_all_that_ask_meanwhile(compiler: Compiler) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(4)
    first = start(behind, compiler, KEYS[1])
    until(lambda: compiler.began == [KEYS[1]])
    assert start(behind, compiler, KEYS[1]) is first
    waiters = [threading.Thread(target=first.wait) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    compiler.allowed.set()
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()
    assert compiler.began == [KEYS[1]]


def test_a_waiter_lends_its_priority_as_long_as_it_waits(compiler: Compiler) -> None:
    lent: list[str] = []

    @contextmanager
    def lend() -> Iterator[None]:
        lent.append("begin")
        yield
        lent.append("end")

    better: PendingKernel[str] = BackgroundCompiles[str](1).start(KEYS[1], compiler.of(KEYS[1]), lend)
    assert lent == []
    better.wait(0)
    assert lent == []
    better.wait(0.01)
    assert lent == ["begin", "end"]
    compiler.allowed.set()
    assert better.wait()
    better.wait()
    assert lent.count("begin") <= 2


def test_a_failure_is_told_logged_and_not_tried_again_for_a_while(
    compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1, retry_after_s=600.0)
    compiler.allowed.set()
    error = CompileError("it is refused", log="", source="", flags=())
    with caplog.at_level(logging.WARNING):
        better = start(behind, compiler, KEYS[1], error)
        assert not better.wait(600)
        until(lambda: behind.failed(KEYS[1]) is not None)
    assert (better.done, better.error, str(better.failure)) == (True, error, "it is refused")
    assert "not tried again for 600 s: it is refused" in caplog.text
    assert start(behind, compiler, KEYS[1]) is better
    assert start(behind, compiler, KEYS[2]).wait(600)
    behind._retry_after_s = 0.0  # as if that long had passed
    assert behind.failed(KEYS[1]) is None
    assert start(behind, compiler, KEYS[1]).wait(600)
    assert compiler.began == [KEYS[1], KEYS[2], KEYS[1]]


def test_closing_drops_what_has_not_begun_and_counts_it(compiler: Compiler) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    first, *others = [start(behind, compiler, key) for key in KEYS[:5]]
    until(lambda: len(compiler.began) == 1)
    behind.close(wait=False)
    assert behind.dropped == 4
    assert {str(other.failure) for other in others} == {"the cache was closed before it was compiled"}
    assert not first.done
    compiler.allowed.set()
    assert first.wait(600)
    behind.close()
    assert compiler.began == [KEYS[0]]


def test_closing_ends_one_that_waits_for_a_slot() -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)

    def compile_it(is_wanted: Callable[[], bool]) -> str:
        while is_wanted():
            time.sleep(0.001)
        raise GivenUp

    better = behind.start(KEYS[1], compile_it, nullcontext)
    behind.close()
    assert (better.done, better.wait(0), behind.dropped) == (True, False, 1)


def test_after_closing_it_can_be_used_again(compiler: Compiler) -> None:
    compiler.allowed.set()
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    assert start(behind, compiler, KEYS[1]).wait(600)
    behind.close()
    assert start(behind, compiler, KEYS[2]).wait(600)


def test_in_a_forked_child_the_compiles_are_the_parents(compiler: Compiler) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    better = start(behind, compiler, KEYS[1])
    until(lambda: len(compiler.began) == 1)
    child = os.fork()
    if child == 0:
        try:
            compiler.allowed.set()
            told = not better.wait(600) and "parent" in str(better.failure)
            os._exit(0 if told and start(behind, compiler, KEYS[2]).wait(600) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not better.done
    compiler.allowed.set()
    assert better.wait(600)


def test_a_process_that_ends_does_not_wait_for_what_is_queued() -> None:
    code = (
        "import os, threading, time\n"
        "from contextlib import nullcontext\n"
        "from cache_engine.cache.serving.stand_ins import BackgroundCompiles\n"
        "behind, begun = BackgroundCompiles(1), threading.Event()\n"
        "def compile_it(is_wanted):\n"
        "    begun.set(); os.write(1, b'.'); time.sleep(0.2)\n"
        "for number in range(1000):\n"
        "    behind.start(f'{number:064x}', compile_it, nullcontext)\n"
        "begun.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert 1 <= len(done.stdout) < 1000


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["exit", "cancelled"])
def test_no_callback_keeps_another_or_a_compile_from_running(
    compiler: Compiler, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(_: PendingKernel[str]) -> None:
        raise error

    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    first, second = (start(behind, compiler, key) for key in KEYS[:2])
    called: list[PendingKernel[str]] = []
    first.on_done(fail)
    first.on_done(called.append)
    compiler.allowed.set()
    assert first.wait(60)
    assert second.wait(60)
    assert called == [first]
    assert type(error).__name__ in caplog.text


def test_a_callback_may_close_and_waits_for_no_thread_of_its_own(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_ins, "CLOSE_S", 600.0)
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    closed = threading.Event()

    def close(_: PendingKernel[str]) -> None:
        behind.close()
        closed.set()

    start(behind, compiler, KEYS[1]).on_done(close)
    compiler.allowed.set()
    assert closed.wait(60)


def test_what_a_callback_asks_for_again_is_asked_for_once(compiler: Compiler) -> None:
    """Also where the compile was given up because the cache was closed."""
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    again: list[PendingKernel[str]] = []

    def compile_it(is_wanted: Callable[[], bool]) -> str:
        until(lambda: not is_wanted())
        raise GivenUp

    behind.start(KEYS[1], compile_it, nullcontext).on_done(lambda _: again.append(start(behind, compiler, KEYS[1])))
    until(lambda: not behind._queued)
    behind.close(wait=False)
    until(lambda: compiler.began == [KEYS[1]])
    assert start(behind, compiler, KEYS[1]) is again[0]


def test_closing_ends_though_a_callback_asks_again_for_what_is_dropped(compiler: Compiler) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    start(behind, compiler, KEYS[0])
    until(lambda: len(compiler.began) == 1)
    again: list[PendingKernel[str]] = []

    def ask(_: PendingKernel[str]) -> None:
        assert len(again) < 9
        again.append(start(behind, compiler, KEYS[1]))
        again[-1].on_done(ask)

    start(behind, compiler, KEYS[1]).on_done(ask)
    behind.close(wait=False)
    assert len(again) == 1


def test_thousands_that_wait_lend_their_priority_once_and_end_lending_it(compiler: Compiler) -> None:
    """As a ticket is a file that stays open."""
    lent = most = 0

    @contextmanager
    def lend() -> Iterator[None]:
        nonlocal lent, most
        lent += 1
        most = max(most, lent)
        yield
        lent -= 1

    better: PendingKernel[str] = BackgroundCompiles[str](1).start(KEYS[1], compiler.of(KEYS[1]), lend)

    async def kernel() -> str:
        return await better

    async def all_kernels() -> list[str]:
        waiting = [asyncio.ensure_future(kernel()) for _ in range(2000)]
        await asyncio.sleep(0)
        assert lent == 1
        compiler.allowed.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(all_kernels()) == ["kernel 001"] * 2000
    assert (lent, most) == (0, 1)


def test_what_is_waited_for_is_compiled_before_what_was_asked_for_earlier(compiler: Compiler) -> None:
    behind: BackgroundCompiles[str] = BackgroundCompiles(1)
    handles = [start(behind, compiler, key) for key in KEYS]
    until(lambda: len(compiler.began) == 1)
    waiter = threading.Thread(target=handles[-1].wait)
    waiter.start()
    until(lambda: handles[-1].is_waited_for)
    compiler.allowed.set()
    assert all(handle.wait(600) for handle in handles)
    waiter.join()
    assert compiler.began[:2] == [KEYS[0], KEYS[-1]]


def test_one_that_is_interrupted_keeps_no_other_waiting(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C in the moment when the kernel is ready."""
    better = start(BackgroundCompiles(1), compiler, KEYS[1])
    ended = better._ended

    def interrupted(timeout: float | None = None) -> None:
        compiler.allowed.set()
        ended.get(timeout=timeout)
        raise KeyboardInterrupt

    queue = type("Queue", (), {"get": staticmethod(interrupted), "put": staticmethod(ended.put)})()
    monkeypatch.setattr(better, "_ended", queue)
    with pytest.raises(KeyboardInterrupt):
        better.wait()
    assert ended.qsize() == 1


def test_the_end_of_a_compile_for_which_a_closed_loop_waited_is_no_error(
    compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    better = start(BackgroundCompiles(1), compiler, KEYS[1])

    async def kernel() -> str:
        return await better

    async def give_up() -> None:
        task = asyncio.ensure_future(kernel())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    compiler.allowed.set()
    assert better.wait(60)
    assert caplog.text == ""
