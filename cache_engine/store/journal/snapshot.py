"""Reads the journal's files, and folds those that no process holds into the sums of ``snapshot.json``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.model import events
from cache_engine.model.key import CacheKey
from cache_engine.store.files import MOST_BYTES, check_readable, read_whole
from cache_engine.store.journal.lines import (
    FOLDING,
    LARGEST_BYTES,
    OPEN,
    SNAPSHOT,
    UnknownSnapshot,
    decoded,
    file_names,
    journal_state,
    read_new,
    stem_of,
    whole_lines,
)
from cache_engine.store.journal.spans import known
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import try_lock
from cache_engine.store.ownership import open_file
from cache_engine.store.publish import publish_file

_log = logging.getLogger(__name__)
_FORMAT = 1

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(events.Event).decode


class Snapshot(msgspec.Struct):
    """The content of ``snapshot.json``: sums over the events of files that are deleted, or are about to be."""

    format: int = _FORMAT
    generation: int = 0
    folded: list[str] = msgspec.field(default_factory=list)
    totals: events.Totals = msgspec.field(default_factory=events.Totals)
    usage: list[events.EntryUsage] = msgspec.field(default_factory=list)
    recent: list[events.Event] = msgspec.field(default_factory=list)
    periods: list[events.EventPeriod] = msgspec.field(default_factory=list)

    def tally(self) -> events.Tally:
        """A tally (running sums) that starts from the sums of this snapshot.

        The tally changes these sums, so do not use the snapshot afterwards.
        """
        return events.Tally(self.totals, self.usage, self.recent, self.periods)


def read_journal(folder: Path) -> events.Tally:
    """The sums over the events in all files of the journal, including the snapshot."""
    while True:
        snapshot = read_snapshot(folder)
        generation = snapshot.generation
        tally = snapshot.tally()
        for event in read_events(folder, snapshot, {}):
            tally.add(event)
        # If files were folded meanwhile, their events may be missing from both.
        if read_snapshot(folder).generation == generation:
            return tally


def last_day(periods: Iterable[events.EventPeriod], now: float) -> events.EventCounts:
    """The sums of the last 24 hours: of the hourly periods that ended in this time, and of the present hour."""
    day = events.EventCounts()
    for period in periods:
        if (
            period.seconds == events.HOUR_S
            and now - events.DAY_S < period.start + events.HOUR_S
            and period.start <= now
        ):
            day.add(period)
    return day


def read_snapshot(folder: Path) -> Snapshot:
    """The sums of folded files; empty if none is folded yet or, with a warning, if ``snapshot.json`` cannot be read."""
    try:
        return load_snapshot(folder)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("%s cannot be read, so older usage is not counted: %s", folder / SNAPSHOT, error)
        return Snapshot()


def load_snapshot(folder: Path) -> Snapshot:
    """The sums of folded files; empty when nothing is folded yet.

    Raises:
        UnknownSnapshot: when it has another format version.
        ValueError, RecursionError: when it is damaged.
        OSError: when it cannot be read.
    """
    try:
        data = read_whole(folder / SNAPSHOT, MOST_BYTES)
    except CorruptEntry as error:
        raise ValueError(error) from error
    if data is None:
        return Snapshot()
    snapshot = msgspec.json.decode(data, type=Snapshot)
    if snapshot.format != _FORMAT:
        raise UnknownSnapshot(f"it has format {snapshot.format}; this program knows {_FORMAT}")
    snapshot.generation %= 2**62  # a column of the index holds the number, and that of the next fold
    return snapshot


def read_events(
    folder: Path, snapshot: Snapshot, positions: dict[str, int], damaged: dict[str, int] | None = None
) -> Iterator[events.Event]:
    """The events in all journal files that the snapshot does not contain.

    Args:
        positions: the number of bytes already read, by file stem; reading starts there and updates it.
        damaged: gets the number of damaged lines of each file; they are skipped.
    """
    for stem, data in read_new(folder, set(snapshot.folded), positions):
        read = 0
        for event in _decode_lines(data):
            read += 1
            yield event
        lost = _line_count(data) - read
        if damaged is not None and lost:
            damaged[stem] = lost


def events_by_file(folder: Path, snapshot: Snapshot) -> Iterator[tuple[str, events.Event]]:
    """The events in all journal files that the snapshot does not contain, each with the stem of its file."""
    for stem, data in read_new(folder, set(snapshot.folded), {}):
        yield from ((stem, event) for event in _decode_lines(data))


def fold(folder: Path, temp: Path, keep: Callable[[str], bool]) -> int:
    """Adds the files that no process holds to the snapshot, then deletes them; returns the number of files.

    Call it under the maintenance lock. Changes nothing if the snapshot or ``demand.json`` cannot be read: a newer
    version may have written it.

    Args:
        keep: a function that says whether to keep the usage of a key.
    """
    from cache_engine.store.journal.demand import fold_demand, load_demand  # takes 5 ms, and no hit needs it

    layout = StoreLayout(folder.parent)
    sums = folder / SNAPSHOT
    try:
        snapshot = load_snapshot(folder)
        sums = layout.demand
        demand = load_demand(layout)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("the journal is not folded because %s cannot be read: %s", sums, error)
        return 0
    for name in file_names(folder, OPEN):
        # A file that cannot be opened belongs to another user.
        with suppress(OSError, CorruptEntry), os.fdopen(open_file(folder / name, os.O_RDWR), "r+b") as file:
            if try_lock(file.fileno()):
                (folder / name).rename((folder / name).with_suffix(FOLDING))
    stems = {name: stem_of(name) for name in file_names(folder, FOLDING)}
    names = [name for name in stems if _is_readable(folder / name)]
    fresh = [name for name in names if stems[name] not in snapshot.folded]
    fold_demand(layout, demand, stems, names)
    if fresh:
        tally = snapshot.tally()
        for name in fresh:
            for event in _decode_lines(read_whole(folder / name, LARGEST_BYTES) or b""):
                tally.add(event)
        snapshot = Snapshot(
            # Unique even if an earlier snapshot was lost, because the index compares generations.
            generation=max(snapshot.generation + 1, time.time_ns() // 1000),
            # Also files that are not folded: this process may write to them again.
            folded=[stem for name, stem in stems.items() if name in names or stem in snapshot.folded],
            totals=msgspec.structs.replace(tally.totals, spans=known(tally.totals.spans)),
            usage=[used.without_old_weeks(time.time()) for used in tally.usage if keep(used.key)],
            recent=tally.recent,
            periods=events.coarsened(tally.periods, time.time()),
        )
        publish_file(temp, str(folder / SNAPSHOT), _encode(snapshot), durable=True)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return len(fresh)


def _is_readable(path: Path) -> bool:
    """Whether a path is a regular file that only you and root may change, and that is not too large.

    Raises:
        OSError: when the disk refuses to open it.
    """
    try:
        check_readable(path, LARGEST_BYTES)
    except CorruptEntry:
        return False
    return True


def fold_journal(layout: StoreLayout) -> int:
    """Folds a store's journal as ``fold`` does, and drops the usage of deleted entries.

    Returns the number of files folded.
    """
    return fold(layout.journal, layout.temp, keep=lambda key: _may_exist(layout, CacheKey(key)))


def journal_bytes(folder: Path) -> int:
    """The bytes of all files of the journal on disk."""
    return sum(size for _, size in journal_state(folder))


def _may_exist(layout: StoreLayout, key: CacheKey) -> bool:
    """Whether the store has an entry of this key; true if the disk fails, so that no usage is lost."""
    try:
        os.lstat(layout.record_path(key))
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def damaged_lines(path: Path) -> tuple[int, int]:
    """The number of damaged whole lines of a file, and the number of all whole lines.

    Raises:
        CorruptEntry: when it is not a regular file, or too large.
        OSError: when it cannot be read.
    """
    data = read_whole(path, LARGEST_BYTES, trust=True)
    if data is None:  # the file was folded during the call
        return 0, 0
    data = whole_lines(data)
    lines = _line_count(data)
    from cache_engine.store.journal.demand import damaged_demand

    return lines - sum(1 for _ in _decode_lines(data)) + damaged_demand(data), lines


def _line_count(data: bytes) -> int:
    return sum(1 for line in data.splitlines() if line)


def _decode_lines(data: bytes) -> Iterator[events.Event]:
    return decoded(_decode, data.splitlines())


# ---- Lines of the last seconds, read without reading all of the journal ----

_TAIL_BYTES = 2**18
"""The bytes read from the end of each file: several minutes of a very busy process."""


def recent_events(folder: Path, kinds: Collection[str], since: float) -> Iterator[events.Event]:
    """The events of these kinds since a time (seconds since 1970), except those in files that are being folded."""
    marks = [f'"{kind}"'.encode() for kind in kinds]
    for path, size in _written_since(folder, since):
        data = None
        with suppress(OSError, CorruptEntry):
            data = read_whole(path, LARGEST_BYTES, max(0, size - _TAIL_BYTES))
        if data is None or not any(mark in data for mark in marks):  # to decode all would take a hundred times as long
            continue
        marked = (line for line in data.splitlines() if any(mark in line for mark in marks))
        for event in decoded(_decode, marked):
            if event.kind in kinds and event.at >= since:
                yield event


def _written_since(folder: Path, since: float) -> list[tuple[Path, int]]:
    found: list[tuple[Path, int]] = []
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):  # the file was folded during the call
                status = file.stat(follow_symlinks=False)
                if file.name.endswith(OPEN) and status.st_mtime >= since:
                    found.append((Path(file.path), status.st_size))
    return found
