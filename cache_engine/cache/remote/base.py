"""The interface of every remote: its time limits, the texts of its errors, and one entry as one object."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import MAX_RECORD_BYTES
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

        Raises ``CorruptEntry`` if it is larger than ``most_bytes``.
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
        """As ``sizes``, with the seconds since each object was stored; raises ``UsageError`` without a clock there."""
        ...


def without_query(url: str) -> str:
    """The URL of a remote without its query part, which may contain a secret and must not be written to a store."""
    return url.partition("?")[0]


def said(error: BaseException) -> str:
    """The first line of an error message; obstore adds its internal values in further lines."""
    lines = str(error).strip().splitlines()
    return printable(lines[0][:_LONGEST]) if lines else type(error).__name__


# ---- One entry as one object, so that a reader gets a record and its code from one writer ----
# ::
#
#     header    24 bytes: magic, format version, zero, bytes of the record, bytes of the blob
#     record    the bytes of a record file, with its signature
#     blob      the bytes of a blob file

FORMAT = 1
FOLDER = f"gemm-cache/{FORMAT}"
MOST_ENTRY_BYTES = 4 * 1024**2
"""The largest object of an entry that is read, in bytes: forty times the largest seen. Memory holds eight at once."""
MOST_BUNDLE_BYTES = 32 * 1024**2
"""The largest object of a bundle (kernels of another framework) that is read, in bytes."""
_HEADER = struct.Struct("<8sHHIQ")
_MAGIC = b"GEMMRMTE"
_BUNDLES = "bundles/"
_NAME = re.compile(rf"{FOLDER}/({_BUNDLES})?[0-9a-f]{{2}}/([0-9a-f]{{64}})")


def name_of(key: CacheKey, *, is_bundle: bool = False) -> str:
    """The name of the object for an entry or a bundle.

    Bundles have a folder of their own, into which version 0.3 does not look, because it would refuse them.
    """
    return f"{FOLDER}/{_BUNDLES if is_bundle else ''}{key[:2]}/{key}"


def key_in(name: str) -> CacheKey | None:
    """The key of the entry or bundle whose object has this name; ``None`` if it is not the name of one."""
    found = _NAME.fullmatch(name)
    key = CacheKey(found[2]) if found else None
    return key if found and key is not None and name_of(key, is_bundle=bool(found[1])) == name else None


def is_bundle(name: str) -> bool:
    """Whether an object of this name has a bundle."""
    return name.startswith(f"{FOLDER}/{_BUNDLES}")


def packed(record_data: bytes, blob_data: bytes) -> bytes:
    """The bytes of the object for an entry."""
    return _HEADER.pack(_MAGIC, FORMAT, 0, len(record_data), len(blob_data)) + record_data + blob_data


def unpacked(key: CacheKey, data: bytes, prove: Callable[[bytes], None] = lambda _: None) -> tuple[bytes, bytes]:
    """The bytes of the record and the bytes of the blob in an object; neither is checked.

    Args:
        prove: a function called with the record before the blob is copied; raises unless a trusted signer signed it.

    Raises:
        CorruptEntry: when the bytes are not such an object.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise CorruptEntry(f"the object of {key[:12]} is not an entry")
    _, version, zero, record_bytes, blob_bytes = _HEADER.unpack_from(data)
    if version != FORMAT or zero:
        raise CorruptEntry(f"the object of {key[:12]} has format {version}; this program reads format {FORMAT}")
    end = _HEADER.size + record_bytes
    if record_bytes > MAX_RECORD_BYTES or end + blob_bytes != len(data):
        raise CorruptEntry(f"the object of {key[:12]} is damaged or cut short")
    record_data = data[_HEADER.size : end]
    prove(record_data)
    return record_data, data[end:]
