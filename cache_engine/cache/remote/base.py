"""The interface of every remote, the time limits for its answers, and its errors in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cache_engine.units import printable

_LONGEST = 300  # characters of a message


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of a request: seconds to connect, seconds for all of one try, and how often it is tried."""

    connect_s: float
    request_s: float
    tries: int

    @property
    def limit_s(self) -> float:
        """The longest that an answer is waited for; the client gives up first, and says why."""
        return self.tries * self.request_s + 0.1


COMMAND = Timeouts(connect_s=2, request_s=20, tries=3)
"""Of commands that a person or a script waits for."""
LOOKUP = Timeouts(connect_s=0.9, request_s=0.9, tries=1)
"""Of lookups, which wait a second."""


class Remote(Protocol):
    """Bytes by name in a place that others can reach. Safe to use from several threads.

    Each method raises ``RemoteError`` when the place does not do it in time.
    """

    url: str

    def get(self, name: str, most_bytes: int) -> bytes | None:
        """The bytes of a name, or ``None`` where there are none; more than ``most_bytes`` raise ``CorruptEntry``."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Stores bytes; ``False`` where there are some of this name, which stay as they are."""
        ...

    def delete(self, name: str) -> None:
        """Deletes a name, if it is there."""
        ...

    def sizes(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int]]:
        """The names below a folder, and how many bytes each has, in no order.

        Args:
            on_some: called with the number of those found since the last call.
        """
        ...

    def ages(self, folder: str, on_some: Callable[[int], None] = lambda _: None) -> Iterator[tuple[str, int, float]]:
        """As ``sizes``, with the seconds since each was stored, by the remote's clock; ``UsageError`` without one."""
        ...


def without_query(url: str) -> str:
    """The URL of a remote without its query, which may hold a secret and must not be written to a store."""
    return url.partition("?")[0]


def said(error: BaseException) -> str:
    """The first line of a client's message; after it obstore prints its own values."""
    lines = str(error).strip().splitlines()
    return printable(lines[0][:_LONGEST]) if lines else type(error).__name__
