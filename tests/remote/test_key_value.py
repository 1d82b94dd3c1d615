"""Redis as a remote: what its own client would wait for and take, and what a wrong or full server answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from cache_engine.cache.remote.base import Timeouts
from cache_engine.cache.remote.clients import KeyValue
from cache_engine.errors import CorruptEntry, RemoteError, UsageError
from tests.remote.redis_server import redis_server

QUICK = Timeouts(connect_s=0.3, request_s=0.3, tries=1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "is redis://HOST:PORT/NUMBER"),
        ("redis://host:99999/0", "is redis://HOST:PORT/NUMBER"),
        ("redis://host/0?socket_timeout=900", "is redis://HOST:PORT/NUMBER"),
        ("redis://user:secret@host/0", "a password in a URL is shown and logged; give it in REDISCLI_AUTH"),
    ],
)
def test_what_is_no_redis_is_refused(url: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        KeyValue(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_key_of_another_type_is_no_entry_and_no_failure_of_the_server(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("gemm-cache/1/list", "x")
    remote = KeyValue(redis_url)
    with pytest.raises(CorruptEntry, match="WRONGTYPE"):
        remote.get("gemm-cache/1/list", 10)
    assert list(remote.sizes("gemm-cache/1")) == [("gemm-cache/1/list", 0)]


def test_a_password_is_needed_and_given_as_for_redis_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server(tmp_path, "--requirepass", "correct", "--maxmemory", "2mb") as url:
        for password, said in (("", "Authentication required"), ("wrong", "WRONGPASS|invalid")):
            monkeypatch.setenv("REDISCLI_AUTH", password)
            with pytest.raises(RemoteError, match=said):
                KeyValue(url).get("a", 1)
        monkeypatch.setenv("REDISCLI_AUTH", "correct")
        remote = KeyValue(url)

        def fill() -> None:
            for number in range(100):
                remote.create(f"{number}", bytes(100_000))

        with pytest.raises(RemoteError, match=r"OOM|maxmemory"):
            fill()
        assert remote.get("0", 200_000) in {bytes(100_000), None}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, RemoteError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteError),
        (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n$5\r\nabc", RemoteError),
        (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:7\r\n", RemoteError),
        (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", RemoteError),
        (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*1\r\n:1\r\n", RemoteError),
        (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n$6\r\nlonger\r\n", CorruptEntry),
        (b"-ERR it is broken\r\n", RemoteError),
    ],
    ids=["silent", "web server", "cut", "a number", "a list", "too few", "longer", "an error"],
)
def test_a_server_that_answers_wrongly_is_an_error_soon(answer: bytes | None, error: type[Exception]) -> None:
    with _server(answer) as url, pytest.raises(error, match="a of redis://"):
        KeyValue(url, QUICK).get("a", 5)


@contextmanager
def _server(answer: bytes | None) -> Iterator[str]:
    """The URL of a server that gives one answer to the first request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def serve() -> None:
            try:
                asked, _ = listening.accept()
                with asked:
                    said = b""
                    asked.settimeout(5)
                    while b"EXEC" not in said:
                        said += (got := asked.recv(65536))
                        if not got:
                            return
                        if b"EXEC" not in said:  # the greetings of the client
                            asked.sendall(b"+OK\r\n" * max(1, got.count(b"*")))
                    if answer is not None:
                        asked.sendall(answer)
                    done.wait(60 if answer is None else 0)
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        done.set()
        with socket.socket() as last:
            last.connect_ex(listening.getsockname())
        thread.join(60)
