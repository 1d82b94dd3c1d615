"""Stores of many entries, made quickly: real shapes, configs and keys, with noise in place of compiled code."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from cache_engine.cache.cache import Cache
from cache_engine.cache.selection import Selection
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem, Resources
from cache_engine.model.gemm import DType
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_blob, encode_record
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

FIRST_MADE_AT = 1_700_000_000.0
"""When the first entry was made; each next one a second later."""

_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_DTYPES = (DType.BF16, DType.FP16, DType.FP32)


def add_entries(
    cache: Cache, count: int, first: int = 0, code: Callable[[Selection], Artifact] | None = None
) -> list[Selection]:
    """Publishes whole entries, without syncing to disk; returns what selects them.

    Args:
        first: how many are there already; the next ones are added.
        code: the compiled code of each; by default noise, which is for no target.
    """
    added = []
    for number, selection in enumerate(itertools.islice(_selections(cache), first, first + count), first):
        artifact = _noise(number) if code is None else code(selection)
        cache.store.publish(selection.key, artifact, _describe(selection, number))
        added.append(selection)
    return added


def add_records(cache: Cache, count: int, first: int = 0) -> list[CacheKey]:
    """Puts records without blobs into a store, all that the index reads; returns their keys.

    Args:
        first: how many are there already; the next ones are added.
    """
    keys = []
    layout: StoreLayout = cache.layout
    blob = None
    for number, selection in enumerate(itertools.islice(_selections(cache), first, first + count), first):
        if blob is None:
            blob = encode_blob(selection.key, _noise(number), compress=True)[1]
        record = _describe(selection, number)(blob)
        publish_file(layout.temp, layout.record_path(selection.key), encode_record(record), durable=False)
        keys.append(selection.key)
    return keys


def ask(cache: Cache, count: int) -> None:
    """Counts requests for the problems of so many entries as ``add_records`` makes, some of them more often."""
    for number, selection in enumerate(itertools.islice(_selections(cache), count)):
        for _ in range(1 + number % 7):
            cache.journal.asked(selection.problem)
    cache.journal.flush()


def settle(cache: Cache) -> None:
    """Lets the folders look as if they had last changed a minute ago, as in a store that is at rest."""
    for shard in cache.layout.metadata.iterdir():
        status = shard.stat()
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns - 60 * 10**9))


def _selections(cache: Cache) -> Iterator[Selection]:
    """Selections with keys all different: models' shapes, with n moved on once all have been used."""
    seen: set[CacheKey] = set()
    for offset in itertools.count(0, 8):
        for shape, arch, dtype, m in itertools.product(model_shapes(), _ARCHS, _DTYPES, (1, 128, 4096)):
            problem = shape.problem(m, dtype).on(arch)
            selection = cache.select(replace(problem, n=problem.n + offset))
            if selection.key not in seen:
                seen.add(selection.key)
                yield selection


def _noise(seed: int) -> Artifact:
    generator = random.Random(seed)  # noqa: S311 (filler)
    resources = Resources(registers=128, shared_bytes=49_152, stack_bytes=0, spill_bytes=0)
    return Artifact(generator.randbytes(9000), generator.randbytes(9000), b"// noise\n", b"", resources)


def _describe(selection: Selection, number: int) -> Callable[[Blob], Record]:
    def describe(blob: Blob) -> Record:
        return Record(
            key=selection.key,
            components=selection.prefix.with_constants(selection.constants),
            name=str(selection.constants["KERNEL_NAME"]),
            family=selection.family.name,
            compiler="nvrtc",
            compiler_version="13.5",
            arch=selection.problem.arch or "",
            problem=RecordedProblem.of(selection.problem),
            config=selection.config,
            resources=Resources(registers=64 + number % 190, shared_bytes=49_152, stack_bytes=0, spill_bytes=0),
            blob=blob,
            compile_ms=50.0 + number % 300,
            stages_ms={"compile": 50.0 + number % 300},
            created_at=FIRST_MADE_AT + number,
            created_by="gemm-cache bench",
        )

    return describe
