"""A stored result of a command of nvcc: a bundle with the output, what was printed, and all that was read.

Its name is a digest of what is known before a compile: options, variables, the compiler's build and the source. A
result holds while its includes have the same content too. So a name has a few places, for as many contents.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.nvcc.command import Command, PassThrough
from cache_engine.frameworks.nvcc.inputs import Digests, Roots, build_of, is_unstable, read_text, shadows
from cache_engine.store.quick import UnknownGroup, bundle_key, read_bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FRAMEWORK, INDEX, OUT, ERR, OUTPUT = "nvcc", "nvcc.json", "stdout", "stderr", "kernel"
PLACES = 8
_FORMAT = 1
_BEFORE = ("options", "variables", "build", "source", "paths")


class Request:
    """A command with what is known before its compile.

    Attributes:
        document: that, as it is stored in a result.
        name: the digest of it.
    """

    def __init__(self, command: Command, digests: Digests) -> None:
        """Reads the source and the build of the compiler; raises ``PassThrough``."""
        self.command, self.digests, self.roots = command, digests, Roots(command)
        text = read_text(command.source)
        if text is None:
            raise PassThrough("source cannot be read")
        if is_unstable(text) or is_unstable(json.dumps(command.options).encode()):
            raise PassThrough("date, time or .incbin in the source")
        paths = self.roots.nested()
        if command.has_paths:
            paths += [os.getcwd(), command.source, *self.roots.by_name.values()]
        self.document: dict[str, Any] = {
            "format": _FORMAT,
            "options": command.options,
            "variables": command.variables,
            "build": build_of(command, digests),
            "source": sha256(text).hexdigest(),
            "paths": paths,
        }
        self.name = name_of(self.document)

    def place(self, number: int) -> str:
        """The name of one of its results."""
        return f"{self.name}-{number}"


def name_of(document: Mapping[str, Any]) -> str:
    """The digest of all that is known before a compile."""
    known = [_FORMAT, *(document.get(name) for name in _BEFORE)]
    return sha256(json.dumps(known, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Result:
    """A result that holds now."""

    def __init__(self, key: str, bundle: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        self.key, self.files, self.includes = key, bundle["files"], document["includes"]
        if not all(isinstance(data, bytes) for data in self.files.values()):
            raise ValueError("its files are none")
        self.made_at = float(bundle.get("made_at", 0.0))
        self.saved_us = round(sum(bundle.get("stages_ms", {}).values()) * 1e3)


class Lookup:
    """The places of a request's results.

    Attributes:
        found: the one that holds; ``None`` on a miss.
        free: the place for a new one.
        damaged: places of damaged ones.
        reasons: why others do not hold.
    """

    def __init__(self, root: str, request: Request, *, trust: bool = False) -> None:
        """Reads them; raises ``Slow``."""
        self.found: Result | None = None
        self.damaged: list[int] = []
        self.reasons: list[str] = []
        free, oldest = None, (float("inf"), 0)
        for number in range(PLACES):
            key = bundle_key(FRAMEWORK, request.place(number), INDEX)
            try:
                bundle = read_bundle(root, key, trust=trust)
                if bundle is None:
                    free = number if free is None else free
                    continue
                document = document_of(bundle)
                why = difference(document, request)
                if why is None:
                    found = Result(key, bundle, document)
                    found.files[OUTPUT + request.command.ending]  # there, or a ``LookupError``
                    self.found = found
                    return
                self.reasons.append(why)
                oldest = min(oldest, (float(bundle.get("made_at", 0.0)), number))
            except UnknownGroup:
                continue
            except (CorruptEntry, ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.damaged.append(number)
        if self.damaged:
            free = self.damaged[0]
        self.free = oldest[1] if free is None else free


def document_of(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that a result states of its compile; raises ``ValueError``, ``LookupError`` or ``TypeError``."""
    document = json.loads(bundle["files"][INDEX])
    if not isinstance(document, dict) or document["format"] != _FORMAT:
        raise ValueError("it is no result of this version")
    if not str(bundle["name"]).startswith(name_of(document) + "-"):
        raise ValueError("it is not what its name says")
    return document


def difference(document: Mapping[str, Any], request: Request) -> str | None:
    """The reason why a result of the same name does not hold now; ``None`` where it does."""
    roots, digests = request.roots, request.digests
    for root, name, digest in document["includes"]:
        now = digests.of(roots.path(root, name))
        if now != digest:
            return f"{'the header is gone' if now is None else 'the header changed'}: {roots.path(root, name) or name}"
    files = ((root, name) for root, name, _ in document["includes"])
    now_hidden = shadows(files, document["asked"], roots)
    if now_hidden != document["shadows"]:
        other = sorted(set(now_hidden) ^ set(document["shadows"]))
        where = [roots.path(*one.partition("\0")[::2]) for one in other[:1]]
        return f"another header of the same name came or went: {where[0] if where else '?'}"
    return None


def differences(document: Mapping[str, Any], request: Request) -> list[str]:
    """The differences from a result of another name, in words."""
    old, new = _facts(document), _facts(request.document)
    found = [f"{one}: now alone" for one in new if one not in old]
    found += [f"{one}: the stored one alone" for one in old if one not in new]
    return found or ["the order of options"]


def _facts(document: Mapping[str, Any]) -> dict[str, None]:
    facts = [f"option {option_text(*pair)}" for pair in document["options"]]
    facts += [f"variable {name}={value}" for name, value in document["variables"].items()]
    facts += [f"file of the compiler {name} ({value[:12]})" for name, value in document["build"].items()]
    facts += [f"path {one}" for one in document["paths"]]
    return dict.fromkeys([*facts, f"source {document['source'][:12]}"])


def option_text(name: str, value: str) -> str:
    """An option as people write it."""
    return f"--{name}={value}" if value else f"--{name}"
