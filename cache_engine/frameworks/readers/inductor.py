"""Reads Inductor's cache: graphs that torch.compile compiled, AOTAutograd's entries around them, and generated code.

Entries are pickles, and never unpickled: ``plain_values`` takes the texts out of them. Layout and texts:
``torch/_inductor/codecache.py`` and ``output_code.py``, ``torch/_functorch/_aot_autograd/autograd_cache.py`` and
``aot_autograd_result.py`` of torch 2.13.0 and 2.14.1, with caches that both made on a CPU. ``fxgraph/XX/KEY/`` has a
file for each set of guards, ``aotautograd/KEY/`` likewise; all else is generated code, and listed by size and age.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.facts import factors_of
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.readers.reader import Sized, made, stamp_of, subfolders
from cache_engine.frameworks.readers.triton import INDUCTOR_IN_VLLM, inductor_places, vllm_places
from cache_engine.frameworks.values import (
    Entry,
    Factor,
    Fault,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Unchanged,
    Value,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

_HASH = "[a-z2-7]{51}"
_ENTRY = re.compile(rf"(?P<graph>fxgraph/[^/]+/f{_HASH})|aotautograd/a{_HASH}")
_KEY = re.compile(rf"f{_HASH}")
_CODE = "it is generated code or a file of the cache itself: only its size and age are looked at"
_MANY = "an entry is a graph of many kernels"
_COMPONENT = re.compile(r"\[(?P<digest>[a-z2-7]{51,52})\] (?P<name>[^:\n]{1,500}): (?P<value>.*)", re.DOTALL)
"""A pattern for an input of a key as torch writes it: the digest of its pickle, its name, and its value as text."""
_GROUPS = {"inductor_config": "config", "inductor_config_comms": "config of communication", "fx_kwargs": "call",
           "system_info": "system", "gm": "graph", "example_inputs": "graph"}  # fmt: skip
_GROUP = re.compile(r"(inductor_config(?:_\w{1,40})?|fx_kwargs|system_info)\[([^\]]{1,300})\]")
_PROCESS = re.compile(r" at 0x[0-9a-f]{6,16}\b")
"""A pattern for an object's address, which differs between processes and is no input of the key."""
_VERSION = re.compile(r"^# torch version: ([\w.+-]{1,60})$", re.MULTILINE)
_PLACE = re.compile(r"# File: ([^\n:]{1,300}):\d{1,9} in ([\w<>.]{1,100})")
_DEVICE = re.compile(r"device\(type='(\w{1,20})'")
_TEXTS = ("inductor_post_grad_graph_str", "aot_joint_graph_str", "aot_forward_graph_str")
_TIMES = ("_time_taken_ns", "forward_time_taken_ns", "backward_time_taken_ns")
_RUNNABLE, _INFO, _KERNELS = "runnable_graph_str", "fx_graph_cache_info", "generated_kernel_count"
_WANTED, _COUNTED = frozenset({*_TEXTS, _RUNNABLE}), frozenset({*_TIMES, _KERNELS})
_MOST_NUMBER = 2**53
_FACTS = ("name", "version", "compiler", "compile_ms")
_LONGEST_NAME, _MOST_PLAIN, _SHOWN_DIGEST = 40, 200, 12
_TEMPORARY = re.compile(r"\.\d+\.\d+\.tmp")
_MOST_SEARCHED = 100_000  # letters of a graph's text in which the place of its first operation is searched


class Inductor(Sized):
    """The reader of Inductor's cache. Triton's kernels inside it are read as another cache."""

    kind = "inductor"
    title = "Inductor"
    areas = re.compile(r"fxgraph(/[^/]+)?|aotautograd|cache|[a-z2-7]{2}")
    others = ("triton",)
    unknown: Mapping[str, str] = dict.fromkeys({*Sized.unknown} - {*_FACTS}, _MANY)

    def discover(self, where: Surroundings) -> Iterator[Place]:
        """Inductor's own directory, and those in vLLM's cache, which vLLM always sets for Inductor."""
        yield from inductor_places(where)
        for place in vllm_places(where):
            for pattern in INDUCTOR_IN_VLLM:
                for path in subfolders(place.path, *pattern):
                    yield Place(self.kind, path, "vLLM", place.replaced_by)

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """The entry of a graph's folder, with the facts in its pickle; for other files, an entry with size and age."""
        why = _CODE
        if _ENTRY.fullmatch(path):
            try:
                with above.enter(path.rpartition("/")[2]) as folder, Folder(place.path) as root:
                    if (stamp := stamp_of(folder.status)) == known:
                        return Unchanged(id_of(path))
                    return _entry(root, folder, path, stamp)
            except Unread as error:
                why = str(error)
        entry = super().entry(place, above, path, known)
        reasons = dict.fromkeys(_FACTS, why)
        return replace(entry, unread={**entry.unread, **reasons}) if isinstance(entry, Entry) else entry

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of a graph's key. AOTAutograd stores none of its own."""
        found = _ENTRY.fullmatch(name_of(entry.id))
        if found is None or found["graph"] is None:
            return Failure(
                "only graphs in fxgraph state the inputs of their keys; an entry of AOTAutograd names its graphs"
            )
        with root.enter(name_of(entry.id)) as folder:
            return components(_pickle(folder).lines)


