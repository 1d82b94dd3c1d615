"""What is measured: entering, hits, keys, opening, syncing, and the pages' queries."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from cache_engine.bench.population import FIRST_MADE_AT, add_entries, add_records
from cache_engine.bench.timing import Result, compare, medians
from cache_engine.engine import Cache, open_cache
from cache_engine.mirror import queries
from cache_engine.mirror.queries import KernelFilter
from cache_engine.model.artifact import Artifact, Blob, Record
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.store.disk import DiskStore, open_store

PROBLEM = GemmProblem(4096, 7168, 2048, arch="sm_90")
LARGE_CUBIN_BYTES = 64 * 1024

Report = Callable[[Result], None]


def run_all(report: Report, entries: int, rows: int) -> None:
    """Runs every case and reports each result as it comes.

    Args:
        entries: how many entries the large store has.
        rows: how many records are mirrored for the queries.
    """
    with tempfile.TemporaryDirectory(prefix="gemm-cache-bench-") as folder:
        place = Path(folder)
        _entering(report)
        with open_cache(place / "one", durability="fast") as cache:
            _hits(report, cache, place)
            _keys(report, cache)
        _opening(report, place, entries)
        _syncing(report, place, entries)
        _asking(report, place, rows)


def _entering(report: Report) -> None:
    for statement, goal in (("import cache_engine", 0.080), ("from cache_engine import open_cache", None)):
        bare, entered = medians([partial(_python, "pass"), partial(_python, statement)], samples=15)
        report(Result(f"{statement}, less bare Python", entered - bare, "python -c pass", bare, goal))


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def _hits(report: Report, cache: Cache, place: Path) -> None:
    kernel = cache.get_or_compile(PROBLEM)
    known = {kernel.key: kernel}
    report(
        compare(
            "memory hit, by key",
            partial(cache.get, kernel.key),
            "dict lookup",
            partial(known.get, kernel.key),
            goal_seconds=3e-6,
            calls=1000,
        )
    )
    report(
        compare(
            "memory hit from the problem, key included",
            partial(cache.get_or_compile, PROBLEM),
            "dict lookup",
            partial(known.get, kernel.key),
            calls=200,
        )
    )
    # Real compiled code: several kernels, one after the other, cut to size.
    others = [replace(PROBLEM, dtype=dtype, out_dtype=None, n=7166) for dtype in (DType.FP64, DType.FP16, DType.FP32)]
    cubin = b"".join(cache.get_or_compile(problem).cubin for problem in (PROBLEM, *others))[:LARGE_CUBIN_BYTES]
    plain = place / "plain.cubin"
    plain.write_bytes(cubin)
    large = _store_of(place / "large", kernel.record, cubin)
    key = cache.select(PROBLEM).key
    hit = partial(large.get, key)
    report(
        compare(
            "disk hit of a 64 KiB CUBIN, every byte verified",
            hit,
            "reading a plain file",
            plain.read_bytes,
            goal_seconds=150e-6,
            calls=10,
        )
    )
    with _diskcache(place, cubin) as get:
        if get is not None:
            report(compare("disk hit of a 64 KiB CUBIN", hit, "diskcache get (unverified)", get, calls=10))


def _store_of(folder: Path, record: Record, cubin: bytes) -> DiskStore:
    store = DiskStore(open_store(folder), durable=False)
    artifact = Artifact(cubin, b"", b"", b"", record.resources)

    def describe(blob: Blob) -> Record:
        import msgspec

        return msgspec.structs.replace(record, blob=blob)

    store.publish(record.key, artifact, describe)  # type: ignore[arg-type]
    return store


@contextmanager
def _diskcache(place: Path, value: bytes) -> Iterator[Callable[[], object] | None]:
    """A lookup in diskcache, where it is installed (extra ``bench``)."""
    try:
        import diskcache
    except ImportError:
        yield None
        return
    with diskcache.Cache(str(place / "diskcache")) as peer:
        peer["key"] = value
        yield lambda: peer["key"]


def _keys(report: Report, cache: Cache) -> None:
    selection = cache.select(PROBLEM)
    text = repr(selection.prefix.with_constants(selection.constants)).encode()
    widths = count(8, 8)

    def new() -> None:
        cache.select(replace(PROBLEM, n=next(widths)))

    def digest() -> None:
        hashlib.sha256(text).digest()

    report(
        compare("key of a shape asked for before", partial(cache.select, PROBLEM), "sha256 of it", digest, calls=100)
    )
    report(compare("key of a new shape, config chosen", new, "sha256 of it", digest, goal_seconds=25e-6, calls=100))


def _opening(report: Report, place: Path, entries: int) -> None:
    with open_cache(place / "few", durability="fast") as few, open_cache(place / "many", durability="fast") as many:
        add_entries(few, 10)
        add_entries(many, entries)
    opened = [partial(_open, place / name) for name in ("many", "few")]
    report(compare(f"open a store of {entries:,}", opened[0], "open a store of 10", opened[1], calls=10))


def _open(folder: Path) -> None:
    open_store(folder)


def _syncing(report: Report, place: Path, entries: int) -> None:
    with open_cache(place / "many") as cache:
        paths = list(cache.layout.metadata.rglob("*.json"))
        sync = partial(cache.mirror.sync, rebuild=True)
        goal = 2.0 if entries == 10_000 else None
        read = partial(_read_all, paths)
        name = f"sync of {entries:,} new records"
        report(compare(name, sync, "reading their files", read, goal_seconds=goal, samples=3))
        _settle(cache)
        cache.mirror.sync()
        report(compare("sync with nothing new", cache.mirror.sync, "listing a folder", _lister(cache), samples=50))


def _read_all(paths: list[Path]) -> None:
    for path in paths:
        path.read_bytes()


def _lister(cache: Cache) -> Callable[[], object]:
    return partial(os.listdir, cache.layout.metadata)


def _settle(cache: Cache) -> None:
    """Lets the folders look as if they had last changed a minute ago, as in a store that is at rest."""
    for shard in cache.layout.metadata.iterdir():
        status = shard.stat()
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns - 60 * 10**9))


def _asking(report: Report, place: Path, rows: int) -> None:
    with open_cache(place / "mirrored", durability="fast") as cache:
        for number, key in enumerate(add_records(cache, rows)):
            if number % 5 == 0:
                cache.journal.hit(key, "disk", made_at=FIRST_MADE_AT + number, saved_us=100_000)
        cache.journal.flush()
        cache.mirror.sync()
        with cache.mirror.read() as connection:
            for name, ask in _questions(connection):
                report(
                    compare(
                        f"{name}, {rows:,} rows",
                        ask,
                        "count(*)",
                        lambda: connection.execute("SELECT count(*) FROM kernels").fetchone(),
                        goal_seconds=0.050 if rows == 100_000 else None,
                        samples=20,
                    )
                )

        def opened() -> None:
            with cache.mirror.read() as fresh:
                fresh.execute("SELECT 1").fetchone()

        report(compare("opening the mirror to read", opened, "reading its first page", _page_reader(cache), samples=20))


def _page_reader(cache: Cache) -> Callable[[], object]:
    def read() -> bytes:
        # A file beside it: opening DuckDB's own would drop its lock.
        with cache.layout.marker.open("rb") as file:
            return file.read(4096)

    return read


def _questions(connection: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every query that a page asks."""
    first = queries.kernels(connection, KernelFilter(), limit=1)[0]["key"]
    filters = KernelFilter(archs=("sm_90",), dtypes=("bf16",))
    yield "overview", partial(queries.overview, connection)
    yield "recent events", partial(queries.events, connection)
    yield "busiest", partial(queries.busiest, connection)
    yield "facets", partial(queries.facets, connection)
    yield "how many match a search", partial(queries.count, connection, KernelFilter(text="sm_90 bf16 7168"))
    yield "first page", partial(queries.kernels, connection, KernelFilter(), limit=25)
    yield "last page", partial(queries.kernels, connection, KernelFilter(), limit=25, offset=90_000)
    yield "search", partial(queries.kernels, connection, KernelFilter(text="sm_90 bf16 7168"), limit=25)
    yield "filters", partial(queries.kernels, connection, filters, sort="compile time", limit=25)
    yield "one kernel", partial(queries.kernel, connection, first)
    yield "architectures", partial(queries.architectures, connection)
    yield "families", partial(queries.architecture_families, connection)
