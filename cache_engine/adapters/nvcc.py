"""The launcher of nvcc, ``gemm-cache-nvcc``: an understood command is served from the store, or compiled and stored.

A hit must start fast, so the modules that only a miss needs are imported at a miss. If anything fails in the launcher,
nvcc runs as it would without us.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from cache_engine.errors import GemmCacheError, StoreError
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.nvcc import inputs, results
from cache_engine.frameworks.nvcc.command import Command, PassThrough, understood
from cache_engine.process import write_all
from cache_engine.settings import Settings
from cache_engine.store.layout import JOURNAL_OPEN, StoreLayout
from cache_engine.store.lock import open_to_append
from cache_engine.store.opening import open_store

if TYPE_CHECKING:
    import subprocess

    from cache_engine.adapters.shelf import Shelf

_MOST_TEXT = 1024**2  # of what a compile prints; more is not stored
_CLOCK_NS = 20 * 10**6  # as much may a file's time be behind the clock


def main() -> NoReturn:
    """Runs ``gemm-cache-nvcc [NVCC] ARGUMENT…`` and exits as nvcc does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a traceback, as it ends nvcc
    os._exit(launch(sys.argv[1:], os.environ))  # all is closed, and the interpreter's own end takes 8 ms


def launch(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Serves or compiles a command; returns its exit code, or replaces this process by nvcc, which does not return."""
    compiler, arguments = compiler_in(words, environment)
    if not compiler:
        _say("error: nvcc is not installed; name it first, set CUDA_HOME or add it to PATH")
        return 127
    words = [compiler, *arguments]
    layout = _store(environment)
    if layout is None:
        return _become(words)
    try:
        request = results.Request(understood(compiler, arguments, environment), inputs.Digests(layout))
        lookup = results.Lookup(layout, request)
        if lookup.found is None:
            return _compiled(layout, request, words)
        _serve(layout, request.command, *lookup.found)
        request.digests.save()
        return 0
    except PassThrough as reason:
        _count_passed(layout, str(reason))
    except (OSError, UnicodeError, StoreError):  # the output, the store, a name that is no text
        _count_passed(layout, "file cannot be read or written")
    return _become(words)


def compiler_in(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The path of nvcc (the first word if it names an nvcc, else this machine's nvcc), and the arguments of nvcc."""
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


def _store(environment: Mapping[str, str]) -> StoreLayout | None:
    """The store that the settings name; ``None`` if caching is off, or if the store is unusable (prints why)."""
    try:
        settings = Settings.load(environment)
        return open_store(settings.directory(), trust=settings.trust_store) if settings.uses_directory else None
    except (GemmCacheError, OSError) as error:
        _say(f"gemm-cache-nvcc: the store cannot be used: {error}")
        return None


def _count_passed(layout: StoreLayout, reason: str) -> None:
    """Counts, by reason, a command that was left to nvcc, as it could not be served or stored."""
    _count(layout, {"passed": {reason: 1}})


def _count(layout: StoreLayout, fields: Mapping[str, object]) -> None:
    """Appends a line with these counts to the journal; does nothing if the journal cannot be written."""
    with suppress(OSError):
        file, _ = open_to_append(layout.journal, JOURNAL_OPEN)
        os.write(file.descriptor, msgspec.json.encode({"kind": "use", "at": time.time(), **fields}) + b"\n")
        file.close()


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


def _serve(layout: StoreLayout, command: Command, found: Group, document: results.Document) -> None:
    """Writes a stored result's output and dependency file, prints what nvcc had printed, and counts the hit.

    Raises ``OSError``.
    """
    if command.dependencies is not None:
        roots = inputs.Roots(command)
        files = [roots.path(root, name) for root, name, _ in document.includes]
        _write(command.dependencies, inputs.dependency_text(command, files).encode())
    _write(command.output, found.files[results.OUTPUT + command.ending])
    for name, descriptor in ((results.OUT, 1), (results.ERR, 2)):
        if text := found.files.get(name):
            os.write(descriptor, text)
    saved_us = round((found.compile_ms or 0.0) * 1e3)
    _count(layout, {"key": found.key, "made_at": found.made_at, "hits": {"disk": 1}, "saved_us": saved_us})


def _write(path: str, data: bytes) -> None:
    """Writes a file whole or not at all, even if killed; in place for a link or without ``O_TMPFILE``."""
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


def _compiled(layout: StoreLayout, request: results.Request, words: list[str]) -> int:
    """Compiles and stores a command, unless another process has just done that; returns the exit code."""
    from cache_engine.adapters.shelf import shelf

    stored = shelf(layout.root)
    if stored is None:
        raise PassThrough("no store can be used")
    with ExitStack() as held:
        with suppress(OSError, StoreError):  # held for long, or no locks here: compiling twice is no harm
            held.enter_context(stored.lock(results.FRAMEWORK, request.name, results.INDEX))
        lookup = results.Lookup(layout, request)
        if lookup.found is not None:
            _serve(layout, request.command, *lookup.found)
            return 0
        for number in lookup.damaged:
            with suppress(StoreError, OSError):  # which counts it
                stored.get(results.FRAMEWORK, request.place(number), results.INDEX)
        return _run_and_store(stored, request, words, lookup.free)


def _run_and_store(stored: Shelf, request: results.Request, words: list[str], number: int) -> int:
    command, own = request.command, -1
    try:
        if command.dependencies is None:
            # In memory, so that a killed launcher leaves no file.
            own = os.memfd_create("dependencies")
            words = [*words, "-MD", "-MF", f"/proc/{os.getpid()}/fd/{own}"]
        began_ns, began = time.time_ns(), time.perf_counter()
        code, printed = run(words)
        stages_ms = {"compile": (time.perf_counter() - began) * 1e3}
        if code == 0:
            try:
                dependencies = inputs.read_text(f"/proc/self/fd/{own}" if own >= 0 else str(command.dependencies))
                files = _result(request, dependencies, began_ns, printed)
                stored.put(
                    Group(results.FRAMEWORK, request.place(number), results.INDEX, files, time.time(), stages_ms)
                )
            except PassThrough as reason:
                _count_passed(stored.layout, str(reason))
            except (OSError, ValueError, StoreError):  # a full or read-only store: the output is there
                _count_passed(stored.layout, "store cannot be written")
        return code
    finally:
        if own >= 0:
            os.close(own)
        request.digests.save()
        stored.close()


def _result(
    request: results.Request, dependencies: bytes | None, began_ns: int, printed: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The files to store for a command; raises ``PassThrough`` where no lookup could find them, and ``OSError``."""
    command, roots, digests = request.command, request.roots, request.digests
    output = inputs.read_text(command.output)
    if output is None or not dependencies or sum(map(len, printed.values())) > _MOST_TEXT:
        raise PassThrough("no output, no dependencies, or very much is printed")
    if not _is_whole(output, command):
        raise PassThrough("output is incomplete")
    source = inputs.read_text(command.source) or b""
    read, asked, absolute = [], inputs.asked_in(source), inputs.absolute_in(source)
    for path in inputs.dependencies_in(os.fsdecode(dependencies))[1:]:
        text, digest = inputs.read_text(path), digests.of(path)
        if text is None or digest is None:
            raise PassThrough("an include cannot be read")
        status = os.stat(path)
        if max(status.st_mtime_ns, status.st_ctime_ns) > began_ns - _CLOCK_NS:
            raise PassThrough("a header changed while it was compiled")
        if inputs.is_unstable(text):
            raise PassThrough("date, time or .incbin in a header")
        asked |= inputs.asked_in(text)
        absolute |= inputs.absolute_in(text)
        read.append((path, digest))
    if results.Request(command, digests).name != request.name or roots.are_others_now():
        raise PassThrough("an input changed while it was compiled")
    includes = [(*((inputs.NONE, path) if path in absolute else roots.named(path)), digest) for path, digest in read]
    document = results.Document(
        **msgspec.structs.asdict(request.known),
        command=" ".join(("nvcc", *(results.option_text(*pair) for pair in command.options))),
        source_name=os.path.basename(command.source),
        includes=includes,
        asked=sorted(asked),
        shadows=inputs.shadows(((root, name) for root, name, _ in includes), asked, roots),
    )
    files = {results.OUTPUT + command.ending: output, results.INDEX: msgspec.json.encode(document)}
    return files | {name: text for name, text in printed.items() if text}


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


# ---- Runs nvcc for a miss: prints and returns its output, passes signals on to it, and ends it with this process ----

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run(words: list[str]) -> tuple[int, dict[str, bytes]]:
    """Runs a program to its end; returns its exit code and output by stream. Raises ``OSError`` if it cannot start.

    If a signal ended the program, this process ends itself by the same signal.
    """
    import subprocess

    # A separate process group, so that a signal reaches the programs that nvcc runs: they keep our pipe open. This
    # process has no other thread, so a fork copies no lock that is held.
    child = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        preexec_fn=_end_with_parent(),  # noqa: PLW1509
    )
    before = {number: signal.signal(number, lambda sent, _: _send(child, sent)) for number in _PASSED_ON}
    try:
        printed = _pass_on(child)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code, printed


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _pass_on(child: subprocess.Popen[bytes]) -> dict[str, bytes]:
    """Copies a process's output to our own, each stream in its order; returns the output by stream."""
    import selectors

    if child.stdout is None or child.stderr is None:
        return {}
    printed = {results.OUT: b"", results.ERR: b""}
    with selectors.DefaultSelector() as waiting, child.stdout, child.stderr:
        waiting.register(child.stdout, selectors.EVENT_READ, (results.OUT, 1))
        waiting.register(child.stderr, selectors.EVENT_READ, (results.ERR, 2))
        while waiting.get_map():
            for key, _ in waiting.select():
                name, target = key.data
                data = os.read(key.fd, 65536)
                if not data:
                    waiting.unregister(key.fileobj)
                printed[name] += data
                with suppress(BrokenPipeError):  # if its reader has ended, the text is dropped and nvcc continues
                    write_all(target, data)
    return printed


def _end_with_parent() -> Callable[[], None]:
    """A function to call in the child before nvcc starts: it makes the Linux kernel end nvcc if this process is killed.

    The function is made before the fork, because after a fork only a prepared call is safe.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
