"""tilelang's cache: a folder for each kernel with its sources and the library for the host, another for each CUBIN.

Source of the layout: ``tilelang/cache/kernel_cache.py`` and ``binary_cache.py`` of tilelang 0.1.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cache_engine.frameworks.facts import (
    code_facts,
    digest_of,
    factors_of,
    json_object,
    kernels_in,
    read_object,
    without_binary,
)  # fmt: skip
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, MOST_TEXT_BYTES, Folder, Listing, Unread
from cache_engine.frameworks.readers.reader import Known, Match, Reader, Timed, nothing_known, plan_local
from cache_engine.frameworks.values import (
    DeletePlan,
    Deletion,
    Entry,
    Factor,
    KeyFactors,
    PartKind,
    Place,
    State,
    first_of,
    name_of,
)  # fmt: skip
from cache_engine.model.outcome import Failure

_VERSION = r"\d[\w.]*"
_NAME = re.compile(rb"__global__\s+void\s+(?:__launch_bounds__\([^)]{0,200}\)\s*)?(\w{1,400})\s*\(")
_MOST_NODES = 500  # of all parameters of a kernel; a circle ends there
_READ_LATER = "a process that uses it reads its sources at any later time; only --offline deletes it"
_BINARIES = ("so", "cubin", "fatbin")


class TileLang(Reader):
    """The reader of tilelang's cache."""

    kind = "tilelang"
    title = "tilelang"
    default = ".tilelang/cache"
    variables: Mapping[str, str] = {"TILELANG_CACHE_DIR": ""}
    areas = re.compile(rf"{_VERSION}|{_VERSION}/cuda-binaries|{_VERSION}/\w+-[\w-]+|{_VERSION}/\w+-[\w-]+/kernels|"
                       rf"{_VERSION}(/\w+-[\w-]+)?/\.staging(/cuda-binaries)?")  # fmt: skip
    entries = re.compile(rf"({_VERSION})/(?:[\w-]+/(kernels)|cuda-binaries)/[0-9a-f]{{64}}")
    binaries = re.compile(rf"{_VERSION}/cuda-binaries/[0-9a-f]{{64}}")
    kinds: Mapping[str, PartKind] = {
        "device_kernel.cu": PartKind.SOURCE, "host_kernel.cu": PartKind.SOURCE, "params.json": PartKind.METADATA,
        "manifest.json": PartKind.INDEX, "metadata.json": PartKind.INDEX,
        "so": PartKind.HOST, "cubin": PartKind.BINARY, "fatbin": PartKind.BINARY,
    }  # fmt: skip
    stores = ("version",)

    def facts(self, folder: Folder, path: str, listing: Listing, found: Match) -> Timed:
        """The facts about a kernel or a CUBIN."""
        version, is_kernel = (found[1], found[2]) if found else (None, None)
        facts, unread = _of_kernel(folder, listing) if is_kernel else _of_binary(folder, listing)
        return next(iter(listing.files.values()), None), {**facts, "version": version}, unread

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of the key: the version, the digest of the source, and the parameters of the kernel."""
        factors = [Factor("tilelang", entry.version, "version")] if entry.version else []
        for part in entry.parts:
            if part.name in ("device_kernel.cu", "kernel.cubin"):
                factors.append(Factor(part.name, digest_of(root.read(name_of(part.file), MOST_BINARY_BYTES)), "digest"))
            elif part.name == "params.json":
                factors += _parameters(root.read(name_of(part.file), MOST_TEXT_BYTES))
        return factors_of(factors, ("the target, the passes' options and the flags of the compiler",))

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan that deletes the CUBINs' folders, each at once.

        This is safe, because tilelang treats any error in reading a CUBIN's folder as a miss.
        """

        def deletion(each: Entry) -> Deletion:
            return Deletion(each.id, (), each.id, each.size_bytes)

        return plan_local(place, entries, self.binaries, _READ_LATER, deletion)


def _parameters(text: bytes) -> Iterator[Factor]:
    """Yields each parameter of a kernel as its type and shape.

    Yields the whole text as one input, if its format is not that of tilelang 0.1.15.
    """
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
    """A node of a graph that TVM wrote, in which lists and maps name other nodes by their number.

    Raises ``ValueError`` if more nodes are named than ``left``, and other errors if the graph is not valid.
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


def _of_kernel(folder: Folder, listing: Listing) -> Known:
    """The facts about a kernel.

    Its manifest says which files it needs, and their sizes; tilelang also checks their digests.
    """
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


def _of_binary(folder: Folder, listing: Listing) -> Known:
    files = [file for file in listing.files if file.rpartition(".")[2] in _BINARIES]
    if not files:
        return nothing_known("it has no binary", State.PARTIAL)
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
