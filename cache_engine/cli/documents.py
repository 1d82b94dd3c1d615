"""The JSON documents that verbs print: a contract with other programs, so fields are only ever added."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.config import SETTINGS, Settings
from cache_engine.engine.stages import LOAD
from cache_engine.insight.comparison import in_words
from cache_engine.model.artifact import Record
from cache_engine.model.measurement import Measurement
from cache_engine.model.outcome import Failure, in_json
from cache_engine.store.codec import stored_bytes

if TYPE_CHECKING:
    from cache_engine.bench.kernels.speed import Report, Summary
    from cache_engine.bench.results import Line, Result, Size
    from cache_engine.device.memory_pool import PoolStatistics
    from cache_engine.device.timer import Timing
    from cache_engine.engine.cache import CompiledKernel
    from cache_engine.insight.comparison import Comparison
    from cache_engine.insight.explanation import Explanation
    from cache_engine.insight.inspection import Inspection
    from cache_engine.model.events import Statistics
    from cache_engine.upkeep.cleaning import Cleaned, Leftover
    from cache_engine.upkeep.integrity import Finding, RepairAct
    from cache_engine.upkeep.plan import EvictionPlan
    from cache_engine.upkeep.quarantine import Examined, Item

Document = dict[str, Any]


def compiled(kernel: CompiledKernel) -> Document:
    """What ``compile`` prints. ``compile_ms`` is what compiling took when the kernel was made, now or before."""
    return {
        "key": kernel.key,
        "tier": kernel.tier,
        "name": kernel.record.name,
        **_about(kernel.record),
        "config_from": kernel.config_from,
        "compile_ms": kernel.record.compile_ms,
        "load_ms": kernel.stages_ms.get(LOAD, 0.0),
        "stages_ms": kernel.stages_ms,
        **_sizes(kernel.record),
        "unpublished": in_json(kernel.unpublished),
        "warnings": list(kernel.record.warnings),
    }


def timed(
    kernel: CompiledKernel, timing: Timing, unkept: Failure | None = None, memory: PoolStatistics | None = None
) -> Document:
    """What ``time`` prints; ``unkept`` is why the timing was not kept, ``memory`` what the pool held in the end."""
    measured: Document = msgspec.to_builtins(timing)
    fingerprint = measured.pop("device")
    return {
        "key": kernel.key,
        "device": fingerprint["name"],
        **measured,
        "device_fingerprint": fingerprint,
        "unkept": in_json(unkept),
        "kernel": compiled(kernel),
        **({} if memory is None else {"device_memory": device_memory(memory)}),
    }


def device_memory(memory: PoolStatistics) -> Document:
    """What a pool of device memory holds and has done."""
    return {
        **msgspec.to_builtins(memory),
        "cached_bytes": memory.cached_bytes,
        "fragmentation": memory.fragmentation,
    }


def measurement(kept: Measurement) -> Document:
    """A timing as ``timings`` and ``show`` print it: of what, on what, and all that was measured."""
    about: Document = msgspec.to_builtins(kept)
    fingerprint, timing = about.pop("device"), about.pop("timing")
    return {**timing, **about, "device": fingerprint["name"], "device_fingerprint": fingerprint}


def record(
    kept: Record, inspection: Inspection | None = None, timings: Sequence[Measurement] | None = None
) -> Document:
    """What ``show`` prints."""
    return {
        "key": kept.key,
        "name": kept.name,
        **_about(kept),
        "compiler_version": kept.compiler_version,
        "problem": msgspec.to_builtins(kept.problem),
        **_sizes(kept),
        "compile_ms": kept.compile_ms,
        "stages_ms": kept.stages_ms,
        "created_at": kept.created_at,
        "created_by": kept.created_by,
        "components": dict(kept.components),
        "warnings": list(kept.warnings),
        "config_from": kept.config_from,
        **({} if inspection is None else _inspected(inspection)),
        **({} if timings is None else {"timings": [measurement(timing) for timing in timings]}),
    }


def difference(first: Record, second: Record, comparison: Comparison, sass: str | None) -> Document:
    """What ``diff`` prints; ``sass`` is the difference of the machine code, if that was asked for."""
    document: Document = {
        "keys": [first.key, second.key],
        "names": [first.name, second.name],
        **msgspec.to_builtins(comparison),
    }
    return document if sass is None else {**document, "sass": sass}


def explanation(found: Explanation) -> Document:
    """What ``explain`` prints."""
    chosen, closest = found.selection, found.nearest
    return {
        "hit": found.tier is not None,
        "tier": found.tier,
        "key": chosen.key,
        "name": chosen.name,
        "arch": chosen.problem.arch,
        "compiler": chosen.compiler.name,
        "family": chosen.family.name,
        "config": msgspec.to_builtins(chosen.config),
        "config_from": chosen.config_from,
        "specialisation": chosen.problem.specialisation,
        "opt_level": chosen.problem.opt_level,
        "compared": found.compared,
        "nearest": None
        if closest is None
        else {
            "key": closest.record.key,
            "name": closest.record.name,
            "differences": [
                {
                    "component": pair.name,
                    "there": pair.first,
                    "here": pair.second,
                    "follows": pair in closest.consequences,
                    "text": in_words(pair),
                }
                for pair in (*closest.causes, *closest.consequences)
            ],
        },
        "notes": list(found.notes),
    }


def statistics(stats: Statistics) -> Document:
    """What ``stats`` prints."""
    totals = stats.totals
    return {
        "entries": stats.entries,
        "max_entries": stats.max_entries,
        "stored_bytes": stats.stored_bytes,
        "max_bytes": stats.max_bytes,
        "journal_bytes": stats.journal_bytes,
        "hits": totals.hits,
        "misses": totals.misses,
        "hit_rate": stats.hit_rate,
        "compiles": totals.compiles,
        "compile_ms": totals.compile_us / 1e3,
        "saved_ms": totals.saved_us / 1e3,
        "evictions": totals.evictions,
        "evicted_bytes": totals.evicted_bytes,
        "corruptions": totals.corruptions,
        "publish_failures": totals.publish_failures,
        "tier_failures": totals.failures,
        "lock_waits": totals.lock_waits,
        "lock_timeouts": totals.lock_timeouts,
        "lock_wait_ms": totals.lock_wait_us / 1e3,
        "last_publish_at": totals.last_publish_at or None,
    }


def cleaning(
    plan: EvictionPlan, leftovers: Sequence[Leftover], cleaned: Cleaned | None, kept_timings: int = 0
) -> Document:
    """What ``clean`` prints; ``cleaned`` is missing after a dry run."""
    return {
        "dry_run": cleaned is None,
        "victims": msgspec.to_builtins(plan.victims),
        "victim_bytes": plan.freed_bytes,
        "leftovers": msgspec.to_builtins(list(leftovers)),
        "kept_entries": plan.kept_entries,
        "kept_bytes": plan.kept_bytes,
        "kept_timings": kept_timings,
        "cleaned": None if cleaned is None else msgspec.to_builtins(cleaned),
    }


def verification(checked: int, acts: Sequence[RepairAct], repaired: Sequence[Finding]) -> Document:
    """What ``verify`` prints. Each finding names the files that repair would touch, or has touched."""
    done = set(repaired)
    return {
        "checked": checked,
        "findings": [
            {
                **msgspec.to_builtins(act.finding),
                "remedy": act.finding.remedy,
                "files": [{"path": path, "stored_bytes": size} for path, size in act.files],
                "repaired": act.finding in done,
            }
            for act in acts
        ],
    }


def quarantined(item: Item, examined: Examined) -> Document:
    """One item of what ``quarantine`` prints."""
    return {
        "name": item.name,
        "key": item.key,
        "set_aside_at": item.set_aside_at,
        "why": item.why,
        "stored_bytes": item.stored_bytes,
        "files": msgspec.to_builtins(item.files),
        "kernel": None if examined.record is None else examined.record.name,
        "restorable": not examined.cause,
        "cause": examined.cause,
    }


def settings_in_force(settings: Settings) -> list[Document]:
    """Each setting's name, value and where that is from. Of a secret only whether it is set."""
    return [
        {"name": setting.name, "value": settings.shown(setting.name), "origin": settings.origin(setting.name)}
        for setting in SETTINGS
    ]


