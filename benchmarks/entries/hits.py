"""Hits and keys: what a process waits for when it asks for a kernel that is there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.entries.peers import diskcache_of
from benchmarks.entries.subjects import PROBLEM, large_cubin, store_of
from benchmarks.results import Report
from benchmarks.timing import compare
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.queue import Priority
from cache_engine.model.gemm import DType, GemmProblem, Mode, Scales, Specialisation
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal.spans import Spans

PLAIN_FILE_GOAL = 3.0
"""The goal of a disk hit, as a ratio to reading a plain file of the same compiled code."""

COUNTED_GOAL = 1.15
"""The goal of a hit in memory that counts as demand, as a ratio to one that does not."""

NEW_KEY_GOAL_S = 15e-6
"""The goal of a key that is asked for the first time."""


def hits(report: Report, cache: Cache, place: Path) -> None:
    """Hits in memory compared with a dict lookup, hits on disk compared with reading a plain file of the same code."""
    kernel = cache.get_or_compile(PROBLEM)
    known = {kernel.key: kernel}
    lookup = partial(known.get, kernel.key)
    by_key, by_problem = partial(cache.get, kernel.key), partial(cache.get_or_compile, PROBLEM)
    report(compare("memory hit, by key", by_key, "dict lookup", lookup, goal_seconds=3e-6, calls=1000))
    report(compare("memory hit from the problem, key included", by_problem, "dict lookup", lookup, calls=200))
    uncounted = partial(cache.get_or_compile, PROBLEM, priority=Priority.WARM)
    name = "memory hit from the problem, counted as demand"
    report(compare(name, by_problem, "one that is not", uncounted, goal_ratio=COUNTED_GOAL, calls=200))
    count = partial(cache.journal.asked, cache.select(PROBLEM).problem)
    report(compare("counting one request as demand", count, "dict lookup", lookup, goal_seconds=0.3e-6, calls=5000))
    with open_cache(cache.layout.root, durability="fast") as untimed:
        untimed.journal.spans = _NoSpans()
        without = partial(untimed.get_or_compile, PROBLEM)
        without()
        report(
            compare(
                "memory hit from the problem, its length counted", by_problem, "one that is not", without, calls=200
            )
        )
    cache.get_or_compile(replace(PROBLEM, specialisation=Specialisation.DYNAMIC))
    cold = (cache.targeted(replace(PROBLEM, n=2 * PROBLEM.n)), None, None, None)

    def stand_in() -> None:
        next(cache.stand_ins.look(cold))

    report(compare("look for a kernel that serves meanwhile", stand_in, "memory hit", by_problem, goal_seconds=60e-6))
    _disk_hit(report, cache.store, kernel.key, kernel.cubin, place, f"a {_kb(kernel.cubin)} CUBIN")
    cubin = large_cubin(cache)
    large = store_of(place / "large", kernel.record, cubin)
    _disk_hit(report, large, kernel.key, cubin, place, "a 64 KiB CUBIN", goal_seconds=150e-6)
    with diskcache_of(place / "diskcache-64") as peer:
        if peer is not None:
            peer["key"] = cubin
            hit, get = partial(large.get, kernel.key), partial(peer.get, "key")
            report(compare("disk hit of a 64 KiB CUBIN", hit, "diskcache get (unverified)", get, calls=10))


class _NoSpans(Spans):
    """Counts no lengths."""

    __slots__ = ()

    def add(self, span: str, ms: float) -> None:
        """Does nothing."""


def keys(report: Report, cache: Cache) -> None:
    """Keys of shapes, known and new, compared with hashing as many bytes."""
    selection = cache.select(PROBLEM)
    text = repr(selection.prefix.with_constants(selection.constants)).encode()
    fp8 = partial(GemmProblem, dtype=DType.FP8_E4M3, scales=Scales.BLOCKS, arch=PROBLEM.arch)
    grouped = partial(GemmProblem, batch=8, mode=Mode.GROUPED, arch=PROBLEM.arch)
    m, n, k = PROBLEM.m, PROBLEM.n, PROBLEM.k

    def digest() -> None:
        hashlib.sha256(text).digest()

    known = partial(cache.select, PROBLEM)
    report(compare("key of a shape asked for before", known, "sha256 of it", digest, calls=100))
    # In short samples, which other work seldom interrupts; of so many shapes that choices are forgotten again. Each has
    # so many more columns than the one before that it cannot share its config.
    for name, make, sizes in (
        ("key of a new shape, config chosen", partial(GemmProblem, arch=PROBLEM.arch), count(64, 64)),
        ("key of a new shape for sm_90a, config chosen", partial(GemmProblem, arch="sm_90a"), count(64, 64)),
        ("key of a new shape with scales, config chosen", fp8, count(128, 128)),
        ("key of a new shape in groups, config chosen", grouped, count(16, 16)),
    ):
        key = partial(_new_key, cache, make, m, sizes, k)
        report(compare(name, key, "sha256 of it", digest, goal_seconds=NEW_KEY_GOAL_S, samples=2000, calls=10))

    heights = count(1)

    def alike() -> None:  # as when a model serves another batch: most have as many tiles as one before
        cache.select(GemmProblem(next(heights), n, k, arch=PROBLEM.arch))

    name = "key of a new m, n and k known"
    report(compare(name, alike, "sha256 of it", digest, goal_seconds=NEW_KEY_GOAL_S, samples=2000, calls=10))


def _new_key(
    cache: Cache, make: Callable[[int, int, int], GemmProblem], m: int, columns: Iterator[int], k: int
) -> None:
    cache.select(make(m, next(columns), k))


def _disk_hit(
    report: Report,
    store: DiskStore,
    key: CacheKey,
    cubin: bytes,
    place: Path,
    what: str,
    goal_seconds: float | None = None,
) -> None:
    """A hit by key, record and code verified, compared with reading a file of the same code alone."""
    plain = place / f"{key}.cubin"
    plain.write_bytes(cubin)
    report(
        compare(
            f"disk hit of {what}, every byte verified",
            partial(store.get, key),
            "reading a plain file",
            plain.read_bytes,
            goal_seconds=goal_seconds,
            goal_ratio=PLAIN_FILE_GOAL,
            calls=10,
        )
    )


def _kb(data: bytes) -> str:
    return f"{len(data) / 1000:.0f} kB"
