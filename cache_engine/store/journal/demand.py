"""The demand in the journal: lines that count requests for problems, and ``demand.json``, the sums of folded lines.

``demand.json`` names the files that it contains, as ``snapshot.json`` does. So no request is counted twice or lost
if the process is killed during folding when only one of the two files is written.

It is a separate file because an older version of the program rewrites the snapshot without fields that it does not
know. So only the demand in files that such a version folds is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.model.shapes import ShapeCounts
from cache_engine.store.files import read_whole
from cache_engine.store.journal import lines
from cache_engine.store.journal.lines import UnknownSnapshot, decoded, read_new
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file
from cache_engine.usage.timeline import LARGEST_BYTES, Stored, Timeline

_log = logging.getLogger(__name__)
_FORMAT = 1
_MARK = b'"asked":{'

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ShapeCounts).decode


class _Head(msgspec.Struct):
    format: int = _FORMAT
    generation: int = 0


class FoldedDemand(_Head):
    """The content of ``demand.json``.

    Attributes:
        format: the format version of the file.
        generation: a number that is different after each change of the content.
        folded: the names, without suffix, of the journal's files whose lines are in the sums.
        timeline: the sums: how often each shape was asked for, over time.
    """

    folded: list[str] = msgspec.field(default_factory=list)
    timeline: Stored = msgspec.field(default_factory=Stored)


_decode_folded = msgspec.json.Decoder(FoldedDemand).decode


def read_timeline(layout: StoreLayout) -> Timeline:
    """The demand of all processes of the store so far, except counts that a process has not written yet."""
    while True:
        generation = demand_generation(layout)
        folded = read_demand(layout)
        timeline = Timeline(folded.timeline)
        for line in read_lines(layout.journal, folded, {}):
            timeline.add(line.shape, line.asked, line.at)
        # If files were folded meanwhile, their lines may be missing from both.
        if demand_generation(layout) == generation:
            return timeline


def read_demand(layout: StoreLayout) -> FoldedDemand:
    """The content of ``demand.json``; empty when nothing is folded yet or, with a warning, when it cannot be read."""
    try:
        return load_demand(layout)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s cannot be read, so older demand is not counted: %s", layout.demand, error)
        return FoldedDemand()


def load_demand(layout: StoreLayout) -> FoldedDemand:
    """The content of ``demand.json``; empty when nothing is folded yet.

    Raises:
        UnknownSnapshot: when the file has another format version.
        ValueError, RecursionError: when it is damaged.
        OSError: when it cannot be read.
    """
    try:
        data = read_whole(layout.demand, LARGEST_BYTES)
    except CorruptEntry as error:
        raise ValueError(error) from error
    if data is None:
        return FoldedDemand()
    head = msgspec.json.decode(data, type=_Head)
    if head.format != _FORMAT:
        raise UnknownSnapshot(f"it has format {head.format}; this program knows {_FORMAT}")
    return _decode_folded(data)


def demand_generation(layout: StoreLayout) -> int:
    """The generation of ``demand.json``, a number that changes with its content; 0 if the file cannot be read."""
    with suppress(OSError, CorruptEntry, ValueError, RecursionError):
        return msgspec.json.decode(read_whole(layout.demand, LARGEST_BYTES) or b"{}", type=_Head).generation
    return 0


def read_lines(folder: Path, folded: FoldedDemand, positions: dict[str, int]) -> Iterator[ShapeCounts]:
    """The demand lines of all files that are not folded.

    Args:
        positions: the number of bytes already read, by file stem; reading starts there and updates it.
    """
    for _, data in read_new(folder, set(folded.folded), positions):
        yield from decode_lines(data)


def decode_lines(data: bytes) -> Iterator[ShapeCounts]:
    """The decoded demand lines in the content of a journal file; damaged lines are skipped."""
    return decoded(_decode, _marked(data))


def damaged_demand(data: bytes) -> int:
    """The number of lines in a journal file's content that are marked as demand and cannot be decoded."""
    return len(_marked(data)) - sum(1 for _ in decode_lines(data))


def _marked(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if _MARK in line]


def fold_demand(layout: StoreLayout, folded: FoldedDemand, there: Mapping[str, str], names: Collection[str]) -> None:
    """Adds the demand in journal files that are about to be deleted to ``demand.json``.

    Args:
        folded: the present content of ``demand.json``.
        there: for the name of each file that no process writes now, its stem.
        names: the names of the files that are about to be deleted. A process may write to the other files again.

    Raises:
        OSError: when reading or writing fails; then nothing has changed.
    """
    timeline = Timeline(folded.timeline)
    found = False
    for name in names:
        if there[name] not in folded.folded:
            for line in decode_lines(read_whole(layout.journal / name, lines.LARGEST_BYTES) or b""):
                timeline.add(line.shape, line.asked, line.at)
                found = True
    if not found:
        return
    timeline.coarsen(time.time())
    # Unique even if an earlier file was lost, because the index compares generations.
    generation = max(folded.generation + 1, time.time_ns() // 1000)
    stems = [stem for name, stem in there.items() if name in names or stem in folded.folded]
    data = _encode(FoldedDemand(generation=generation, folded=stems, timeline=timeline.stored()))
    publish_file(layout.temp, str(layout.demand), data, durable=True)
