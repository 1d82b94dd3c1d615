"""Compares two kernels, and finds the stored kernel nearest to a key that is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Protocol

import msgspec

from cache_engine.frameworks.comparison import Difference, differences
from cache_engine.frameworks.values import KeyFactors, PartKind
from cache_engine.insight.alignment import aligned, as_diff
from cache_engine.insight.inspection import AdaptedInspection, Inspected, Inspection
from cache_engine.model.artifact import Record
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import Components
from cache_engine.units import printable

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """One property of two kernels; ``None`` for a kernel that does not have the property."""

    name: str
    first: Value
    second: Value

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return self.first != self.second


def shown(value: Value) -> str:
    """One value of a pair as text. Fractions are printed as percentages, since all fractions here are shares."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else value


def change(pair: Pair) -> str:
    """The change from the first number to the second, with a sign; empty for equal values and for text.

    The change of a share is in points, which are hundredths of the whole.
    """
    if pair.differs and isinstance(pair.first, int) and isinstance(pair.second, int):
        return f"{pair.second - pair.first:+,}"
    if pair.differs and isinstance(pair.first, float) and isinstance(pair.second, float):
        return f"{100 * (pair.second - pair.first):+.1f} points"
    return ""


HEADINGS = ("Key differences", "Config differences", "Resources", "Theoretical occupancy", "Static instruction mix")
"""The headings of the parts of a comparison, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two kernels.

    Attributes:
        components: the inputs of the kernels' keys that differ.
        config: the fields of the kernels' configs that differ.
        resources, occupancy, instructions: all properties of both kernels, also those with equal values.
        notes: what the differences of the keys mean, and what could not be compared or inspected.
    """

    components: tuple[Pair, ...]
    config: tuple[Pair, ...]
    resources: tuple[Pair, ...]
    occupancy: tuple[Pair, ...]
    instructions: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    def sections(self) -> dict[str, tuple[Pair, ...]]:
        """The parts of the comparison that are not empty, by heading; properties have names for people."""
        parts = (
            self.components,
            self.config,
            _renamed(self.resources),
            _renamed(self.occupancy),
            self.instructions,
        )
        return {heading: pairs for heading, pairs in zip(HEADINGS, parts, strict=True) if pairs}


def compare(first: Inspected, second: Inspected) -> Comparison:
    """Compares two kernels, each ours or another framework's."""
    components, notes = _keys(first, second)
    return Comparison(
        components,
        tuple(pair for pair in pairs(_config(first), _config(second)) if pair.differs),
        tuple(pairs(_resources(first), _resources(second))),
        tuple(pairs(_occupancy(first), _occupancy(second))),
        tuple(pairs(_instructions(first), _instructions(second))),
        tuple(dict.fromkeys((*notes, *first.notes, *second.notes))),
    )


def merged(found: Sequence[Comparison]) -> dict[str, dict[str, list[Value]]]:
    """Comparisons of one kernel, the baseline, with several others, as one table for each heading.

    Returns, by heading and property, the baseline's value and then the value of each of the others.
    """
    tables: dict[str, dict[str, list[Value]]] = {heading: {} for heading in HEADINGS}
    for at, one in enumerate(found, 1):
        for heading, some in one.sections().items():
            for pair in some:
                # A comparison leaves out properties that are equal: they have the baseline's value.
                tables[heading].setdefault(pair.name, [pair.first] * (len(found) + 1))[at] = pair.second
    return {heading: rows for heading, rows in tables.items() if rows}


def _keys(first: Inspected, second: Inspected) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The inputs in which two keys differ, and notes on what the differences mean."""
    if isinstance(first, Inspection) and isinstance(second, Inspection):
        return differing(first.record.components, second.record.components), ()
    if not isinstance(first, AdaptedInspection) or not isinstance(second, AdaptedInspection):
        return (), (_NOT_ALIKE,)
    if first.group.framework != second.group.framework:
        return (), (_NOT_ALIKE,)
    if first.group.key == second.group.key:
        return (), ()
    if not (isinstance(first.inputs, KeyFactors) and isinstance(second.inputs, KeyFactors)):
        unknown = first.inputs if isinstance(second.inputs, KeyFactors) else second.inputs
        return (), (f"The keys differ; in what is not known: {unknown}.",)
    found = differences(first.inputs, second.inputs)
    notes = [f"Input {_named(each)}: {each.meaning}." for each in found if each.meaning]
    if hidden := "; ".join(dict.fromkeys((*first.inputs.hidden, *second.inputs.hidden))):
        notes.append(f"The keys have inputs that {first.group.framework} does not store: {hidden}.")
    return tuple(Pair(_named(each), each.a, each.b) for each in found), tuple(notes)


def _named(each: Difference) -> str:
    """The name of a key's input; "target" precedes an input of the target, as a Triton option has the same name."""
    return f"{each.group} {each.name}" if each.group == "target" else each.name


