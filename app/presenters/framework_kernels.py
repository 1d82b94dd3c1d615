"""Kernels of other frameworks, in their caches and in the store: the properties of one, and two side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from urllib.parse import urlencode

from app.presenters.columns import Column
from app.presenters.kernel_list import COLUMNS
from app.presenters.shared import Row, when
from cache_engine.compilers.disassembly import InstructionMix
from cache_engine.frameworks.base import CacheReader
from cache_engine.frameworks.bundle_facts import config_text
from cache_engine.frameworks.values import Entry, Place, name_of
from cache_engine.insight.comparison import Comparison, pairs
from cache_engine.units import human_bytes, human_ms

_BYTES = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")
_LABELS = {
    "name": "Name",
    "version": "Version",
    "compiler": "Assembler",
    "arch": "Target",
    "registers": "Registers per thread",
    "shared_bytes": "Shared memory per block",
    "stack_bytes": "Stack per thread",
    "spill_bytes": "Spills per thread",
    "code_bytes": "Machine code",
    "compile_ms": "Compile time",
    "created_at": "Created",
    "last_used_at": "Last used",
    "digest": "Digest of the binary",
}
"""For each fact of an entry that may be unknown, its label on the page."""


_OF_ADAPTED = {
    name: label for name, label in _LABELS.items() if name not in ("name", "created_at", "last_used_at", "digest")
}
_NOT_NOTED = "the file system has not noted it"


def fact_text(entry: Entry, name: str, zone: tzinfo) -> str:
    """A fact of an entry as text for people; empty if it is unknown."""
    value = getattr(entry, name)
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return human_bytes(value)
    if name.endswith("_at"):
        return when(value, zone)
    return human_ms(value) if name == "compile_ms" else str(value)


def known_facts(
    entry: Entry, labels: Mapping[str, str], unknown: Mapping[str, str], otherwise: str, zone: tzinfo
) -> dict[str, str]:
    """The facts of an entry by label; for an unknown fact the reason, by default ``otherwise``."""
    return {
        label: fact_text(entry, name, zone) or f"unknown: {unknown.get(name) or otherwise}"
        for name, label in labels.items()
    }


def entry_facts(source: CacheReader, address: Address, entry: Entry, zone: tzinfo) -> dict[str, str]:
    """The facts of an entry in its framework's cache, by label; for an unknown fact, the reason."""
    return {
        "Framework": source.title,
        "Directory": address.place.path_text,
        "Id": entry.id,
        "State": entry.state.value,
        "Config": " ".join(f"{name}={value}" for name, value in entry.config.items()) or _UNKNOWN,
        **known_facts(entry, _LABELS, {**source.unknowable, **entry.unread}, _NOT_NOTED, zone),
        "On disk": human_bytes(entry.size_bytes),
    }


PARTS = (
    Column("Part", "name"),
    Column("Kind", "kind.value"),
    Column("Size", "size_bytes", "bytes"),
    Column("File", lambda part: part.file or _UNKNOWN),
)
FACTORS = (Column("Input", "name"), Column("From", "group"), Column("Value", "value"))
"""The columns of the inputs of an entry's key that the cache states."""
AILMENTS = (Column("Finding", "ailment.value"), Column("Detail", "detail"), Column("What to do", "cure"))
"""The columns of the doctor's findings about one entry."""


def difference_columns(first: str, second: str) -> list[Column]:
    """The columns of the inputs that differ between the keys of two entries."""
    return [
        Column("Input", "name"),
        Column("From", "group"),
        Column(first, lambda each: _UNKNOWN if each.a is None else each.a),
        Column(second, lambda each: _UNKNOWN if each.b is None else each.b),
        Column("Meaning", "meaning"),
    ]


@dataclass(frozen=True, slots=True)
class Named:
    """A kernel or an entry whose machine code is compared: the name that the page shows, and the key."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Address:
    """The cache and the id of an entry, as addresses of pages name them."""

    place: Place
    id: str

    @property
    def cache(self) -> str:
        """The cache of the entry: ``KIND=DIR``."""
        return f"{self.place.kind}={self.place.path_text}"

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters in the address of the entry's page."""
        return {"cache": self.cache, "entry": self.id}

    @property
    def link(self) -> str:
        """The address of the entry's page, from any page."""
        return f"kernel?{urlencode(self.parameters)}"

    def compared_with(self, *others: Address) -> dict[str, str]:
        """The parameters in the address that compares this entry with another; without one, the page asks for it."""
        sides = zip("ab", (self, *others), strict=False)
        return {f"{name}_{side}": value for side, one in sides for name, value in one.parameters.items()}

    def __str__(self) -> str:
        return f"{self.cache}\n{self.id}"

    @classmethod
    def of(cls, cache: str, entry: str) -> Address:
        """The address for the cache and the id that a page names; the entry need not exist."""
        kind, _, path = cache.partition("=")
        return cls(Place(kind, Path(name_of(path)), ""), entry)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address from its text, as ``str`` makes it."""
        cache, _, entry = text.partition("\n")
        return cls.of(cache, entry)


def address_of(row: Row) -> Address:
    """The address of the entry in a row of ``index.framework_queries.entries``."""
    return Address.of(f"{row['kind']}={row['path']}", row["id"])


def compared(one: Entry, other: Entry, mixes: Sequence[InstructionMix | None]) -> Comparison:
    """The comparison of two entries in the form that two kernels of ours have, without their keys."""
    first, second = ({**{name: getattr(entry, name) for name in _FACTS}, "all parts, bytes": entry.size_bytes}
                     for entry in (one, other))  # fmt: skip
    facts = pairs(first, second)
    counts = [{} if mix is None else {**mix.classes, "total": mix.total} for mix in mixes]
    config = pairs({name: str(value) for name, value in one.config.items()},
                   {name: str(value) for name, value in other.config.items()})  # fmt: skip
    return Comparison(
        (), tuple(pair for pair in config if pair.differs),
        tuple(pair for pair in facts if (pair.first, pair.second) != (None, None)), (), tuple(pairs(*counts)),
    )  # fmt: skip


_FACTS = ("arch", "version", "compiler", "registers", *_BYTES)


_UNKNOWN = "–"


_OF_ALL = ("Target", "Config", "Registers", "Size on disk", "Compile time", "Hits", "Last used")
"""The names of the columns that lists of our kernels have too."""


def adapted_columns(address: Callable[[str], str]) -> list[Column]:
    """The columns of adapted kernels in the store; ``address`` returns the address that a kernel's link opens."""
    return [
        Column("Framework", "framework"),
        Column("Name", lambda row: address(row["key"]), "link", lambda row: row["name"] or "unnamed"),
        Column("Version", "version"),
        Column("Code", "code_bytes", "bytes"),
        *(column for column in COLUMNS if column.name in _OF_ALL),
    ]


def adapted_facts(framework: str, known: Entry, row: Row | None, zone: tzinfo) -> dict[str, str]:
    """The properties of an adapted kernel in the store, by label; for an unknown one, the reason."""
    return {
        "Framework": framework,
        **known_facts(known, _OF_ADAPTED, known.unread, "it is not stored", zone),
        "Config": config_text(known) or _UNKNOWN,
        "Stored": when(known.created_at or 0.0, zone),
        "On disk": _UNKNOWN if row is None else human_bytes(row["stored_bytes"]),
        "Hits": _UNKNOWN if row is None else f"{row['hits']:,}",
        "Last used": _UNKNOWN if row is None else when(row["last_used_at"], zone),
    }
