"""The verb ``run``: runs a command with its kernel caches below one root, and reports what it compiled."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli.support import FAILED, NOT_HERE, OK, Verb, open_cache, write_file
from cache_engine.cli.terminal import escaped, moment
from cache_engine.errors import GemmCacheError, LockTimeout, UsageError
from cache_engine.frameworks.bundles import UnknownGroup
from cache_engine.model.documents import to_json
from cache_engine.settings import Settings, user_cache_folder, variable
from cache_engine.store.lock import file_lock
from cache_engine.units import counted, human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.frameworks.snapshots import Snapshot
    from cache_engine.frameworks.supervisor import Ready
    from cache_engine.frameworks.watch import Run
    from cache_engine.model.key import CacheKey

_SHOWN = 5


@click.command(
    "run",
    cls=Verb,
    context_settings={"allow_interspersed_args": False},
    examples=(
        "run -- python serve.py",
        "run --root /mnt/kernels --ready http://127.0.0.1:8000/health --forbid-after-ready -- vllm serve MODEL",
        "run --ready 'line:startup complete' --output run.json --output run.prom -- python serve.py",
        "run --restore llama-1 --save llama-2 -- python serve.py",
    ),
    done="The command ended with 0. Any other code is the command's: 128 and the number of a signal that ended it, 127 "
    "if it is not found, 126 if it cannot be started.",
    missing="--forbid-after-ready: a compile was seen after the command was ready.",
    argument_texts={"command": "The command and its arguments, after --."},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND…")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the caches of all frameworks: a volume, at the same path on every machine. Default: "
    "gemm-cache-run in the user cache directory.",
)
@click.option(
    "--ready",
    "sign",
    metavar="URL|line:TEXT|file:FILE",
    help="Ready when a GET of the address has a status below 400, a line with TEXT is printed, or FILE is written.",
)
@click.option("--forbid-after-ready", is_flag=True, help="End with exit code 3 if a compile is seen after that.")
@click.option("--restore", metavar="NAME", help="Restore this snapshot below the root first.")
@click.option("--save", metavar="NAME", help="Save what the root holds in the end as a snapshot in the store.")
@click.option(
    "--output",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Write the report to a file: as JSON, or as metrics if its name ends with .prom (repeatable).",
)
@click.pass_obj
@click.pass_context
def run_verb(
    ctx: click.Context, settings: Settings, /, command: tuple[str, ...], root: Path | None, sign: str | None,
    forbid_after_ready: bool, restore: str | None, save: str | None, files: tuple[Path, ...],
) -> None:  # fmt: skip
    """Run a command and report the kernels that its frameworks compile.

    Sets the cache directory of Triton, Inductor, vLLM, JAX, FlashInfer, DeepGEMM, cuTile, tilelang, CuPy, the CUDA
    driver and PyTorch's extensions to a folder below --root, unless its environment variable is already set, and makes
    frameworks that call nvcc call gemm-cache-nvcc. At the same path on the next machine or in the next pod, the kernels
    are found again. While the command runs, the caches are read every second; nothing is hooked into it. At the end and
    on SIGUSR1, a report goes to standard error: kernels found, compiled before and after the command was ready, the
    slowest, and what cannot be watched.

    Signals are passed on to the command. --restore asks the setting remote for what the store lacks. The verb prints
    what cannot be restored or saved, and the command runs all the same.
    """
    from cache_engine.frameworks.snapshots import JAX_CACHES, check_name
    from cache_engine.frameworks.supervisor import CannotStart, Supervisor
    from cache_engine.frameworks.watch import Run as Report
    from cache_engine.frameworks.watch import Watch, not_watched, redirected

    ready = None if sign is None else _ready(sign)
    if forbid_after_ready and ready is None:
        raise UsageError("--forbid-after-ready needs --ready")
    for name in (restore, save):
        if name is not None:
            check_name(name)
    root = _root(root)
    environment = {**({} if settings.dir is None else {variable("dir"): str(settings.directory())}), **os.environ}
    if not _can_write(root):
        restore = save = None
    else:
        environment |= redirected(environment, root, shutil.which("gemm-cache-nvcc", path=_programs()))
    if restore or save:
        environment.setdefault(JAX_CACHES, "none")
    words = [os.fsencode(word).decode(errors="replace") for word in (*command, str(root))]
    report = Report(command=words[:-1], root=words[-1], started_at=time.time(), not_watched=not_watched(environment))
    try:
        with _alone(root) as is_alone:
            if restore:
                _restore(settings, restore, root, environment, is_alone=is_alone)
            supervisor = Supervisor(Watch(report, environment), ready, lambda: _publish(report, files))
            report.exit_code = supervisor.run(command, environment)
    except CannotStart as error:
        click.echo(f"error: {escaped(str(error))}", err=True)
        ctx.exit(error.exit_code)
    report.ended_at = time.time()
    if left := supervisor.left_behind:
        report.not_watched.insert(0, f"{counted(left, 'process', 'processes')} that the command left running")
    _publish(report, files)
    _keep(report, environment)
    if save:  # last, as it may take longer than a pod has to end
        _save(settings, save, root, environment)
    if forbid_after_ready and report.after:
        ctx.exit(NOT_HERE)
    if forbid_after_ready and report.ready_at is None and report.exit_code == OK:
        _say("the command ended before it was ready, so nothing is proved.")
        ctx.exit(FAILED)
    ctx.exit(report.exit_code)


def _ready(sign: str) -> Ready:
    from cache_engine.frameworks.supervisor import Line, answers, exists

    kind, _, value = sign.partition(":")
    if kind in ("http", "https") and value.startswith("//"):
        return answers(sign)
    if not value or kind not in ("line", "file"):
        raise UsageError(f"--ready is {sign!r}; give an address with http:// or https://, line:TEXT or file:FILE")
    return Line(value) if kind == "line" else exists(Path(value))


def _programs() -> str:
    """The folders in which to look for nvcc's launcher, this program's own folder first."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def _root(given: Path | None) -> Path:
    root = given or user_cache_folder("gemm-cache-run")
    if root is None:
        raise UsageError("this user has no cache directory; name a folder with --root")
    return root.absolute()


