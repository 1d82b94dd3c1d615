"""Snapshots: the entries of all caches below the root directory of a run, stored as bundles.

Each entry is a bundle: its files, and a description with their paths, modes and times. A bundle is named by the digest
of this description, so an entry that two snapshots share is stored once. The snapshot itself is one more bundle, with
the keys of its entries; its signature covers every byte of them. Packs and remotes carry these bundles as any other.

Files that a process would run, or unpickle, are host code: see docs/decisions/0028.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from cache_engine.compilers.elf import machine_of
from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks import bundles
from cache_engine.frameworks.deletion import IN_PROCESS
from cache_engine.frameworks.facts import json_object
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.readers import cutile
from cache_engine.frameworks.readers.reader import MOST_DEPTH, stamp_of
from cache_engine.frameworks.registry import load_sources, surroundings, survey
from cache_engine.frameworks.values import Entry, Fault, PartKind, Place, ScanFinding, State, id_of, name_of
from cache_engine.frameworks.watch import CACHES
from cache_engine.model.key import CacheKey, is_key
from cache_engine.store.codec import enveloped, signed_part
from cache_engine.store.layout import StoreLayout

FRAMEWORK, ENTRY, SNAPSHOT = "snapshot", "entry.json", "snapshot.json"
FORMAT = 1
JAX_CACHES = "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"
"""The environment variable that, set to ``none``, keeps the path of JAX's cache out of its keys."""
GROUP_FILE = "__grp__"
"""The prefix of Triton's group file, which names the kernel's other files by their absolute paths; written last."""

_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEY = r"(?:[A-Z2-7]{52}|[0-9a-f]{64}|[0-9a-f]{32})"
_FOR_GPUS = re.compile(
    rf"(?:triton|vllm/torch_compile_cache/.+/triton(?:_cache|/\d+))/{_KEY}/[^/]+"
    r"|cupy/[0-9a-f]{32,64}\.(?:cubin|ltoir|hsaco)(?:\.cu)?|cutile/cache\.db|compute_cache/.+|deepgemm/.+"
)
"""Paths of files that their framework gives to a GPU, or reads as JSON. A file with any other path may be host code."""
_OF_GPUS = (None, 190, 224)  # no ELF image at all, or one of CUDA or of AMD's GPUs
_OPAQUE = ("jax", "inductor", "compute_cache", "flashinfer")
"""Frameworks whose entries are saved even if the entries' layout is unknown."""
_STILL_S = 2.0
"""Seconds without a change after which an entry without a known layout is taken as complete."""
_MOST_ENTRIES, _MOST_PATH = 50_000, 4_000


class SavedFile(msgspec.Struct, frozen=True):
    """A file of an entry: its path below the root, as ``id_of`` writes it, permissions, time in ns, and SHA-256."""

    path: Annotated[str, msgspec.Meta(max_length=_MOST_PATH)]
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    mtime_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    digest: str


class SavedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of an entry: its framework, its name for people, its files in the order of writing, the version.

    ``version`` is set only for artifacts of torch.compile.
    """

    format: int
    kind: str
    name: str
    files: Annotated[list[SavedFile], msgspec.Meta(min_length=1, max_length=bundles.MOST_FILES)]
    version: Annotated[str, msgspec.Meta(max_length=100)] = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The description of a snapshot.

    Attributes:
        root: the path of the root directory that was saved, as ``id_of`` writes it.
        jax_caches: the value of the variable ``JAX_CACHES`` in the process that made the snapshot.
        entries: the keys of its entries' bundles.
    """

    format: int
    name: str
    root: str
    made_at: float
    jax_caches: str
    entries: Annotated[list[CacheKey], msgspec.Meta(max_length=_MOST_ENTRIES)]


@dataclass
class Saved:
    """The result of saving: the numbers of entries, bytes and entries new to the store, and why some were left out."""

    entries: int = 0
    size_bytes: int = 0
    new: int = 0
    left: list[str] = field(default_factory=list)


