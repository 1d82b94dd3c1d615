"""Documents about kernels: one that was requested, timed or looked up, and a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from cache_engine.batch.results import Compiled, DeviceMemory, Timed
from cache_engine.cache.stages import LOAD
from cache_engine.cli.documents import filled
from cache_engine.cli.documents.caches import AdaptedList, AdaptedRow
from cache_engine.insight.inspection import shown
from cache_engine.model.gemm.fields import Options
from cache_engine.model.outcome import Failure, in_json
from cache_engine.store.codec import stored_bytes

if TYPE_CHECKING:
    from cache_engine.cache.cache import CompiledKernel
    from cache_engine.gpu.memory_pool import PoolStatistics
    from cache_engine.gpu.timer import Timing

# Documents of verbs that pages use too.
__all__ = ["Compiled", "DeviceMemory", "Timed", "shown"]


class KernelRow(Options, frozen=True):
    """A kernel in a list; times are seconds since 1970."""

    key: str
    name: str
    family: str
    compiler: str
    compiler_version: str
    toolchain: str
    key_schema: str
    template: str
    flags: str
    arch: str
    dtype: str
    out_dtype: str
    layout: str
    m: int
    n: int
    k: int
    batch: int
    config: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    size_bytes: int
    stored_bytes: int
    compile_ms: float
    created_at: float
    created_by: str
    memory_hits: int
    pack_hits: int
    disk_hits: int
    remote_hits: int
    hits: int
    last_used_at: float


class KernelList(msgspec.Struct, kw_only=True):
    """What ``ls`` and ``search`` print: one page of ``total`` kernels, and of the kernels of other frameworks."""

    total: int
    offset: int
    rows: list[KernelRow]
    adapted: AdaptedList


class Text(msgspec.Struct, kw_only=True):
    """What ``show`` prints with one of ``--source``, ``--ptx``, ``--sass`` and ``--log``."""

    key: str
    source: str | UnsetType = UNSET
    ptx: str | UnsetType = UNSET
    sass: str | UnsetType = UNSET
    log: str | UnsetType = UNSET


# ---- From the engine's values ----


def compiled(kernel: CompiledKernel) -> Compiled:
    """The document of a kernel that was requested."""
    return filled(
        Compiled,
        kernel,
        kernel.record,
        kernel.record.problem,
        kernel.record.resources,
        load_ms=kernel.stages_ms.get(LOAD, 0.0),
        stored_bytes=stored_bytes(kernel.record),
        unpublished=in_json(kernel.unpublished),
        warnings=list(kernel.record.warnings),
        stands_in_for=kernel.better.key if kernel.better else "",
        behind_failure=in_json(kernel.better.failure if kernel.better else None),
    )


def timed(
    kernel: CompiledKernel, timing: Timing, unkept: Failure | None = None, memory: PoolStatistics | None = None
) -> Timed:
    """The document of a timing; ``memory`` is what the pool held at the end."""
    return filled(
        Timed,
        kernel,
        timing,
        device=timing.device.name,
        device_fingerprint=timing.device,
        unkept=in_json(unkept),
        kernel=compiled(kernel),
        device_memory=UNSET if memory is None else filled(DeviceMemory, memory),
    )


def kernel_list(
    total: int, offset: int, rows: Sequence[Mapping[str, Any]], others: int, other_rows: Sequence[Mapping[str, Any]]
) -> KernelList:
    """The document of one page of a list, from rows of the mirror."""
    adapted = AdaptedList(total=others, rows=msgspec.convert(other_rows, list[AdaptedRow]))
    return KernelList(total=total, offset=offset, rows=msgspec.convert(rows, list[KernelRow]), adapted=adapted)
