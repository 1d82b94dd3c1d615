"""The program of the process that makes requests to a remote for its parent.

Its memory is bounded; it ends with its parent.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from cache_engine.cache.remote.base import Remote, Timeouts, said
from cache_engine.cache.remote.client_process import MEMORY_BYTES, Frames
from cache_engine.cache.remote.clients import KEY_VALUE_STORES, KeyValue, Objects
from cache_engine.errors import GemmCacheError

_MOST_NAME, _MOST_NAMES = 1024, 500
"""The most characters of a listed name, which is more than S3 allows; and the most names in one frame."""


def main(descriptor: int) -> None:
    """Serves the connections that arrive over the socket ``descriptor``, until the socket's other end is closed."""
    _bind()
    control = Frames(socket.socket(fileno=descriptor))
    setup, _ = control.receive(0)
    try:
        remote = _client(setup["url"], Timeouts(**setup["patience"]), setup["options"])
    except BaseException as error:  # a panic of pyo3 is not an Exception
        control.send(_failure(error))
        return
    control.send({})
    threading.stack_size(2**20)
    while connection := control.receive_end():
        threading.Thread(target=_serve, args=(remote, Frames(connection)), daemon=True).start()
    os._exit(0)  # even if a client hangs


def _bind() -> None:
    """Limits the memory of this process, and makes it the first that the system kills when memory runs out."""
    for kind, most in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_CORE, 1)):  # 1 also stops dumps to a pipe
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _client(url: str, patience: Timeouts, options: dict[str, Any]) -> Remote:
    if url.startswith(KEY_VALUE_STORES):
        return KeyValue(url, patience)
    return Objects(url, patience, **options)


def _serve(remote: Remote, connection: Frames) -> None:
    """Answers the requests of one thread, until the thread closes the connection."""
    with closing(connection), suppress(OSError, EOFError):
        while True:
            question, data = connection.receive(MEMORY_BYTES)
            connection.send(*_answer(remote, question, data, connection))


def _answer(remote: Remote, question: dict[str, Any], data: bytes, connection: Frames) -> tuple[Any, bytes]:
    verb, name = question["do"], question["name"]
    try:
        if verb == "get":
            found = remote.get(name, question["most"])
            return found is not None, found or b""
        if verb == "create":
            return remote.create(name, data), b""
        if verb == "delete":
            remote.delete(name)
            return True, b""
        _list(remote.sizes if verb == "sizes" else remote.ages, name, connection)
    except OSError:
        raise  # the connection failed; errors of a client are RemoteErrors
    except BaseException as error:
        return _failure(error), b""
    return [], b""


def _list(listing: Callable[..., Any], folder: str, connection: Frames) -> None:
    """Sends the names of a listing in frames; the caller of this function then sends an empty frame as the end."""
    some: list[Any] = []

    def flush(_: int = 0) -> None:
        if some:
            connection.send(some)
            some.clear()

    for name, *rest in listing(folder, flush):
        some.append((name[:_MOST_NAME], *rest))
        if len(some) == _MOST_NAMES:
            flush()
    flush()


def _failure(error: BaseException) -> dict[str, str]:
    text = str(error) if isinstance(error, GemmCacheError) else f"its client fails: {said(error)}"
    return {"error": type(error).__name__, "text": text[:_MOST_NAME]}
