"""One kernel of another framework's cache, and two of them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

from app.presenters.shared import Row, Tile, when
from cache_engine.compilers.disassembly import InstructionMix
from cache_engine.frameworks.base import Source
from cache_engine.frameworks.comparison import Difference
from cache_engine.frameworks.doctor import Diagnosis
from cache_engine.frameworks.values import Entry, KeyFactors, Part, Place, name_of
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
"""The facts of an entry that may not be known, with names for people."""


@dataclass(frozen=True, slots=True)
class Named:
    """An entry in a difference of machine code."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where an entry is, as pages name it in their addresses."""

    place: Place
    id: str

    @property
    def cache(self) -> str:
        """Its directory: ``KIND=DIR``."""
        return f"{self.place.kind}={self.place.path_text}"

    @property
    def parameters(self) -> dict[str, str]:
        """What the address of its page asks for."""
        return {"cache": self.cache, "entry": self.id}

    def __str__(self) -> str:
        return f"{self.cache}\n{self.id}"

    @classmethod
    def of(cls, cache: str, entry: str) -> Address:
        """The address that a page names; there need be no such entry."""
        kind, _, path = cache.partition("=")
        return cls(Place(kind, Path(name_of(path)), ""), entry)

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address of which this is the text."""
        cache, _, entry = text.partition("\n")
        return cls.of(cache, entry)


def address_of(row: Row) -> Address:
    """The address of a row of ``mirror.foreign_queries.entries``."""
    return Address.of(f"{row['kind']}={row['path']}", row["id"])


def entry_tiles(entry: Entry, unknown: Mapping[str, str]) -> list[Tile]:
    """The numbers at the top of its page; one that is not known is a dash, and its help says why."""

    def tile(label: str, fact: str, text: str) -> Tile:
        return Tile(label, text or "–", unknown.get(fact, _NOT_NOTED) if not text else f"{_LABELS[fact]}.")

    sizes = {name: "" if (size := getattr(entry, name)) is None else human_bytes(size) for name in _BYTES}
    return [
        tile("Registers", "registers", "" if entry.registers is None else str(entry.registers)),
        tile("Spills", "spill_bytes", sizes["spill_bytes"]),
        tile("Shared memory", "shared_bytes", sizes["shared_bytes"]),
        tile("Machine code", "code_bytes", sizes["code_bytes"]),
        tile("Compile time", "compile_ms", "" if entry.compile_ms is None else human_ms(entry.compile_ms)),
        Tile("On disk", human_bytes(entry.size_bytes), "All parts."),
    ]


_NOT_NOTED = "the file system has not noted it"


def fact_table(source: Source, address: Address, entry: Entry, zone: tzinfo) -> list[Row]:
    """What is known of an entry, and of what is not the reason."""
    unknown = {**source.unknowable, **entry.unread}
    facts = {
        "Framework": source.title,
        "Directory": address.place.path_text,
        "Id": entry.id,
        "State": entry.state.value,
        "Config": " ".join(f"{name}={value}" for name, value in entry.config.items()) or "–",
    }
    for name, label in _LABELS.items():
        value = getattr(entry, name)
        if value is None:
            facts[label] = f"unknown: {unknown.get(name) or _NOT_NOTED}"
        elif name in _BYTES:
            facts[label] = human_bytes(value)
        elif name.endswith("_at"):
            facts[label] = when(value, zone)
        else:
            facts[label] = human_ms(value) if name == "compile_ms" else str(value)
    return [{"Property": name, "Value": value} for name, value in facts.items()]


def part_table(parts: Iterable[Part]) -> list[Row]:
    """A row for each part."""
    return [
        {"Part": part.name, "Kind": part.kind.value, "Size": part.size_bytes, "File": part.file or "–"}
        for part in parts
    ]


def factor_table(factors: KeyFactors) -> list[Row]:
    """The inputs of the key, as far as they are stored."""
    return [{"Input": each.name, "From": each.group, "Value": each.value} for each in factors.factors]


def ailment_table(found: Iterable[Diagnosis]) -> list[Row]:
    """What the doctor finds wrong with it."""
    return [{"Finding": each.ailment.value, "Detail": each.detail, "What to do": each.cure} for each in found]


def difference_table(found: Iterable[Difference], first: str, second: str) -> list[Row]:
    """The inputs of the keys that differ, and what that means."""
    return [
        {"Input": each.name, "From": each.group, first: _side(each.a), second: _side(each.b),
         "Meaning": each.meaning}
        for each in found
    ]  # fmt: skip


def compared(one: Entry, other: Entry, mixes: Sequence[InstructionMix | None]) -> Comparison:
    """Two entries, as two kernels of ours are compared; their keys apart."""
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


def _side(value: str | None) -> str:
    return "–" if value is None else value