def check_name(name: str) -> str:
    """Returns a valid name of a snapshot unchanged; raises ``UsageError`` for any other text."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} cannot name a snapshot; use letters, digits, dots, _ and -, at most 100")
    return name


def snapshot_key(name: str) -> CacheKey:
    """The key of a snapshot's bundle."""
    return bundles.group_key(FRAMEWORK, name, SNAPSHOT)


# ---- Saving ----


def save(
    layout: StoreLayout, name: str, root: Path, environment: Mapping[str, str], *,
    sign: Callable[[bytes], bytes] = lambda data: data, durable: bool = True,
) -> Saved:  # fmt: skip
    """Stores the complete entries below a root. A snapshot of this name is replaced, but not its entries.

    Args:
        environment: the environment of the run's command, which says where the caches are.
        sign: a function that adds a signature to the bytes of a record file.

    Raises:
        UsageError: when the root has no complete entry.
        OSError: when the store cannot be written; an earlier snapshot of this name then stays unchanged.
    """
    done = Saved()
    keys: list[CacheKey] = []
    for saved, files in _entries(root, environment, done):
        document = msgspec.json.encode(saved)
        group = bundles.Group(FRAMEWORK, sha256(document).hexdigest(), ENTRY, {ENTRY: document, **files}, time.time())
        try:
            if not _is_stored(layout, group.key):
                bundles.put_group(layout, group, durable=durable)
                done.new += 1
        except ValueError:
            done.left.append(f"{saved.kind} {saved.name}: it has more than {bundles.MAX_BYTES:,} bytes")
            continue
        if len(keys) == _MOST_ENTRIES:
            done.left.append(f"all after the first {_MOST_ENTRIES:,} entries")
            break
        keys.append(group.key)
        done.size_bytes += sum(map(len, files.values()))
    if not keys:
        raise UsageError(f"{root} has no complete entry; an earlier snapshot of this name stays")
    done.entries = len(keys)
    snapshot = Snapshot(FORMAT, name, id_of(str(root)), time.time(), environment.get(JAX_CACHES, ""), sorted(keys))
    put_snapshot(layout, snapshot, sign=sign, durable=durable)
    return done


def put_snapshot(layout: StoreLayout, snapshot: Snapshot, *, sign: Callable[[bytes], bytes], durable: bool) -> None:
    """Stores the description of a snapshot, signed, after its entries; raises ``OSError``."""
    data = sign(enveloped(msgspec.json.encode(snapshot), format=FORMAT))
    bundles.put_group(
        layout, bundles.Group(FRAMEWORK, snapshot.name, SNAPSHOT, {SNAPSHOT: data}, time.time()), durable=durable
    )


def _is_stored(layout: StoreLayout, key: CacheKey) -> bool:
    try:
        return bundles.read_group(layout, key, trust=layout.trust) is not None
    except (CorruptEntry, bundles.UnknownGroup):
        return False


def _entries(root: Path, environment: Mapping[str, str], done: Saved) -> Iterator[tuple[SavedEntry, dict[str, bytes]]]:
    """Yields each complete entry below a root, with the content of its files by digest."""
    sources, still_at = load_sources(), time.time() + _STILL_S
    found = [place for place in sources.places(surroundings((), environment)) if not place.replaced_by]
    places = [place for place in found if _below(root, place) is not None]
    done.left += [f"{place.kind}: it is not below {root}" for place in found if place not in places]
    databases = set()
    for place, seen in survey(sources, places):
        if isinstance(seen, ScanFinding):
            done.left.append(f"{place.kind} {seen.id}: {seen.detail}")
        elif isinstance(seen, Entry):
            try:
                if any(not part.file for part in seen.parts):
                    if place not in databases:
                        databases.add(place)
                        yield _database(root, place)
                elif seen.state == State.COMPLETE or (seen.state == State.UNREAD and place.kind in _OPAQUE):
                    yield _entry(root, place, seen, still_at)
                else:
                    done.left.append(f"{place.kind} {seen.id}: {seen.state}")
            except (FileNotFoundError, Unread) as error:
                done.left.append(f"{place.kind} {seen.id}: {error if isinstance(error, Unread) else 'it is gone'}")


