"""Compares the keys of two entries, or of the entries of two directories, of a framework; explains differences.

The explanations come from reports of users of these caches: vllm-project/vllm#47573, flashinfer-ai/flashinfer#4884,
ai-dynamo/dynamo#10695.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cache_engine.frameworks.base import CacheReader
from cache_engine.frameworks.facts import digest_of
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, Part, PartKind, Place
from cache_engine.model.outcome import Failure

_T = TypeVar("_T")
MOST_CANDIDATES = 50
"""The most entries of the same name that are compared to find the entry nearest to a missing one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An input of the key that differs: its value for the first entry and for the second; ``None`` where unknown.

    ``meaning`` explains in words what makes such values differ, and how to avoid it.
    """

    group: str
    name: str
    a: str | None
    b: str | None
    meaning: str


@dataclass(frozen=True, slots=True)
class EntriesCompared:
    """The comparison of two entries of a framework.

    ``differences`` has the inputs of the keys that differ; ``hidden`` names inputs that the cache does not state;
    ``parts`` names the parts with different bytes. ``unknown`` says why the inputs of one entry are unknown; empty if
    both are known.
    """

    differences: tuple[Difference, ...]
    hidden: tuple[str, ...]
    parts: tuple[str, ...]
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Miss:
    """An entry that only one directory has, and its differences from the nearest entry of the other directory."""

    entry: Entry
    nearest: Entry | None
    differences: tuple[Difference, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class DirectoriesCompared:
    """The comparison of two directories of one framework.

    Attributes:
        same: the number of entries that both have with the same bytes.
        changed: the entries that both have with different bytes, each with its differing parts.
        only_one, only_other: the entries that only the first, or only the second, has.
    """

    same: int
    changed: tuple[tuple[Entry, tuple[str, ...]], ...]
    only_one: tuple[Miss, ...]
    only_other: tuple[Miss, ...]

    @property
    def causes(self) -> list[tuple[Difference, int]]:
        """The inputs that differ, the most frequent first, each with the number of entries for which it differs.

        One difference of each input is returned as an example.
        """
        counts: Counter[tuple[str, str]] = Counter()
        examples: dict[tuple[str, str], Difference] = {}
        for miss in self.only_one:
            for each in miss.differences:
                counts[each.group, each.name] += 1
                examples.setdefault((each.group, each.name), each)
        return [(examples[name], count) for name, count in counts.most_common()]


class Comparing:
    """Compares entries of one framework; reads the inputs of each entry's key once."""

    def __init__(self, source: CacheReader) -> None:
        self._source = source
        self._factors: dict[tuple[Place, str], KeyFactors | Failure] = {}

    def entries(self, one: tuple[Place, Entry], other: tuple[Place, Entry]) -> EntriesCompared:
        """Compares two entries, which may be in different caches."""
        parts = self._parts(one, other)
        known = self._known(one), self._known(other)
        for each in known:
            if isinstance(each, Failure):
                return EntriesCompared((), (), parts, each.reason)
        first, second = (each for each in known if isinstance(each, KeyFactors))
        hidden = tuple(dict.fromkeys((*first.hidden, *second.hidden)))
        return EntriesCompared(differences(first, second), hidden, parts)

    def directories(
        self,
        one: tuple[Place, Sequence[Entry]],
        other: tuple[Place, Sequence[Entry]],
        on_progress: Callable[[], None] = lambda: None,
    ) -> DirectoriesCompared:
        """Compares two directories: entries with the same id by their bytes, the others by the inputs of their keys."""
        first, second = ({entry.id: entry for entry in entries} for _, entries in (one, other))
        same, changed = 0, []
        for entry in first.values():
            if entry.id not in second:
                continue
            parts = self._parts((one[0], entry), (other[0], second[entry.id]))
            if parts:
                changed.append((entry, parts))
            else:
                same += 1
            on_progress()
        alone = (
            self._misses(one, (other[0], second), on_progress),
            self._misses(other, (one[0], first), on_progress),
        )
        return DirectoriesCompared(same, tuple(sorted(changed, key=lambda row: row[0].id)), *alone)

    def _misses(
        self,
        asked: tuple[Place, Sequence[Entry]],
        others: tuple[Place, Mapping[str, Entry]],
        on_progress: Callable[[], None],
    ) -> tuple[Miss, ...]:
        by_name: dict[str | None, list[Entry]] = defaultdict(list)
        for entry in others[1].values():
            if len(by_name[entry.name]) < MOST_CANDIDATES:
                by_name[entry.name].append(entry)
        found = []
        for entry in sorted(asked[1], key=lambda entry: entry.id):
            if entry.id not in others[1]:
                found.append(self._miss((asked[0], entry), others[0], by_name[entry.name]))
                on_progress()
        return tuple(found)

    def _miss(self, alone: tuple[Place, Entry], place: Place, candidates: Iterable[Entry]) -> Miss:
        known = self._known(alone)
        if isinstance(known, Failure):
            return Miss(alone[1], None, unknown=known.reason)
        found = nearest(known, ((entry, self._known((place, entry))) for entry in candidates))
        if found is None:
            return Miss(alone[1], None, unknown="the other directory has no entry of this name")
        return Miss(alone[1], *found)

    def _known(self, of: tuple[Place, Entry]) -> KeyFactors | Failure:
        place, entry = of
        if (place, entry.id) not in self._factors:
            self._factors[place, entry.id] = self._source.key_factors(place, entry)
        return self._factors[place, entry.id]

    def _parts(self, one: tuple[Place, Entry], other: tuple[Place, Entry]) -> tuple[str, ...]:
        """The names of the parts with different bytes.

        Index files, which contain paths of their directory, and temporary files are not compared.
        """
        first, second = (
            {
                part.file.removeprefix(f"{entry.id}/") or part.name: (part, place, entry)
                for part in entry.parts
                if part.kind not in (PartKind.INDEX, PartKind.TEMPORARY)
            }
            for place, entry in (one, other)
        )

        def differs(name: str) -> bool:
            if name not in first or name not in second or first[name][0].size_bytes != second[name][0].size_bytes:
                return True
            return self._digest(*first[name]) != self._digest(*second[name])

        return tuple(name for name in sorted(first.keys() | second.keys()) if differs(name))

    def _digest(self, part: Part, place: Place, entry: Entry) -> str:
        data = self._source.read(place, entry, part)
        return data.reason if isinstance(data, Failure) else digest_of(data)


