"""The protocol of a reader of one framework's cache. Plug-ins implement it too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cache_engine.frameworks.values import DeletePlan, Entry, KeyFactors, Part, Place, Seen
from cache_engine.model.outcome import Failure


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The places on this machine to search for caches.

    Attributes:
        environment: environment variables, some of which name cache directories.
        home: the user's home directory.
        temporary: the directory of temporary files.
        user: the user's name, which is part of some paths.
        given: directories that the user names, each with the kind of its cache.
    """

    environment: Mapping[str, str]
    home: Path
    temporary: Path
    user: str
    given: tuple[tuple[str, Path], ...] = field(default=())

    def named(self, kind: str) -> Iterator[Place]:
        """The directories that the user names for a kind of cache."""
        return (Place(kind, path, "given") for named, path in self.given if named == kind)

    def places(self, kind: str, default: str | Path | None, **variables: str) -> Iterator[Place]:
        """The cache directories of a framework: first those that the user names, then the one in use, then others.

        Args:
            default: the framework's directory if no variable is set, as a path below the home directory; or ``None``.
            variables: the environment variables that name another directory, in order of precedence, each with the
                cache's path below that directory.
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

    A reader imports, loads, unpickles, runs and writes nothing. Files may vanish at any moment, and their content may
    be hostile: no method raises because of either. tests/conformance/test_sources.py checks every reader.

    Attributes:
        kind: names the framework: ``triton``.
        title: its name for people: ``Triton``.
    """

    kind: str
    title: str

    @property
    def unknowable(self) -> Mapping[str, str]:
        """The fields of ``Entry`` that are unknown for all entries of this framework, each with the reason in words."""

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The places where this framework may have a cache, most likely first; they need not exist."""

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """Yields the present entries of a cache, in no order.

        Args:
            known: the stamps of entries seen before, by id. An entry whose stamp is the same is yielded as
                ``Unchanged``.

        Raises:
            OSError: when the place itself cannot be opened.
        """

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """The bytes of one part of an entry; if the framework's file wraps a binary, the bytes of the binary alone."""

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """The inputs that decided an entry's key; a failure if the cache does not state them."""

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete entries so that no process that uses the cache fails; a failure if no safe way is known.

        Reads the present state of the entries. ``frameworks.deletion`` carries out the plan.
        """


@runtime_checkable
class Thinning(Protocol):
    """A reader for a framework that can use an entry without its IRs."""

    def plan_thinning(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan to delete the IRs of entries and keep the entries usable; a failure if no safe way is known."""
