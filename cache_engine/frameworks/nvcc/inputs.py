"""The files that a compile reads: the compiler's own files, the source, includes, and the names that would shadow them.

Files are compared by digests of their content. The store remembers each digest with the file's size, times and inode,
so that a hit does not read a thousand headers. A file is named by its root and its path below that root, so that a
result is found again on a machine where everything is installed elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from cache_engine.frameworks.nvcc.command import Command, PassThrough
from cache_engine.store.layout import StoreLayout
from cache_engine.store.publish import publish_file

_MOST_REMEMBERED, _MOST_MEMO_BYTES = 5_000, 4 * 1024**2
_MOST_FILE_BYTES = 1024**3  # a foreign result may name /proc/kcore as its header
_RACY_NS = 2 * 10**9
"""Nanoseconds. A file changed more recently may change again without a new time, so its digest is not remembered."""
_TOOLS = (
    "nvcc",
    "nvcc.profile",
    "ptxas",
    "fatbinary",
    "cudafe++",
    "../nvvm/bin/cicc",
    "../nvvm/libdevice/libdevice.10.bc",
)
_NEEDED = ("nvcc", "../nvvm/bin/cicc", "ptxas")
_CONTINUED = re.compile(rb"\\[ \t]+\r?\n")
# Also the second half of a name that a macro joins; and what the assembler reads, which no dependency file names.
_UNSTABLE = re.compile(rb"(?<![A-Za-z0-9])_{0,2}(?:DATE|TIME|TIMESTAMP)__|\.inc(?:bin|lude)\b")
_DIRECTIVE = re.compile(rb"#[ \t]*(?:if|elif|define)\b([^\n]*)")
_NAME = re.compile(rb"[<\"](?! )([^<>\"()\n]{1,200})[>\"]")
_ABSOLUTE = re.compile(rb"[<\"](/[^<>\"\n]{1,4096})[>\"]")
_MORE_ROOTS = ("/usr/local/include",)  # of GCC, before /usr/include; often empty
_OF_STUBS = ("crt/host_runtime.h", "fatbinary_section.h")
"""Files included by the code that nvcc itself adds to an object file; no dependency file lists them."""

# The roots that no option names: the folder of the source, the toolkit, the working directory; and no root.
SOURCE, TOOLKIT, HERE, NONE = "S", "T", "W", "/"


class Digests:
    """Computes digests of files, and remembers them in a store, so that an unchanged file is not read again."""

    def __init__(self, layout: StoreLayout) -> None:
        """Reads the digests that a store remembers; starts without any if their file cannot be read."""
        self._layout, self._is_new, self._here = layout, False, os.getcwd()
        self._known: dict[str, str] = {}
        self._used: dict[str, str] = {}
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError), open(layout.digests, "rb") as file:
            self._known = msgspec.json.decode(file.read(_MOST_MEMO_BYTES), type=dict[str, str])

    def of(self, path: str) -> str | None:
        """The SHA-256 of a regular file; ``None`` where it cannot be read."""
        path = os.path.join(self._here, path)
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
                return None
            stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} {status.st_dev} "
            known = self._known.get(path)
            if known is not None and known.startswith(stamp):
                self._used[path] = known
                return known[len(stamp) :]
            with open(path, "rb") as file:
                digest = sha256(file.read()).hexdigest()
        except (OSError, ValueError):
            return None
        if max(status.st_mtime_ns, status.st_ctime_ns) + _RACY_NS < time.time_ns():
            self._used[path] = self._known[path] = stamp + digest
            self._is_new = True
        return digest

    def save(self) -> None:
        """Writes the digests to the store if any is new; does nothing if the store cannot be written."""
        if self._is_new:
            data = msgspec.json.encode(self._used if len(self._known) > _MOST_REMEMBERED else self._known)
            with suppress(OSError):
                publish_file(self._layout.temp, str(self._layout.digests), data, durable=False)
                self._is_new = False


def build_of(command: Command, digests: Digests) -> dict[str, str]:
    """The digests of nvcc's programs and the host's compiler, by name; raises ``PassThrough`` if one is missing."""
    program = _program(command.compiler, command)
    if not _is_program(program):
        raise PassThrough("compiler is a script")
    folder, found = os.path.dirname(program), dict[str, str]()
    for tool in _TOOLS:
        digest = digests.of(f"{folder}/{tool}")
        if digest is not None:
            found[os.path.basename(tool)] = digest
        elif tool in _NEEDED:
            raise PassThrough("compiler is not a whole toolkit")
    host = command.host or "gcc"
    host = _program(os.path.join(host, "gcc") if os.path.isdir(host) else host, command)
    kind = os.path.basename(host)
    # What ccache or a script runs, and the libraries that are Clang, are not known here.
    if "clang" in kind or not any(one in kind for one in ("gcc", "g++", "c++")) or not _is_program(host):
        raise PassThrough("the host's compiler is no GCC")
    # By its path, as it looks for its headers from there.
    for path in (host, *_compilers_of(os.path.dirname(os.path.dirname(host)))):
        digest = digests.of(path)
        if digest is None:
            raise PassThrough("no compiler of the host")
        found[path] = digest
    if command.ending == ".o":
        for number, root in [*enumerate(command.roots), (TOOLKIT, f"{folder}/../include")]:
            for name in _OF_STUBS:
                if (digest := digests.of(f"{root}/{name}")) is not None:
                    found[f"{number}/{name}"] = digest
    return found


def _is_program(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _program(name: str, command: Command) -> str:
    """The path of a program's file, with links resolved."""
    return os.path.realpath(_found(name, command))


