"""The cost of compiling a kernel, in seconds and bytes: from the records of a store, else from our own benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import median

from cache_engine.model.artifact import Record
from cache_engine.store.codec import stored_bytes
from cache_engine.usage.compile_time import PUBLISHED_S

MOST_RECORDS = 2000


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one kernel.

    Attributes:
        compile_s: seconds on one processor.
        stored_bytes: on disk.
        source: where both are from.
    """

    compile_s: float
    stored_bytes: float
    source: str


PUBLISHED = Cost(
    PUBLISHED_S["nvrtc"],
    25.9 * 1024,
    "docs/performance.md: NVRTC 13.5 on 2 cores of x86-64, 2026-11-21",
)
"""``make bench``: "compile a tensor_core kernel, nvrtc", and "stored per kernel, all of it, mean of 48"."""


def cost_of(records: Iterable[Record], family: str, compiler: str, arch: str) -> Cost:
    """The medians of the kernels of this kind, of the first 2,000 records; without one, ``PUBLISHED``."""
    alike = [
        record
        for record in islice(records, MOST_RECORDS)
        if (record.family, record.compiler, record.arch) == (family, compiler, arch)
    ]
    if not alike:
        return PUBLISHED
    return Cost(
        median(record.compile_ms for record in alike) / 1e3,
        median(stored_bytes(record) for record in alike),
        f"the median of {len(alike):,} {family} kernels for {arch} in this store",
    )
