"""Named objects (bytes) in Redis or Valkey.

Redis's client would wait for ever for a server that sends a byte now and then, and accepts answers of any size. Only
``client_process`` bounds both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from cache_engine.cache.remote.base import COMMAND, Timeouts, said
from cache_engine.errors import CorruptEntry, RemoteError, UsageError
from cache_engine.settings.extras import needing
from cache_engine.units import human_bytes, printable

KINDS = ("redis://", "rediss://")
PASSWORD = "REDISCLI_AUTH"  # noqa: S105
"""The environment variable that has the password, as for ``redis-cli``."""
_AT_A_TIME = 500  # names in one batch of a listing


class KeyValue:
    """A database of Redis or Valkey. Safe to use from several threads, and after a fork."""

    def __init__(self, url: str, patience: Timeouts = COMMAND) -> None:
        """Prepares the client; makes no request yet.

        Args:
            url: ``redis://host:6379/0``, or with TLS ``rediss://…``; the password is in ``REDISCLI_AUTH``.
            patience: the time limits of a request.

        Raises:
            UsageError: when ``url`` is not such a URL.
            ExtraMissing: when the package ``redis`` is not installed.
        """
        with needing("team", "a remote"):
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        try:
            parts = urlsplit(url)
            is_named = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_named = False
        if not is_named or parts.query:
            raise UsageError(f"{printable(url[:200])!r} cannot be a remote; it is redis://HOST:PORT/NUMBER")
        if parts.password:
            raise UsageError(f"a password in a URL is shown and logged; give it in {PASSWORD}, as for redis-cli")
        self.url = url
        self._client = redis.Redis.from_url(
            url,
            password=os.environ.get(PASSWORD) or None,
            protocol=2,
            socket_connect_timeout=patience.connect_s,
            socket_timeout=patience.request_s,
            retry=Retry(NoBackoff(), patience.tries - 1),
        )

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """As ``Remote.get``."""
        with self._asking("read", name):
            asked = self._client.pipeline(transaction=True)
            is_there, data = asked.exists(name).getrange(name, 0, most_bytes).execute()
            if not is_there:
                return None
            if not isinstance(data, bytes):
                raise RemoteError(f"{self._named(name)} was answered with a wrong type")
            if len(data) > most_bytes:
                raise CorruptEntry(f"{self._named(name)} has more than {human_bytes(most_bytes)}")
            return data

    def create(self, name: str, data: bytes) -> bool:
        """As ``Remote.create``."""
        with self._asking("write", name):
            return bool(self._client.set(name, data, nx=True))

    def delete(self, name: str) -> None:
        """As ``Remote.delete``."""
        with self._asking("delete", name):
            self._client.delete(name)

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """As ``Remote.sizes``."""
        place, seen = 0, set[bytes]()
        while True:
            with self._asking("list", folder):
                place, found = self._client.scan(place, match=f"{folder}/*", count=_AT_A_TIME)
                names = [name for name in found if name not in seen]
                seen.update(names)
                asked = self._client.pipeline(transaction=False)
                for name in names:
                    asked.strlen(name)
                sizes = asked.execute(raise_on_error=False)
            # A value of another type, or whose name is not text, was not stored by this program.
            yield from (
                (name.decode(errors="replace"), size if isinstance(size, int) else 0)
                for name, size in zip(names, sizes, strict=True)
            )
            on_some(len(names))
            if place == 0:
                return

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """Raises ``UsageError``: Redis has no times of storing."""
        del folder, on_some
        raise UsageError("Redis does not say how old a kernel is; let it evict, with maxmemory-policy allkeys-lru")

    @contextmanager
    def _asking(self, verb: str, name: str) -> Iterator[None]:
        from redis.exceptions import RedisError, ResponseError

        try:
            yield
        except ResponseError as error:
            kind = CorruptEntry if "WRONGTYPE" in str(error) else RemoteError
            raise kind(f"cannot {verb} {self._named(name)}: {said(error)}") from error
        except (RedisError, OSError, ValueError) as error:
            raise RemoteError(f"cannot {verb} {self._named(name)}: {said(error)}") from error

    def _named(self, name: str) -> str:
        return f"{printable(name[:200])} of {printable(self.url)}"