def nearest(
    known: KeyFactors, candidates: Iterable[tuple[_T, KeyFactors | Failure]]
) -> tuple[_T, tuple[Difference, ...]] | None:
    """The candidate whose inputs differ the least, and the differences; ``None`` if no candidate's are known.

    For torch.compile, an entry with the same graph is always nearer than any other entry.
    """
    found = [(each, differences(known, stated)) for each, stated in candidates if isinstance(stated, KeyFactors)]
    return min(found, key=lambda each: (any(one.group == "graph" for one in each[1]), len(each[1])), default=None)


def differences(one: KeyFactors, other: KeyFactors) -> tuple[Difference, ...]:
    """The inputs that differ between two keys, in the order in which the caches state the inputs."""
    first, second = (_by_name(each.factors) for each in (one, other))
    return tuple(
        _difference(name, first.get(name), second.get(name))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    )


def _difference(place: tuple[str, str], one: str | None, other: str | None) -> Difference:
    return Difference(*place, one, other, meaning_of(*place, one, other))


def _by_name(factors: Iterable[Factor]) -> dict[tuple[str, str], str]:
    return {(factor.group, factor.name): factor.value for factor in factors}


_PATH = (
    "an absolute path: the cache hits only where the directory has the same name; mount it under one name everywhere"
)
_RULES = tuple(
    (re.compile(pattern), meaning)
    for pattern, meaning in (
        (
            r"^environment (?:.*_)?PORTS?(?:_|$)",
            "a port of the network, which may be new at each start: fix it, or unset it before the framework starts",
        ),
        (
            r"(?i)^(?!config |torch ).*[ _](?:RANK|DEVICE_INDEX|WORLD_SIZE)$",
            "the number of this process among others: each of them has kernels of its own",
        ),
        (
            r"^environment .*?(?:HOST(?:NAME)?(?:_|$)|_IP$|_ADDR(?:ESS)?$)",
            "an address or name of a machine: set it alike everywhere, or unset it before the framework starts",
        ),
        (
            r"^environment (?:HOME|USER|LOGNAME|PWD|TMPDIR)$",
            "differs from user to user, or from directory to directory: set it alike for all that share the cache",
        ),
        (
            r"(?i)mtime|timestamp",
            "a time of modification: copies and shared storage change it; copy with the times (rsync -t, cp -p)",
        ),
        (r"^graph ", "the code of the program was changed, or it is called with other shapes, types or devices"),
        (r"(?i)version", "another version: after an upgrade every kernel is compiled again"),
        (r"(?i)compiler", "another compiler, or one with other options"),
        (r"^target ", "another GPU: its kernels are compiled apart"),
        (r"^kernel source$", "the code of the kernel was changed"),
        (r"(?i)code", "the code of model or framework was changed"),
    )
)
"""Sentences that explain an input, by patterns of its group and name; the first pattern that matches is used."""
_VARIABLE = "a variable of the environment: set it alike, or not at all, wherever the cache is used"
_ABSOLUTE = re.compile(r"(?:^|[\s:=,'\"]|-[IL])/[\w.-]++/[\w.-]")


def meaning_of(group: str, name: str, one: str | None, other: str | None) -> str:
    """A text on why an input is ``one`` for one entry and ``other`` for another, and how to avoid it; may be empty."""
    for pattern, meaning in _RULES:
        if pattern.search(f"{group} {name}"):
            return meaning
    values = [value for value in (one, other) if value]
    if values and all(_ABSOLUTE.search(value) for value in values):
        return _PATH
    return _VARIABLE if group == "environment" else ""