_NOT_ALIKE = "These kernels are of different frameworks: their keys have no inputs in common."


def differing(first: Components, second: Components) -> tuple[Pair, ...]:
    """The components in which two keys differ, in the order in which the components are hashed."""
    return tuple(pair for pair in pairs(dict(first), dict(second)) if pair.differs)


class Named(Protocol):
    """Anything with a kernel's name and key, such as a record."""

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        ...

    @property
    def key(self) -> str:
        """The key of the kernel."""
        ...


def sass_difference(first: Named, first_sass: str, second: Named, second_sass: str) -> str:
    """The difference of two kernels' machine code as a diff, loop by loop; empty if there is none.

    Differences in addresses, names and the numbers of registers are ignored.
    """
    parts = aligned(first_sass, first.name, second_sass, second.name)
    if all(pair.first == pair.second for part in parts for pair in part.pairs):
        return ""
    heads = (f"{sign} {one.key[:12]} {printable(one.name)}" for sign, one in (("---", first), ("+++", second)))
    return "".join(f"{line}\n" for line in chain(heads, *map(as_diff, parts)))


# ---- The nearest to a key that was missed ----


@dataclass(frozen=True, slots=True)
class Nearest:
    """The stored entry that comes nearest to a key.

    Attributes:
        record: the entry's record.
        causes: the components of the key that differ by themselves; ``first`` is the entry's value, ``second`` the
            request's.
        consequences: the components that differ only because a component in ``causes`` does.
    """

    record: Record
    causes: tuple[Pair, ...]
    consequences: tuple[Pair, ...]


def nearest(components: Components, records: Iterable[Record]) -> Nearest | None:
    """The record whose key components differ the least from ``components``; ``None`` when there is no record.

    All fields of the config together count as one component, since they are chosen together; a component that differs
    only because another does is not counted. Among equals, a record that differs in the toolchain or in the config
    comes first, because it is a kernel for the same problem; then the newest.
    """
    best: Nearest | None = None
    best_rank: tuple[float, ...] = ()
    for record in records:
        causes, consequences = _split(differing(record.components, components))
        names = {_CONFIG if pair.name in _CONFIG_FIELDS else pair.name for pair in causes}
        asked = len(names - _CHOSEN)
        rank = (len(names), asked, len(causes), -record.created_at)
        if best is None or rank < best_rank:
            best, best_rank = Nearest(record, causes, consequences), rank
    return best


def in_words(pair: Pair) -> str:
    """A difference as a sentence: ``"compiler version: 13.4 in the nearest kernel, 13.5 requested"``."""
    name = _WORDS.get(pair.name, pair.name.lower() if pair.name.isupper() else pair.name)
    there, here = (_short(pair.name, value) for value in (pair.first, pair.second))
    return f"{name}: {there} in the nearest kernel, {here} requested"


_CONFIG = "config"
_CONFIG_FIELDS = {field.name.upper() for field in fields(KernelConfig)}
# What the request does not state: it is found or chosen.
_CHOSEN = {"schema", "template", "compiler_version", "compiler_build", "environment", "flags", _CONFIG}

# What a component follows from, so that it may differ only because one of those does.
_FOLLOWS = {
    "template": {"family"},
    "compiler_version": {"compiler"},
    "compiler_build": {"compiler", "compiler_version"},
    "environment": {"compiler"},
    "flags": {"compiler"},
    "A_VECTOR": {"K", "M", "A_TRANSPOSED", "IN_TYPE"},
    "B_VECTOR": {"N", "K", "B_TRANSPOSED", "IN_TYPE"},
    "C_VECTOR": {"N", "IN_TYPE", "OUT_TYPE"},
    "M_DIVISOR": {"M", "A_TRANSPOSED", "IN_TYPE"},
    "SUM_TYPE": {"IN_TYPE"},
    "FP8_EPILOGUE": {"OUT_TYPE"},
}

