"""The zstd dictionary for the texts of a kernel: one source and the head of one PTX of each family.

Sources of a family differ only in constants, so with the dictionary a source takes about a hundred bytes.
``dictionary-1.zst`` comes from ``python -m benchmarks.make_dictionary``. The format version of a blob says which
dictionary it needs. So a released dictionary is never changed: a new one gets the next number, and the blobs that use
it get the next format version.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import cache

import zstandard

NAME = "dictionary-1.zst"
_SHA256 = "38aea46d8052e34a46aeb58216fffa102f566df2c6db16b9fccb14b2af580f9d"
_LEVEL = 9  # takes 1 ms a kernel, while compiling takes a second; level 3 needs a fifth more space
_MOST_BYTES = 1024**2
_local = threading.local()  # contexts serve one thread at a time


def compress(raw: bytes) -> bytes:
    """A zstd frame of ``raw``, compressed with the dictionary; only ``decompress`` reads it."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(
            level=_LEVEL, dict_data=_dictionary(), write_checksum=True, write_content_size=True
        )
    return bytes(compressor.compress(raw))


def decompress(stored: bytes | memoryview) -> bytes:
    """The decompressed bytes of a frame; the caller must have checked the size that the frame declares.

    Raises:
        zstandard.ZstdError: when ``stored`` is not such a frame, or is damaged.
        OSError: when the dictionary is missing or damaged.
    """
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(dict_data=_dictionary())
    return bytes(decompressor.decompress(stored))


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    """The dictionary, read from the package when a text is first written or read.

    Raises:
        OSError: when the dictionary is missing or damaged. Not ``CorruptEntry``, because the entry is good and must not
            go to quarantine.
    """
    from hashlib import sha256  # no hit needs a text

    path = os.path.join(os.path.dirname(__file__), NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        data = b""
    if sha256(data).hexdigest() != _SHA256:
        raise OSError(errno.EIO, "this part of gemm-cache is missing or damaged; install gemm-cache again", path)
    raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST_BYTES)
    return zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
