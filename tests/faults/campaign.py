"""Trials of one operation, one fault each, and what they came to."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from cache_engine.cache.queue import queue_state
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import ticket_of_name
from cache_engine.store.lock import file_lock
from tests.faults.counting import report
from tests.faults.getting_operations import GETTING, selection
from tests.faults.inject import Fault, Outcome, Zygote, points
from tests.faults.operations import Operation, Promise, code_of
from tests.faults.queue_operations import MAY_STAND_IN
from tests.faults.result_operations import EVERY_OPERATION
from tests.faults.soundness import Trouble, troubles
from tests.helpers import make_store

# What can refuse, and how. Calls about memory and threads are only ever killed at.
ERRORS = {
    "openat": ("EIO", "EMFILE", "ENOSPC", "EROFS", "EACCES"),
    "write": ("ENOSPC", "EIO"),
    "pwrite64": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC"),
    "rename": ("ENOSPC", "EIO", "EROFS", "EACCES"),
    "unlink": ("EIO", "EROFS", "EACCES"),
    "mkdir": ("ENOSPC", "EIO", "EROFS", "EACCES"),
    "flock": ("ENOLCK", "EIO"),
    "fcntl": ("ENOLCK", "EIO"),
    "newfstatat": ("EIO", "EACCES"),
    "fstat": ("EIO",),
    "stat": ("EIO", "EACCES"),
    "read": ("EIO",),
    "pread64": ("EIO",),
    "getdents64": ("EIO",),
    "chmod": ("EACCES", "EROFS"),
    "ftruncate": ("ENOSPC", "EIO"),
    "lseek": ("EIO",),
    "close": ("EIO", "ENOSPC"),
    "clone3": ("EAGAIN",),
}
# The calls that change what is on disk or who may change it. Between two of them a kill leaves the same.
CHANGES = ("write", "pwrite64", "fsync", "fdatasync", "rename", "unlink", "mkdir", "flock", "ftruncate")
# How often threads call these is up to chance.
_BY_CHANCE = ("futex", "getpid", "brk", "mmap", "munmap", "madvise", "mprotect", "getrandom", "clock_nanosleep", "exit")
_ATTEMPTS = 3
UNREACHED, EXCEPTION, NO_KERNEL, TEMPORARY = "not reached", "exception", "no kernel", "temporary left by the living"
QUEUE = "queue"


class Campaign:
    """Trials of one operation."""

    def __init__(self, name: str, zygote: Zygote, folder: Path) -> None:
        """Lays out the store that every trial begins with a copy of, and lists the system calls."""
        self.name = name
        self.operation: Operation = EVERY_OPERATION[name]
        self._zygote = zygote
        self._original = make_store(folder / "original")
        self._copy = folder / "copy"
        self.promise: Promise = self.operation.lay_out(self._original)
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []

    @cached_property
    def trace(self) -> str:
        """The system calls of the operation where nothing fails."""
        return self._baseline()

    @cached_property
    def points(self) -> dict[str, range]:
        """The same, counted by name."""
        return points(self.trace)

    def kills(self) -> list[Fault]:
        """A kill at every system call."""
        return [Fault(name, when) for name, whens in sorted(self.points.items()) for when in whens]

    def kills_at_changes(self, most: int | None = None) -> list[Fault]:
        """A kill at every call that changes anything, or at ``most`` of these calls of each name."""
        return [
            Fault(name, when)
            for name in sorted(self.points.keys() & set(CHANGES))
            for when in spread(self.points[name], most or len(self.points[name]))
        ]

    def refusals(self, sample: int | None = None, errors: int | None = None) -> list[Fault]:
        """Every error of every system call; with ``sample`` and ``errors``, of so many, so many errors of each."""
        return [
            Fault(name, when, error)
            for name, whens in sorted(self.points.items())
            for when in (whens if sample is None else spread(whens, sample))
            for error in _in_turn(ERRORS.get(name, ()), when, errors)
        ]

    def run(self, faults: Iterable[Fault], *, progress: bool = False) -> list[str]:
        """Makes a trial of each; returns what went wrong in words."""
        faults = list(faults)
        assert faults
        for number, fault in enumerate(faults, start=1):
            self._trial(fault)
            if progress and number % 100 == 0:
                print(f"{self.name}: {number} of {len(faults)}, {len(self.found)} troubles", flush=True)
        report(self.counts)
        return self.found

    def _baseline(self) -> str:
        outcome = self._run(None)
        assert outcome.acknowledged, outcome.error
        troubles_found = self._judge(outcome, Fault("", 0))
        assert not troubles_found, troubles_found
        assert ".pyc" not in outcome.trace, "a module is imported by the operation; have the zygote import it"
        return outcome.trace

    def _run(self, fault: Fault | None) -> Outcome:
        self._lay_out_copy()
        return self._zygote.run(self.name, self._copy, fault)

    def _lay_out_copy(self) -> None:
        if self._copy.exists():
            shutil.rmtree(self._copy)
        shutil.copytree(self._original.layout.root, self._copy)

    def _trial(self, fault: Fault) -> None:
        self.counts["trials"] += 1
        for _ in range(_ATTEMPTS):
            outcome = self._run(fault)
            if outcome.reached:
                break
        else:
            self.counts[UNREACHED] += 1
            if fault.syscall not in _BY_CHANCE and not self.operation.indexed:
                self._add(fault, [Trouble(UNREACHED, "the call did not come")])
        self.counts["reached"] += outcome.reached
        self._add(fault, self._judge(outcome, fault))

    def _add(self, fault: Fault, found: list[Trouble]) -> None:
        for trouble in found:
            self.counts[trouble.kind] += 1
            self.found.append(f"{self.name}, {fault}: {trouble.kind}: {trouble.text}")

    def _judge(self, outcome: Outcome, fault: Fault) -> list[Trouble]:
        refused = bool(fault.error)
        done = outcome.acknowledged and (self.operation.sure or not refused)
        store = make_store(self._copy)
        found = [*self._answered(outcome, refused), *self._free(store)]
        if refused and not outcome.signal and not outcome.killed:
            # A live process cleans up after itself. A ticket that it may not delete stays, as its lock is free.
            left = set(os.listdir(store.layout.temp)) - set(os.listdir(self._original.layout.temp))
            kept = {name for name in left if fault.syscall == "unlink" and ticket_of_name(name)}
            found += [Trouble(TEMPORARY, name) for name in left - kept]
        found += troubles(store, self.promise, done=done, refused=refused, indexed=self.operation.indexed)
        return found

    def _answered(self, outcome: Outcome, refused: bool) -> list[Trouble]:
        """What the caller got to see."""
        if outcome.signal == signal.SIGABRT and "/cgroup" in outcome.place:
            # DuckDB wants to know how many processors it may use, and ends the process when the kernel's own files
            # cannot be read. There is nothing that we could set to prevent it, and nothing of a store in it.
            self.counts["ended by DuckDB"] += 1
            return []
        if outcome.signal:
            return [Trouble(EXCEPTION, f"ended by signal {outcome.signal}")]
        if outcome.error and not (refused and set(outcome.types) & {*self.operation.may_raise}):
            return [Trouble(EXCEPTION, outcome.error)]
        if (self.name in GETTING or self.name in MAY_STAND_IN) and outcome.acknowledged:
            kernels = [{"key": selection().key, "cubin": hashlib.sha256(code_of(0)).hexdigest()}]
            if refused and self.name in MAY_STAND_IN:
                kernels.append(MAY_STAND_IN[self.name]())
            if outcome.value not in kernels:
                return [Trouble(NO_KERNEL, str(outcome.value))]
        return []

    @staticmethod
    def _free(store: DiskStore) -> list[Trouble]:
        """A dead process holds no lock, and has no place in the queue."""
        for path in store.layout.locks.iterdir():
            with file_lock(path, 0):
                pass
        queue = queue_state(store.layout, 1)
        return [
            Trouble(QUEUE, f"{turn.state} {turn.key}") for turn in (*queue.compiling, *queue.queued, *queue.waiting)
        ]


def spread(whens: range, count: int) -> list[int]:
    """``count`` of them, evenly, with the first and the last; the middle one for one."""
    if len(whens) <= count:
        return list(whens)
    if count == 1:
        return [whens[len(whens) // 2]]
    return sorted({whens[round(number * (len(whens) - 1) / (count - 1))] for number in range(count)})


def _in_turn(errors: tuple[str, ...], turn: int, count: int | None) -> tuple[str, ...]:
    """``count`` of them, others in every turn."""
    start = turn * (count or 0) % max(1, len(errors))
    return (errors[start:] + errors[:start])[:count]
