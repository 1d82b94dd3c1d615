"""The bytes that ``torch.compiler.save_cache_artifacts`` returns, stored as a snapshot with one file.

Packs, remotes, signatures and ``run --restore`` treat it as any other snapshot. The bytes hold pickles, so they are
host code: see docs/decisions/0028. They are never unpickled here. Sources: ``torch/compiler/_cache.py`` and
``torch/utils/_appending_byte_serializer.py`` of torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks.bundles import MAX_BYTES, Group, put_group, read_group
from cache_engine.frameworks.folder import Unread
from cache_engine.frameworks.readers.inductor import torch_of
from cache_engine.frameworks.registry import installed_version, is_stale
from cache_engine.frameworks.snapshots import (
    ENTRY,
    FORMAT,
    FRAMEWORK,
    SavedEntry,
    SavedFile,
    Snapshot,
    check_name,
    entry_in,
    put_snapshot,
)
from cache_engine.frameworks.values import Fault
from cache_engine.store.layout import StoreLayout

FOLDER = "inductor/cache_artifacts"
"""The folder of the file below the root of ``run --restore``: inside the directory that ``run`` gives Inductor."""
_ENCODING, _BUILD = 1, "build "
_MOST_ARTIFACTS, _MOST_ASKED = 100_000, 20
"""The most artifacts that are counted, and the most graphs whose version of torch is read."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The content of such bytes: the number of artifacts of each cache, and torch's version.

    If the graphs do not state the version, it is ``build`` with the digest that ``caches ls`` shows; else empty.
    """

    counts: dict[str, int]
    version: str


def read_artifacts(data: bytes) -> Artifacts:
    """Reads the frame of the bytes and, from their graphs, the version of torch; raises ``Unread`` if damaged."""
    if len(data) < 12 or zlib.crc32(memoryview(data)[4:]).to_bytes(4, "big") != data[:4]:
        raise Unread(Fault.DAMAGED, "it is not what torch.compiler.save_cache_artifacts returned: its checksum differs")
    at, counts, asked = 4, Counter[str](), 0
    versions, builds = set[str](), set[str]()

    def number() -> int:
        nonlocal at
        at += 8
        if at > len(data):
            raise Unread(Fault.DAMAGED, "its artifacts end too early")
        return int.from_bytes(data[at - 8 : at], "big")

    def piece() -> memoryview:
        nonlocal at
        size = number()  # first, as it moves the position too
        at += size
        if at > len(data):
            raise Unread(Fault.DAMAGED, "an artifact is longer than the file")
        return memoryview(data)[at - size : at]

    if (encoding := number()) != _ENCODING:
        raise Unread(Fault.DAMAGED, f"its encoding is {encoding}; {_ENCODING} is known")
    while at < len(data):
        kind = base64.b64decode(bytes(piece()[:100])).decode(errors="replace")
        for _ in range(number()):
            piece()
            content = piece()
            counts[kind] += 1
            if sum(counts.values()) > _MOST_ARTIFACTS:
                raise Unread(Fault.TOO_MANY, f"it has more than {_MOST_ARTIFACTS:,} artifacts")
            if kind == "inductor" and asked < _MOST_ASKED:
                asked += 1
                version, build = torch_of(bytes(content))
                versions |= {version} - {""}
                builds |= {build} - {""}
    if not counts:
        raise Unread(Fault.DAMAGED, "it has no artifact")
    if len(versions) > 1 or len(builds) > 1:
        said = ", ".join(sorted(versions or builds))
        raise Unread(Fault.DAMAGED, f"its graphs are of several builds of torch: {said}")
    return Artifacts(dict(counts), "".join(versions or {f"{_BUILD}{build}" for build in builds}))


def put_artifacts(
    layout: StoreLayout, name: str, data: bytes, *, sign: Callable[[bytes], bytes] = bytes, durable: bool = True
) -> Artifacts:
    """Stores the bytes as the snapshot ``name``, which replaces one of this name.

    Raises:
        UsageError: when the bytes are too many, or are no artifacts.
        OSError: when the store cannot be written.
    """
    try:
        read = read_artifacts(data)
    except (Unread, ValueError) as error:
        raise UsageError(f"no artifacts of torch.compile: {error}") from error
    digest = sha256(data).hexdigest()
    file = SavedFile(f"{FOLDER}/{check_name(name)}.bin", 0o600, 0, digest)
    document = msgspec.json.encode(SavedEntry(FORMAT, "inductor", f"{name}.bin", [file], read.version))
    group = Group(FRAMEWORK, sha256(document).hexdigest(), ENTRY, {ENTRY: document, digest: data}, time.time())
    try:
        put_group(layout, group, durable=durable)
    except ValueError as error:
        raise UsageError(f"it has {len(data):,} bytes; at most {MAX_BYTES:,} can be stored") from error
    put_snapshot(layout, Snapshot(FORMAT, name, "", time.time(), "", [group.key]), sign=sign, durable=durable)
    return read


def artifacts_of(layout: StoreLayout, snapshot: Snapshot) -> tuple[bytes, str]:
    """The bytes of a snapshot's artifacts, each byte checked, and the version of torch that made them.

    Raises:
        UsageError: when the snapshot is of something else, or another version of torch is installed.
        CorruptEntry: when the store does not have the bytes, or they were changed.
    """
    group = read_group(layout, snapshot.entries[0], trust=layout.trust) if len(snapshot.entries) == 1 else None
    if group is None and len(snapshot.entries) == 1:
        raise CorruptEntry(f"the store has the snapshot {snapshot.name}, and not its bytes")
    saved = entry_in(group) if group is not None else None
    if group is None or saved is None or not saved.files[0].path.startswith(f"{FOLDER}/"):
        raise UsageError(f"{snapshot.name} is a snapshot of caches: run --restore {snapshot.name} restores it")
    here = installed_version("inductor")
    is_stated = bool(saved.version) and not saved.version.startswith(_BUILD)
    if is_stated and here and (is_stale(saved.version, here) or ("+" in here and here != saved.version)):
        raise UsageError(f"torch {saved.version} made them, and torch {here}, installed here, would use none of them")
    return group.files[saved.files[0].digest], saved.version
