"""Lines of files that processes append to: the journal's, and those of the log of decisions.

A reader takes whole lines only, as a process may still be writing the last one, and skips those that it cannot decode.
A line of the log carries a checksum, ``<XXH3 of the rest> <JSON>``, and starts with a newline, so that a line which a
killed writer left incomplete does not damage the next: several processes append to that file. A file of the journal has
one writer at a time, which ends such a line first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest

CHECKSUM_BYTES = 17
"""Of a line of the log, with the newline before it."""

_T = TypeVar("_T")


def append(descriptor: int, data: bytes) -> None:
    """Writes all of it, or raises ``OSError``."""
    if os.write(descriptor, data) != len(data):
        raise OSError("only a part of the data was written")


def whole_lines(data: bytes) -> bytes:
    """The bytes up to the last newline."""
    return data[: data.rfind(b"\n") + 1]


def decoded(decode: Callable[[bytes], _T], lines: Iterable[bytes]) -> Iterator[_T]:
    """The lines that can be decoded; damaged ones are skipped."""
    for line in lines:
        # The last is for brackets nested too deep.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decode(line)


def with_checksum(text: bytes) -> bytes:
    """A line of the log."""
    return b"\n" + xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def texts(data: bytes) -> Iterator[bytes | None]:
    """The text of each line of the log; ``None`` where it does not match its checksum."""
    for line in data.split(b"\n"):
        if line:
            text = line[CHECKSUM_BYTES:]
            yield text if xxh3_64_hexdigest(text) == line[:16].decode("ascii", "replace") else None
