"""Results of work that may fail without raising an error."""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """The reason why something was not done, for people. A function returns ``None`` instead if it was done."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def in_words(error: Exception) -> str:
    """The message of an error, for people."""
    if isinstance(error, MemoryError):
        return "this process is out of memory"
    return str((isinstance(error, OSError) and error.strerror) or error)


def in_json(failure: Failure | None) -> str:
    """The reason of a failure as a text for JSON documents; empty if nothing failed."""
    return failure.reason if failure is not None else ""
