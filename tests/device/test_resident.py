"""Objects cached between calls: created once, evicted least recently used first, separate for each GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from cache_engine.gpu.resident_objects import Resident


def test_stored_kernels_are_not_compiled_again() -> None:
    resident, made = Resident[object](2), []
    first = resident.get(0, "a", lambda: made.append("a") or object())  # type: ignore[func-returns-value]
    assert resident.get(0, "a", lambda: made.append("again") or object()) is first  # type: ignore[func-returns-value]
    assert made == ["a"]


def test_the_least_recently_used_is_unloaded_first_after_a_callback() -> None:
    told: list[tuple[int, int]] = []
    resident = Resident[str](2, lambda gpu: told.append((gpu, resident.count(gpu))))
    resident.get(0, "a", lambda: "a")
    resident.get(0, "b", lambda: "b")
    resident.get(1, "a", lambda: "other")
    resident.get(0, "a", lambda: "never")
    resident.get(0, "c", lambda: "c")
    assert told == [(0, 3)], "before it is let go of"
    assert resident.get(0, "a", lambda: "made again") == "a"
    assert resident.get(0, "b", lambda: "made again") == "made again"
    assert (resident.count(0), resident.count(1), resident.get(1, "a", lambda: "never")) == (2, 1, "other")


def test_of_two_threads_that_make_the_same_both_get_one() -> None:
    both, resident = Barrier(2), Resident[object](4)

    def make() -> object:
        both.wait(600)  # the second is here before the first has made it
        return object()

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: resident.get(0, "a", make), range(2))
    assert one is other
    assert resident.count(0) == 1


def test_all_can_be_let_go_of() -> None:
    told: list[int] = []
    resident = Resident[str](2, told.append)
    resident.get(0, "a", lambda: "a")
    resident.get(3, "a", lambda: "a")
    assert resident.clear() == {0, 3}
    assert (sorted(told), resident.count(0), resident.count(3)) == ([0, 3], 0, 0)


def test_a_failed_creation_leaves_no_entry() -> None:
    resident = Resident[str](2)
    with pytest.raises(ZeroDivisionError):
        resident.get(0, "a", lambda: str(1 / 0))
    assert resident.count(0) == 0
