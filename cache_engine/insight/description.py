"""A record in words, for the kernel page and for ``show``, and as JSON."""

from __future__ import annotations

from typing import Any

from cache_engine.model.artifact import Record
from cache_engine.model.document import picked
from cache_engine.store.codec import stored_bytes
from cache_engine.units import human_bytes, human_ms


def titled(record: Record) -> str:
    """A kernel in one short line: ``"4096×7168×2048 bf16 sm_90 · tensor_core"``. Its m is that first asked for."""
    p = record.problem
    types = p.dtype if p.dtype == p.out_dtype else f"{p.dtype}→{p.out_dtype}"
    types += f" scaled {p.scales}" if p.scales else ""
    batch = f" {p.batch} groups {p.mode}" if p.mode else f" batch {p.batch}" if p.batch > 1 else ""
    return f"{p.m}×{p.n}×{p.k}{batch} {types} {record.arch} · {record.family}"


def record_document(record: Record) -> dict[str, Any]:
    """A record as JSON documents state it."""
    p = record.problem
    return {
        **picked(record, "key", "name", "arch", "compiler", "family", "config"),
        **picked(p, "specialisation", "opt_level"),
        **picked(record, "compiler_version", "problem", "size_bytes"),
        "stored_bytes": stored_bytes(record),
        **picked(record.resources, "registers", "shared_bytes", "stack_bytes", "spill_bytes"),
        **picked(record, "compile_ms", "stages_ms", "created_at", "created_by"),
        "components": dict(record.components),
        **picked(record, "warnings", "config_from"),
    }


def described(record: Record, created: str) -> dict[str, str]:
    """A kernel's properties by name, both as people read them, without its key and its name.

    Args:
        created: when the kernel was compiled, as the reader wants it: a date, or an age.
    """
    p, r = record.problem, record.resources
    return {
        "Target": record.arch,
        "Problem": f"{p.m} × {p.n} × {p.k}, {f'{p.batch} groups, {p.mode}' if p.mode else f'batch {p.batch}'}",
        "Compile-time sizes": f"{p.specialisation}: {p.served}",
        "Types": p.types,
        "Family": record.family,
        "Config": str(record.config),
        "Compiler": f"{record.compiler} {record.compiler_version}, optimisation level {p.opt_level}",
        "Compile time": human_ms(record.compile_ms),
        "Created": f"{created}, by {record.created_by}",
        "Cubin size": human_bytes(record.size_bytes),
        "Size on disk": f"{human_bytes(stored_bytes(record))}, with PTX, source and log",
        "Registers": f"{r.registers} per thread",
        "Spills": f"{human_bytes(r.spill_bytes)} per thread, in local memory",
        "Stack": f"{human_bytes(r.stack_bytes)} per thread",
        "Shared memory": f"{human_bytes(r.shared_bytes)} per block",
    }
