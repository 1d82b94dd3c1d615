"""Artifacts and traces of torch.compile.

``torch.compiler.save_cache_artifacts`` returns bytes that are stored as a snapshot with one file. Packs, remotes,
signatures and ``run --restore`` treat it as any other snapshot. The bytes hold pickles, so they are host code: see
docs/decisions/0028. Only their checksum is computed, and the version of torch searched in them. Sources:
``torch/compiler/_cache.py`` and ``torch/utils/_appending_byte_serializer.py`` of torch 2.13.0 and 2.14.1.

A trace is the directory that the variable ``TORCH_TRACE`` named when a program ran. Each of its logs has records: a
line with a JSON object, and lines that begin with a tab for a longer text. Read from it are the graphs that were found
in the caches, and the inputs of the keys that missed. Sources: ``torch/_logging/_internal.py``,
``torch/_inductor/compile_fx.py`` and ``torch/_functorch/_aot_autograd/autograd_cache.py`` of torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks import snapshots
from cache_engine.frameworks.bundles import MAX_BYTES, Group, UnknownGroup, put_group, read_group
from cache_engine.frameworks.facts import json_object, text_in
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.readers.inductor import components
from cache_engine.frameworks.registry import installed_version, is_stale
from cache_engine.frameworks.snapshots import ENTRY, FORMAT, SavedEntry, SavedFile, Snapshot, check_name, entry_in
from cache_engine.frameworks.values import Fault, KeyFactors, ScanFinding, id_of
from cache_engine.store.layout import StoreLayout

# ---- Artifacts ----

FOLDER = "inductor/cache_artifacts"
"""The folder of the file below the root of ``run --restore``: inside the directory that ``run`` gives Inductor."""
_BUILD, _SHOWN = "build ", 5
_VERSION = re.compile(rb"^# torch version: ([\w.+-]{1,60})$", re.MULTILINE)
_BUILT_BY = re.compile(rb"\[([a-z2-7]{12})[a-z2-7]{39}\] torch_version: ")


def torch_version(data: bytes) -> str:
    """The version of torch that wrote artifacts.

    If their graphs do not state it: ``build`` and the digest that ``caches show`` prints. Empty without graphs.

    Raises:
        UsageError: when the bytes are no artifacts, are damaged, or are of several versions.
    """
    # A checksum, the version of the encoding, and the artifacts.
    if len(data) < 12 or zlib.crc32(memoryview(data)[4:]).to_bytes(4, "big") != data[:4]:
        raise UsageError("it is not what torch.compiler.save_cache_artifacts returned, as its checksum differs")
    if (encoding := int.from_bytes(data[4:12], "big")) != 1:
        raise UsageError(f"its encoding is {encoding}; only 1 is known, that of torch 2.13 and 2.14")
    versions, builds = ({each[1].decode() for each in text.finditer(data)} for text in (_VERSION, _BUILT_BY))
    if len(versions) > 1 or len(builds) > 1:
        raise UsageError(f"its graphs are of several builds of torch: {', '.join(sorted(versions or builds)[:_SHOWN])}")
    return "".join(versions or {f"{_BUILD}{build}" for build in builds})


def put_artifacts(
    layout: StoreLayout, name: str, data: bytes, *, sign: Callable[[bytes], bytes] = bytes, durable: bool = True
) -> str:
    """Stores the bytes as the snapshot ``name``, in place of artifacts of this name; returns their ``torch_version``.

    Raises:
        UsageError: when the bytes are too many, or are no artifacts, or the name is that of a snapshot of caches.
        OSError: when the store cannot be written.
    """
    if len(data) > MAX_BYTES:
        raise UsageError(f"it has more than {MAX_BYTES:,} bytes, the most that can be stored")
    version = torch_version(data)
    _check_free(layout, check_name(name))
    digest = sha256(data).hexdigest()
    file = SavedFile(f"{FOLDER}/{name}.bin", 0o600, 0, digest)
    document = msgspec.json.encode(SavedEntry(FORMAT, "inductor", f"{name}.bin", [file], version))
    group = Group(
        snapshots.FRAMEWORK, sha256(document).hexdigest(), ENTRY, {ENTRY: document, digest: data}, time.time()
    )
    try:
        put_group(layout, group, durable=durable)
    except ValueError as error:
        raise UsageError(f"it has too many bytes: {error}") from error
    snapshot = Snapshot(FORMAT, name, "", time.time(), "", [group.key])
    snapshots.put_snapshot(layout, snapshot, sign=sign, durable=durable)
    return version


def _check_free(layout: StoreLayout, name: str) -> None:
    """Raises ``UsageError`` if a snapshot of this name is not of artifacts, so nothing of another kind is replaced."""
    found = None
    try:
        with suppress(CorruptEntry):
            found = snapshots.read_snapshot(layout, name)
    except UnknownGroup as error:
        raise UsageError(f"a newer version wrote the snapshot {name}: {error}; give another name") from error
    if found is not None and found[0].root:  # the directory whose caches it has
        raise UsageError(f"{name} is a snapshot of the caches in {found[0].root}; give another name")


def artifacts_of(layout: StoreLayout, snapshot: Snapshot) -> tuple[bytes, str]:
    """The bytes of a snapshot's artifacts, each byte checked, and the version of torch that made them.

    Raises:
        UsageError: when the snapshot is of something else, or another version of torch is installed.
        CorruptEntry: when the store does not have the bytes, or they were changed.
    """
    if len(snapshot.entries) != 1:
        raise UsageError(f"{snapshot.name} is a snapshot of caches: run --restore {snapshot.name} restores it")
    group = read_group(layout, snapshot.entries[0], trust=layout.trust)
    if group is None:
        raise CorruptEntry(f"the store has the snapshot {snapshot.name}, and not its bytes")
    saved = entry_in(group)
    if not saved.files[0].path.startswith(f"{FOLDER}/"):
        raise UsageError(f"{snapshot.name} is a snapshot of caches: run --restore {snapshot.name} restores it")
    here = installed_version("inductor")
    is_stated = bool(saved.version) and not saved.version.startswith(_BUILD)
    if is_stated and here and (is_stale(saved.version, here) or ("+" in here and here != saved.version)):
        raise UsageError(f"torch {saved.version} made them, and torch {here}, installed here, would use none of them")
    return group.files[saved.files[0].digest], saved.version


# ---- Traces ----

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
