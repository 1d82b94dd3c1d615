"""Dask: a table of kernels sent to a scheduler that people already run, and followed until the remote has each."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from cache_engine.engine.selection import Selection
from cache_engine.errors import RemoteError, UsageError
from cache_engine.extras import needing
from cache_engine.farm.board import Run
from cache_engine.farm.dask_worker import compile_kernel
from cache_engine.farm.executor import GIVE_UP_S, Farmed, Watched, keys_there, read_answer
from cache_engine.farm.messages import Answered, Asked, encode
from cache_engine.model.key import CacheKey
from cache_engine.remote.base import Remote
from cache_engine.units import printable

_CONNECT_S, _ANSWER_S, _POLL_S = 10.0, 10.0, 0.25
_QUIET_S = 3.0
_MOST_ROUNDS = 3
"""How often workers may answer for kernels that the remote does not have."""
_VARIABLES = {
    "tls_ca_file": "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    "tls_client_cert": "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT",
}
"""What names the certificates to Dask: the authority, and the client's own with its private key."""


class _Away(RemoteError):
    """The scheduler does not answer, or has lost what it was asked for."""


class DaskSubmission:
    """An executor: Dask gives each kernel to one worker, and to another when that one dies. See ``Executor``.

    Dask's own configuration names the certificates of the client.
    """

    def __init__(self, scheduler: str, remote: Remote) -> None:
        """Connects to nothing yet.

        Raises:
            UsageError: when this is no address with TLS, or the configuration of Dask names no certificates.
            ExtraMissing: when Dask's scheduler is not installed.
        """
        self._scheduler, self._address, self._security = scheduler, _address(scheduler), _security()
        self._remote, self.job = remote, secrets.token_hex(16)
        self.board: Watched = self
        self._client: Any = None
        self._futures: dict[CacheKey, Any] = {}
        self._sent, self._heard_at = set[CacheKey](), 0.0

    def run(
        self,
        selections: Sequence[Selection],
        on_left: Callable[[int], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> Farmed:
        """As ``Executor.run``; a scheduler that refuses the certificate, or has another, raises at once."""
        try:
            return self._run(selections, on_left, on_trouble)
        except Exception:  # not where it is interrupted: ``cancel`` asks the scheduler
            self._close()
            raise

    def _run(
        self, selections: Sequence[Selection], on_left: Callable[[int], None], on_trouble: Callable[[str], None]
    ) -> Farmed:
        wanted = {one.key: one for one in selections}
        answers: dict[CacheKey, Answered] = {}
        done: Farmed | None = None
        rounds, self._heard_at = 0, time.monotonic()
        while True:
            there = keys_there(self._remote)
            failed = {key: one.error for key, one in answers.items() if one.error and key not in there}
            left = {key: one for key, one in wanted.items() if key not in there and key not in failed}
            if done is None:
                done = Farmed(present=len(wanted) - len(left))
                on_left(len(left))
            if not left:
                break
            if rounds > _MOST_ROUNDS:
                raise RemoteError(
                    f"workers say that {len(left):,} kernels are in the remote, which does not have them; "
                    f"GEMM_CACHE_REMOTE of the workers must be {printable(self._remote.url)}"
                )
            try:
                done.resent += self._send(left)
                self._follow(answers, on_left, on_trouble)
                rounds += 1
            except _Away as error:
                self._close()
                if time.monotonic() - self._heard_at > GIVE_UP_S:
                    raise
                on_trouble(str(error))
                time.sleep(1.0)
        self._close()
        done.failed = failed
        done.workers = {one.worker for one in answers.values()}
        done.compiled = sum(one.compiled and key not in failed for key, one in answers.items())
        done.found = len(wanted) - done.present - len(failed) - done.compiled
        return done

    def cancel(self) -> int:
        """As ``Executor.cancel``; a worker finishes what it compiles."""
        if self._client is None:
            return 0
        with self._reaching():
            begun = {key for keys in self._client.processing().values() for key in keys}
            waiting = [one for one in self._futures.values() if one.key not in begun and not one.done()]
            self._client.cancel(list(self._futures.values()))
        self._close()
        return len(waiting)

    def now(self) -> float:
        """As ``Watched.now``: this machine's."""
        return time.time()

    def follows(self, _job: str, _run: Run, /) -> int:
        """As ``Watched.follows``; Dask's own dashboard shows runs."""
        with suppress(RemoteError), self._reaching():
            return sum(self._client.nthreads().values()) if self._client is not None else 0
        return 0

    def _follow(
        self,
        answers: dict[CacheKey, Answered],
        on_left: Callable[[int], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        """Waits until each kernel that was asked for has an answer; raises ``_Away``."""
        heard = time.monotonic()
        while self._futures:
            with self._reaching():
                some = self._take(answers)
            if some:
                heard = time.monotonic()
            elif time.monotonic() - heard > _QUIET_S:
                heard = time.monotonic()
                with self._reaching():
                    workers = self._client.nthreads()
                if not workers:
                    on_trouble(f"{len(self._futures):,} kernels wait, and the scheduler has no worker")
            on_left(len(self._futures))
            time.sleep(_POLL_S)

    def _take(self, answers: dict[CacheKey, Answered]) -> bool:
        """Takes the answers that are here; whether there were some."""
        before, self._heard_at = len(self._futures), time.monotonic()
        for key, future in [(key, one) for key, one in self._futures.items() if one.done()]:
            with suppress(TimeoutError):  # who had it ended: Dask has it made again
                if (answer := _answer(key, future)) is not None:
                    answers[key] = answer
                del self._futures[key]
        return len(self._futures) < before

    def _send(self, left: dict[CacheKey, Selection]) -> int:
        """Asks for kernels, those before others first; returns how many were asked for before. Raises ``_Away``."""
        from distributed import Client

        with self._reaching():
            if self._client is None:
                # One that is away is seen here, as a client that is interrupted while it connects hangs for 20 s.
                socket.create_connection(self._address, _CONNECT_S).close()
                self._client = Client(
                    self._scheduler, security=self._security, timeout=_CONNECT_S, set_as_default=False, name=self.job
                )
            # Of the key: a scheduler that two ask for a kernel has it made once.
            self._futures = {
                key: self._client.submit(
                    compile_kernel, encode(Asked.of(self.job, one)), key=f"gemm-cache-{key}", pure=False, priority=-n
                )
                for n, (key, one) in enumerate(left.items())
            }
        again = len(self._sent & left.keys())
        self._sent |= left.keys()
        return again

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """For a body that asks the scheduler: its errors become ``_Away``; that it is another, a ``RemoteError``."""
        from distributed.client import ClosedClientError
        from distributed.comm.core import FatalCommClosedError

        where, is_connecting = printable(self._address[0]), self._client is None
        try:
            yield
        except CancelledError as error:
            raise _Away(f"the scheduler at {where} has ended, or lost what it was asked for") from error
        except (ClosedClientError, OSError, RuntimeError) as error:
            why = printable(str(error))[:200]
            if isinstance(error, FatalCommClosedError) or (is_connecting and "SSL" in why):
                raise RemoteError(
                    f"the scheduler at {where} and this machine do not trust each other's certificates; name those of "
                    f"the cluster in {' and '.join(_VARIABLES.values())} ({why})"
                ) from error
            raise _Away(f"the scheduler at {where} does not answer: {why}") from error

    def _close(self) -> None:
        client, self._client = self._client, None
        self._futures.clear()
        if client is not None:
            with suppress(RemoteError), self._reaching():
                client.close(timeout=_ANSWER_S)


def _answer(key: CacheKey, future: Any) -> Answered | None:
    """What a worker says; ``None`` for what is no answer, where the remote is asked."""
    if future.status == "error":
        return Answered(key, printable(str(future.exception(timeout=_ANSWER_S)))[:500], "?", False, 0.0)
    found = read_answer(future.result(timeout=_ANSWER_S))
    return found if found is not None and found.key == key else None


def _address(scheduler: str) -> tuple[str, int]:
    parts = urlsplit(scheduler)
    try:
        if parts.scheme == "tls" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # of an impossible port
        pass
    raise UsageError(
        f"{printable(scheduler[:80])!r} is no scheduler of Dask with TLS; name one such as tls://host:8786. Without "
        "TLS whoever reaches the network can run programs on workers."
    )


def _security() -> Any:
    with needing("farm-dask", "the farm with Dask"):
        from distributed import Security
    security = Security(require_encryption=True)
    for name, variable in _VARIABLES.items():
        if not getattr(security, name):
            raise UsageError(
                f"Dask's configuration does not say where the cluster's certificates are: set {variable}, or "
                "distributed.comm.tls in the file of its configuration"
            )
    return security
