"""Work in forked children: results in order whatever becomes of a child, and no child is left."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cache_engine.upkeep import parallel
from cache_engine.upkeep.parallel import in_processes, in_threads


@pytest.fixture(autouse=True)
def _forks_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No child is left after a test."""
    forked, fork = [], os.fork

    def noted() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(parallel, "_ALONE_S", 0.0)
    yield
    for pid in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _where(item: int) -> tuple[int, int]:
    return item, os.getpid()


@pytest.mark.parametrize("processes", [1, 2, 7, 100])
def test_results_come_in_the_order_of_the_items(processes: int) -> None:
    results = list(in_processes(_where, range(50), tuple[int, int], processes))
    assert [item for item, _ in results] == list(range(50))
    assert len({pid for _, pid in results}) == min(processes, 50)
    assert (os.getpid() in {pid for _, pid in results}) is (processes == 1)


def test_what_was_done_before_the_fork_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, -1.0, -1.0, -1.0, -1.0, 1.0])
    monkeypatch.setattr(parallel, "time", SimpleNamespace(monotonic=clock.__next__))
    results = list(in_processes(_where, range(20), tuple[int, int], 3))
    assert [item for item, _ in results] == list(range(20))
    assert [pid == os.getpid() for _, pid in results] == [True] * 4 + [False] * 16


def test_little_work_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_ALONE_S", 3600.0)
    assert {pid for _, pid in in_processes(_where, range(50), tuple[int, int], 8)} == {os.getpid()}


@pytest.mark.parametrize("failing", ["killed", "raised", "not sent"])
def test_the_parent_does_what_a_child_cannot(failing: str) -> None:
    parent = os.getpid()

    def work(item: int) -> str:
        if item == 10 and os.getpid() != parent:
            if failing == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif failing == "raised":
                raise ValueError
            return "\udc80"
        return str(item)

    assert list(in_processes(work, range(50), str, 3)) == [str(item) for item in range(50)]


def test_a_child_that_hangs_is_replaced_by_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_STUCK_S", 0.05)
    parent = os.getpid()

    def work(item: int) -> int:
        if item == 4 and os.getpid() != parent:
            signal.pause()
        return item

    assert list(in_processes(work, range(20), int, 2)) == list(range(20))


def test_an_error_is_raised_where_its_result_would_come() -> None:
    def work(item: int) -> int:
        if item == 7:
            raise KeyError(item)
        return item

    results = in_processes(work, range(20), int, 3)
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(KeyError):
        next(results)


def test_threads_give_the_results_and_errors_of_one() -> None:
    def work(item: int) -> int:
        if item == 30:
            raise KeyError(item)
        return -item

    for threads in (1, 4):
        results = in_threads(work, range(60), threads)
        assert [next(results) for _ in range(30)] == [-item for item in range(30)]
        with pytest.raises(KeyError):
            next(results)


def test_children_end_with_a_parent_that_is_killed() -> None:
    """Though their pipes are full: the end that they hold themselves, and those of each other, are no readers."""
    alive, held = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            results = in_processes(bytes, [2**20] * 50, bytes, 4)
            next(results)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(held)
    os.waitpid(parent, 0)
    assert select.select([alive], [], [], 30)[0], "a child still runs"
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_an_iterator_that_is_closed_ends_its_children() -> None:
    results = in_processes(bytes, [2**20] * 50, bytes, 4)  # more than their pipes hold
    assert next(results) == bytes(2**20)
    del results
