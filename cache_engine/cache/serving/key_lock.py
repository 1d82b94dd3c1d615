"""The lock of a key, held while its kernel is made."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cache_engine.model.outcome import Failure
from cache_engine.store.lock import Held


class KeyLock:
    """Holds what ``lock`` takes for the body of a ``with``; gives what it returns."""

    __slots__ = ("_held", "_lock")

    def __init__(self, lock: Callable[[KeyLock], Failure | None]) -> None:
        """Takes nothing yet."""
        self._lock = lock
        self._held: Held | threading.Lock | None = None

    def take(self, lock: Held | threading.Lock) -> None:
        """Waits for a lock, and holds it."""
        lock.__enter__()
        self._held = lock

    def hand_over(self) -> KeyLock:
        """Another that holds what this one held, beyond the end of its ``with``."""
        other = KeyLock(self._lock)
        other._held, self._held = self._held, None
        return other

    def release(self) -> None:
        """Lets go of it, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(None, None, None)

    def __enter__(self) -> Failure | None:
        try:
            return self._lock(self)
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()