def _found(name: str, command: Command) -> str:
    folders = [""] if "/" in name else command.environment.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise PassThrough("no such compiler")


def _compilers_of(prefix: str) -> list[str]:
    """The files below a prefix that GCC's driver runs to compile, and the files that change the driver's options."""
    found = []
    for folder in (f"{prefix}/lib/gcc", f"{prefix}/libexec/gcc"):
        for machine in _names_in(folder):
            for version in _names_in(f"{folder}/{machine}"):
                found += [f"{folder}/{machine}/{version}/{name}" for name in ("cc1plus", "specs")]
    return [path for path in sorted(found) if os.path.isfile(path)]


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):  # a name that a stored result or a source has may be none
        return []


class Roots:
    """The directories that a command uses on this machine, by the names that a stored result has for them."""

    def __init__(self, command: Command) -> None:
        self.by_name = {str(number): root for number, root in enumerate(command.roots)}
        self.by_name[SOURCE] = os.path.dirname(command.source) or "."
        folder = os.path.dirname(_program(command.compiler, command))
        self.by_name[TOOLKIT] = f"{folder}/.."
        self.by_name[HERE] = "."
        self._before = self._identities()
        # Of nested roots the outer, so that all names that a file may be included by are ends of its path there.
        ways = [(root.rstrip("/") + "/", name) for name, root in self.by_name.items() if name != HERE]
        given = os.path.dirname(_found(command.compiler, command))
        self._ways = sorted([*ways, (f"{given}/../", TOOLKIT)], key=lambda way: len(way[0]))

    def _identities(self) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for root in self.by_name.values():
            try:
                status = os.stat(root)
                found.append((status.st_dev, status.st_ino))
            except OSError:
                found.append(None)
        return found

    def are_others_now(self) -> bool:
        """Whether a directory was replaced after ``__init__``.

        A link or rename may exchange all files without changing their times.
        """
        return self._identities() != self._before

    def nested(self) -> list[str]:
        """The command's directories that lie inside others, each as a text that says where.

        On another machine, they must be nested in the same way: a file is named from the outer directory.
        """
        return [
            f"{name} in {outer}: {inside[len(way) :]}"
            for name, root in sorted(self.by_name.items())
            for way, outer in self._ways
            if (inside := root.rstrip("/") + "/").startswith(way) and name not in (outer, HERE)
        ]

    def named(self, path: str) -> tuple[str, str]:
        """A path as a stored result names it: the name of the directory that it is in, and the path below that."""
        for way, name in self._ways:
            if path.startswith(way) and len(path) > len(way):
                return name, path[len(way) :]
        if path.startswith("/"):
            return NONE, path
        return SOURCE if self.by_name[SOURCE] == "." else HERE, path

    def path(self, root: str, name: str) -> str:
        """The path on this machine for a name from ``named``; empty if this command has no such directory."""
        if root == NONE:
            return name
        folder = self.by_name.get(root)
        return "" if folder is None else name if root == HERE or folder == "." else f"{folder.rstrip('/')}/{name}"


