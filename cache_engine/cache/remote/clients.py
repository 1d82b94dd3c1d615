"""The clients of object stores and of Redis: named objects (bytes)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from cache_engine.cache.remote.base import COMMAND, Timeouts, said, without_query
from cache_engine.errors import CorruptEntry, RemoteError, UsageError
from cache_engine.settings.extras import needing
from cache_engine.units import human_bytes, printable

# ---- Named objects (bytes) in S3, Google Cloud Storage, Azure, or a directory; through obstore ----
# Every request has a time limit, since obstore's own defaults wait up to three minutes for a server that is down. Only
# ``client_process`` guards against the other faults of obstore: it reads the bodies of errors whole, aborts the process
# when memory runs out, lists for ever if a server sends empty pages and says that more follow, and hangs after a fork.

OBJECT_STORES = ("s3://", "gs://", "az://", "file://")


class Objects:
    """A folder of objects in S3 or another service. Safe to use from several threads."""

    def __init__(self, url: str, patience: Timeouts = COMMAND, **options: Any) -> None:
        """Prepares the client; makes no request yet.

        Args:
            url: such as ``s3://bucket/folder``, or ``file:///folder``. Credentials come from the environment, as for
                the providers' own tools.
            patience: the time limits of a request.
            options: options of ``obstore.store.from_url``.

        Raises:
            UsageError: when ``url`` is not such a URL.
            ExtraMissing: when the package ``obstore`` is not installed.
        """
        with needing("team", "a remote"):
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        if not url.startswith(OBJECT_STORES):
            raise UsageError(
                f"{printable(url[:200])!r} is not a remote; it starts with one of: {', '.join(OBJECT_STORES)}"
            )
        limits: dict[str, Any] = {
            "client_options": {
                "connect_timeout": _duration(patience.connect_s),
                "timeout": _duration(patience.request_s),
                "allow_http": True,
            },
            "retry_config": {
                "max_retries": patience.tries - 1,
                "retry_timeout": timedelta(seconds=patience.request_s / 2),
            },
        }
        self._is_directory = url.startswith("file://")
        if self._is_directory:
            limits = {"mkdir": True}
        self.url, self._name = url, printable(without_query(url))
        try:
            self._store = from_url(url, **{**limits, **options})
        except (BaseError, ValueError, OSError) as error:
            raise UsageError(f"{printable(url[:200])!r} cannot be a remote: {said(error)}") from error

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """The bytes of an object; ``None`` if it does not exist.

        Raises:
            RemoteError: when it cannot be read in time.
            CorruptEntry: when it has more than ``most_bytes``.
        """
        import obstore

        with self._asking("read", name):
            try:
                found = obstore.get(self._store, name)
            except FileNotFoundError:
                return None
            size = found.meta["size"]
            data = b"" if size > most_bytes else bytes(found.bytes())
        if max(size, len(data)) > most_bytes:  # the server may state a wrong size
            raise CorruptEntry(f"{self._named(name)} has more than {human_bytes(most_bytes)}")
        return data

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object. ``False`` if one of this name exists; it stays unchanged.

        Raises:
            RemoteError: when it cannot be stored in time.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._asking("write", name):
            try:
                obstore.put(self._store, name, data, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists; raises ``RemoteError``."""
        import obstore

        with self._asking("delete", name):
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                return

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """The name and the size in bytes of each object below a folder, in no order.

        Args:
            on_some: a function called from time to time with the number of objects found since the last call.

        Raises:
            RemoteError: when the objects cannot be listed in time, or are too many.
        """
        return ((name, size) for name, size, _ in self._listed(folder, on_some))

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """As ``sizes``, with the seconds since each object was stored.

        Creates and deletes an object, to learn the remote's time.
        """
        now = self._now(folder)
        return ((name, size, now - changed_at) for name, size, changed_at in self._listed(folder, on_some))

    def _now(self, folder: str) -> float:
        import obstore

        name = f"{folder}/clock-{secrets.token_hex(8)}"
        self.create(name, b"")
        try:
            with self._asking("read", name):
                return float(obstore.head(self._store, name)["last_modified"].timestamp())
        finally:
            self.delete(name)

    def _listed(self, folder: str, on_some: Callable[[int], None]) -> Iterator[tuple[str, int, float]]:
        import obstore

        with self._asking("list", folder):
            for batch in obstore.list(self._store, prefix=folder):
                for item in batch:
                    yield str(item["path"]), int(item["size"]), float(item["last_modified"].timestamp())
                on_some(len(batch))

    @contextmanager
    def _asking(self, verb: str, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise RemoteError(f"cannot {verb} {self._named(name)}: {said(error)}") from error

    def _named(self, name: str) -> str:
        return f"{printable(name[:200])} of {self._name}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


# ---- Named objects (bytes) in Redis or Valkey ----
# Redis's client would wait for ever for a server that sends a byte now and then, and accepts answers of any size. Only
# ``client_process`` bounds both.

KEY_VALUE_STORES = ("redis://", "rediss://")
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
