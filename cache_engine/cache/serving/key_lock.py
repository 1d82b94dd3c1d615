"""The lock of a key, held while the key's kernel is compiled or fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cache_engine.model.outcome import Failure
from cache_engine.store.lock import Held


class KeyLock:
    """Calls ``lock`` at the start of a ``with``, whose ``as`` is its result; releases the lock at the end."""

    __slots__ = ("_held", "_lock")

    def __init__(self, lock: Callable[[KeyLock], Failure | None]) -> None:
        """Takes no lock yet."""
        self._lock = lock
        self._held: Held | threading.Lock | None = None

    def take(self, lock: Held | threading.Lock) -> None:
        """Waits for a lock, and holds it."""
        lock.__enter__()
        self._held = lock

    def hand_over(self) -> KeyLock:
        """Moves the lock to a new ``KeyLock``, which is returned and holds it also after the end of this ``with``."""
        other = KeyLock(self._lock)
        other._held, self._held = self._held, None
        return other

    def release(self) -> None:
        """Releases the lock, if it is held."""
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
