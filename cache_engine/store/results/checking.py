"""Finds damaged files of results. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.store.files import MOST_BYTES, read_whole
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results.interchange import UnknownResults, decode_snapshot, decompress
from cache_engine.store.results.log import ResultLogs
from cache_engine.store.results.salvage import Judge


class DamagedEntries(CorruptEntry):
    """Single results in a file are damaged; the file itself is sound."""


def damaged_files(
    layout: StoreLayout, fingerprint: str, judge: Judge
) -> Iterator[tuple[Path, CorruptEntry | UnknownResults | OSError]]:
    """The damaged files of an accelerator or device, each with its error.

    Call it under the shared lock of these results, so that none is folded meanwhile.
    """
    generation = 0
    for path in (layout.results_file(fingerprint), layout.compressed_results_file(fingerprint)):
        try:
            data = read_whole(path, MOST_BYTES)
            if data is None:
                continue
            snapshot = decode_snapshot(decompress(data), fingerprint)
        except (CorruptEntry, UnknownResults, OSError) as error:
            yield path, error
            continue
        generation = max(generation, snapshot.generation)
        damaged = sum(judge(name, raw) != name for name, raw in snapshot.cache_entries.items())
        if damaged:
            yield path, DamagedEntries(f"{damaged:,} of {len(snapshot.cache_entries):,} results are damaged")
    logs = ResultLogs(layout, fingerprint)
    for number in logs.generations():
        if number < generation:
            continue  # folded already; its deletion was interrupted
        try:
            lines = logs.lines(number)
        except (CorruptEntry, OSError) as error:
            yield logs.path(number), error
            continue
        damaged = sum(line is None or bool(line.key and judge(line.key, line.entry) != line.key) for line in lines)
        if damaged:
            yield logs.path(number), DamagedEntries(f"{damaged:,} of {len(lines):,} lines are damaged")
