"""The launcher of nvcc, ``gemm-cache-nvcc``: an understood command is served from the store, or compiled and stored.

A hit imports little, so whatever a miss needs is imported there. Whatever fails here, nvcc runs as it would without us.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time

from cache_engine.errors import StoreError
from cache_engine.frameworks.nvcc.command import Command, PassThrough, understood
from cache_engine.frameworks.nvcc.inputs import (
    NONE,
    Digests,
    absolute_in,
    asked_in,
    dependencies_in,
    dependency_text,
    is_unstable,
    read_text,
    shadows,
)
from cache_engine.frameworks.nvcc.results import ERR, FRAMEWORK, INDEX, OUT, OUTPUT, Lookup, Request, Result
from cache_engine.store.quick import Slow, append_count, check_root, quick_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from cache_engine.adapters.shelf import Shelf

_MOST_TEXT = 1024**2  # of what a compile prints; more is not stored
_CLOCK_NS = 20 * 10**6  # as much may a file's time be behind the clock


def main() -> NoReturn:
    """Runs ``gemm-cache-nvcc [NVCC] ARGUMENT…`` and exits as nvcc does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback, as it ends nvcc
    sys.exit(launch(sys.argv[1:], os.environ))


def launch(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command; returns its exit code, or becomes nvcc."""
    compiler, arguments = compiler_in(words, environment)
    if not compiler:
        _say("error: nvcc is not installed; name it first, set CUDA_HOME or add it to PATH")
        return 127
    store = Place(environment)
    try:
        command = understood(compiler, arguments, environment)
        root = store.root
        if root is None:
            raise PassThrough("no store can be used")
        request = Request(command, Digests(root))
        lookup = store.lookup(request)
        if lookup.found is None:
            return _compiled(store, request, [compiler, *arguments])
        store.serve(command, lookup.found)
        request.digests.save()
        return 0
    except PassThrough as reason:
        store.count_passed(str(reason))
    except (
        OSError,
        UnicodeError,
        StoreError,
    ):  # the output, the store, a name that is no text
        store.count_passed("file cannot be read or written")
    return _become([compiler, *arguments])


def compiler_in(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The compiler and its arguments: the first word where that names an nvcc, else the one of this machine."""
    if words and "nvcc" in os.path.basename(words[0]) and not words[0].startswith("-") and not words[0].endswith(".cu"):
        return words[0], list(words[1:])
    own = os.path.realpath(sys.argv[0])
    homes = [f"{environment[name]}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    for folder in (*homes, *environment.get("PATH", os.defpath).split(os.pathsep)):
        path = f"{folder}/nvcc"
        if os.access(path, os.X_OK) and os.path.realpath(path) != own:
            return path, list(words)
    from cache_engine.compilers.contents import package_files

    return next(map(str, package_files("bin/nvcc")), ""), list(words)


class Place:
    """The store of the settings, found quickly where the environment says all; ``root`` is ``None`` without one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._shelf: Shelf | None = None
        self._named, self._trust = environment.get("GEMM_CACHE_DIR") or None, False
        self.root = quick_directory(environment)
        try:
            if self.root is None:
                raise Slow("settings decide it")
            check_root(self.root)
        except Slow:
            self.root = None
            if self.shelf is not None:
                self.root, self._trust = str(self.shelf.layout.root), True  # which ``open_store`` has checked

    @property
    def shelf(self) -> Shelf | None:
        """All of the store; ``None`` where it cannot be used."""
        if self._shelf is None:
            from cache_engine.adapters.shelf import shelf

            self._shelf = shelf(self._named)
        return self._shelf

    def lookup(self, request: Request) -> Lookup:
        """The results of a request; raises ``PassThrough``."""
        try:
            return Lookup(self.root or "", request, trust=self._trust)
        except Slow as error:
            raise PassThrough("store cannot be read") from error

    def serve(self, command: Command, found: Result) -> None:
        """Delivers a result and counts the hit. Raises ``OSError``."""
        deliver(command, found)
        self._count(f'"key":"{found.key}","made_at":{found.made_at!r},"hits":{{"disk":1}},"saved_us":{found.saved_us}')

    def count_passed(self, reason: str) -> None:
        """Counts a command that was left to nvcc."""
        self._count(f'"passed":{{"{reason}":1}}')

    def _count(self, fields: str) -> None:
        """Appends a line about use to the journal, if that can be written."""
        try:
            if self.root is not None:
                append_count(self.root, f'{{"kind":"use","at":{time.time()!r},{fields}}}\n'.encode())
        except OSError:
            pass


def _say(text: str) -> None:
    os.write(2, os.fsencode(f"{text}\n"))


def _become(words: list[str]) -> int:
    """Replaces this process by nvcc."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and nvcc would inherit that
    try:
        os.execvp(words[0], words)  # noqa: S606  # it takes our place
    except OSError as error:
        _say(f"error: {words[0]} cannot be run: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def deliver(command: Command, found: Result) -> None:
    """Writes the output, the dependency file and what was printed. Raises ``OSError``."""
    from cache_engine.frameworks.nvcc.inputs import Roots

    if command.dependencies is not None:
        roots = Roots(command)
        files = [roots.path(root, name) for root, name, _ in found.includes]
        _write(command.dependencies, dependency_text(command, files).encode())
    _write(command.output, found.files[OUTPUT + command.ending])
    for name, descriptor in ((OUT, 1), (ERR, 2)):
        if text := found.files.get(name):
            os.write(descriptor, text)


def _write(path: str, data: bytes) -> None:
    """Writes a file whole or not at all, also where this process is killed; a link's target is written in place."""
    folder = os.path.dirname(path) or "."
    if not os.path.lexists(path) or (os.path.isfile(path) and not os.path.islink(path)):
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except OSError:  # a file system without such files
            descriptor = -1
        if descriptor >= 0:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if os.path.lexists(path):
                    os.unlink(path)
                # With a folder's descriptor Python follows the link in /proc, else it does not.
                os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
            return
    with open(path, "wb") as file:
        file.write(data)


# ---- A miss ----


def _compiled(store: Place, request: Request, words: list[str]) -> int:
    """Compiles and stores a command, unless another process has just done that; returns the exit code."""
    shelf = store.shelf
    if shelf is None:
        raise PassThrough("no store can be used")
    from contextlib import ExitStack, suppress

    from cache_engine.frameworks.bundles import group_key
    from cache_engine.store.lock import file_lock

    with ExitStack() as held:
        try:
            lock = shelf.layout.key_lock(group_key(FRAMEWORK, request.name, INDEX))
            held.enter_context(file_lock(lock, shelf.lock_timeout_s))
        except (OSError, StoreError):
            pass  # held for long, or no locks here: compiling twice is no harm
        lookup = store.lookup(request)
        if lookup.found is not None:
            store.serve(request.command, lookup.found)
            return 0
        for number in lookup.damaged:
            with suppress(StoreError, OSError):  # which counts it
                shelf.get(FRAMEWORK, request.place(number), INDEX)
        return _run_and_store(store, shelf, request, words, lookup.free)


def _run_and_store(store: Place, shelf: Shelf, request: Request, words: list[str], number: int) -> int:
    from cache_engine.adapters.nvcc_run import run

    command = request.command
    own = -1
    try:
        if command.dependencies is None:
            # In memory, so that a killed launcher leaves no file.
            own = os.memfd_create("dependencies")
            words = [*words, "-MD", "-MF", f"/proc/{os.getpid()}/fd/{own}"]
        began_ns, began = time.time_ns(), time.perf_counter()
        code, printed = run(words)
        compile_ms = (time.perf_counter() - began) * 1e3
        if code == 0:
            try:
                path = f"/proc/self/fd/{own}" if own >= 0 else str(command.dependencies)
                _store(shelf, request, read_text(path), began_ns, printed, compile_ms, number)
            except PassThrough as reason:
                store.count_passed(str(reason))
            except (OSError, ValueError, StoreError):  # a full or read-only store: the output is there
                store.count_passed("store cannot be written")
        return code
    finally:
        if own >= 0:
            os.close(own)
        request.digests.save()
        shelf.close()


def _store(
    shelf: Shelf,
    request: Request,
    dependencies: bytes | None,
    began_ns: int,
    printed: Mapping[str, bytes],
    compile_ms: float,
    number: int,
) -> None:
    """Stores the result of a compile; raises ``PassThrough`` where it cannot be found again, and ``OSError``."""
    from cache_engine.frameworks.bundles import Group
    from cache_engine.frameworks.nvcc.results import option_text

    command, roots, digests = request.command, request.roots, request.digests
    output = read_text(command.output)
    if output is None or not dependencies or sum(map(len, printed.values())) > _MOST_TEXT:
        raise PassThrough("no output, no dependencies, or very much is printed")
    if not _is_whole(output, command):
        raise PassThrough("output is incomplete")
    source = read_text(command.source) or b""
    includes, asked, absolute = [], asked_in(source), absolute_in(source)
    for path in dependencies_in(os.fsdecode(dependencies))[1:]:
        text, digest = read_text(path), digests.of(path)
        if text is None or digest is None:
            raise PassThrough("an include cannot be read")
        status = os.stat(path)
        if max(status.st_mtime_ns, status.st_ctime_ns) > began_ns - _CLOCK_NS:
            raise PassThrough("a header changed while it was compiled")
        if is_unstable(text):
            raise PassThrough("date, time or .incbin in a header")
        asked |= asked_in(text)
        absolute |= absolute_in(text)
        includes.append([path, digest])
    if Request(command, digests).name != request.name or roots.are_others_now():
        raise PassThrough("an input changed while it was compiled")
    includes = [[*((NONE, path) if path in absolute else roots.named(path)), digest] for path, digest in includes]
    document = {
        **request.document,
        "command": " ".join(("nvcc", *(option_text(*pair) for pair in command.options))),
        "source_name": os.path.basename(command.source),
        "includes": includes,
        "asked": sorted(asked),
        "shadows": shadows(((root, name) for root, name, _ in includes), asked, roots),
    }
    import json

    files = {OUTPUT + command.ending: output, INDEX: json.dumps(document).encode()}
    files |= {name: text for name, text in printed.items() if text}
    shelf.put(Group(FRAMEWORK, request.place(number), INDEX, files, time.time(), {"compile": compile_ms}))


def _is_whole(output: bytes, command: Command) -> bool:
    """Whether an output was written to its end: where the disk is full, nvcc may exit with 0 all the same."""
    if not os.statvfs(command.output).f_bavail or not output:
        return False
    if command.ending == ".ptx":
        return output[-1:] in b"\n\0"
    if len(output) < 64:
        return False
    # Of an ELF file the two tables, of which one is at the end: where they are, and the size and number of their rows.
    starts, rows = struct.unpack_from("<QQ", output, 32), struct.unpack_from("<HHHH", output, 54)
    return bool(max(starts[0] + rows[0] * rows[1], starts[1] + rows[2] * rows[3]) <= len(output))
