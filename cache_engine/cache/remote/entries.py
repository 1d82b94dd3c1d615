"""One entry as one object, so that a reader gets a record and its code from one writer.

::

    header    24 bytes: magic, format version, zero, bytes of the record, bytes of the blob
    record    the bytes of a record file, with its signature
    blob      the bytes of a blob file
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from cache_engine.errors import CorruptEntry
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import MAX_RECORD_BYTES

FORMAT = 1
FOLDER = f"gemm-cache/{FORMAT}"
MOST_BYTES = 4 * 1024**2
"""The largest object of an entry that is read, in bytes: forty times the largest seen. Memory holds eight at once."""
MOST_BUNDLE_BYTES = 32 * 1024**2
"""The largest object of a bundle (kernels of another framework) that is read, in bytes."""
_HEADER = struct.Struct("<8sHHIQ")
_MAGIC = b"GEMMRMTE"
_BUNDLES = "bundles/"
_NAME = re.compile(rf"{FOLDER}/({_BUNDLES})?[0-9a-f]{{2}}/([0-9a-f]{{64}})")


def name_of(key: CacheKey, *, is_bundle: bool = False) -> str:
    """The name of the object for an entry or a bundle.

    Bundles have another folder, because version 0.3 would refuse them; it does not look into this folder.
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
