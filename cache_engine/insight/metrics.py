"""A store's statistics in Prometheus's text exposition format, version 0.0.4. They go to a file; no port is opened.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. Counters are sums of all processes since the store
was created; they start again from 0 with a new store.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cache_engine.cache.cache import Cache
from cache_engine.cache.queue import QueueState
from cache_engine.model.events import Statistics
from cache_engine.store.files import refuse_device
from cache_engine.store.journal.spans import LOOKUPS, Distribution, ceiling_s, distributions

if TYPE_CHECKING:
    from cache_engine.frameworks.watch import Run

_HISTOGRAMS = {
    "lock": ("lock_wait_seconds", "Waits for the lock of a key, of lookups that missed."),
    "queue": ("queue_wait_seconds", "Waits for a slot to compile in."),
    "compile": ("compile_duration_seconds", "Time that the compiler took for a kernel."),
    "module": ("module_load_seconds", "Time that the driver took to load a kernel's code, for matmul and operators."),
}
_STAGES = ("select", "generate", "publish")
# Powers of two from 128 ns to 2,199 s; each is the edge of a bucket, so no count is divided.
_EDGES = tuple(range(7 * 4 - 1, 41 * 4, 4))

_Samples = Iterable[tuple[Mapping[str, str], float]]


def prometheus_text(found: Statistics, queue: QueueState | None = None) -> str:
    """All metrics of a store as text, each with its help and type.

    Args:
        queue: the processes that compile now or wait for a slot; by default these metrics are left out.
    """
    return "".join(f"{line}\n" for line in _lines(found, queue))


def write_to_textfile(cache: Cache, path: str | Path) -> None:
    """Writes a store's metrics to a file for the node exporter's textfile collector, which wants a name in ``.prom``.

    Raises:
        UsageError: when the path is a device, pipe or socket.
        OSError: when the file cannot be written; the old file then stays.
    """
    write_text(prometheus_text(cache.stats(), cache.queue() if cache.has_store else None), path)


def write_text(text: str, path: str | Path) -> None:
    """Writes metrics to a file, and replaces an old file only once all is written; raises as ``write_to_textfile``."""
    refuse_device(path)
    target = Path(path)
    # Of another suffix, so that no collector reads it.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            temporary.unlink()


def run_text(run: Run) -> str:
    """The metrics of ``gemm-cache run``: the compiles that it saw, by framework and phase."""
    frameworks = run.frameworks.items()
    compiles = [
        ({"framework": name, "phase": phase}, float(count))
        for name, each in frameworks
        for phase, count in (("before", each.before), ("after", each.after))
    ]
    seconds = [({"framework": name}, each.seconds) for name, each in frameworks]
    found = [({"framework": name}, float(each.found)) for name, each in frameworks]
    lines = [
        *_metric("run_compiles_total", "counter", "Compiles seen before and after the command was ready.", compiles),
        *_metric("run_compile_seconds_total", "counter", "Their length, where files tell it.", seconds),
        *_metric("run_kernels", "gauge", "Kernels found.", found),
        *_metric("run_ready", "gauge", "1 once the command is ready.", [({}, float(run.ready_at is not None))]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _lines(found: Statistics, queue: QueueState | None) -> Iterator[str]:
    t = found.totals
    for name, words, value in (
        ("entries", "Kernels in the store.", found.entries),
        ("stored_bytes", "Bytes of the kernels on disk.", found.stored_bytes),
        ("journal_bytes", "Bytes of the journal.", found.journal_bytes),
        ("memory_bytes", "Bytes of code in the memory tier of the process that writes this.", found.memory_bytes),
        ("max_memory_bytes", "The most that it holds.", found.max_memory_bytes),
        ("max_entries", "The limit of entries in force.", found.max_entries),
        ("max_bytes", "The limit of bytes in force.", found.max_bytes),
        ("last_publish_timestamp_seconds", "When a kernel was last stored, Unix time; 0 is never.", t.last_publish_at),
    ):
        yield from _metric(name, "gauge", words, [({}, value)])
    if queue is not None:
        yield from _metric("compile_slots", "gauge", "Compiles at a time.", [({}, queue.slots)])
        yield from _metric("compiling", "gauge", "Compiles under way.", [({}, len(queue.compiling))])
        waiting = len(queue.queued) + len(queue.waiting)
        yield from _metric("waiting", "gauge", "Lookups that wait for a compile.", [({}, waiting)])
    by_tier = [({"tier": tier}, count) for tier, count in sorted(t.hits.items())]
    yield from _metric("hits_total", "counter", "Lookups served, by tier.", by_tier)
    failures = [({"tier": tier}, count) for tier, count in sorted(t.failures.items())]
    yield from _metric("tier_failures_total", "counter", "Failures of a tier, which was skipped.", failures)
    for name, words, value in (
        ("misses_total", "Lookups that no tier served.", t.misses),
        ("compiles_total", "Kernels compiled.", t.compiles),
        ("compile_spent_seconds_total", "Time that compiling took.", t.compile_us / 1e6),
        (
            "compile_saved_seconds_total",
            "Compile time of the kernels that were found stored.",
            t.saved_us / 1e6,
        ),
        ("promotions_total", "Kernels compiled ahead, or worth their price again.", t.promotions),
        ("demotions_total", "Kernels compiled ahead that are no longer worth their price.", t.demotions),
        ("remote_sent_total", "Kernels sent to the remote after they were compiled.", t.remote_sent),
        ("remote_dropped_total", "Kernels that were to be sent, and were not.", t.remote_dropped),
        ("evictions_total", "Kernels evicted.", t.evictions),
        ("evicted_bytes_total", "Bytes of these.", t.evicted_bytes),
        ("corruptions_total", "Damaged kernels found.", t.corruptions),
        ("publish_failures_total", "Kernels compiled that could not be stored.", t.publish_failures),
        ("long_lock_waits_total", "Waits of more than a second for the lock of a key.", t.lock_waits),
        ("lock_timeouts_total", "Of these, those that timed out.", t.lock_timeouts),
    ):
        yield from _metric(name, "counter", words, [({}, value)])
    yield from _histograms(distributions(t.spans))


def _histograms(found: Mapping[str, Distribution]) -> Iterator[str]:
    lookups = [({"tier": tier}, found[tier]) for tier in LOOKUPS if tier in found]
    yield from _histogram("lookup_seconds", "Lookups, by the tier that served them.", lookups)
    for span, (name, words) in _HISTOGRAMS.items():
        yield from _histogram(name, words, [({}, found[span])] if span in found else [])

    stages = [({"stage": stage}, found[stage]) for stage in _STAGES if stage in found]
    yield from _histogram("stage_seconds", "Other stages of lookups that missed.", stages)


def _histogram(name: str, words: str, series: Iterable[tuple[Mapping[str, str], Distribution]]) -> Iterator[str]:
    yield from _metric(name, "histogram", words, [])
    for labels, one in series:
        for edge in _EDGES:
            yield _sample(f"{name}_bucket", {**labels, "le": repr(ceiling_s(edge))}, one.at_most(edge))
        yield _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, one.count)
        yield _sample(f"{name}_sum", labels, one.total_s)
        yield _sample(f"{name}_count", labels, one.count)


def _metric(name: str, kind: str, words: str, samples: _Samples) -> Iterator[str]:
    yield f"# HELP gemm_cache_{name} {words}"
    yield f"# TYPE gemm_cache_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"gemm_cache_{name}{f'{{{inside}}}' if inside else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
