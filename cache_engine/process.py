"""What must happen when a process forks, and when it ends.

A forked child inherits locks that other threads of its parent held, and no thread will ever release them; an object
with such a lock registers here, and is asked in the child to renew it. A worker of ``multiprocessing`` ends without
running what ``atexit`` was given, so what must run at the end is given to both.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class Renewable(Protocol):
    """Something that a forked child cannot use as it was."""

    def renew_after_fork(self) -> None:
        """Makes it usable in the child, where no other thread runs."""
        ...


# One registration for all, since one with the interpreter can never be taken back.
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """Has ``thing`` renewed in every forked child, for as long as it lives."""
    _renewables.add(thing)


def _renew_all() -> None:
    for thing in list(_renewables):
        thing.renew_after_fork()


os.register_at_fork(after_in_child=_renew_all)


def run_at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Has ``call`` run when this process ends; returns what takes that back."""
    atexit.register(call)
    # Only a worker needs this, and a worker has it loaded.
    util = sys.modules.get("multiprocessing.util")
    finalizer = None if util is None else util.Finalize(None, call, exitpriority=0)

    def forget() -> None:
        atexit.unregister(call)
        if finalizer is not None:
            finalizer.cancel()

    return forget