def _can_write(root: Path) -> bool:
    """Whether caches can be written below ``root``. If not, prints why; the command runs in any case."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        _say(f"{root} cannot be written: {error.strerror}. The command runs with the cache directories that it has.")
        return False
    return True


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Yields whether no other ``run`` uses the same root; if one does, prints that this report has its kernels too."""
    is_alone = False
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(root / ".gemm-cache-run.lock", 0.0))
            is_alone = True
        except LockTimeout:
            _say(f"another run uses {root}: kernels that its command compiles are in this report too.")
        except OSError:
            pass  # the folder cannot be written, which has been said
        yield is_alone


@contextmanager
def _saying(failed: str) -> Iterator[None]:
    """Prints any error of the ``with``'s body and goes on, so that the command still runs and its exit code stays."""
    try:
        yield
    except (OSError, GemmCacheError, UnknownGroup) as error:
        _say(f"{failed}: {error}")


def _restore(settings: Settings, name: str, root: Path, environment: dict[str, str], *, is_alone: bool) -> None:
    from cache_engine.frameworks.restore import restore
    from cache_engine.store.disk import DiskStore

    with _saying(f"{name} is not restored"), _open_store(settings) as cache:
        layout = cache.layout
        snapshot, signed = fetched_snapshot(settings, cache, name)
        done = restore(layout, snapshot, root, environment, untrusted=untrusted(settings, signed), is_alone=is_alone)
        for key, made_at in done.made_at.items():  # so that what was used is not evicted first
            cache.journal.hit(key, DiskStore.name, made_at=made_at)
        entries = counted(len(done.made_at), "entry", "entries")
        _say(f"restored {entries} of {name}, {human_bytes(done.size_bytes)}; {done.there:,} there already.")
        if done.missing:
            _say(f"not restored: {counted(done.missing, 'entry', 'entries')} that the store does not have")
        for why, count in done.left.most_common():
            _say(f"not restored: {why}: {count:,} {'operations' if why.startswith('flashinfer') else 'entries'}")


def fetched_snapshot(settings: Settings, cache: Cache, name: str) -> tuple[Snapshot, bytes]:
    """A snapshot of the store, or of the setting ``remote``, and the bytes that its signature covers.

    Asks the remote for what the store lacks, entries too. Raises ``UsageError`` if neither has it.
    """
    from cache_engine.frameworks.snapshots import read_snapshot, snapshot_key

    layout = cache.layout
    if not os.path.exists(layout.group_path(snapshot_key(name))):
        _fetch(settings, cache, [snapshot_key(name)])
    found = read_snapshot(layout, name)
    if found is None:
        raise UsageError("neither the store nor the setting remote has it")
    lacking = [key for key in found[0].entries if not os.path.exists(layout.group_path(key))]
    if lacking:
        _fetch(settings, cache, lacking)
    return found


def _open_store(settings: Settings) -> Cache:
    return open_cache(settings.with_overrides({"enable_caching": True}))


