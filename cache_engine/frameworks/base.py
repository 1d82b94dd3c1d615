"""The protocol of a source: what knows the cache of one framework. A plug-in implements it too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cache_engine.frameworks.values import DeletePlan, Entry, KeyFactors, Part, Place, Seen
from cache_engine.model.outcome import Failure


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The places to search for caches.

    Attributes:
        environment: variables of the environment, which move some of them.
        home: the user's home directory.
        temporary: the directory of temporary files.
        user: the user's name, which is part of some paths.
        given: directories that the user names, by the kind of the cache in them.
    """

    environment: Mapping[str, str]
    home: Path
    temporary: Path
    user: str
    given: tuple[tuple[str, Path], ...] = field(default=())

    def named(self, kind: str) -> Iterator[Place]:
        """The directories that the user names for a kind."""
        return (Place(kind, path, "given") for named, path in self.given if named == kind)

    def places(self, kind: str, default: str | Path | None, **variables: str) -> Iterator[Place]:
        """The directories of a kind that the user names, and the one that its framework uses, which the others follow.

        Args:
            default: the directory that it uses if no variable is set, below the home directory; ``None`` if there is
                none.
            variables: those of the environment that name another, the first one that counts first, each with the
                path below the directory that it names.
        """
        yield from self.named(kind)
        replaced_by = ""
        for variable, below in variables.items():
            if named := self.environment.get(variable):
                yield Place(kind, Path(named) / below, variable, replaced_by)
                replaced_by = replaced_by or variable
        if default is not None:
            yield Place(kind, self.home / default, "default", replaced_by)


class CacheReader(Protocol):
    """A reader of one framework's cache, without the framework.

    Nothing is imported, loaded, unpickled or run, and nothing is written. Files may vanish at any moment, and
    what they hold may be hostile: no method raises because of either. tests/conformance/test_sources.py checks each.

    Attributes:
        kind: names the framework: ``triton``.
        title: its name for people: ``Triton``.
    """

    kind: str
    title: str

    @property
    def unknowable(self) -> Mapping[str, str]:
        """Fields of ``Entry`` that no entry has, each with the reason in words."""

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The places where this framework may have a cache, most likely first; they need not exist."""

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """The entries of a place now, in no order.

        Args:
            known: the stamps of entries seen before, by id. One that is the same still is yielded as ``Unchanged``.

        Raises:
            OSError: when the place itself cannot be opened.
        """

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """The bytes of one part, as they are; of a binary that is wrapped, the binary alone."""

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The inputs that decided an entry's key, as far as the cache states them."""

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete entries so that no process that uses the cache fails; a failure where no safe way is known.

        Looks at the entries as they are now. ``frameworks.deletion`` does what the plan says.
        """


@runtime_checkable
class Thinning(Protocol):
    """A source whose framework uses an entry without its IRs."""

    def plan_thinning(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """As ``CacheReader.plan_delete``, of the IRs alone: the entries stay, and the framework uses them as before."""
