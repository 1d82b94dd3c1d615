"""The interface of every remote, the time limits for its answers, and the texts of its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cache_engine.units import printable

_LONGEST = 300  # characters of an error message


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of a request to a remote: seconds to connect, seconds for one try, and the number of tries."""

    connect_s: float
    request_s: float
    tries: int

    @property
    def limit_s(self) -> float:
        """The longest wait for an answer, in seconds.

        It is longer than the client's own limits, so the client can give its reason.
        """
        return self.tries * self.request_s + 0.1


COMMAND = Timeouts(connect_s=2, request_s=20, tries=3)
"""Limits for requests of commands, for which a user waits."""
LOOKUP = Timeouts(connect_s=0.9, request_s=0.9, tries=1)
"""Limits for requests of lookups, which wait at most one second for a remote."""


class Remote(Protocol):
    """Named objects (bytes) in a place that several machines can reach. Safe to use from several threads.

    Each method raises ``RemoteError`` when the place does not answer in time.
    """

    url: str

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """The bytes of an object; ``None`` if it does not exist.

        ``CorruptEntry`` if it is larger than ``most_bytes``.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object. ``False`` if one of this name exists; it stays unchanged."""
        ...

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists."""
        ...

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """The name and the size in bytes of each object below a folder, in no order.

        Args:
            on_some: a function called from time to time with the number of objects found since the last call.
        """
        ...

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """As ``sizes``, and the seconds since each object was stored; ``UsageError`` if the remote has no clock."""
        ...


def without_query(url: str) -> str:
    """The URL of a remote without its query part, which may contain a secret and must not be written to a store."""
    return url.partition("?")[0]


def said(error: BaseException) -> str:
    """The first line of an error message; obstore adds its internal values in further lines."""
    lines = str(error).strip().splitlines()
    return printable(lines[0][:_LONGEST]) if lines else type(error).__name__
