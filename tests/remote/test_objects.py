"""What every kind of remote does, and what becomes of servers that are down, silent or wrong."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cache_engine.cache.remote import client_process
from cache_engine.cache.remote.base import Remote, name_of
from cache_engine.cache.remote.client_process import ClientProcess
from cache_engine.cache.remote.clients import Objects
from cache_engine.errors import CorruptEntry, RemoteError, UsageError
from cache_engine.model.key import CacheKey
from tests.remote.conftest import S3

ABOUT = b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: x\r\n"
QUICK: dict[str, Any] = {
    "client_options": {"timeout": "1s", "connect_timeout": "1s", "allow_http": True},
    "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
}


def test_an_object_is_created_once_and_read_whole(remote: Remote) -> None:
    assert remote.get("a/b", 100) is None
    assert remote.create("a/b", b"first")
    assert not remote.create("a/b", b"second")
    assert remote.get("a/b", 5) == b"first"
    with pytest.raises(CorruptEntry, match="more than 4 B"):
        remote.get("a/b", 4)


def test_names_and_sizes_are_listed_below_a_folder(remote: Remote) -> None:
    counts: list[int] = []
    assert list(remote.sizes("a")) == []
    for name in ("a/1", "a/c/2", "b/3"):
        remote.create(name, name.encode() * 3)
    assert sorted(remote.sizes("a", counts.append)) == [("a/1", 9), ("a/c/2", 15)]
    assert sum(counts) == 2


def test_what_is_deleted_is_gone(remote: Remote) -> None:
    remote.create("a", b"x")
    remote.delete("a")
    remote.delete("a")
    assert remote.get("a", 10) is None


def test_large_objects_come_back_byte_for_byte(remote: Remote) -> None:
    data = os.urandom(3_000_000)
    remote.create("large", data)
    assert remote.get("large", len(data)) == data


def test_a_bucket_that_does_not_exist_is_named(s3_server: str) -> None:
    remote = Objects("s3://no-such-bucket/x", endpoint=s3_server, **S3)
    with pytest.raises(RemoteError, match=r"cannot write a of s3://no-such-bucket/x: .*NoSuchBucket|404"):
        remote.create("a", b"x")


@pytest.mark.parametrize("url", ["", "bucket", "ftp://a/b", "s3://", "http://127.0.0.1/a", "s3:/a\x1b[31m"])
def test_what_is_no_remote_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="remote") as caught:
        Objects(url)
    assert "\x1b" not in str(caught.value)


def test_a_server_that_is_down_is_an_error_soon() -> None:
    remote = Objects("s3://bucket/x", endpoint="http://127.0.0.1:1", **S3, **QUICK)
    for ask in (lambda: remote.get("a", 1), lambda: remote.create("a", b""), lambda: list(remote.sizes("a"))):
        with pytest.raises(RemoteError, match="of s3://bucket/x: "):
            ask()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n" + ABOUT + b"\r\ncut",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["silent", "nonsense", "cut", "forbidden", "broken"],
)
def test_a_server_that_answers_wrongly_is_an_error(answer: bytes | None) -> None:
    with _server(answer) as address:
        remote = Objects("s3://bucket/x", endpoint=address, **S3, **QUICK)
        with pytest.raises(RemoteError, match="cannot read a of s3://bucket/x: "):
            remote.get("a", 10_000)


def test_a_body_without_an_end_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n" + ABOUT
    with _server(head + b"\r\n", endless=True) as address:
        remote = Objects("s3://bucket/x", endpoint=address, **S3, **QUICK)
        with pytest.raises(CorruptEntry, match=r"more than 1\.0 MiB"):
            remote.get("a", 2**20)


def _page(*names: str) -> bytes:
    """A page of a list that says that there are more, and where: at the same place."""
    found = "".join(
        f"<Contents><Key>x/{name}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>5</Size></Contents>"
        for name in names
    )
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    page = f"<ListBucketResult>{more}{found}</ListBucketResult>".encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)


def test_a_list_of_empty_pages_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Obstore itself asks for ever."""
    monkeypatch.setattr(client_process, "QUIET_S", 1)
    with (
        _server(_page()) as address,
        closing(ClientProcess("s3://bucket/x", endpoint=address, **S3)) as remote,
        pytest.raises(RemoteError, match="does not come to an end of its list"),
    ):
        list(remote.sizes("a"))


def test_a_list_that_repeats_itself_is_an_error() -> None:
    with (
        _server(_page(name_of(CacheKey("ab" * 32)))) as address,
        closing(ClientProcess("s3://bucket/x", endpoint=address, **S3)) as remote,
        pytest.raises(RemoteError, match="it begins again"),
    ):
        list(remote.sizes("a"))


def test_a_list_of_too_many_names_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "MOST_LISTED", 2)
    with closing(ClientProcess(f"file://{tmp_path}/remote")) as remote:
        for name in ("a/1", "a/2"):
            remote.create(name, b"x")
        assert len(list(remote.sizes("a"))) == 2
        remote.create("a/3", b"x")
        with pytest.raises(RemoteError, match="lists more than 2 objects"):
            list(remote.sizes("a"))


@contextmanager
def _server(answer: bytes | None, *, endless: bool = False) -> Iterator[str]:
    """The address of a server that gives one answer to whatever is asked, or none at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []
        done = threading.Event()

        def serve() -> None:
            while True:
                try:
                    asked, _ = listening.accept()
                except OSError:
                    return
                kept.append(asked)
                asked.settimeout(10)
                try:
                    asked.recv(65536)
                    if answer is not None:
                        asked.sendall(answer)
                        while endless and not done.is_set():
                            asked.sendall(bytes(65536))
                        asked.close()
                except OSError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        done.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for each in kept:
            each.close()