def _below(root: Path, place: Place) -> str | None:
    """A cache's path below the root; ``None`` if the path does not begin with the folder of a framework."""
    if not place.path.is_relative_to(root) or place.path == root:
        return None
    below = str(place.path.relative_to(root))
    return below if below.partition("/")[0] in CACHES else None


def _entry(root: Path, place: Place, entry: Entry, still_at: float) -> tuple[SavedEntry, dict[str, bytes]]:
    """An entry's description, and its files by digest. Raises ``Unread`` if it may be incomplete.

    An entry of an unknown layout must not have changed for two seconds; ``still_at`` is when this wait ends for all.
    """
    names = [name_of(part.file) for part in entry.parts if part.kind != PartKind.TEMPORARY]
    if len(names) >= bundles.MOST_FILES:
        raise Unread(Fault.TOO_MANY, f"it has {len(names):,} files; fewer than {bundles.MOST_FILES:,} are saved")
    with Folder(place.path) as top:
        before = {name: _status(top, name) for name in dict.fromkeys(names)}
        newest = max(status.st_mtime for status in before.values())
        if entry.state == State.UNREAD and 0 < (wait_s := newest + _STILL_S - time.time()) <= _STILL_S:
            if newest + _STILL_S > still_at:  # else a process that writes on would make each entry wait
                raise Unread(Fault.LOCKED, "it was written meanwhile")
            time.sleep(wait_s)
        files = []
        for name, status in before.items():
            data = top.read(name, bundles.MAX_BYTES)
            if stamp_of(_status(top, name)) != stamp_of(status) or len(data) != status.st_size:
                raise Unread(Fault.LOCKED, "it was written meanwhile")
            if place.kind == "triton":
                data = with_children(name, data, "")
            files.append((name, status, data))
    # As they were written, so that whatever names the others comes last again.
    files.sort(key=lambda each: (each[0].rpartition("/")[2].startswith(GROUP_FILE), each[1].st_mtime_ns, each[0]))
    return _described(_below(root, place) or "", place.kind, entry.name or entry.id, files)


def _database(root: Path, place: Place) -> tuple[SavedEntry, dict[str, bytes]]:
    """The database of cuTile, as it was at one moment, as an entry: its description, and its file by digest."""
    import sqlite3

    with Folder(place.path) as top:
        status = _status(top, cutile.FILE)
        if status.st_size > bundles.MAX_BYTES:
            raise Unread(Fault.TOO_LARGE, f"it has {status.st_size:,} bytes; at most {bundles.MAX_BYTES:,} are saved")
        try:
            with IN_PROCESS, closing(cutile.opened(top, place)) as database:
                data = database.serialize()
        except sqlite3.Error as error:
            raise Unread(Fault.DAMAGED, str(error)) from error
    return _described(_below(root, place) or "", place.kind, cutile.FILE, [(cutile.FILE, status, data)])


def _status(top: Folder, name: str) -> os.stat_result:
    above, _, last = name.rpartition("/")
    with top.enter(above) if above else top.again() as folder:
        folder.check_file(last)
        return folder.stat(last)


def _described(
    below: str, kind: str, name: str, files: list[tuple[str, os.stat_result, bytes]]
) -> tuple[SavedEntry, dict[str, bytes]]:
    contents: dict[str, bytes] = {}
    saved = []
    for path, status, data in files:
        digest = sha256(data).hexdigest()
        contents[digest] = data
        saved.append(SavedFile(id_of(f"{below}/{path}"), status.st_mode & 0o777, status.st_mtime_ns, digest))
    return SavedEntry(FORMAT, kind, name[:200], saved), contents


def with_children(name: str, data: bytes, folder: str) -> bytes:
    """Rewrites the paths in a group file of Triton to this folder, or to file names alone if ``folder`` is empty.

    Returns any other file unchanged.

    Raises ``Unread`` if a group file is not valid, or a path is not UTF-8.
    """
    file = name.rpartition("/")[2]
    if not file.startswith(GROUP_FILE) or not file.endswith(".json"):
        return data
    document = json_object(data)
    children = document.get("child_paths")
    if isinstance(children, dict):
        document["child_paths"] = {child: os.path.join(folder, child) for child in filter(bundles.is_plain, children)}
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError as error:
        raise Unread(Fault.UNREADABLE, "triton: the path of the root is not UTF-8") from error


