"""A stored result of a command of nvcc: a bundle with the output, the printed text, and digests of all files read.

A result's name is a digest of what is known before a compile: options, variables, the compiler's build and the source.
A result can be served while its includes have the same content too. So up to ``PLACES`` results are stored for one
name, each made with other contents of the includes.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Literal

import msgspec

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import Group, UnknownGroup, group_key, read_group
from cache_engine.frameworks.nvcc.command import Command, PassThrough
from cache_engine.frameworks.nvcc.inputs import Digests, Roots, build_of, is_unstable, read_text, shadows
from cache_engine.store.layout import StoreLayout

FRAMEWORK, INDEX, OUT, ERR, OUTPUT = "nvcc", "nvcc.json", "stdout", "stderr", "kernel"
PLACES = 8


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a compile that are known before it.

    Attributes:
        options: the options that decide the output, in order, without paths.
        build: digests of the compiler's files, by name.
        paths: the command's directories that lie inside others; and its absolute paths, if the output contains any.
    """

    format: Literal[1]
    options: list[tuple[str, str]]
    variables: dict[str, str]
    build: dict[str, str]
    source: str
    paths: list[str]

    @property
    def name(self) -> str:
        """The SHA-256 of all these facts, by which results are stored."""
        known = [self.format, self.options, self.variables, self.build, self.source, self.paths]
        return sha256(msgspec.json.encode(known, order="sorted")).hexdigest()


class Document(Known, frozen=True, kw_only=True):
    """All facts of a compile.

    Attributes:
        includes: for each included file, the name of its directory, its path below that, and its digest.
        asked: names that a source asks for with ``__has_include``.
        shadows: files that nvcc might find in place of an included one; see ``inputs.shadows``.
    """

    command: str
    source_name: str
    includes: list[tuple[str, str, str]]
    asked: list[str]
    shadows: list[str]


_decode = msgspec.json.Decoder(Document).decode


def document_of(group: Group) -> Document:
    """The facts in a stored result's bundle; raises ``CorruptEntry`` if they cannot be read."""
    try:
        document = _decode(group.files[group.index])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptEntry(f"the description of {group.key[:12]} cannot be read: {error}") from error
    if not group.name.startswith(document.name + "-"):
        raise CorruptEntry(f"{group.key[:12]} is not what its name says")
    return document


class Request:
    """A command with what is known before its compile.

    Attributes:
        known: the facts that are known before the compile, in the form that a result stores.
        name: the digest of these facts.
    """

    def __init__(self, command: Command, digests: Digests) -> None:
        """Reads the source and the build of the compiler; raises ``PassThrough`` if nvcc must run it uncached."""
        self.command, self.digests, self.roots = command, digests, Roots(command)
        text = read_text(command.source)
        if text is None:
            raise PassThrough("source cannot be read")
        if is_unstable(text) or is_unstable(msgspec.json.encode(command.options)):
            raise PassThrough("date, time or .incbin in the source")
        paths = self.roots.nested()
        if command.has_paths:
            paths += [os.getcwd(), command.source, *self.roots.by_name.values()]
        self.known = Known(
            format=1,
            options=command.options,
            variables=command.variables,
            build=build_of(command, digests),
            source=sha256(text).hexdigest(),
            paths=paths,
        )
        self.name = self.known.name

    def place(self, number: int) -> str:
        """The name of the stored result with this number, from 0 to ``PLACES`` - 1, for this request."""
        return f"{self.name}-{number}"


class Lookup:
    """The stored results for a request, of which at most one can be served.

    Attributes:
        found: the result that can be served, and its facts; ``None`` on a miss.
        free: on a miss, the number of the place where a new result is to be stored.
        damaged: the numbers of places whose results are damaged.
        reasons: for each other stored result, why it cannot be served.
    """

    def __init__(self, layout: StoreLayout, request: Request) -> None:
        """Reads the request's stored results from the store; raises ``OSError``."""
        self.found: tuple[Group, Document] | None = None
        self.damaged: list[int] = []
        self.reasons: list[str] = []
        unused, made_at = list[int](), dict[int, float]()
        for number in range(PLACES):
            try:
                group = read_group(layout, group_key(FRAMEWORK, request.place(number), INDEX), trust=layout.trust)
                if group is None:
                    unused.append(number)
                    continue
                document = document_of(group)
                why = difference(document, request)
                if why is None:
                    if OUTPUT + request.command.ending not in group.files:
                        raise CorruptEntry("it has no output")
                    self.found = group, document
                    return
                self.reasons.append(why)
                made_at[number] = group.made_at
            except UnknownGroup:
                continue
            except CorruptEntry:
                self.damaged.append(number)
        oldest = min(made_at, key=made_at.__getitem__, default=0)
        self.free = next(iter([*self.damaged, *unused]), oldest)


def difference(document: Document, request: Request) -> str | None:
    """The reason why a stored result of the request's name cannot be served now; ``None`` if it can."""
    roots, digests = request.roots, request.digests
    for root, name, digest in document.includes:
        now = digests.of(roots.path(root, name))
        if now != digest:
            return f"{'the header is gone' if now is None else 'the header changed'}: {roots.path(root, name) or name}"
    now_hidden = shadows(((root, name) for root, name, _ in document.includes), document.asked, roots)
    for other in sorted(set(now_hidden) ^ set(document.shadows)):
        return f"another header of the same name came or went: {roots.path(*other.partition(chr(0))[::2])}"
    return None


def differences(document: Document, request: Request) -> list[str]:
    """The differences between a request and a stored result of another name, one text each."""
    old, new = _facts(document), _facts(request.known)
    found = [f"{one}: now alone" for one in new if one not in old]
    found += [f"{one}: the stored one alone" for one in old if one not in new]
    return found or ["the order of options"]


def _facts(document: Known) -> list[str]:
    facts = [f"option {option_text(*pair)}" for pair in document.options]
    facts += [f"variable {name}={value}" for name, value in document.variables.items()]
    facts += [f"file of the compiler {name} ({value[:12]})" for name, value in document.build.items()]
    facts += [f"path {one}" for one in document.paths]
    return [*facts, f"source {document.source[:12]}"]


def option_text(name: str, value: str) -> str:
    """An option as it is written on a command line: ``--name=value``, or ``--name`` without a value."""
    return f"--{name}={value}" if value else f"--{name}"
