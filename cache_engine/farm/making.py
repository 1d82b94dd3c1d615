"""What a worker of any engine does for a message: the remote gets the kernel, signed."""

from __future__ import annotations

import time
from collections.abc import Callable

from cache_engine.config import Settings
from cache_engine.engine.cache import open_cache
from cache_engine.errors import GemmCacheError, NotHereError, RemoteError
from cache_engine.farm.broker import BrokerAway
from cache_engine.farm.messages import Answered, Asked
from cache_engine.model.key import CacheKey
from cache_engine.queue.tickets import Priority
from cache_engine.remote.entries import MOST_BYTES, name_of
from cache_engine.remote.moving import push
from cache_engine.remote.opening import open_remote
from cache_engine.trust.keys import SigningKey


class Maker:
    """Makes kernels for a remote. It opens store and remote at once, so it is of the process that made it."""

    def __init__(self, settings: Settings, remote: str, key: SigningKey) -> None:
        self._cache, self._remote, self._sign = open_cache(settings=settings.made_here()), open_remote(remote), key.sign

    def checked(self, message: Asked) -> CacheKey:
        """The key that a message asks for; raises ``NotHereError`` where this machine makes another of it."""
        selection = self._cache.select(
            message.gemm, family=message.family, compiler=message.compiler, config=message.config
        )
        if selection.key != message.key:
            here = selection.compiler.fingerprint()
            raise NotHereError(f"this worker makes another key of it, with {here.compiler} {here.version}")
        return selection.key

    def has(self, key: CacheKey) -> bool:
        """Whether the remote has a kernel; raises ``RemoteError``."""
        return self._remote.get(name_of(key), MOST_BYTES) is not None

    def made(self, message: Asked, key: CacheKey) -> bool:
        """Has the remote have a kernel, and compiles it if neither has it; whether it was compiled.

        Raises:
            GemmCacheError: where it cannot be compiled, stored or sent.
        """
        if self.has(key):
            return False
        kernel = self._cache.get_or_compile(
            message.gemm, family=message.family, compiler=message.compiler, config=message.config,
            priority=Priority.WARM,
        )  # fmt: skip
        if kernel.unpublished is not None:
            raise RemoteError(f"it was compiled but not stored: {kernel.unpublished}")
        sent = push(self._cache.store, self._remote, [key], sign=self._sign)
        if sent.refused:
            raise RemoteError(sent.refused[0].cause)
        return kernel.tier == "compiled"


def answer_of(message: Asked, worker: str, made: Callable[[Asked], bool]) -> Answered:
    """The answer to a message, once ``made`` has done what it asks for, or could not; raises ``BrokerAway``."""
    started = time.perf_counter()
    compiled, error = False, ""
    try:
        compiled = made(message)
    except BrokerAway:
        raise
    except (GemmCacheError, OSError) as trouble:
        error = str(trouble)
    return Answered(message.key, error, worker, compiled, time.perf_counter() - started)