def benchmark(lines: Sequence[Line]) -> Document:
    """What ``bench`` prints. Times are medians in seconds."""
    from cache_engine.bench.results import LeftOut, Result, Size

    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}",
        "results": [_measured(line) for line in lines if isinstance(line, Result)],
        "sizes": [_measured(line) for line in lines if isinstance(line, Size)],
        "left_out": [msgspec.to_builtins(line) for line in lines if isinstance(line, LeftOut)],
    }


def kernel_speed(report: Report, summaries: Sequence[Summary]) -> Document:
    """What ``bench kernels`` prints."""
    return {
        "file": str(report.file),
        "measured": report.measured,
        "kept": report.kept,
        "left": report.left,
        "left_out": msgspec.to_builtins(report.left_out),
        "summary": msgspec.to_builtins(list(summaries)),
        "measurements": msgspec.to_builtins(report.measurements),
    }


def _measured(line: Result | Size) -> Document:
    return {**msgspec.to_builtins(line), "ratio": line.ratio, "met": line.met}


def _inspected(inspection: Inspection) -> Document:
    mix, resident = inspection.instructions, inspection.occupancy
    return {
        "instructions": None if mix is None else {"total": mix.total, "classes": mix.classes, "opcodes": mix.opcodes},
        "occupancy": None
        if resident is None
        else {
            **msgspec.to_builtins(resident),
            "blocks_per_sm": resident.blocks_per_sm,
            "warps_per_sm": resident.warps_per_sm,
            "share": resident.share,
            "bound_by": list(resident.bound_by),
        },
        "notes": list(inspection.notes),
    }


def _about(kept: Record) -> Document:
    return {
        "arch": kept.arch,
        "compiler": kept.compiler,
        "family": kept.family,
        "config": msgspec.to_builtins(kept.config),
        "specialisation": kept.problem.specialisation,
        "opt_level": kept.problem.opt_level,
    }


def _sizes(kept: Record) -> Document:
    return {
        "size_bytes": kept.size_bytes,
        "stored_bytes": stored_bytes(kept),
        **msgspec.to_builtins(kept.resources),
    }
