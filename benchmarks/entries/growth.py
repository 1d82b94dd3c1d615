"""A store that grows: what a hit takes, and what looks at every entry, with 100, 1,000 and 10,000 kernels."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, cycle
from pathlib import Path

from benchmarks.browser.population import add_entries
from benchmarks.entries.publish import writer
from benchmarks.entries.subjects import PROBLEM, artifact_of
from benchmarks.results import Report, Size
from benchmarks.timing import compare
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.selection import Selection
from cache_engine.model.artifact import Artifact
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.process import processors
from cache_engine.settings import GIB
from cache_engine.units import counted
from cache_engine.upkeep.plan import Limits

_FEW, _MOST, _IMPORTED, _SPREAD = 10, 10_000, 1_000, 5_000
_HIT = """
import sys
from cache_engine import GemmProblem, open_cache
with open_cache(sys.argv[1], enable_jit=False) as cache:
    cache.get_or_compile(GemmProblem(*map(int, sys.argv[4:]), dtype=sys.argv[2]), arch=sys.argv[3])
"""


def growing(report: Report, place: Path, entries: int) -> None:
    """Lets a store grow to ``entries``, 10,000 at most, by ten times each, and measures it.

    Every entry has the code of a kernel for its target, really compiled; shapes, configs, keys and records are its own.
    Each was used. Files are in the page cache.
    """
    few, many, code = place / "few", place / "many", _code_in(place / "code")
    problem, there = _grow(few, 0, _FEW, code), 0
    most = min(entries, _MOST)
    for size in (most // 100, most // 10, most):
        if size > _FEW:
            _grow(many, there, size, code)
            there = size
            _hits(report, many, size)
            _process(report, many, size, few, problem)
            _looks(report, many, size)


_Code = Callable[[Selection], Artifact]


def _code_in(folder: Path) -> _Code:
    """Compiles one kernel for each target, in a store of their own; it stands for all that are for the same."""
    made: dict[str, Artifact] = {}

    def code(selection: Selection) -> Artifact:
        arch = selection.problem.arch or ""
        if arch not in made:
            with open_cache(folder, durability="fast") as cache:
                made[arch] = artifact_of(cache, cache.get_or_compile(PROBLEM.on(arch)).record)
        return made[arch]

    return code


def _grow(root: Path, there: int, size: int, code: _Code) -> GemmProblem:
    """Adds entries; returns the problem of the first. Every store begins with the same one."""
    with open_cache(root, durability="fast") as cache:
        return add_entries(cache, size - there, there, code)[0].problem


def _hits(report: Report, root: Path, size: int) -> None:
    """Hits of all kernels in turn, in an order of chance, compared with as little as could find as many."""
    with open_cache(root, durability="fast", memory_bytes=GIB) as cache:
        keys = list(cache.store.keys())
        random.Random(size).shuffle(keys)  # noqa: S311 (an order)
        known = {key: loaded for key in keys if (loaded := cache.get(key))}
        layout = cache.layout
        files = {
            key: (Path(layout.record_path(key)), Path(layout.blob_path(key, loaded.record.blob.digest)))
            for key, loaded in known.items()
        }

        def read(key: CacheKey) -> None:
            for path in files[key]:
                path.read_bytes()

        compared = partial(compare, calls=100)
        name, reference = f"memory hit by key, {size:,} kernels", "dict lookup among as many"
        report(compared(name, _each(keys, cache.get), reference, _each(keys, known.get), goal_seconds=3e-6))
        name, reference = f"disk hit by key, {size:,} kernels", "reading its two files"
        report(compared(name, _each(keys, cache.store.get), reference, _each(keys, read), goal_seconds=150e-6))


def _each(keys: Sequence[CacheKey], ask: Callable[[CacheKey], object]) -> Callable[[], object]:
    """Asks for the next key with each call."""
    following = cycle(keys)
    return lambda: ask(next(following))


def _process(report: Report, many: Path, size: int, few: Path, problem: GemmProblem) -> None:
    """A process that gets one kernel; compiling is off, so anything but a hit is an error."""
    sizes = map(str, (problem.m, problem.n, problem.k, problem.batch))
    asked = (str(problem.dtype), problem.arch or "", *sizes)

    def get(root: Path) -> None:
        subprocess.run([sys.executable, "-c", _HIT, str(root), *asked], check=True)

    name, reference = f"hit of a new process, {size:,} kernels", f"the same, {_FEW} kernels"
    report(compare(name, partial(get, many), reference, partial(get, few), goal_ratio=1.5, samples=9))


def _looks(report: Report, root: Path, size: int) -> None:
    """Operations that look at every entry, compared with reading all files, asking for their sizes, or one process."""
    compared = partial(compare, samples=5)
    reference, sizes = "stat of all its files", partial(_allocated, root)
    with open_cache(root) as cache:
        name = f"verify, {size:,} kernels"
        report(compared(name, cache.admin.verify, "reading all its files", partial(_read, root)))
        jobs = processors()
        goal = 1 / 1.7 if jobs > 1 and size >= _SPREAD else None  # a tenth of a second of work is not worth a fork
        for what, spread, alone in (
            ("verify", lambda: list(cache.admin.check(processes=jobs)), cache.admin.verify),
            ("pack export", lambda: _export(cache, root, jobs), lambda: _export(cache, root, 1)),
        ):
            name = f"{what}, {size:,} kernels, {counted(jobs, 'process', 'processes')}"
            report(compared(name, spread, "the same, one process", alone, goal_ratio=goal))
        report(
            compared(
                f"verify --sample 0.05, {size:,} kernels", partial(cache.admin.verify, share=0.05), reference, sizes
            )
        )
        half = Limits(max_entries=size // 2)

        def dry_run() -> None:
            cache.admin.clean(half, dry_run=True)
            cache.admin.find_leftovers()

        report(compared(f"clean --dry-run to half of {size:,} kernels", dry_run, reference, sizes))
        report(compared(f"stats, {size:,} kernels", cache.stats, reference, sizes))
        if size <= _IMPORTED:
            _imports(report, cache, root, size)
        raw = sum(record.size_bytes for record in cache.records())
        report(Size(f"store of {size:,} kernels, in whole blocks", _allocated(root), "raw cubins", raw))


def _export(cache: Cache, root: Path, processes: int) -> None:
    cache.admin.export(root.with_suffix(".gemmpack"), replace=True, processes=processes)


def _imports(report: Report, cache: Cache, root: Path, size: int) -> None:
    """Imports all kernels as a pack into new stores, each synced, compared with as little as makes files durable."""
    pack, plain, numbers = root.with_suffix(".gemmpack"), root.with_name("plain"), count()
    cache.admin.export(pack, replace=True)
    plain.mkdir(exist_ok=True)
    keys = list(cache.store.keys())
    parts = [part for key in keys for part in cache.store.stored(key) or ()]

    def imported() -> None:
        with open_cache(root.with_name(f"imported-{size}-{next(numbers)}"), durability="durable") as new:
            if new.admin.import_pack(pack).taken != size:
                raise RuntimeError("a kernel was not imported")

    beside = "their files written and synced in turn"
    written = writer(plain, parts, durable=True)
    report(compare(f"pack import, {size:,} kernels", imported, beside, written, goal_ratio=1 / 1.7, samples=3))


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        yield from (f"{folder}/{name}" for name in names)


def _read(root: Path) -> None:
    for path in _files(root):
        with open(path, "rb") as file:
            file.read()


def _allocated(root: Path) -> int:
    """The bytes that the file system allocates for all files."""
    return sum(os.stat(path).st_blocks * 512 for path in _files(root))
