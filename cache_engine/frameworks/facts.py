"""Reads facts from metadata and binaries that other programs wrote: checked for type and range, never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
import xxhash

from cache_engine.compilers.elf import read_cubin
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, MOST_TEXT_BYTES, Folder, Unread
from cache_engine.frameworks.values import Entry, Factor, Fault, KeyFactors, Value, id_of

_MOST_LETTERS = 500
_MOST_NUMBER = 2**53
_MOST_FACTORS, _MOST_VALUE = 2_000, 2_000  # of a key; and letters of a factor


def read_object(folder: Folder, name: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileNotFoundError: when the file has vanished.
        Unread: when the file cannot be read, is too large, or is not a JSON object.
    """
    return json_object(folder.read(name, MOST_TEXT_BYTES))


def json_object(text: bytes) -> dict[str, Any]:
    """The JSON object in a text; raises ``Unread`` if there is none."""
    if len(text) > MOST_TEXT_BYTES:  # what is read of it takes thirty times as much memory
        raise Unread(Fault.TOO_LARGE, f"it has {len(text):,} bytes; at most {MOST_TEXT_BYTES:,} are read")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unread(Fault.DAMAGED, f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unread(Fault.DAMAGED, "it is not a JSON object")
    return found


def text_in(document: Mapping[str, Any], name: str) -> str | None:
    """The text in a field of a document; ``None`` if it is not text of reasonable length."""
    value = document.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= _MOST_LETTERS and value.isprintable() else None


def number_in(document: Mapping[str, Any], name: str) -> int | None:
    """The whole number in a field of a document; ``None`` if it is not one, or negative."""
    value = document.get(name)
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER
    return value if is_number else None


def chosen_in(document: Mapping[str, Any], *names: str) -> dict[str, Value]:
    """The given fields of a document, for ``Entry.config``, without those that have no plain value."""
    found: dict[str, Value] = {}
    for name in names:
        number = number_in(document, name)
        value = number if number is not None else text_in(document, name)
        if value is not None:
            found[name] = value
    return found


_NOT_IN_IMAGE = {
    "compiler": "its ABI has no note of the assembler",
    "arch": "its ABI is unknown",
    "code_bytes": "it has no code",
    "registers": "it does not state them",
    "stack_bytes": "it does not state it",
    "shared_bytes": "it has no code",
    "digest": "",
}
"""For each fact that is read from a CUBIN, the reason to give if the CUBIN does not state it."""


def code_facts(folder: Folder, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts in a CUBIN file, as fields of ``Entry``; and for each unknown fact, the reason in words.

    Raises:
        FileNotFoundError: when the file has vanished.
    """
    try:
        image = folder.read(name, MOST_BINARY_BYTES)
    except Unread as error:
        return {}, dict.fromkeys(_NOT_IN_IMAGE, f"{id_of(name)}: {error}")
    return image_facts(image, id_of(name))


def kernels_in(image: bytes) -> tuple[str, ...]:
    """The names of the functions in a CUBIN; empty if it cannot be read."""
    try:
        return tuple(function.name for function in read_cubin(image).functions)
    except ValueError:
        return ()


def image_facts(image: bytes, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The facts in the bytes of a CUBIN, as ``code_facts``.

    If it has several kernels: the most registers and memory that one of them needs, and the size of all code.
    """
    digest = {"digest": digest_of(image)}
    try:
        found = read_cubin(image)
    except ValueError as error:
        return digest, dict.fromkeys(_NOT_IN_IMAGE, f"{name}: {error}")
    functions = found.functions
    facts = digest | {
        "arch": found.arch or None,
        "compiler": found.assembler or None,
        "code_bytes": sum(function.code_bytes for function in functions) if functions else None,
        "registers": max((each.registers for each in functions if each.registers is not None), default=None),
        "stack_bytes": max((each.stack_bytes for each in functions if each.stack_bytes is not None), default=None),
        "shared_bytes": max((each.shared_bytes for each in functions), default=None),
    }
    return facts, {fact: f"{name}: {why}" for fact, why in _NOT_IN_IMAGE.items() if facts[fact] is None}


def is_ptx(data: bytes) -> bool:
    """Whether the bytes look like PTX text."""
    return b".version" in data[:4096]


def ptx_facts(text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The target and the name of the first kernel in PTX; and why the other facts are unknown."""
    target = re.search(rb"^\.target\s+(sm_\w{1,20})", text, re.MULTILINE)
    name = re.search(rb"\.entry\s+([\w$]{1,400})", text)
    facts = {"arch": target[1].decode() if target else None, "name": name[1].decode() if name else None}
    return facts, {"name": "it has no kernel", **without_binary("it is PTX, not machine code")}


def without_binary(why: str) -> dict[str, str]:
    """The reason ``why``, for each fact that would come from a CUBIN."""
    return dict.fromkeys(_NOT_IN_IMAGE, why)


def entry_of(facts: Mapping[str, Any], unread: Mapping[str, str]) -> Entry:
    """An entry made of its fields, and of the reasons for unknown ones."""
    return Entry(**facts, unread={fact: why for fact, why in unread.items() if facts.get(fact) is None})


def factors_of(factors: Iterable[Factor], hidden: tuple[str, ...] = ()) -> KeyFactors:
    """The inputs of a key, of bounded length: a long name or value is replaced by its beginning and a digest."""
    found = tuple(islice(factors, _MOST_FACTORS + 1))
    if len(found) > _MOST_FACTORS:
        found, hidden = found[:-1], (*hidden, f"it states more than {_MOST_FACTORS:,} inputs; the others are not read")
    return KeyFactors(tuple(Factor(_cut(each.name), _cut(each.value), each.group) for each in found), hidden)


def _cut(text: str) -> str:
    if len(text) <= _MOST_VALUE:
        return text
    return f"{text[:_MOST_VALUE]}… ({digest_of(text.encode(errors='replace'))[:12]})"


def digest_of(data: bytes) -> str:
    """A digest of a binary, by which equal binaries are found."""
    return xxhash.xxh3_128_hexdigest(data)
