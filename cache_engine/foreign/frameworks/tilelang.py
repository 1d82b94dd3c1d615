"""tilelang's cache: a folder for each kernel with its sources and the library for the host, another for each CUBIN.

Source of the layout: ``tilelang/cache/kernel_cache.py`` and ``binary_cache.py`` of tilelang 0.1.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.doctor import network_file_system, read_mounts
from cache_engine.foreign.facts import (
    code_facts,
    digest_of,
    entry_of,
    factors_of,
    json_object,
    kernels_in,
    read_object,
    without_binary,
)
from cache_engine.foreign.folder import MOST_BINARY_BYTES, MOST_TEXT_BYTES, Folder, Listing, Unread
from cache_engine.foreign.frameworks.common import folder_stamp, read_part, stray_file, times_of, walk
from cache_engine.foreign.values import (
    DeletePlan,
    Deletion,
    Entry,
    Factor,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Seen,
    State,
    Unchanged,
    first_of,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

_VERSION = r"\d[\w.]*"
_AREA = re.compile(rf"{_VERSION}|{_VERSION}/cuda-binaries|{_VERSION}/\w+-[\w-]+|{_VERSION}/\w+-[\w-]+/kernels|"
                   rf"{_VERSION}(/\w+-[\w-]+)?/\.staging(/cuda-binaries)?")  # fmt: skip
_KERNEL = re.compile(rf"({_VERSION})/[\w-]+/kernels/[0-9a-f]{{64}}")
_BINARY = re.compile(rf"({_VERSION})/cuda-binaries/[0-9a-f]{{64}}")
_NAME = re.compile(rb"__global__\s+void\s+(?:__launch_bounds__\([^)]{0,200}\)\s*)?(\w{1,400})\s*\(")
_KINDS = {
    "device_kernel.cu": PartKind.SOURCE,
    "host_kernel.cu": PartKind.SOURCE,
    "params.json": PartKind.METADATA,
    "manifest.json": PartKind.INDEX,
    "metadata.json": PartKind.INDEX,
}
_MOST_NODES = 500  # of all parameters of a kernel; a circle ends there
_READ_LATER = "a process that uses it reads its sources at any later time; only --offline deletes it"
_ENDINGS = {"so": PartKind.HOST, "cubin": PartKind.BINARY, "fatbin": PartKind.BINARY}


class TileLang:
    """The source ``tilelang``."""

    kind = "tilelang"
    title = "tilelang"
    unknowable: Mapping[str, str] = {
        "compile_ms": "tilelang does not store how long a compile took",
        "spill_bytes": "tilelang does not store the report of ptxas",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """Where ``TILELANG_CACHE_DIR`` says, else the default."""
        return where.places(self.kind, ".tilelang/cache", TILELANG_CACHE_DIR="")

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, _entry, lambda path: _AREA.fullmatch(path) is not None)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``."""
        return read_part(place, part)

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The version, the digest of the source, and the parameters of the kernel."""
        factors = [Factor("tilelang", entry.version, "version")] if entry.version else []
        try:
            with Folder(place.path) as root:
                for part in entry.parts:
                    if part.name in ("device_kernel.cu", "kernel.cubin"):
                        data = root.read(name_of(part.file), MOST_BINARY_BYTES)
                        factors.append(Factor(part.name, digest_of(data), "digest"))
                    elif part.name == "params.json":
                        text = root.read(name_of(part.file), MOST_TEXT_BYTES)
                        factors += _parameters(text)
        except (OSError, Unread) as error:
            return Failure(f"cannot read the entry: {error}")
        return factors_of(factors, ("the target, the passes' options and the flags of the compiler",))

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """The CUBINs, whole folders at once: tilelang reads them at once too, and takes what fails for a miss."""
        if network := network_file_system(place.path, read_mounts()):
            return Failure(f"it is on {network}, where what a process reads may vanish")
        binaries = [entry for entry in entries if _BINARY.fullmatch(name_of(entry.id))]
        left = {entry.id: _READ_LATER for entry in entries if entry not in binaries}
        return DeletePlan(tuple(Deletion(entry.id, (), entry.id, entry.size_bytes) for entry in binaries), left=left)


def _parameters(text: bytes) -> Iterator[Factor]:
    """Each parameter of a kernel as its type and shape; the whole text where it is not as tilelang 0.1.15 writes it."""
    try:
        document = json_object(text)
        found = _value(document["nodes"], document["root_index"], iter(range(_MOST_NODES)))
        shown = [f"{each['dtype']}[{', '.join(map(str, each['shape']))}]" for each in found]
    except (Unread, KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        yield Factor("params.json", " ".join(text.decode(errors="replace").split()), "parameters")
        return
    for number, parameter in enumerate(shown, start=1):
        yield Factor(f"parameter {number}", parameter, "parameters")


def _value(nodes: Any, index: int, left: Iterator[int]) -> Any:
    """A node of a graph that TVM writes: lists and maps name others by their number.

    Raises ``ValueError`` for one that names more nodes than are ``left``, and others for what is no such graph.
    """
    if next(left, None) is None or index < 0:
        raise ValueError(index)
    kind, data = nodes[index]["type"], nodes[index].get("data")
    if kind == "ffi.Array":
        return [_value(nodes, each, left) for each in data]
    if kind == "ffi.Map":
        values = [_value(nodes, each, left) for each in data]
        return dict(zip(values[::2], values[1::2], strict=True))
    return data if isinstance(data, str | int | float) else kind


def _entry(above: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged:
    kernel, binary = _KERNEL.fullmatch(path), _BINARY.fullmatch(path)
    found = kernel or binary
    if found is None:
        return stray_file(above, name, path)
    with above.enter(name) as folder:
        stamp = folder_stamp(folder)
        if stamp == known:
            return Unchanged(id_of(path))
        listing = folder.list()
        created_at, last_used_at = times_of(next(iter(listing.files.values()), folder.status))
        facts, unread = _of_kernel(folder, listing) if kernel else _of_binary(folder, listing)
        facts |= {
            "id": id_of(path),
            "stamp": stamp,
            "parts": tuple(_part(path, file, status.st_size) for file, status in listing.files.items()),
            "version": found[1],
            "created_at": created_at,
            "last_used_at": last_used_at,
        }
        return entry_of(facts, unread)


def _of_kernel(folder: Folder, listing: Listing) -> tuple[dict[str, Any], dict[str, str]]:
    """The manifest says which files there must be, and their sizes; tilelang checks their digests too."""
    unread = without_binary("tilelang stores the CUBIN as an entry of its own, under another key")
    state = State.COMPLETE
    name = None
    try:
        files = read_object(folder, "manifest.json").get("files")
        if not isinstance(files, dict) or not all(_is_whole(listing, file, said) for file, said in files.items()):
            state = State.PARTIAL
        found = _NAME.search(folder.read("device_kernel.cu", MOST_TEXT_BYTES))
        name = found[1].decode() if found else None
    except (FileNotFoundError, Unread) as error:
        state = State.PARTIAL
        unread["name"] = str(error) if isinstance(error, Unread) else "a file is missing"
    return {"state": state, "name": name}, {"name": "its source has no kernel", **unread}


def _of_binary(folder: Folder, listing: Listing) -> tuple[dict[str, Any], dict[str, str]]:
    files = [file for file in listing.files if file.rpartition(".")[2] in _ENDINGS]
    if not files:
        why = "it has no binary"
        return {"state": State.PARTIAL}, {"name": why, **without_binary(why)}
    facts, unread = code_facts(folder, files[0])
    state = State.COMPLETE
    try:
        if read_object(folder, "metadata.json").get("size") != listing.files[files[0]].st_size:
            state = State.PARTIAL
        names = kernels_in(folder.read(files[0], MOST_BINARY_BYTES))
    except (FileNotFoundError, Unread):
        state, names = State.PARTIAL, ()
    return {**facts, "state": state, "name": first_of(names)}, {"name": "it has no kernel", **unread}


def _is_whole(listing: Listing, file: str, said: object) -> bool:
    return file in listing.files and isinstance(said, dict) and said.get("size") == listing.files[file].st_size


def _part(path: str, file: str, size_bytes: int) -> Part:
    kind = _KINDS.get(file) or _ENDINGS.get(file.rpartition(".")[2], PartKind.OTHER)
    return Part(id_of(file), kind, size_bytes, id_of(f"{path}/{file}"))