def shadows(files: Iterable[tuple[str, str]], asked: Iterable[str], roots: Roots) -> list[str]:
    """The existing files that nvcc might find in place of an included one, sorted.

    The text of an ``#include`` is not known, but it is an end of the file's path: for ``a/b/c.h`` also ``b/c.h`` or
    ``c.h``. Each such end is looked for in each root and in each folder of an included file. A stored result can be
    served only while the same of these files exist as when it was made.

    Args:
        files: the included files, each as the name of its root and its path below that.
        asked: names that a source asks for with ``__has_include``.
    """
    here, found = os.getcwd(), set[str]()
    inner = {(root, "") for root in roots.by_name} | {(TOOLKIT, "include")}
    known: set[str] = set()
    by_folder: dict[tuple[str, str], set[str]] = {}
    wanted: dict[str, set[str]] = {}  # the last parts of all ends, by what is before them
    for root, name in files:
        known.add(os.path.join(here, roots.path(root, name)))
        by_folder.setdefault((root, os.path.dirname(name)), set()).add(os.path.basename(name))
    for (root, folder), names in by_folder.items():
        above = root, folder
        while above not in inner:  # from any above it, to the root, the rest may have been asked for
            inner.add(above)
            above = root, os.path.dirname(above[1])
        end = folder.lstrip("/")
        while end:
            wanted.setdefault(end, set()).update(names)
            end = end.partition("/")[2]
        wanted.setdefault("", set()).update(names)
    for name in asked:
        if not name.startswith("/"):
            wanted.setdefault(os.path.dirname(name), set()).add(os.path.basename(name))
        elif _is_there(name):
            found.add(f"{NONE}\0{name}")
    folders = {roots.path(*one).rstrip("/") or ("/" if one[0] == NONE else ".") for one in inner}
    for at, names in _below(folders.union(_MORE_ROOTS), wanted).items():
        for name in names.intersection(_names_in(at or ".")):
            if os.path.join(here, at + name) not in known and _is_there(at + name):
                found.add("\0".join(roots.named(at + name)))
    return sorted(found)


def _below(folders: Iterable[str], wanted: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The names of wanted files, by folder path: each folder in ``wanted`` is joined to each of ``folders``.

    A path is left out if its first part below one of ``folders`` does not exist.
    """
    by_first: dict[str, list[str]] = {}
    for inside in wanted:
        by_first.setdefault(inside.partition("/")[0], []).append(inside)
    found: dict[str, set[str]] = {}
    for folder in folders:
        way = "" if folder == "." else folder.rstrip("/") + "/"
        for first in by_first.keys() & {*_names_in(folder), "", ".", ".."}:
            for inside in by_first[first]:
                found.setdefault(f"{way}{inside}/" if inside else way, set()).update(wanted[inside])
    return found


def _is_there(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def dependencies_in(text: str) -> list[str]:
    """The files that the text of a dependency file names, the source first."""
    body = text.replace("\\\n", " ").partition(" : ")[2]
    return [
        one.replace("\\ ", " ").replace("$$", "$").replace("\\#", "#") for one in re.findall(r"(?:\\.|[^\s\\])++", body)
    ]


def dependency_text(command: Command, files: Sequence[str]) -> str:
    """The text of a dependency file as nvcc writes it, which escapes spaces and no other characters."""
    names = [name.replace(" ", "\\ ") for name in (command.source, *files)]
    return f"{command.target} : " + " \\\n    ".join(names) + "\n"


def read_text(path: str) -> bytes | None:
    """The bytes of a file; ``None`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _joined(text: bytes) -> bytes:
    """The text of a source, with each line that ends in a backslash (also with blanks after it) joined to the next."""
    # Those without blanks are nearly all, and take no memory so.
    return _CONTINUED.sub(b"", text.replace(b"\\\n", b"").replace(b"\\\r\n", b""))


def is_unstable(text: bytes) -> bool:
    """Whether a source asks for the date or the time, or has the assembler read a file."""
    return _UNSTABLE.search(_joined(text)) is not None


def asked_in(text: bytes) -> set[str]:
    """The names for which a source may ask with ``__has_include``, directly or through a macro."""
    lines = _DIRECTIVE.findall(_joined(text))
    return {name.decode("utf-8", "replace") for line in lines for name in _NAME.findall(line)}


def absolute_in(text: bytes) -> set[str]:
    """The absolute paths that a source includes.

    A result with such a path does not move with the command's directories: the file must be at that path.
    """
    return {os.fsdecode(name) for name in _ABSOLUTE.findall(text)}
