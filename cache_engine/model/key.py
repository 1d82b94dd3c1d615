"""CacheKey: the hash of everything that can change compiled bytes.

A key is SHA-256 over labelled, length-prefixed components, the schema version first::

    6:schema1:16:family11:tensor_core8:template64:…

so no two lists of components give the same bytes. The components themselves are in the record, which is how
``verify`` recomputes a key and how a miss can be explained. No path is ever a component: stores move between machines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, NewType

from cache_engine.errors import UsageError

# As Python's ``random`` does: ``hashlib`` loads OpenSSL, which takes 2 ms and pays only for long data.
if TYPE_CHECKING:
    import hashlib

    sha256 = hashlib.sha256
else:
    try:
        from _sha2 import sha256  # CPython 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256  # CPython 3.11
        except ImportError:
            from hashlib import sha256

CacheKey = NewType("CacheKey", str)
"""64 lower-case hexadecimal digits."""

Components = tuple[tuple[str, str], ...]
"""Labels and values, in the order they are hashed."""

SCHEMA = "1"

_KEY = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")


def is_key(text: str) -> bool:
    """Whether ``text`` has the form of a key."""
    return _KEY.fullmatch(text) is not None


def check_prefix(text: str) -> str:
    """The start of a key that a user typed, in its stored form.

    Raises:
        UsageError: when it cannot be the start of a key.
    """
    prefix = text.strip().lower() if isinstance(text, str) else ""
    if _PREFIX.fullmatch(prefix) is None:
        raise UsageError(f"{text!r} is not a key; give at least 4 of its 64 hexadecimal digits")
    return prefix


class Constants(dict[str, str | int]):
    """Further components of a key, with their encoding. Never changed after they are made."""

    __slots__ = ("encoded",)
    encoded: str

    @classmethod
    def of(cls, components: Mapping[str, str | int]) -> Constants:
        """The given components, each encoded."""
        made = cls(components)
        made.encoded = "".join(starmap(_encoded, components.items()))
        return made


class KeyPrefix:
    """The first components of keys, equal for many kernels of a process and hashed only once."""

    def __init__(self, components: Iterable[tuple[str, str]]) -> None:
        self.components: Components = (("schema", SCHEMA), *components)
        self._hash = _hasher()(_encode(self.components))

    def key(self, constants: Mapping[str, str | int]) -> CacheKey:
        """The key for the common components and these constants."""
        hasher = self._hash.copy()
        hasher.update(constants.encoded.encode() if type(constants) is Constants else _encode(constants.items()))
        return CacheKey(hasher.hexdigest())

    def with_constants(self, constants: Mapping[str, str | int]) -> Components:
        """All components of the key for these constants."""
        return (*self.components, *((label, str(value)) for label, value in constants.items()))


def key_of(components: Components) -> CacheKey:
    """The key for a full list of components, including the schema."""
    return CacheKey(_hasher()(_encode(components)).hexdigest())


def _hasher() -> Callable[[bytes], hashlib._Hash]:
    """The SHA-256 function: OpenSSL's, which takes a third of the time, if this process has loaded OpenSSL anyway."""
    loaded = sys.modules.get("hashlib")
    return sha256 if loaded is None else loaded.sha256


def _encode(components: Iterable[tuple[str, str | int]]) -> bytes:
    return "".join(starmap(_encoded, components)).encode()


# With types, because True and 1.0 are refused and 1 is not. The key of a new shape shares most components with others.
@lru_cache(maxsize=4096, typed=True)
def _encoded(label: str, value: str | int) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not text:
        # If an unknown value were keyed like a known one, stale kernels would be served.
        raise ValueError(f"key component {label} is {value!r}; what cannot be observed cannot be keyed")
    return encoded(label, text)


def encoded(label: str, text: str) -> str:
    """One component of a key in the form in which it is hashed."""
    return f"{len(label)}:{label}{len(text)}:{text}"
