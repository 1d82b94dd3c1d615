"""All readers, those of this package and of plug-ins; the frameworks' installed versions; scanning of caches.

A plug-in is a package with an entry point of the group ``gemm_cache.sources`` that loads a ``CacheReader``, or a class
that makes one without arguments. Versions are read from packages' metadata; nothing is imported.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cache_engine.errors import UsageError
from cache_engine.frameworks.base import CacheReader, Surroundings
from cache_engine.frameworks.values import Entry, Fault, PartKind, Place, ScanFinding, Seen, State
from cache_engine.settings import parse_place

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "gemm_cache.sources"
"""The group of entry points in which plug-ins register."""

_HERE = (
    "triton:Triton", "vllm:VLLM", "programs:CuPy", "cutile:CuTile", "tilelang:TileLang", "programs:CudaCore",
    "flashinfer:FlashInfer", "deepgemm:DeepGemm", "inductor:Inductor", "reader:Jax", "reader:ComputeCache",
    "reader:TensorRT",
)  # fmt: skip
"""The readers of this package: the module in ``frameworks.readers``, and its class."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The readers by kind, and a finding for each plug-in that could not be loaded."""

    by_kind: Mapping[str, CacheReader]
    findings: tuple[ScanFinding, ...] = ()

    def places(self, where: Surroundings) -> Iterator[Place]:
        """The cache directories that exist, each once; and those that the user names, also if they do not exist.

        A directory that is not in use, because an environment variable names another, has ``replaced_by`` set.

        Raises:
            UsageError: when the user names a kind that has no reader.
        """
        for kind, path in where.given:
            if kind not in self.by_kind:
                raise UsageError(f"{kind}={path}: there is no cache of this kind; there are: {', '.join(self.by_kind)}")
        seen = set()
        for source in self.by_kind.values():
            for place in source.discover(where):
                known = (place.kind, os.path.realpath(place.path))
                if known not in seen and (place.origin == "given" or os.path.lexists(place.path)):
                    seen.add(known)
                    yield place


def load_sources() -> Sources:
    """Loads all readers. A plug-in that fails to load is a finding. No plug-in can replace a reader of this package."""
    found: dict[str, CacheReader] = {}
    for module, _, name in (each.partition(":") for each in _HERE):
        ours: CacheReader = getattr(import_module(f"{__package__}.readers.{module}"), name)()
        found[ours.kind] = ours
    findings = []
    for plug_in in _plug_ins():
        try:
            loaded = plug_in.load()
            source = cast("CacheReader", loaded() if isinstance(loaded, type) else loaded)
            if found.setdefault(source.kind, source) is not source:
                raise ValueError(f"there is a source {source.kind} already")
        except Exception as error:  # whatever a plug-in raises
            detail = f"{plug_in.value}: {type(error).__name__}: {error}; update it or remove its package"
            findings.append(ScanFinding(Fault.PLUGIN, plug_in.name, detail))
    return Sources(found, tuple(findings))


def surroundings(given: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> Surroundings:
    """The places of this user's caches on this machine.

    Args:
        given: directories that the user names, as ``KIND=DIR``.
        environment: used in place of the process's environment variables.

    Raises:
        UsageError: when one of ``given`` does not have that form.
    """
    import getpass

    environment = os.environ if environment is None else environment
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.geteuid())
    home = environment.get("HOME") or os.path.expanduser("~")
    return Surroundings(
        environment, Path(home), Path(tempfile.gettempdir()), user, tuple(parse_place(text) for text in given)
    )


def _plug_ins() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


PACKAGES = {
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm"),
    "tilelang": ("tilelang",),
    "flashinfer": ("flashinfer-python",),
    "inductor": ("torch",),
}
"""The packages of each framework whose entries have its version as a fact; the usual package first."""


IN_MEMORY = {"CuTe DSL": "nvidia-cutlass-dsl"}
"""Frameworks that store compiled kernels only in the memory of their process, and the package of each.

After ``cute.compile`` of CuTe DSL 4.8.1, the directory of ``CUTE_DSL_CACHE_DIR`` was empty.
"""


