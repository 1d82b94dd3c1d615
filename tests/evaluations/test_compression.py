"""A compressed file of results is read within bounds, and nothing of it is lost unseen."""

from __future__ import annotations

import pytest
import zstandard

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import MOST_BYTES
from cache_engine.store.results import LARGEST_IMPORT_BYTES, compress, decompress


def test_a_frame_that_declares_too_much_is_refused_unread() -> None:
    frame = bytearray(compress(b"x" * 70_000))
    assert zstandard.frame_content_size(bytes(frame)) == 70_000
    header = zstandard.get_frame_parameters(bytes(frame))
    assert header.has_checksum
    # Magic, descriptor, then the declared size, in four bytes for one of this length.
    frame[5:9] = (MOST_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(CorruptEntry, match="declare 2,147,483,649 bytes"):
        decompress(bytes(frame))


def test_a_frame_without_a_size_is_refused_unread() -> None:
    with pytest.raises(CorruptEntry, match="do not declare their size; compress a file, not a stream"):
        decompress(zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"))


@pytest.mark.parametrize("rest", [b"x", compress(b"{}")], ids=["a byte", "a second file"])
def test_what_follows_a_frame_is_not_lost_unseen(rest: bytes) -> None:
    with pytest.raises(CorruptEntry, match="unused data"):
        decompress(compress(b"{}") + rest)


def test_a_file_from_elsewhere_may_have_32_mib_decompressed() -> None:
    most = b" " * LARGEST_IMPORT_BYTES
    for data in (most, compress(most)):
        assert decompress(data, LARGEST_IMPORT_BYTES) == most
    for data in (most + b" ", compress(most + b" ")):
        with pytest.raises(CorruptEntry, match=r"32 MiB"):
            decompress(data, LARGEST_IMPORT_BYTES)
