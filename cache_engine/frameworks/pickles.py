"""Reads the texts and numbers in a pickle. Nothing in it is imported, called or built, so that nothing in it can run.

A pickle is a program for a small machine. Only the instructions that carry plain values are looked at, in the order of
the file; ``pickletools`` of the standard library splits the bytes into instructions and takes no length on trust.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from itertools import islice

from cache_engine.frameworks.folder import Unread
from cache_engine.frameworks.values import Fault

MOST_PICKLE_BYTES = 64 << 20
"""The size of the largest pickle that is read: a hundred times that of a graph of a large model."""
MOST_OPCODES = 500_000
"""The most instructions of a pickle that are read: thirty times as many as in the entry of a model of 500 weights."""

_SILENT = {"PROTO", "FRAME"}
_REMEMBER = {"PUT", "BINPUT", "LONG_BINPUT"}
_RECALL = {"GET", "BINGET", "LONG_BINGET"}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_MOST_NUMBER = 2**63


def plain_values(data: bytes) -> Iterator[str | int | None]:
    """Yields the texts and whole numbers of a pickle in their order, and ``None`` for each other instruction.

    Raises:
        Unread: when the bytes are no pickle, or have more than ``MOST_OPCODES`` instructions, or repeat texts of more
            than ``MOST_PICKLE_BYTES`` letters; the values before that point have been yielded.
    """
    remembered: dict[object, str] = {}
    stored, last, recalled = 0, None, 0
    try:
        for opcode, argument, _ in islice(pickletools.genops(data), MOST_OPCODES):
            name = opcode.name
            if name == "MEMOIZE" or name in _REMEMBER:
                number = argument if name in _REMEMBER else stored
                # A larger number can be chosen so that it collides with all others in the dictionary.
                if last is not None and isinstance(number, int) and number <= MOST_OPCODES:
                    remembered[number] = last
                stored += 1
                continue
            if name in _SILENT:
                continue
            last = remembered.get(argument) if name in _RECALL else _text(argument)
            # Two bytes recall a text of any length, which the caller then searches.
            recalled += len(last) if last is not None and name in _RECALL else 0
            if recalled > MOST_PICKLE_BYTES:
                raise Unread(Fault.TOO_MANY, f"it repeats more than {MOST_PICKLE_BYTES:,} letters")
            if name == "STOP":
                return
            is_number = name in _NUMBERS and isinstance(argument, int) and abs(argument) < _MOST_NUMBER
            yield argument if is_number else last
    except (ValueError, OverflowError, MemoryError) as error:  # UnicodeError is a ValueError
        raise Unread(Fault.DAMAGED, f"it is no pickle: {str(error)[:200]}") from error
    raise Unread(Fault.TOO_MANY, f"it has more than {MOST_OPCODES:,} instructions, or does not end")


def _text(argument: object) -> str | None:
    """An instruction's text, with ``?`` for halves of surrogate pairs, which no JSON or index can hold."""
    if not isinstance(argument, str) or argument.isascii():
        return argument if isinstance(argument, str) else None
    return argument.encode(errors="replace").decode()