_WORDS = {
    "schema": "key format",
    "family": "family",
    "template": "kernel template",
    "compiler": "compiler",
    "compiler_version": "compiler version",
    "compiler_build": "compiler build",
    "environment": "compiler environment",
    "flags": "compiler flags",
    "arch": "target",
    "KERNEL_NAME": "kernel name",
    "IN_TYPE": "element type of A and B",
    "SUM_TYPE": "accumulator type",
    "WITH_ALPHA": "alpha in the epilogue",
    "WITH_BETA": "beta in the epilogue",
    "WITH_BIAS": "bias in the epilogue",
    "ACTIVATION": "activation",
    "OUT_TYPE": "element type of C",
    "FP8_EPILOGUE": "epilogue of results of fp8",
    "A_TRANSPOSED": "A stored transposed",
    "B_TRANSPOSED": "B stored transposed",
    "A_VECTOR": "A vector width",
    "B_VECTOR": "B vector width",
    "C_VECTOR": "C vector width",
    "M_MOST": "m bucket",
    "M_DIVISOR": "m divisibility",
    "N_DIVISOR": "n divisibility",
    "K_DIVISOR": "k divisibility",
}
_DIGITS = 12

_LABELS = {
    "registers": "registers per thread",
    "shared_bytes": "shared memory per block, bytes",
    "stack_bytes": "stack per thread, bytes",
    "spill_bytes": "spills per thread, bytes",
    "size_bytes": "cubin size, bytes",
    "code_bytes": "machine code, bytes",
    "arch": "target",
    "share": "occupancy",
    "warps_per_sm": "warps per SM",
    "blocks_per_sm": "blocks per SM",
    "bound_by": "limited by",
}


def _split(pairs: tuple[Pair, ...]) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """Splits the differing components into causes and consequences; the name of a kernel is always a consequence."""
    names = {pair.name for pair in pairs}
    following = {name for name in names if names & _FOLLOWS.get(name, set())}
    if names - {"KERNEL_NAME"}:
        following.add("KERNEL_NAME")
    return (
        tuple(pair for pair in pairs if pair.name not in following),
        tuple(pair for pair in pairs if pair.name in following),
    )


def _renamed(some: tuple[Pair, ...]) -> tuple[Pair, ...]:
    return tuple(replace(pair, name=_LABELS.get(pair.name, pair.name)) for pair in some)


def _short(name: str, value: Value) -> str:
    if value is None:
        return "an argument" if name in ("M", "N", "K") else "nothing"
    if name.endswith("_TRANSPOSED"):
        return {"0": "no", "1": "yes"}.get(str(value), str(value))
    return f"{str(value)[:_DIGITS]}…" if name in ("template", "compiler_build") else str(value)


def pairs(first: Mapping[str, Value], second: Mapping[str, Value]) -> Iterator[Pair]:
    """The values of two kernels as one pair for each property, in the order of the properties."""
    for name in dict.fromkeys((*first, *second)):
        yield Pair(name, first.get(name), second.get(name))


def _config(inspected: Inspected) -> Mapping[str, Value]:
    if isinstance(inspected, AdaptedInspection):
        return {
            name: str(value) if isinstance(value, bool) else value for name, value in inspected.known.config.items()
        }
    found: dict[str, Value] = msgspec.to_builtins(inspected.record.config)
    return found


def _resources(inspected: Inspected) -> Mapping[str, Value]:
    if isinstance(inspected, AdaptedInspection):
        known = inspected.known
        names = ("registers", "shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")
        code = known.part(PartKind.BINARY)
        return {name: getattr(known, name) for name in names} | {"size_bytes": code.size_bytes if code else None}
    return {**msgspec.to_builtins(inspected.record.resources), "size_bytes": inspected.record.size_bytes}


def _occupancy(inspection: Inspected) -> dict[str, Value]:
    resident = inspection.occupancy
    if resident is None:
        return {}
    return {
        "arch": resident.arch,
        "share": resident.share,
        "warps_per_sm": resident.warps_per_sm,
        "blocks_per_sm": resident.blocks_per_sm,
        "bound_by": " and ".join(resident.bound_by),
    }


def _instructions(inspection: Inspected) -> dict[str, Value]:
    mix = inspection.instructions
    return {} if mix is None else {**mix.classes, "total": mix.total}
