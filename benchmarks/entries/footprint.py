"""The space of kernels on disk, and the time that loading them saves: really compiled ones, no filler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.results import Report, Result, Size
from benchmarks.timing import medians
from cache_engine.batch.warm import sample_problems, warm
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.model.artifact import SECTIONS, Record
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record, stored_bytes

_STORED_GOAL = 1 / 3
_LOAD_GOAL = 1 / 67  # the best that the reference design claims over compiling
_COUNTS = (100, 1_000, 10_000)


def footprint(report: Report, place: Path, limit: int) -> None:
    """Compiles the kernels of the sample, at most ``limit``, one at a time; reports their sizes and loading them."""
    with open_cache(place / "footprint", durability="fast") as cache:
        warm(cache, sample_problems()[:limit], jobs=1)
        records = list(cache.records())
        _loading(report, cache, records)
        _sizes(report, cache, records)


def _loading(report: Report, cache: Cache, records: Sequence[Record]) -> None:
    """The mean of the kernels' disk hits, each a median, compared with the mean of what compiling each took, once."""
    hits = medians([partial(cache.store.get, CacheKey(record.key)) for record in records], samples=20)
    compiled = fmean(record.compile_ms for record in records) / 1e3
    name = f"disk hit, mean of {len(records)} kernels"
    report(Result(name, fmean(hits), "compiling them, mean", compiled, goal_ratio=_LOAD_GOAL))


def _sizes(report: Report, cache: Cache, records: Sequence[Record]) -> None:
    """Means for each kernel: each part compared with its raw size, the whole compared with the CUBIN alone.

    The last lines are the mean times a number; only the kernels compiled here were measured.
    """
    for name in SECTIONS:
        stored = fmean(record.blob.sections[name].stored_bytes for record in records)
        raw = fmean(record.blob.sections[name].raw_bytes for record in records)
        if raw:
            report(Size(f"stored per kernel: {name}", stored, f"raw {name}", raw))
    cubin = fmean(record.size_bytes for record in records)
    record_bytes = fmean(len(encode_record(record)) for record in records)
    report(Size("stored per kernel: record", record_bytes, "raw cubin", cubin))
    total = fmean(stored_bytes(record) for record in records)
    name = f"stored per kernel, all of it, mean of {len(records)}"
    report(Size(name, total, "raw cubin", cubin, _STORED_GOAL))
    blocks = fmean(_allocated(cache, record) for record in records)
    report(Size("the same in whole blocks of the file system", blocks, "raw cubin", cubin))
    for count in _COUNTS:
        report(Size(f"{count:,} kernels (mean × {count:,})", total * count, "raw cubin", cubin * count))


def _allocated(cache: Cache, record: Record) -> int:
    """The bytes that the file system allocates for an entry's two files."""
    key = CacheKey(record.key)
    paths = (cache.layout.blob_path(key, record.blob.digest), cache.layout.record_path(key))
    return sum(os.stat(path).st_blocks * 512 for path in paths)
