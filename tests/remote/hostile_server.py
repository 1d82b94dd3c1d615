"""A server that answers whatever it is asked with what no server should."""

from __future__ import annotations

import gzip
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

_DATED = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: x\r\nConnection: close\r\n"
_NOUGHT = bytes(2**18)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent to each request, and then again and again until the client closes.

    Attributes:
        head: the bytes, also by the number of the request.
        tail: sent without an end; without it the connection is closed after the head.
        pause_s: between two tails.
    """

    head: bytes | Callable[[int], bytes] = b""
    tail: bytes = b""
    pause_s: float = 0.0


def _http(status: int, headers: str = "", body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} Said\r\n{_DATED}{headers}\r\n".encode() + body


def _long(status: int, size: int) -> bytes:
    return _http(status, f"Content-Length: {size}\r\n")


def _whole(status: int, body: bytes, headers: str = "") -> bytes:
    return _http(status, f"Content-Length: {len(body)}\r\n{headers}", body)


def _page(content: str, *, prolog: str = "", is_last: bool = False) -> bytes:
    more = "" if is_last else "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    return _whole(200, f"{prolog}<ListBucketResult>{more}{content}</ListBucketResult>".encode())


def _item(name: str) -> str:
    return f"<Contents><Key>{name}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>5</Size></Contents>"


_BOMB = '<!DOCTYPE a [<!ENTITY a0 "ha">' + "".join(
    f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(12)
) + "]>"  # fmt: skip
_ENTRY = b"GEMMRMTE" + struct.pack("<HHIQ", 1, 0, 2**20, 3 * 2**20 - 24)
_STATUSES = (200, 206, 301, 307, 400, 401, 403, 404, 409, 412, 416, 429, 500, 503)
HTTP = {
    **{f"{status} of 100 GB": Answer(_long(status, 99_999_999_999), _NOUGHT) for status in _STATUSES},
    **{f"{status} without a length": Answer(_http(status), _NOUGHT) for status in (200, 404, 503)},
    **{
        f"{status} in chunks": Answer(_http(status, "Transfer-Encoding: chunked\r\n"), b"40000\r\n" + _NOUGHT + b"\r\n")
        for status in (200, 404, 503)
    },
    "negative length": Answer(_http(200, "Content-Length: -5\r\n"), _NOUGHT),
    "lying length": Answer(_http(200, "Content-Length: 10\r\n"), _NOUGHT),
    "two lengths": Answer(_http(200, "Content-Length: 10\r\nContent-Length: 99999999999\r\n"), _NOUGHT),
    "length and chunks": Answer(
        _http(200, "Content-Length: 10\r\nTransfer-Encoding: chunked\r\n"), b"40000\r\n" + _NOUGHT + b"\r\n"
    ),
    "chunk of 2**64": Answer(_http(404, "Transfer-Encoding: chunked\r\n", b"ffffffffffffffff\r\n"), _NOUGHT),
    "headers": Answer(b"HTTP/1.1 404 Said\r\n", b"X-a: " + b"a" * 2**16 + b"\r\n"),
    "one header": Answer(b"HTTP/1.1 404 Said\r\nX-a: ", b"a" * 2**16),
    "status line": Answer(b"HTTP/1.1 404 ", b"a" * 2**16),
    "interim answers": Answer(tail=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "slow": Answer(_long(404, 1000), b"x", 0.02),
    "redirects": Answer(lambda n: _http(302, f"Location: http://localhost:{{port}}/{n}\r\nContent-Length: 0\r\n")),
    "gzip": Answer(_whole(200, gzip.compress(bytes(2**26)) * 64, "Content-Encoding: gzip\r\n")),
    "gzip of an error": Answer(_whole(400, gzip.compress(bytes(2**26)) * 64, "Content-Encoding: gzip\r\n")),
    "empty pages": Answer(_page("")),
    "pages that repeat": Answer(_page(_item("x/gemm-cache/1/a"))),
    "pages of new names": Answer(lambda n: _page("".join(_item(f"x/gemm-cache/1/{n}-{i}") for i in range(1000)))),
    "long names": Answer(_page("".join(_item(f"x/gemm-cache/1/{i}" + "a" * 2**18) for i in range(64)), is_last=True)),
    "entities": Answer(_page(_item("&a12;"), prolog=_BOMB, is_last=True)),
    "text": Answer(_http(200, "", b"<ListBucketResult><Contents><Key>"), b"a" * 2**18),
    "large entries": Answer(_whole(200, _ENTRY + bytes(4 * 2**20 - len(_ENTRY)))),
}
REDIS = {
    "bulk": Answer(b"$99999999999\r\n", _NOUGHT),
    "array": Answer(b"*99999999999\r\n", b"*0\r\n" * 2**14),
    "nested arrays": Answer(tail=b"*1\r\n" * 2**14),
    "error": Answer(b"-ERR ", b"a" * 2**18),
    "status": Answer(b"+", b"a" * 2**18),
    "number": Answer(b":", b"1" * 2**18),
    "slow": Answer(b"+", b"x", 0.02),
    "cursor": Answer(b"*2\r\n$1\r\n1\r\n*0\r\n"),
    "cursor that repeats": Answer(b"*2\r\n$1\r\n1\r\n*1\r\n$14\r\ngemm-cache/1/a\r\n"),
}


@contextmanager
def hostile_server(answer: Answer, *, is_redis: bool = False) -> Iterator[int]:
    """The port of a server that gives this answer."""
    numbers, open_ = count(), set[socket.socket]()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        port = listening.getsockname()[1]

        def serve(asked: socket.socket) -> None:
            open_.add(asked)
            with asked, suppress(OSError):
                while data := asked.recv(2**18):
                    number = next(numbers)
                    head = answer.head if isinstance(answer.head, bytes) else answer.head(number)
                    asked.sendall(head.replace(b"{port}", str(port).encode()))
                    while answer.tail:
                        asked.sendall(answer.tail)
                        time.sleep(answer.pause_s)
                    if not is_redis:
                        break
                    del data
                asked.shutdown(socket.SHUT_WR)
                while asked.recv(2**18):  # what is sent and not read would cut off the answer
                    pass

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield port
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for each in tuple(open_):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
