"""Kernels that other frameworks keep in the store: rows of their list, and what their page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo

from app.presenters.shared import Row, Tile, kernel_address, moment, when
from cache_engine.frameworks.groups import config_text
from cache_engine.frameworks.values import Entry
from cache_engine.units import human_bytes, human_ms

_UNKNOWN = "–"
_FACTS = {
    "Target": "arch", "Version": "version", "Assembler": "compiler", "Registers": "registers",
    "Shared memory": "shared_bytes", "Stack": "stack_bytes", "Spills": "spill_bytes", "Machine code": "code_bytes",
    "Compile time": "compile_ms",
}  # fmt: skip


def adapted_table(rows: Iterable[Row], zone: tzinfo, address: Callable[[str], str] = kernel_address) -> list[Row]:
    """Kernels, a row each; ``address`` is where the link of each leads."""
    return [
        {
            "Framework": row["framework"],
            "Name": row["name"],
            "Target": row["arch"],
            "Version": row["version"],
            "Config": row["config"],
            "Registers": row["registers"],
            "Code": row["code_bytes"],
            "On disk": row["stored_bytes"],
            "Compile time": row["compile_ms"],
            "Hits": row["hits"],
            "Last used": moment(row["last_used_at"], zone),
            "Open": address(row["key"]),
        }
        for row in rows
    ]


def adapted_tiles(known: Entry, row: Row | None) -> list[Tile]:
    """The numbers at the top of a kernel's page; ``row`` is its row in the index."""
    registers, compile_ms = known.registers, known.compile_ms
    return [
        Tile("Registers", _UNKNOWN if registers is None else f"{registers}", "Per thread."),
        Tile("Shared memory", _bytes(known.shared_bytes), "Per block."),
        Tile("Machine code", _bytes(known.code_bytes), "In the CUBIN."),
        Tile("On disk", _UNKNOWN if row is None else human_bytes(row["stored_bytes"]), "All parts, compressed."),
        Tile("Compile time", _UNKNOWN if compile_ms is None else human_ms(compile_ms), "Each hit saves this."),
        Tile("Hits", _UNKNOWN if row is None else f"{row['hits']:,}", "By all processes."),
    ]


def adapted_properties(framework: str, known: Entry, row: Row | None, zone: tzinfo) -> list[Row]:
    """What is known of a kernel, property by property, and why the rest is not."""
    shown = {"Framework": framework}
    for label, fact in _FACTS.items():
        value = getattr(known, fact)
        if value is None:
            shown[label] = f"unknown: {known.unread.get(fact, 'it is not stored')}"
        elif fact.endswith("_bytes"):
            shown[label] = human_bytes(value)
        else:
            shown[label] = human_ms(value) if fact == "compile_ms" else str(value)
    shown["Config"] = config_text(known) or _UNKNOWN
    shown["Stored"] = when(known.created_at or 0.0, zone)
    shown["Last used"] = _UNKNOWN if row is None else when(row["last_used_at"], zone)
    return [{"Property": name, "Value": value} for name, value in shown.items()]


def part_table(known: Entry) -> list[Row]:
    """The files of a kernel."""
    return [{"Part": part.name, "Kind": str(part.kind), "Size": part.size_bytes} for part in known.parts]


def stage_table(stages_ms: Mapping[str, float]) -> list[Row]:
    """How long each stage of its compile took."""
    return [{"Stage": name, "Time": ms} for name, ms in stages_ms.items()]


def _bytes(size: int | None) -> str:
    return _UNKNOWN if size is None else human_bytes(size)