def _fetch(settings: Settings, cache: Cache, keys: list[CacheKey]) -> None:
    """Imports kernels of other frameworks from the remote that the settings name, if any; prints the refused ones."""
    from cache_engine.cache.remote.transfer import pull
    from cache_engine.cli.remote import proof, remote_named

    if settings.remote:
        remote, prove = remote_named(settings, None), proof(settings, unsigned=False)
        pulled = pull(cache.store, cache.journal, remote, keys, prove=prove, bundles=keys, host_code=settings.host_code)
        for refused in pulled.refused[:_SHOWN]:
            _say(f"not fetched: {refused.key[:12]}: {refused.cause}")


def untrusted(settings: Settings, signed: bytes) -> str:
    """The reason why code for the CPU in a snapshot is not accepted; empty where it is."""
    from cache_engine.errors import Unproved
    from cache_engine.store.signatures import proof_for

    if not settings.host_code:
        return "the setting host_code is off"
    prove = proof_for(settings)
    if prove is None:
        return "the setting trusted_signers names no file"
    try:
        prove(signed)
    except Unproved as error:
        return str(error)
    return ""


def _save(settings: Settings, name: str, root: Path, environment: dict[str, str]) -> None:
    from cache_engine.frameworks.snapshots import save
    from cache_engine.store.signatures.signers import SigningKey

    with _saying(f"{name} is not saved"), _open_store(settings) as cache:
        sign = SigningKey.read(settings.signing_key).sign if settings.signing_key else bytes
        done = save(cache.layout, name, root, environment, sign=sign, durable=settings.is_durable)
        entries = counted(done.entries, "entry", "entries")
        _say(f"saved {entries} as {name}, {human_bytes(done.size_bytes)}, {done.new:,} of them new in the store.")
        for text in done.left[:_SHOWN]:
            _say(f"not saved: {text}")
        if len(done.left) > _SHOWN:
            _say(f"not saved: {len(done.left) - _SHOWN:,} more")


def _publish(report: Run, files: tuple[Path, ...]) -> None:
    """Writes the report to files and to standard error; a file that cannot be written does not stop the others."""
    for file in files:
        try:
            text = f"{to_json(report)}\n"
            if file.suffix == ".prom":
                from cache_engine.insight.monitoring import run_text

                text = run_text(report)
            write_file(file, text.encode(), force=True)
        except (OSError, GemmCacheError) as error:
            _say(f"the report is not in {file}: {error}")
    for line in _lines(report):
        _print(printable(line))


def _keep(report: Run, environment: Mapping[str, str]) -> None:
    """Stores the report for the dashboard's page Demand; a failure is only printed."""
    from cache_engine.frameworks.watch import keep_run
    from cache_engine.store.opening import open_store

    try:
        settings = Settings.load(environment)
        if settings.uses_directory:
            keep_run(open_store(settings.directory(), trust=settings.trust_store), report)
    except (OSError, GemmCacheError) as error:
        _say(f"the report is not in the store: {error}")


def _lines(report: Run) -> Iterator[str]:
    when = "is not ready yet" if report.ended_at is None else "was never ready"
    ready = f"was ready after {human_ms(1e3 * (report.ready_at - report.started_at))}" if report.ready_at else when
    seen = counted(report.before + report.after, "compile")
    yield f"gemm-cache run: {seen} seen, {report.after} after ready; the command {ready}."
    for name, each in report.frameworks.items():
        known = f", {human_ms(1e3 * each.seconds)} of compiling" if each.seconds else ""
        compiled = f"compiled: {each.before} before ready, {each.after} after"
        yield f"  {name}: {counted(each.found, 'kernel')}; {compiled}{known}"
    for one in report.slowest:
        stages = ", ".join(f"{stage} {human_ms(ms)}" for stage, ms in one.stages_ms.items())
        yield f"  slowest: {one.framework} {one.name}, {human_ms(1e3 * (one.seconds or 0.0))} ({stages})"
    for late in [one for one in report.compiled if one.phase == "after"][:_SHOWN]:
        yield f"  after ready: {late.framework} {late.name}, {moment(late.seen_at)}"
    for text in report.findings[:_SHOWN]:
        yield f"  not read: {text}"
    for text in report.not_watched:
        yield f"  not watched: {text}"


def _say(text: str) -> None:
    _print(escaped(f"gemm-cache run: {text}"))


def _print(text: str) -> None:
    with suppress(OSError):  # the reader of our output has ended: the command still needs its supervisor
        click.echo(text, err=True)