def in_memory_here() -> list[str]:
    """The frameworks of ``IN_MEMORY`` that are installed in this Python environment, each with its version."""
    found = []
    for title, package in IN_MEMORY.items():
        with suppress(PackageNotFoundError):
            found.append(f"{title} {version(package)}")
    return found


def installed_version(kind: str) -> str | None:
    """The version of a framework in this Python environment; ``None`` if it is not installed or not in ``PACKAGES``."""
    for package in PACKAGES.get(kind, ()):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_stale(made_by: str, installed: str | None) -> bool:
    """Whether another version than the installed one made an entry; builds of one version are the same version."""
    return installed is not None and _release(made_by) != _release(installed)


def _release(text: str) -> str:
    return text.partition("+")[0]


# ---- Scanning many places, and sums over their entries ----

_NOTHING: Mapping[str, str] = {}


def survey(
    sources: Sources, places: Iterable[Place], known: Mapping[Place, Mapping[str, str]] | None = None
) -> Iterator[tuple[Place, Seen]]:
    """Yields the entries of each cache.

    If a cache cannot be scanned to its end, yields a finding and goes on to the next.

    Args:
        known: for caches scanned before, the stamps of their entries by id; see ``CacheReader.scan``.
    """
    for place in places:
        stamps = (known or {}).get(place, _NOTHING)
        try:
            for seen in sources.by_kind[place.kind].scan(place, stamps):
                yield place, seen
        except OSError as error:
            fault = Fault.FORBIDDEN if isinstance(error, PermissionError) else Fault.UNREADABLE
            yield place, ScanFinding(fault, "", error.strerror or str(error))


@dataclass(slots=True)
class Sums:
    """Sums over the entries of one cache. Bytes are the files' sizes; the keys of counters are the texts shown."""

    entries: int = 0
    size_bytes: int = 0
    partial: int = 0
    unread: int = 0
    part_bytes: Counter[str] = field(default_factory=Counter)
    archs: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    oldest: float | None = None
    newest: float | None = None
    last_used_at: float | None = None
    findings: list[ScanFinding] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Adds an entry to the sums, or a finding to the list of findings."""
        if isinstance(seen, ScanFinding):
            self.findings.append(seen)
        if not isinstance(seen, Entry):
            return
        self.entries += 1
        self.partial += seen.state == State.PARTIAL
        self.unread += seen.state == State.UNREAD
        for part in seen.parts:
            self.size_bytes += part.size_bytes
            # Files that are no part of a kernel have names of their own, as many as there are.
            is_other = part.kind in (PartKind.OTHER, PartKind.TEMPORARY)
            self.part_bytes[part.kind if is_other else part.name] += part.size_bytes
        if seen.arch is not None:
            self.archs[seen.arch] += 1
        if seen.version is not None:
            self.versions[seen.version] += 1
        if seen.created_at is not None:
            self.oldest = min(self.oldest or seen.created_at, seen.created_at)
            self.newest = max(self.newest or seen.created_at, seen.created_at)
        if seen.last_used_at is not None:
            self.last_used_at = max(self.last_used_at or seen.last_used_at, seen.last_used_at)


def sums(places: Iterable[Place], found: Iterable[tuple[Place, Seen]]) -> dict[Place, Sums]:
    """The sums of each cache, also of empty ones."""
    totals = {place: Sums() for place in places}
    for place, seen in found:
        totals[place].add(seen)
    return totals


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Selects entries that contain every word of ``text`` and, for each list that is not empty, one of its values."""

    text: str = ""
    kinds: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def takes(self, place: Place, entry: Entry) -> bool:
        """Whether the filter selects an entry."""
        if (self.kinds and place.kind not in self.kinds) or (self.archs and entry.arch not in self.archs):
            return False
        if self.states and entry.state not in self.states:
            return False
        where = search_text(place, entry)
        return all(word in where for word in self.text.lower().split())


def search_text(place: Place, entry: Entry) -> str:
    """The lower-case text of an entry in which a search looks for words."""
    facts = (entry.name, entry.id, entry.arch, entry.version, entry.compiler, place.kind)
    config = (f"{name}={value}" for name, value in entry.config.items())
    return " ".join((*filter(None, facts), *config)).lower()
