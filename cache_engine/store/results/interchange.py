"""The interchange file of results, which other tools read and write too: its format, versions and compression."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.artifact import MOST_COUNT, Count, Seconds
from cache_engine.store.files import MOST_BYTES

FORMAT = "1.0"
"""Of the snapshot. A file with another first number has another format and is left unchanged."""

LARGEST_IMPORT_BYTES = 32 * 2**20
"""Of such a file from elsewhere, decompressed: three times what pruning leaves of an accelerator's results. Decoding
may take thirty times as much memory."""


# Bounds on the values in a file, so that every value fits wherever it is used.
MOST_HOURS = 1e9
_Hours = Annotated[float, msgspec.Meta(ge=0, le=MOST_HOURS)]
_Generation = Annotated[int, msgspec.Meta(ge=0, le=10**17)]
_Text = Annotated[str, msgspec.Meta(max_length=100)]


class Statistics(msgspec.Struct):
    """Statistics of an accelerator's results; times in seconds since 1970.

    ``corrupt_lines`` counts damaged lines of the logs of version 0.2 that were skipped.
    """

    total_entries: Count = 0
    created_at: Seconds = 0.0
    last_updated: Seconds = 0.0
    cache_hits: Count = 0
    cache_misses: Count = 0
    total_search_time_hours: _Hours = 0.0
    corrupt_lines: Count = 0

    def count(self, hits: int = 0, misses: int = 0, corrupt_lines: int = 0, hours: float = 0.0) -> None:
        """Adds to the sums. They stop at their bounds, because no reader accepts a file beyond them."""
        self.cache_hits = min(MOST_COUNT, self.cache_hits + hits)
        self.cache_misses = min(MOST_COUNT, self.cache_misses + misses)
        self.corrupt_lines = min(MOST_COUNT, self.corrupt_lines + corrupt_lines)
        self.total_search_time_hours = min(MOST_HOURS, self.total_search_time_hours + hours)


class Snapshot(msgspec.Struct):
    """The interchange file.

    Attributes:
        version: of the model that wrote it last.
        cache_format_version: of this format.
        arch_fingerprint: the accelerator of these results.
        architecture: every field of that accelerator.
        cache_entries: results by key.
        statistics: of these results.
        evaluator: the evaluator that made these results.
        usage: when each result was last used; without those never used.
        generation: the file contains the logs of version 0.2 with lower numbers; without it, none.
    """

    version: _Text
    cache_format_version: str
    arch_fingerprint: str
    architecture: dict[str, Any]
    cache_entries: dict[str, msgspec.Raw]
    statistics: Statistics
    evaluator: _Text = "core-grid"
    usage: dict[str, Seconds] = {}
    generation: _Generation = 0

    @property
    def chip(self) -> str:
        """The accelerator's name; empty if the file has none that is printable."""
        name = self.architecture.get("name")
        return name if isinstance(name, str) and len(name) <= 100 and name.isprintable() else ""


class UnknownResults(StoreError):
    """Results of a format version this program does not know. Leave them unchanged."""


_decode_snapshot = msgspec.json.Decoder(Snapshot).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding invalid bytes; the last is for brackets nested too deep."""


def empty_snapshot(version: str, evaluator: str, fingerprint: str, architecture: Mapping[str, Any]) -> Snapshot:
    """The snapshot of an accelerator that has no results yet."""
    return Snapshot(version, FORMAT, fingerprint, dict(architecture), {}, Statistics(), evaluator)


def decode_snapshot(data: bytes, fingerprint: str = "") -> Snapshot:
    """The snapshot in an interchange file.

    Raises:
        CorruptEntry: when it is damaged, or another accelerator's.
        UnknownResults: when it has another format version.
    """
    try:
        snapshot = _decode_snapshot(data)
    except UNREADABLE as error:
        with suppress(*UNREADABLE):
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            version = fields.get("cache_format_version")
            if version is not None:
                _check_format(msgspec.json.decode(version, type=str))
        raise CorruptEntry(f"the results file of {fingerprint or 'an accelerator'} is damaged: {error}") from error
    _check_format(snapshot.cache_format_version)
    if fingerprint and snapshot.arch_fingerprint != fingerprint:
        raise CorruptEntry(f"the results file of {fingerprint} holds results of {snapshot.arch_fingerprint[:40]!r}")
    return snapshot


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The interchange file, each entry on a line of its own."""
    encode = msgspec.json.encode
    text = encode(msgspec.structs.replace(snapshot, cache_entries={}))
    # The fields behind the last of these have only numbers, so that it is the field itself.
    head, _, tail = text.rpartition(b'"cache_entries":{}')
    lines = b",\n".join(b"%b:%b" % (encode(key), bytes(raw)) for key, raw in snapshot.cache_entries.items())
    return b'%b"cache_entries":{\n%b\n}%b' % (head, lines, tail)


def check_names(data: bytes) -> None:
    """Refuses a file in which an object has a name twice: decoding keeps the last value, and the others are lost.

    Raises:
        CorruptEntry: naming it.
    """

    def check(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise CorruptEntry(f"the results file has {name[:40]!r} twice in one object; delete one of them")
            seen.add(name)

    try:
        # Objects are dropped once they are checked, and numbers stay text, which has no largest size.
        json.loads(data, object_pairs_hook=check, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise CorruptEntry(f"the results file is damaged: {error}") from error


def compress(data: bytes) -> bytes:
    """An interchange file as a zstd frame with a checksum."""
    import zstandard

    return zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress(data)


def decompress(data: bytes, largest: int = MOST_BYTES) -> bytes:
    """The bytes of an interchange file that may be compressed.

    Args:
        largest: bytes that it may have, decompressed; nothing is decompressed before that is known.

    Raises:
        CorruptEntry: when it is compressed and damaged, or too large.
    """
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        if len(data) > largest:
            raise CorruptEntry(f"the results have more than {largest / 2**20:,.0f} MiB, and no more are read at a time")
        return data
    import zstandard

    try:
        # max_output_size is ignored for frames that declare their size, so the declaration is checked first.
        declared = zstandard.frame_content_size(data)
        if declared < 0:
            raise CorruptEntry("the compressed results do not declare their size; compress a file, not a stream")
        if declared > largest:
            raise CorruptEntry(
                f"the compressed results declare {declared:,} bytes, and {largest / 2**20:,.0f} MiB may be read at once"
            )
        # What follows the first frame, such as a second file, would be lost unseen.
        return bytes(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise CorruptEntry(f"the compressed results cannot be decompressed: {error}") from error


def _check_format(version: str) -> None:
    if version.partition(".")[0] != FORMAT.partition(".")[0]:
        raise UnknownResults(
            f"the results have format {version[:20]!r}, and this program knows {FORMAT}; they are left unchanged"
        )
