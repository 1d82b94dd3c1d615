"""FlashInfer's cache: a folder for each operation, with its library and the whole compile command in a build file.

Source of the layout: ``flashinfer/jit/env.py``, ``core.py`` and ``cpp_ext.py`` of FlashInfer 0.7. None was made here.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.facts import entry_of, factors_of, without_binary
from cache_engine.foreign.folder import MOST_TEXT_BYTES, Folder, Unread
from cache_engine.foreign.frameworks.common import folder_stamp, read_part, stray_file, times_of, walk
from cache_engine.foreign.values import (
    DeletePlan,
    Entry,
    Factor,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Seen,
    State,
    Unchanged,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

_BUILD = "build.ninja"
_VERSION, _TARGETS = r"\d[\w.+]*", r"\d+[af]?(?:_\d+[af]?)*+"
_AREA = re.compile(rf"{_VERSION}|(?:{_VERSION}/)?{_TARGETS}(?:/cached_ops|/generated)?|cubins")
_OPERATION = re.compile(rf"(?:({_VERSION})/)?({_TARGETS})/cached_ops/([^/]+)")
_CLOSED = "its code is in a library for the host, which is not opened"
_TIMES = "the contents of sources and headers: ninja builds again where they are newer than the library"
_FLAGS = ("common_cflags", "cflags", "cuda_cflags", "ldflags")
_COMPILERS = ("nvcc", "cxx", "cuda_home")
_INCLUDES = ("-I", "-isystem", "-L")
_VARIABLE = re.compile(r"(\w+) =(?: (.*))?")
_BUILT = re.compile(r"build (?:\S+): (?:cuda_compile|compile) (.+)")
_KINDS = {"so": PartKind.HOST, "ninja": PartKind.METADATA, "cu": PartKind.SOURCE}


class FlashInfer:
    """The source ``flashinfer``."""

    kind = "flashinfer"
    title = "FlashInfer"
    unknowable: Mapping[str, str] = {
        **{fact: _CLOSED for fact in without_binary("") if fact != "arch"},
        "compile_ms": "FlashInfer does not store how long a compile took",
        "spill_bytes": "FlashInfer does not store the report of ptxas",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """Below ``FLASHINFER_WORKSPACE_BASE``, else the home directory."""
        below = ".cache/flashinfer"
        return where.places(self.kind, below, FLASHINFER_WORKSPACE_BASE=below)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, _entry, lambda path: _AREA.fullmatch(path) is not None)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``."""
        return read_part(place, part)

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The compile command, flag by flag, the compilers and the sources."""
        file = next((part.file for part in entry.parts if part.name == _BUILD), None)
        if file is None:
            return Failure(f"the entry has no {_BUILD}; FlashInfer writes the compile command there")
        try:
            with Folder(place.path) as root:
                text = root.read(name_of(file), MOST_TEXT_BYTES).decode(errors="replace")
        except (OSError, Unread) as error:
            return Failure(f"cannot read {file}: {error}")
        factors = [Factor("flashinfer", entry.version, "version")] if entry.version else []
        return factors_of(chain(factors, _command(text)), (_TIMES,))

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """None: a process writes the build file before it takes the lock, and fails if it is gone when it builds."""
        return Failure("for FlashInfer's cache no way of deleting is known that no reader of it notices")


def _entry(above: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged:
    found = _OPERATION.fullmatch(path)
    if found is None or not stat.S_ISDIR(above.stat(name).st_mode):
        return _stray(above, path, name, known)
    with above.enter(name) as folder:
        listing = folder.list()
        if _BUILD not in listing.files:
            return _stray(above, path, name, known)
        stamp = folder_stamp(folder)
        if stamp == known:
            return Unchanged(id_of(path))
        library = listing.files.get(f"{name}.so")
        created_at, last_used_at = times_of(library or listing.files[_BUILD])
        targets = found[2].split("_")
        facts: dict[str, Any] = {
            "id": id_of(path),
            "stamp": stamp,
            "parts": tuple(_part(path, file, status.st_size) for file, status in listing.files.items()),
            "state": State.PARTIAL if library is None else State.COMPLETE,
            "name": id_of(found[3]),
            "version": found[1],
            "arch": f"sm_{targets[0]}" if len(targets) == 1 else None,
            "created_at": created_at,
            "last_used_at": last_used_at,
        }
        unread = {
            "version": "this version of FlashInfer has no folder of its own",
            "arch": f"it is for several targets: {', '.join(targets)}",
        }
        return entry_of(facts, unread)


def _stray(above: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged:
    entry = stray_file(above, name, path)
    return Unchanged(entry.id) if entry.stamp == known else entry


def _part(path: str, file: str, size_bytes: int) -> Part:
    kind = _KINDS.get(file.rpartition(".")[2], PartKind.OTHER)
    return Part(id_of(file), kind, size_bytes, id_of(f"{path}/{file}"))


def _command(text: str) -> Iterator[Factor]:
    """The inputs that a build file states. A line that ends in ``$`` goes on in the next."""
    sources = 0
    for line in text.replace("$\n", " ").splitlines():
        if variable := _VARIABLE.fullmatch(line):
            name, value = variable[1], (variable[2] or "").strip()
            if name in _COMPILERS:
                yield Factor(name, value, "compiler")
            elif name in _FLAGS:
                yield from _flags(name, value.split())
        elif built := _BUILT.fullmatch(line):
            sources += 1
            yield Factor(f"source {sources}", built[1], "sources")


def _flags(variable: str, words: Sequence[str]) -> Iterator[Factor]:
    """Each flag as a name and a value, so that two commands can be compared whatever the order of the flags is."""
    counts: Counter[str] = Counter()
    targets = [word.partition("=")[2] for word in words if word.startswith("-gencode=")]
    if targets:
        yield Factor("-gencode", " ".join(sorted(targets)), "target")
    rest = iter(words)
    for word in rest:
        if word.startswith(("$", "-gencode=")):  # another variable
            continue
        option = next((each for each in _INCLUDES if word.startswith(each)), None)
        if option is not None:
            name, value = option, word.removeprefix(option) or next(rest, "")
        elif word.startswith("-O"):
            name, value = "-O", word[2:]
        else:
            name, has_value, value = word.partition("=")
            value = value if has_value else "given"
        counts[name] += 1
        yield Factor(name if counts[name] == 1 else f"{name} {counts[name]}", value, variable)
