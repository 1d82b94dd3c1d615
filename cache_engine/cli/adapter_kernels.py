"""The part of ``show`` for another framework's kernel that is stored in our store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from cache_engine.cache.cache import Cache
from cache_engine.cli.support import emit
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table
from cache_engine.frameworks.bundle_facts import config_text, describe, part_of, text_of
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.values import Entry, PartKind
from cache_engine.model.documents import picked
from cache_engine.units import human_age, human_bytes, human_ms, printable

_SIZES = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")


def show_adapted(
    cache: Cache, group: Group, part: str | None, write_code: Callable[[bytes], None] | None, *, as_json: bool
) -> None:
    """Prints one kernel of another framework, or one of its texts; ``write_code``, where given, receives its CUBIN.

    Raises:
        UsageError: when the kernel has no part of this name.
        ToolMissing: when ``sass`` is asked for and no disassembler is installed.
    """
    if write_code is not None:
        write_code(part_of(group, PartKind.BINARY))
    if part is not None:
        text = text_of(group, part)
        emit({"key": group.key, part: text}, as_json, lambda: print(printable(text, keep="\n\t")))
    elif write_code is None or as_json:
        document = _document(cache, group, describe(group))
        emit(document, as_json, lambda: _print(document))


def _document(cache: Cache, group: Group, known: Entry) -> dict[str, Any]:
    """Another framework's kernel as JSON; an unknown value is ``None``, and the field ``unknown`` says why."""
    usage = cache.admin.usage_of(group.key, group.made_at)
    return {
        **picked(group, "key", "framework"),
        "name": known.name or "",
        **picked(known, "version", "compiler", "arch", "registers", *_SIZES, "size_bytes"),
        "stored_bytes": os.stat(cache.layout.group_path(group.key)).st_size,
        "compile_ms": known.compile_ms,
        "created_at": group.made_at,
        "config": config_text(known),
        "hits": sum(usage.hits.values()) if usage else 0,
        "last_used_at": max(group.made_at, usage.last_used_at if usage else 0.0),
        "stages_ms": group.stages_ms,
        "pinned": group.key in cache.admin.pinned(),
        "parts": [picked(part, "name", "kind", "size_bytes") for part in known.parts],
        "unknown": known.unread,
    }


def _print(d: dict[str, Any]) -> None:
    facts: dict[str, object] = {"key": d["key"], "name": d["name"], "framework": d["framework"]}
    for name in ("version", "arch", "compiler", "registers", *_SIZES, "compile_ms"):
        value = d[name]
        label = "target" if name == "arch" else name.removesuffix("_bytes").replace("_ms", " time").replace("_", " ")
        if value is None:
            facts[label] = f"unknown: {d['unknown'].get(name, 'it is not stored')}"
        else:
            facts[label] = human_bytes(value) if name in _SIZES else human_ms(value) if name == "compile_ms" else value
    facts |= {
        "config": d["config"] or "–",
        "on disk": human_bytes(d["stored_bytes"]),
        "hits": d["hits"],
        "last used": human_age(time.time() - d["last_used_at"]),
        "pinned": "yes" if d["pinned"] else "no",
    }
    print_fields(facts)
    if stages := d["stages_ms"]:
        print()
        print_table({"stage of the compile": LEFT, "time": RIGHT}, [(n, human_ms(ms)) for n, ms in stages.items()])
    print()
    print_table(
        {"part": LEFT, "kind": LEFT, "size": RIGHT},
        [(part["name"], part["kind"], human_bytes(part["size_bytes"])) for part in d["parts"]],
    )
