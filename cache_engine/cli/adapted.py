"""What ``show`` prints of a kernel that another framework keeps in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cache_engine.cache.cache import Cache
from cache_engine.cli.documents import caches, kernels
from cache_engine.cli.support import emit
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table
from cache_engine.frameworks.groups import Group, describe, part_of, text_of
from cache_engine.frameworks.values import PartKind
from cache_engine.units import human_age, human_bytes, human_ms, printable


def show_adapted(
    cache: Cache, group: Group, part: str | None, write_code: Callable[[bytes], None] | None, *, as_json: bool
) -> None:
    """Shows one kernel, or one of its texts; with ``write_code``, writes its CUBIN as well.

    Raises:
        UsageError: when it has no such part.
        ToolMissing: when there is no disassembler for ``sass``.
    """
    if write_code is not None:
        write_code(part_of(group, PartKind.BINARY))
    if part is not None:
        text = text_of(group, part)
        emit(kernels.Text(key=group.key, **{part: text}), as_json, lambda: print(printable(text, keep="\n\t")))
    elif write_code is None or as_json:
        stored_bytes = os.stat(cache.layout.group_path(group.key)).st_size
        usage, is_pinned = cache.admin.usage_of(group.key, group.made_at), group.key in cache.admin.pinned()
        whole = caches.adapted_shown(group, describe(group), usage, stored_bytes, is_pinned=is_pinned)
        emit(whole, as_json, lambda: _print(whole))


def _print(d: caches.AdaptedShown) -> None:
    now = time.time()
    sizes = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")
    facts: dict[str, object] = {"key": d.key, "name": d.name, "framework": d.framework}
    for name in ("version", "arch", "compiler", "registers", *sizes, "compile_ms"):
        value = getattr(d, name)
        label = "target" if name == "arch" else name.removesuffix("_bytes").replace("_ms", " time").replace("_", " ")
        if value is None:
            facts[label] = f"unknown: {d.unknown.get(name, 'it is not stored')}"
        else:
            facts[label] = human_bytes(value) if name in sizes else human_ms(value) if name == "compile_ms" else value
    facts |= {
        "config": d.config or "–",
        "on disk": human_bytes(d.stored_bytes),
        "hits": d.hits,
        "last used": human_age(now - d.last_used_at),
        "pinned": "yes" if d.pinned else "no",
    }
    print_fields(facts)
    if d.stages_ms:
        print()
        print_table({"stage of the compile": LEFT, "time": RIGHT}, [(n, human_ms(ms)) for n, ms in d.stages_ms.items()])
    print()
    print_table(
        {"part": LEFT, "kind": LEFT, "size": RIGHT},
        [(part.name, part.kind, human_bytes(part.size_bytes)) for part in d.parts],
    )
