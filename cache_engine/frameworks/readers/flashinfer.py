"""FlashInfer's cache: a folder for each operation, with its library and the whole compile command in a build file.

Source of the layout: ``flashinfer/jit/env.py``, ``core.py`` and ``cpp_ext.py`` of FlashInfer 0.7. Not tested on a cache
that FlashInfer made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from cache_engine.frameworks.facts import factors_of, without_binary
from cache_engine.frameworks.folder import MOST_TEXT_BYTES, Folder, Listing
from cache_engine.frameworks.readers.reader import Match, NoEntry, Reader, Timed, part_named
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, PartKind, State, id_of, name_of
from cache_engine.model.outcome import Failure

_BUILD = "build.ninja"
_VERSION, _TARGETS = r"\d[\w.+]*", r"\d+[af]?(?:_\d+[af]?)*+"
_CLOSED = "its code is in a library for the host, which is not opened"
_TIMES = "the contents of sources and headers: ninja builds again where they are newer than the library"
_FLAGS = ("common_cflags", "cflags", "cuda_cflags", "ldflags")
_COMPILERS = ("nvcc", "cxx", "cuda_home")
_INCLUDES = ("-I", "-isystem", "-L")
_VARIABLE = re.compile(r"(\w+) =(?: (.*))?")
_BUILT = re.compile(r"build (?:\S+): (?:cuda_compile|compile) (.+)")


class FlashInfer(Reader):
    """The reader of FlashInfer's cache.

    No safe way to delete is known: a process writes the build file before it takes the lock, and fails if the build
    file was deleted before it builds.
    """

    kind = "flashinfer"
    title = "FlashInfer"
    default = ".cache/flashinfer"
    variables: Mapping[str, str] = {"FLASHINFER_WORKSPACE_BASE": default}
    areas = re.compile(rf"{_VERSION}|(?:{_VERSION}/)?{_TARGETS}(?:/cached_ops|/generated)?|cubins")
    entries = re.compile(rf"(?:({_VERSION})/)?({_TARGETS})/cached_ops/([^/]+)")
    kinds: Mapping[str, PartKind] = {"so": PartKind.HOST, "ninja": PartKind.METADATA, "cu": PartKind.SOURCE}
    stores = ("version",)
    unknown: Mapping[str, str] = {fact: _CLOSED for fact in without_binary("") if fact != "arch"}

    def facts(self, folder: Folder, path: str, listing: Listing, found: Match) -> Timed:
        """The facts in the path: the version, the targets and the name."""
        if _BUILD not in listing.files or found is None:
            raise NoEntry
        version, targets, name = found[1], found[2].split("_"), found[3]
        library = listing.files.get(f"{name}.so")
        facts = {
            "state": State.PARTIAL if library is None else State.COMPLETE,
            "name": id_of(name),
            "version": version,
            "arch": f"sm_{targets[0]}" if len(targets) == 1 else None,
        }
        unread = {
            "version": "this version of FlashInfer has no folder of its own",
            "arch": f"it is for several targets: {', '.join(targets)}",
        }
        return library or listing.files[_BUILD], facts, unread

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of the key: the compile command, flag by flag, the compilers and the sources."""
        part = part_named(entry, _BUILD)
        if part is None:
            return Failure(f"the entry has no {_BUILD}; FlashInfer writes the compile command there")
        text = root.read(name_of(part.file), MOST_TEXT_BYTES).decode(errors="replace")
        factors = [Factor("flashinfer", entry.version, "version")] if entry.version else []
        return factors_of(chain(factors, _command(text)), (_TIMES,))


def _command(text: str) -> Iterator[Factor]:
    """Yields the inputs in a build file. A line that ends in ``$`` continues on the next."""
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
    """Yields each flag as a name and a value, so that two commands with another order of flags can be compared."""
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
