"""Reads from a trace of torch.compile which graphs were found in its caches, and the inputs of the keys that missed.

A trace is the directory that the variable ``TORCH_TRACE`` named when a program ran. Each of its logs has records: a
line with a JSON object, and lines that begin with a tab for a longer text. Sources: ``torch/_logging/_internal.py``,
``torch/_inductor/compile_fx.py`` and ``torch/_functorch/_aot_autograd/autograd_cache.py`` of torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_engine.frameworks.facts import json_object, text_in
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.readers.inductor import components
from cache_engine.frameworks.values import Fault, KeyFactors, ScanFinding, id_of

MOST_LOG_BYTES = 256 << 20
"""The size of the largest log that is read."""
MOST_LOOKUPS = 10_000
"""The most lookups of a trace that are read."""

_MOST_REASON = 500
_LOG = re.compile(r"dedicated_log_torch_trace_.*\.log")
_RECORD = re.compile(
    rb'^[A-Z]\d{4} [^\n{]{1,300}(\{"(?:artifact": \{"name": "(fx_graph|aotautograd)_cache_(hit|miss|bypass)"'
    rb'|dynamo_start"|str")[^\n]{0,100000})\n((?:\t[^\n]*+\n)*+)',
    re.MULTILINE,
)
"""A pattern for the records that are read: lookups, the functions that are compiled, and the names of files."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup of a graph in a cache of torch.compile.

    Attributes:
        cache: ``fx_graph`` or ``aotautograd``.
        result: ``hit``, ``miss`` or ``bypass``.
        key: the graph's key; empty for a bypass, for which none is computed.
        name: the function that was compiled, and its file.
        compile_id: the number of the compile in its process, such as ``0/1``.
        reason: why the cache was bypassed, or whether the key or only its guards missed; may be empty.
        factors: the inputs of the key, where the log states them.
    """

    cache: str
    result: str
    key: str
    name: str
    compile_id: str
    reason: str
    factors: KeyFactors


def lookups(directory: Path) -> Iterator[Lookup | ScanFinding]:
    """Yields the lookups of a trace in the order of its logs, and a finding for each record or log that is unusable.

    Raises:
        OSError: when the directory cannot be opened.
    """
    count = 0
    with Folder(directory) as folder:
        for name in sorted(item.name for item in folder if _LOG.fullmatch(item.name)):
            try:
                log = folder.read(name, MOST_LOG_BYTES)
            except FileNotFoundError:
                continue
            except Unread as error:
                yield error.finding(name)
                continue
            for found in _of_log(name, log):
                count += 1
                if count > MOST_LOOKUPS:
                    yield ScanFinding(Fault.TOO_MANY, id_of(name), f"only the first {MOST_LOOKUPS:,} lookups are read")
                    return
                yield found


def _of_log(log: str, data: bytes) -> Iterator[Lookup | ScanFinding]:
    files: dict[int, str] = {}
    names: dict[str, str] = {}
    for record in _RECORD.finditer(data):
        try:
            document = json_object(record[1])
            if record[2] is None:
                _note(document, files, names)
                continue
            compile_id = "/".join(str(document.get(name, "–"))[:20] for name in ("frame_id", "frame_compile_id"))
            said = json_object(record[4])
        except Unread as error:
            yield ScanFinding(error.fault, id_of(log), f"the record at byte {record.start():,}: {error.detail}")
            continue
        lines = said.get("components")
        known = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        reason = said.get("cache_bypass_reason") or said.get("cache_status_detailed") or ""
        yield Lookup(
            record[2].decode(), record[3].decode(), text_in(said, "key") or "", names.get(compile_id, ""), compile_id,
            id_of(str(reason)[:_MOST_REASON]), components(known),
        )  # fmt: skip


def _note(document: dict[str, Any], files: dict[int, str], names: dict[str, str]) -> None:
    """Notes the number that the log gives to a file, or the function whose compile begins."""
    match document:
        case {"str": [str(path), int(number)]}:
            files[number] = id_of(path.rpartition("/")[2])[:100]
        case {"dynamo_start": {"stack": [*_, {"name": str(name), "filename": int(number)}]}}:
            compile_id = f"{document.get('frame_id')}/{document.get('frame_compile_id')}"[:40]
            names[compile_id] = f"{id_of(name[:100])} in {files.get(number, '–')}"