@dataclass
class _Read:
    """The texts of a pickle: values by the names before them, the inputs of the graph's key, and keys of graphs."""

    values: dict[str, str | int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    variants: int = 1
    build: str | None = None
    """The digest of torch's own files, which is in every key; one torch, one digest."""

    @property
    def version(self) -> str | None:
        """The version of torch; torch 2.14 states it only where ``TORCH_TRACE`` or a debug log is on."""
        found = _VERSION.search(str(self.values.get(_RUNNABLE, ""))[:_MOST_SEARCHED])
        return found[1] if found else None


def _pickle(folder: Folder) -> _Read:
    """Reads the newest of an entry's files, each of which is for other guards; raises ``Unread``."""
    files = {name: status.st_mtime_ns for name, status in folder.list().files.items() if not _TEMPORARY.match(name)}
    if not files:
        raise Unread(Fault.PARTIAL, "it has no file yet")
    newest = max(files, key=lambda file: (files[file], file))
    return replace(_read(folder.read(newest, MOST_PICKLE_BYTES)), variants=len(files))


def _read(data: bytes) -> _Read:
    found, name = _Read(), ""
    for value in plain_values(data):
        if name == _INFO and isinstance(value, str) and _KEY.fullmatch(value):
            found.graphs.append(value)
        elif value is not None and _is_wanted(name, value):
            found.values.setdefault(name, value)
        elif isinstance(value, str) and value[:1] == "[" and (component := _COMPONENT.fullmatch(value)):
            found.lines.append(value)
            if component["name"] == "torch_version":
                found.build = found.build or component["digest"][:_SHOWN_DIGEST]
        name = value if isinstance(value, str) and len(value) < _LONGEST_NAME else ""
    if not (found.values or found.lines or found.graphs):
        raise Unread(Fault.DAMAGED, "it is no graph as torch writes one")
    return found


def _is_wanted(name: str, value: str | int) -> bool:
    if isinstance(value, str):
        return name in _WANTED
    return name in _COUNTED and 0 <= value < _MOST_NUMBER


def _entry(root: Folder, folder: Folder, path: str, stamp: str) -> Entry:
    """The entry of a graph or of AOTAutograd. AOTAutograd's entry has the version of its forward graph."""
    read, listing = _pickle(folder), folder.list()
    version, why = read.version, "it does not state the version of torch"
    if read.graphs and version is None:
        key = read.graphs[0]
        try:
            with root.enter(f"fxgraph/{key[1:3]}/{key}") as graph:
                version = _pickle(graph).version
        except (FileNotFoundError, Unread):
            why = f"its graph {key} is gone, or cannot be read; then torch compiles again"
    texts = (str(read.values.get(text, ""))[:_MOST_SEARCHED] for text in _TEXTS)
    place = next(filter(None, map(_PLACE.search, texts)), None)
    taken_ns = [each for name in _TIMES if isinstance(each := read.values.get(name), int)]
    parts = tuple(
        Part(id_of(file), PartKind.TEMPORARY if _TEMPORARY.match(file) else PartKind.OTHER, status.st_size,
             id_of(f"{path}/{file}"))
        for file, status in listing.files.items()
    )  # fmt: skip
    facts = {
        "name": id_of(f"{place[2]} in {place[1].rpartition('/')[2]}") if place else None, "version": version,
        "compiler": f"torch {read.build}" if read.build else None, "config": _config(read), "parts": parts,
        "compile_ms": sum(taken_ns) / 1e6 if taken_ns else None,
    }  # fmt: skip
    times = max(listing.files.values(), key=lambda status: status.st_mtime_ns, default=folder.status)
    return made(path, stamp, times, facts, dict.fromkeys(_FACTS, "it does not state it") | {"version": why})


def _config(read: _Read) -> dict[str, Value]:
    """The kind of a graph, its device and number of kernels; for an entry of AOTAutograd, the keys of its graphs."""
    variants: dict[str, Value] = {} if read.variants == 1 else {"variants": read.variants}
    if read.graphs:
        keys = (key[: _SHOWN_DIGEST + 1] for key in read.graphs)
        return {"graph": "autograd", **dict(zip(("forward", "backward"), keys, strict=False)), **variants}
    said = {line.partition("] ")[2] for line in read.lines}
    kinds = {"fx_kwargs[is_backward]: True": "backward", "fx_kwargs[is_inference]: True": "inference"}
    device = next(filter(None, map(_DEVICE.search, read.lines)), None)
    found = {
        "graph": next((kinds[each] for each in kinds if each in said), "forward") if said else None,
        "device": device[1] if device else None,
        "kernels": read.values.get(_KERNELS),
    }
    return {name: value for name, value in found.items() if value is not None} | variants


def components(lines: Iterable[str]) -> KeyFactors:
    """The inputs of a graph's key, as torch writes them into an entry or a trace.

    A long value, or one with the address of an object, ends with the digest of its pickle, which decides the key.
    """

    def read() -> Iterator[Factor]:
        for line in lines:
            if not (found := _COMPONENT.fullmatch(line)):
                continue
            grouped = _GROUP.fullmatch(found["name"])
            group, name = (grouped[1], grouped[2]) if grouped else (found["name"].partition("[")[0], found["name"])
            # Torch's own key is the bytes of a hash.
            value = "hash" if "\ufffd" in found["value"] else _PROCESS.sub("", found["value"])
            if value != found["value"] or len(value) > _MOST_PLAIN or not value.isprintable():
                value = f"{value} ({found['digest'][:_SHOWN_DIGEST]})"
            yield Factor(id_of(name), value, _GROUPS.get(group, "torch"))

    return factors_of(read(), () if lines else ("the inputs: the entry has none of them",))


# ---- The texts and numbers in a pickle. Nothing in it is imported, called or built, so that nothing in it can run ----
# A pickle is a program for a small machine. Only the instructions that carry plain values are looked at, in the order
# of the file; ``pickletools`` of the standard library splits the bytes into instructions and takes no length on trust.

MOST_PICKLE_BYTES = 64 << 20
"""The size of the largest pickle that is read: a hundred times that of a graph of a large model."""
MOST_OPCODES = 500_000
"""The most instructions of a pickle that are read: thirty times as many as in the entry of a model of 500 weights."""

_SILENT = {"PROTO", "FRAME"}
_REMEMBER = {"PUT", "BINPUT", "LONG_BINPUT"}
_RECALL = {"GET", "BINGET", "LONG_BINGET"}
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
_MOST_INTEGER = 2**63


def plain_values(data: bytes) -> Iterator[str | int | None]:
    """Yields the texts and whole numbers of a pickle in their order, and ``None`` for each other instruction.

    Raises:
        Unread: when the bytes are no pickle, or have more than ``MOST_OPCODES`` instructions, or repeat texts of more
            than ``MOST_PICKLE_BYTES`` letters; the values before that point have been yielded.
    """
    remembered: dict[object, str] = {}
    stored, last, recalled = 0, None, 0
    try:
        for opcode, argument, _ in islice(pickletools.genops(data), MOST_OPCODES):
            name = opcode.name
            if name == "MEMOIZE" or name in _REMEMBER:
                number = argument if name in _REMEMBER else stored
                # A larger number can be chosen so that it collides with all others in the dictionary.
                if last is not None and isinstance(number, int) and number <= MOST_OPCODES:
                    remembered[number] = last
                stored += 1
                continue
            if name in _SILENT:
                continue
            last = remembered.get(argument) if name in _RECALL else _text(argument)
            # Two bytes recall a text of any length, which the caller then searches.
            recalled += len(last) if last is not None and name in _RECALL else 0
            if recalled > MOST_PICKLE_BYTES:
                raise Unread(Fault.TOO_MANY, f"it repeats more than {MOST_PICKLE_BYTES:,} letters")
            if name == "STOP":
                return
            is_number = name in _NUMBERS and isinstance(argument, int) and abs(argument) < _MOST_INTEGER
            yield argument if is_number else last
    except (ValueError, OverflowError, MemoryError) as error:  # UnicodeError is a ValueError
        raise Unread(Fault.DAMAGED, f"it is no pickle: {str(error)[:200]}") from error
    raise Unread(Fault.TOO_MANY, f"it has more than {MOST_OPCODES:,} instructions, or does not end")


def _text(argument: object) -> str | None:
    """An instruction's text, with ``?`` for halves of surrogate pairs, which no JSON or index can hold."""
    if not isinstance(argument, str) or argument.isascii():
        return argument if isinstance(argument, str) else None
    return argument.encode(errors="replace").decode()
