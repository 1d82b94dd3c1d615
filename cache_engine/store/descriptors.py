"""Descriptors in reserve, for a process that has none left: callers still get their kernels and results.

A compile runs a tool, which takes pipes and a temporary file; the first of a process imports modules, as does the first
search of the evaluator. Where the process is out of descriptors (a server with a thousand connections), the reserve is
closed, the work done, and the reserve filled again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from cache_engine.process import renew_after_fork

SPARE = 16
"""How many a process holds. A compile with NVRTC takes 10 at once."""

_T = TypeVar("_T")
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


class SpareDescriptors:
    """Open descriptors of nothing, to be closed when others are needed."""

    def __init__(self) -> None:
        """Opens them; as many as there are."""
        self._held: list[int] = []
        self._identity: tuple[int, int] | None = None
        self.renew_after_fork()
        renew_after_fork(self)
        self._fill()

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        # Reentrant: a signal handler may close a cache during the second run of some work.
        self._lock = threading.RLock()

    def retried(self, work: Callable[[], _T]) -> _T:
        """The result of ``work``. If it fails as no descriptor is left, it runs once more with the reserve closed.

        Raises:
            as ``work``.
        """
        try:
            return work()
        except Exception as error:
            if not is_out_of_descriptors(error):
                raise
        with self._lock:
            self._close()
            try:
                return work()
            finally:
                self._fill()

    def _close(self) -> None:
        held, self._held = self._held, []
        for descriptor in held:
            # A program that closes all descriptors may have the number by now.
            with suppress(OSError):
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) == self._identity:
                    os.close(descriptor)

    def _fill(self) -> None:
        with suppress(OSError):
            # A file that no other descriptor has, so that these can be distinguished from an application's.
            first = os.memfd_create("gemm-cache-spare")
            self._held.append(first)
            status = os.fstat(first)
            self._identity = (status.st_dev, status.st_ino)
            while len(self._held) < SPARE:
                self._held.append(os.dup(first))


@lru_cache(maxsize=1)
def spare_descriptors() -> SpareDescriptors:
    """The reserve of this process."""
    return SpareDescriptors()


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether an error, or one that it comes from, says that no descriptor is left."""
    texts = [os.strerror(number) for number in _NONE_LEFT]
    seen: BaseException | None = error
    while seen is not None:
        # A library that cannot be opened has no number, but the system's words.
        if getattr(seen, "errno", None) in _NONE_LEFT or any(text in str(seen) for text in texts):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