# ---- Reading: nothing in it is trusted ----

_decode_entry = msgspec.json.Decoder(SavedEntry).decode
_decode_snapshot = msgspec.json.Decoder(Snapshot).decode


def read_snapshot(layout: StoreLayout, name: str) -> tuple[Snapshot, bytes] | None:
    """A snapshot and the bytes that its signature covers; ``None`` if the store has no snapshot of this name.

    Raises:
        CorruptEntry, UnknownGroup: when the snapshot is damaged, or of another format version.
    """
    group = bundles.read_group(layout, snapshot_key(name), trust=layout.trust)
    return None if group is None else (snapshot_in(group), group.files[SNAPSHOT])


def snapshot_in(group: bundles.Group) -> Snapshot:
    """The snapshot that a bundle contains; raises ``CorruptEntry`` if it contains no valid snapshot."""
    snapshot = _decoded(_decode_snapshot, signed_part(group.files[SNAPSHOT])[0])
    if snapshot.name != group.name:
        raise CorruptEntry(f"it is the snapshot {id_of(snapshot.name[:100])}, and not {id_of(group.name[:100])}")
    if not all(map(is_key, snapshot.entries)):
        raise CorruptEntry("it names what is no key")
    return snapshot


def entry_in(group: bundles.Group) -> SavedEntry:
    """The entry that a bundle contains, after checking every byte of its files; raises ``CorruptEntry``."""
    if (group.framework, group.index) != (FRAMEWORK, ENTRY):
        raise CorruptEntry("it is no entry of a snapshot")
    document = group.files[ENTRY]
    if sha256(document).hexdigest() != group.name:
        raise CorruptEntry("its description was changed")
    saved = _decoded(_decode_entry, document)
    contents = {name: data for name, data in group.files.items() if name != ENTRY}
    if contents.keys() != {file.digest for file in saved.files}:
        raise CorruptEntry("its files are not those that it describes")
    if any(sha256(data).hexdigest() != digest for digest, data in contents.items()):
        raise CorruptEntry("a file of it was changed")
    for file in saved.files:
        parts = name_of(file.path).split("/")
        is_below = 2 <= len(parts) <= MOST_DEPTH and parts[0] in CACHES and all(map(bundles.is_plain, parts))
        if not is_below or id_of("/".join(parts)) != file.path:
            raise CorruptEntry(f"the path {id_of(file.path[:80])!r} leads elsewhere")
    if len({file.path for file in saved.files}) != len(saved.files):
        raise CorruptEntry("two of its files have one path")
    return saved


def host_code_in(saved: SavedEntry, contents: Mapping[str, bytes]) -> str | None:
    """The path of an entry's first file that a process may run or unpickle; ``None`` if there is no such file."""
    for file in saved.files:
        if not _FOR_GPUS.fullmatch(file.path) or machine_of(contents[file.digest]) not in _OF_GPUS:
            return file.path
    return None


def host_code_in_bundle(group: bundles.Group) -> str | None:
    """As ``host_code_in``, for a snapshot's bundle; checks every byte. Raises ``CorruptEntry`` for other bundles."""
    if group.index == SNAPSHOT and [*group.files] == [SNAPSHOT]:
        snapshot_in(group)
        return None
    return host_code_in(entry_in(group), group.files)


def _decoded(decode: Callable[[bytes], _T], data: bytes) -> _T:
    """Decodes JSON bytes; raises ``CorruptEntry`` if they are not valid, or of another format version."""
    try:
        stated = json_object(data).get("format")
        if stated != FORMAT:
            raise CorruptEntry(f"it is of version {stated}; this program reads version {FORMAT}")
        return decode(data)
    except (Unread, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"it cannot be read: {error}") from error
