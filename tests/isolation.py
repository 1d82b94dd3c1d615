"""A home, a temporary directory and an environment for the tests alone, and a watch over the user's own caches.

What of the environment leads to a cache is asked of the sources themselves: a new one needs no entry here.
"""

from __future__ import annotations

import os
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.registry import load_sources, surroundings

_WATCHED, _SEEN = "TESTS_WATCHED_CACHES", "TESTS_SEEN_READING"
_EVENTS = {
    "open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
    "os.symlink", "os.truncate", "os.utime", "shutil.rmtree", "sqlite3.connect",
}  # fmt: skip
# Programs that tests run, not caches of kernels: what they have in the user's caches would have to be fetched again.
_TOOLS = {"PLAYWRIGHT_BROWSERS_PATH": "ms-playwright"}
_NOWHERE = "/nowhere"


class _Asked(Mapping[str, str]):
    """An environment that notes which variables it is asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values, self.names = values, set(values)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _places(environment: Mapping[str, str], home: str, temporary: str) -> set[str]:
    """Where the sources would look; nothing is read, as every directory is given a parent that does not exist."""
    where = Surroundings(environment, Path(_NOWHERE + home), Path(_NOWHERE + temporary), surroundings().user)
    places = (place for source in load_sources().by_kind.values() for place in source.discover(where))
    return {str(place.path).removeprefix(_NOWHERE) for place in places}


@cache
def cache_variables() -> frozenset[str]:
    """The variables of the environment that lead a source to a cache, also those asked for only if another is set."""
    names: frozenset[str] = frozenset()
    while True:
        environment = _Asked(dict.fromkeys(names, _NOWHERE))
        _places(environment, "", "")
        if environment.names == names:
            return names
        names = frozenset(environment.names)


def caches_of(environment: Mapping[str, str], temporary: str) -> set[str]:
    """The directories of the caches of whoever has this environment, whether they exist or not."""
    named = {name: environment[name] for name in cache_variables() if environment.get(name)}
    moved = {name: _NOWHERE + os.path.abspath(path) for name, path in named.items()}
    return _places(moved, environment.get("HOME") or os.path.expanduser("~"), temporary)


def isolate(folder: Path) -> None:
    """Changes the environment of this process to one without anything of the user, whose caches are watched.

    Args:
        folder: gets the home and the temporary directory.
    """
    ours = (folder, Path(__file__).parents[1], Path(sys.prefix))
    outside = map(Path, caches_of(os.environ, tempfile.gettempdir()))
    # A directory that has the tests themselves in it cannot be watched.
    watched = [f"{place}/" for place in outside if not any(one.is_relative_to(place) for one in ours)]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    tools = {name: os.path.join(caches, below) for name, below in _TOOLS.items()}
    kept = {"PYTHONUSERBASE": site.getuserbase(), **tools, **os.environ}
    os.environ.clear()
    for name, value in kept.items():
        if name not in cache_variables() and not name.startswith(("GEMM_CACHE_", "XDG_")):
            os.environ[name] = value
    for name, below in (("HOME", "home"), ("TMPDIR", "tmp")):
        (folder / below).mkdir(exist_ok=True)
        os.environ[name] = str(folder / below)
    (folder / "tmp").chmod(0o1777)  # as that of a machine: some tests become another user
    tempfile.tempdir = None  # Python looks once
    os.environ[_WATCHED] = os.pathsep.join(watched)
    os.environ[_SEEN] = str(folder / f"seen-{os.getpid()}")
    watch()


def watch() -> None:
    """Notes what this process, or one that is forked from it, opens, lists or changes in the user's caches."""
    watched, log = tuple(os.environ[_WATCHED].split(os.pathsep)), os.environ[_SEEN]

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(arguments[0])
            if f"{path}/".startswith(watched):
                with open(log, "a", encoding="utf-8") as seen:
                    seen.write(f"{event} {path!r}\n")

    sys.addaudithook(note)


def seen() -> str:
    """What was noted since the tests began, a line each."""
    log = Path(os.environ[_SEEN])
    return log.read_text() if log.exists() else ""
