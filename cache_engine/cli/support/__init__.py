"""Options, output and errors that the verbs share."""

from __future__ import annotations

import codecs
import io
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from cache_engine import log_handlers
from cache_engine.cli.support.global_options import NO_PAGER, given
from cache_engine.cli.support.verb import (
    DEVICE,
    FAILED,
    INTERRUPTED,
    NOT_HERE,
    OK,
    UNTARGETED,
    WRONG_USAGE,
    SizedVerb,
    Verb,
    VerbGroup,
)
from cache_engine.cli.terminal import escaped, look_alike
from cache_engine.errors import CompileError, GemmCacheError, Level, NotHereError, StoreUnusable, UsageError
from cache_engine.evaluator.catalogue import TOKENS
from cache_engine.model.documents import to_json
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.gemm.fields import FIELDS, Plain, ProblemField
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.shapes import parse_sizes
from cache_engine.settings import PACKS
from cache_engine.store.files import replace_file
from cache_engine.units import counted, printable

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.cache.cache import Cache
    from cache_engine.frameworks.bundles import Group
    from cache_engine.insight.coverage import Wanted
    from cache_engine.model.artifact import Record
    from cache_engine.settings import Settings
    from cache_engine.store.signatures.signers import SigningKey
    from cache_engine.upkeep.packs import Refused

_F = TypeVar("_F", bound=Callable[..., Any])

__all__ = ["FAILED", "INTERRUPTED", "NOT_HERE", "OK", "WRONG_USAGE", "SizedVerb", "Verb", "VerbGroup"]


def run(commands: click.Group) -> NoReturn:
    """Runs a command line; every error becomes one line and one of the exit codes."""
    try:
        _prepare_output()
        log_handlers.configure("warning")
        code = commands.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(WRONG_USAGE)
    except click.ClickException as error:
        _fail("UsageError", error.format_message(), WRONG_USAGE)
    except CompileError as error:
        from cache_engine.compilers.diagnostics import report

        print(printable(report(error), keep="\n\t"), file=sys.stderr)
        _fail("CompileError", str(error), FAILED, level=error.level, **_details(error), flags=error.flags)
    except GemmCacheError as error:
        _fail(type(error).__name__, str(error), _code_of(error), level=error.level)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _fail("OSError", f"{where}{error.strerror or error}; check the disk and its permissions", FAILED)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("Interrupted", "interrupted; every finished step is stored", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else OK)


def _prepare_output() -> None:
    """Lets any text be printed on standard output and error, also if they are closed or cannot encode ``×``."""
    codecs.register_error("look alike", look_alike)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open to the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="look alike")


@contextmanager
def reporting(job: Path | None) -> Iterator[Reporter | None]:
    """With a job file, yields the reporter that writes the file, and records an error that ends the ``with``'s body.

    Without a job file, yields ``None``. SIGTERM cancels a job in the same way as Ctrl-C.
    """
    if job is None:
        yield None
        return
    from cache_engine.batch.jobs import Reporter

    # The shell that started the dashboard may ignore Ctrl-C, and programs inherit that.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reporter = Reporter(job)
    try:
        if reporter.cancel_asked:
            raise KeyboardInterrupt
        yield reporter
    except CompileError as error:
        reporter.fail(str(error), error.level, {**_details(error), "flags": shlex.join(error.flags)})
        raise
    except GemmCacheError as error:
        reporter.fail(str(error), error.level)
        raise
    except OSError as error:
        reporter.fail(str(error), Level.ERROR)
        raise
    except KeyboardInterrupt:
        reporter.cancel()
        raise


def open_cache(
    settings: Settings, *, create: bool = True, packs_suffice: bool = False, optional: bool = False
) -> Cache:
    """Opens the store.

    With ``packs_suffice``, if the settings name packs and the store does not exist, opens only the packs.

    A verb that only reads must not create a store, or a mistyped name would show an empty store. Such a verb reads the
    store also where caching is switched off. ``optional`` is for a verb that works without a store: a missing store is
    then no error, and for an unusable one a line on standard error says why.
    """
    from cache_engine.cache import cache as engine
    from cache_engine.cache.cache import store_of

    if optional:
        try:
            if create or settings.directory_exists:
                return open_cache(settings, create=create)
        except StoreUnusable as error:
            print(printable(f"No store is used: {error}"), file=sys.stderr)
        return engine.open_cache(settings=settings.with_overrides({"enable_caching": False}))
    alone = settings.enable_caching == PACKS or not settings.directory_exists
    if packs_suffice and settings.packs and alone:
        return engine.Cache(*store_of(settings.with_overrides({"enable_caching": PACKS}), create=False))
    if not create:
        settings = settings.with_overrides({"enable_caching": True})
    return engine.open_cache(settings=settings, create=create)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """In the ``with``, opening a file that is missing, or whose folder is missing, raises ``UsageError``."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}") from error


def emit(document: Any, as_json: bool, print_text: Callable[[], None], failed: object = None) -> None:
    """Prints a result: as its JSON document, or as text for people; ends with exit code 1 if ``failed`` is true."""
    with printing():
        if as_json:
            print(escaped(to_json(document)))
        else:
            _print_paged(print_text)
    if failed:
        click.get_current_context().exit(FAILED)


def _print_paged(print_text: Callable[[], None]) -> None:
    """Prints a text; one longer than the terminal's screen is shown in a pager: that of ``PAGER``, else ``less``."""
    ctx = click.get_current_context(silent=True)
    is_plain = ctx is None or given(ctx).get(NO_PAGER) or os.environ.get("TERM") in {None, "dumb"}
    if is_plain or not sys.stdout.isatty() or not sys.stdin.isatty():
        print_text()
        return
    screen = _Screen()
    with redirect_stdout(screen):
        print_text()
    text = screen.getvalue()
    if text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text.removesuffix("\n"))  # which it adds
    else:
        print(text, end="")


class _Screen(io.StringIO):
    """A buffer for text that will go to a terminal."""

    def isatty(self) -> bool:
        """Returns true, so that tables become as wide as the terminal."""
        return True


@contextmanager
def printing() -> Iterator[None]:
    """In the ``with``, ignores that the reader of a pipe has closed it; other failures to write become ``OSError``."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from error


class Size(click.ParamType[int]):
    """A whole number in plain digits. Refuses other forms, such as Python's ``1_000``, as likely mistakes."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number in the text ``value``; fails if the text is not an allowed number."""
        if isinstance(value, int):
            return value
        if not re.fullmatch("[0-9]{1,40}", value):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return int(value)


class Span(click.ParamType[float]):
    """A span of time, such as ``24h``, in seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The span of time that the text ``value`` says, in seconds; fails for a text that says none."""
        if isinstance(value, float):
            return value
        match = re.fullmatch("([0-9]{1,9})([smhd])", value)
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is not a span of time; write a number and s, m, h or d, such as 24h.", param, ctx)
        return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}[match[2]]


class Days(click.FloatRange):
    """A number of days; also a span of time, such as ``12h`` or ``30d``."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of days that the text ``value`` says; fails for a text that says none."""
        if isinstance(value, str) and re.fullmatch("[0-9]{1,9}[smhd]", value):
            return Span().convert(value, param, ctx) / 86_400
        return float(super().convert(value, param, ctx))


class Amount(click.FloatRange):
    """A number in a range; ``nan`` is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number in the text ``value``; fails if the text is not an allowed number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def json_option(verb: _F) -> _F:
    """Adds the option ``--json`` to a verb."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(verb)


def device_option(verb: _F) -> _F:
    """Gives a verb ``--device``, which hides all other GPUs from this process."""

    def note(ctx: click.Context, _: click.Parameter, number: int | None) -> None:
        ctx.meta[DEVICE] = number  # chosen when the verb runs: wrong usage is said first

    return click.option(
        "--device",
        type=click.IntRange(0, 1023),
        metavar="N",
        expose_value=False,
        callback=note,
        help="The GPU to use, counted from 0 as CUDA does. Default: 0.",
    )(verb)


def job_option(verb: _F) -> _F:
    """Gives a verb ``--report-to``, by which a job of the dashboard reports its progress."""
    return click.option("--report-to", "job", type=click.Path(path_type=Path), hidden=True)(verb)


def last_first(*decorators: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
    """Yields the given decorators, the last first, so that help shows their options in the order given."""
    return iter(decorators[::-1])


def only_with(option: str, is_given: object, names: tuple[str, ...], *, instead: str = "") -> None:
    """Raises ``UsageError`` if one of the options ``names`` is given and ``is_given`` is false.

    The error says that ``names`` need ``option`` or, if that is empty, that they do not go with ``instead``.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if not is_given and parameter.name in names and source is click.core.ParameterSource.COMMANDLINE:
            name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise UsageError(f"{name} goes with {option}" if option else f"{name} does not go with {instead}")


def problem_options(verb: _F) -> _F:
    """Gives a verb the arguments and options of a kernel: its problem, and how it is compiled."""
    return shape_options(_choice_options(verb))


def shape_options(verb: _F) -> _F:
    """Gives a verb the arguments and options of a problem."""
    verb = target_option(verb)
    for field in reversed(FIELDS):
        verb = _option(field, field.default)(verb) if field.option else click.argument(field.name, type=Size())(verb)
    return verb


def table_options(verb: _F, *, required: bool = True) -> _F:
    """Adds to a verb the argument and options that name the problems of a model or a table.

    With ``required`` false, a command line may leave the model out.
    """
    for field in reversed(FIELDS):
        if field.name == "epilogue":
            help_text = f"{field.help} '' is none. Default: that of each shape, such as bias."
            verb = _option(msgspec.structs.replace(field, help=help_text), None)(verb)
        elif field.option and field.name != "batch":
            verb = _option(field, field.default)(verb)
    verb = click.option(
        "--m",
        "ms",
        callback=lambda _, __, text: parse_sizes(text),
        default=TOKENS,
        show_default=True,
        metavar="SIZES",
        help="Numbers of tokens and ranges of them, such as 1,16,64-512.",
    )(verb)
    return click.argument("table", metavar="MODEL|FILE", required=required)(targets_option(verb))


def _option(field: ProblemField, default: Plain) -> Callable[[_F], _F]:
    if field.kind is bool:
        both = f"{field.option[0]}/--no-{field.option[0].removeprefix('--')}"
        return click.option(both, field.name, default=default, help=field.help)
    return click.option(
        *field.option,
        field.name,
        type=Size() if field.kind is int else str,
        default=default,
        show_default=default not in (None, ""),
        metavar=field.metavar,
        help=field.help,
    )


def _choice_options(verb: _F) -> _F:
    for decorate in last_first(
        click.option(
            "--compiler", help="Compiler: nvrtc, nvcc or triton. Default: the one that the family needs, else nvrtc."
        ),
        click.option(
            "--family",
            help="Kernel family: tensor_core, scaled, grouped, simt, triton, hopper. Default: by compiler and problem.",
        ),
        click.option(
            "--config",
            help="Use this config instead of choosing one: its name, or name=value,…",
            metavar="CONFIG",
        ),
        job_option,
    ):
        verb = decorate(verb)
    return verb


def asked_problem(asked: dict[str, Any]) -> GemmProblem:
    """The problem that the values of ``shape_options`` describe."""
    return GemmProblem(arch=asked["arch"], **{field.name: asked[field.name] for field in FIELDS})


def wanted_of(asked: dict[str, Any]) -> list[list[Wanted]]:
    """The problems that the values of ``table_options`` describe: one list for each shape and target."""
    from cache_engine.evaluator.catalogue import shapes_of
    from cache_engine.insight.coverage import wanted

    options = {field.name: asked[field.name] for field in FIELDS if field.name in asked}
    return wanted(
        shapes_of(asked["table"]), options.pop("dtype"), asked["archs"] or (None,),
        asked["ms"], **options,
    )  # fmt: skip


def asked_choice(asked: dict[str, Any]) -> dict[str, Any]:
    """The family, compiler and config in the values of ``problem_options``, by the names of ``Cache``'s parameters."""
    config = asked["config"]
    if config is not None and config.endswith(".toml"):
        raise UsageError(f"--config {config!r} is no config of a kernel; a settings file is given by --settings-file")
    return {
        "family": asked["family"],
        "compiler": asked["compiler"],
        "config": None if config is None else KernelConfig.parse(config),
    }


def _fail(kind: str, message: str, code: int, level: Level = Level.ERROR, **details: object) -> NoReturn:
    """Prints an error as one line on standard error, with ``--json`` also as a JSON document, and exits."""
    with suppress(OSError):
        print(printable(f"error: {message}"), file=sys.stderr)
    if "--json" in sys.argv:
        with suppress(OSError), printing():  # a full disk: the error and the code have to do
            print(escaped(to_json({"error": {"kind": kind, "level": level, "message": message, **details}})))
    sys.exit(code)


def _details(error: CompileError) -> dict[str, str]:
    """The details of a failed compile, apart from its message."""
    from cache_engine.compilers.diagnostics import error_excerpt

    return {"log": error.log, "excerpt": error_excerpt(error), "command": error.command}


def _code_of(error: GemmCacheError) -> int:
    if isinstance(error, (UsageError, StoreUnusable)):
        return WRONG_USAGE
    return NOT_HERE if isinstance(error, NotHereError) else FAILED


# ---- Writing a file that the command line names ----


def write_file(path: Path, data: bytes, *, force: bool) -> None:
    """Writes a file completely or not at all: on a full disk, the old file stays.

    Args:
        force: replace an existing file; of a link, the file that it points to.

    Raises:
        UsageError: when the file exists, its folder does not, or the path is a device, pipe or socket.
        OSError: when it cannot be written.
    """
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path} exists; give another name, or --force to replace it")
    with named(path):
        replace_file(path, data)


def write_or_print(text: str, file: Path | None) -> None:
    """Writes a text to a file, which it replaces; without a file, prints it. Raises as ``write_file``."""
    if file is not None:
        write_file(file, text.encode(), force=True)
        return
    with printing():
        sys.stdout.write(text)


# ---- The private key of --sign, and the kernels that a verb refused or left out ----


def sign_option(more: str = "", *, required: bool = False) -> Callable[[_F], _F]:
    """The option ``--sign`` of a verb; ``more`` is put after its help text."""
    text = f"Sign each kernel with this private key of OpenSSH (Ed25519).{more}"
    return click.option("--sign", type=click.Path(path_type=Path), metavar="KEY", required=required, help=text)


def signing_key(path: Path) -> SigningKey:
    """Reads the key that ``--sign`` names; asks for its passphrase on a terminal. Raises as ``SigningKey.read``."""
    from cache_engine.store.signatures.signers import SigningKey

    def ask() -> str:
        return str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True))

    with named(path):
        return SigningKey.read(path, ask if sys.stdin.isatty() else None)


def print_refused(refused: Sequence[Refused], fate: str) -> None:
    """Prints each refused kernel and the reason on standard error. ``fate`` says what was done, such as "left out"."""
    for entry in refused:
        print(printable(f"{fate}: {entry.key[:12]}: {entry.cause}"), file=sys.stderr)


def print_unknown(entries: int) -> None:
    """Prints on standard error how many entries were left out, because only another version reads them."""
    if entries:
        print(f"left out: {counted(entries, 'entry', 'entries')} of another format version", file=sys.stderr)


# ---- The option --arch: targets by name, or chips, such as H100 ----

_DEFAULT = (
    "Default: the local GPU, else the setting default_arch (sm_90). An H100 or H200 looks up sm_90a: name it when you "
    "compile for one elsewhere."
)


def target_option(verb: _F) -> _F:
    """Gives a verb ``--arch``: the one target that it compiles for."""
    return click.option(
        "--arch",
        metavar="ARCH",
        callback=_compiled_for,
        help=f"Target, such as sm_90a, or a chip, such as H100. {_DEFAULT}",
    )(verb)


def targets_option(verb: _F) -> _F:
    """Gives a verb ``--arch``, repeatable, as the parameter ``archs``: the targets that it compiles for."""
    return click.option(
        "--arch",
        "archs",
        multiple=True,
        callback=_compiled_for,
        help=f"Target or chip (repeatable). {_DEFAULT}",
    )(verb)


def only_targets_option(verb: _F, help_text: str = "Only this target, or targets of this chip (repeatable).") -> _F:
    """Gives a verb ``--arch``, repeatable, as the parameter ``archs``: the verb uses only kernels for these targets."""
    return click.option("--arch", "archs", multiple=True, callback=_run_by, help=help_text)(verb)


def for_targets(archs: tuple[str, ...]) -> tuple[Callable[[Record], bool], Callable[[Group], bool]]:
    """Two functions that choose kernels, ours and other frameworks', for these targets; without targets, all."""
    from cache_engine.frameworks.bundle_facts import describe
    from cache_engine.model.architecture import architecture

    targets = {architecture(name).name for name in archs}
    return (
        lambda record: not targets or record.arch in targets,
        lambda group: not targets or describe(group).arch in targets,
    )


def _compiled_for(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    if value:
        return _target(value) if isinstance(value, str) else tuple(map(_target, value))
    ctx.meta[UNTARGETED] = True
    return value


def _target(name: str) -> str:
    from cache_engine.evaluator.catalogue.search import target_of

    return target_of(name)


def _run_by(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    from cache_engine.evaluator.catalogue.search import targets_called

    return tuple(target for name in value for target in targets_called(name.lower()) or (name,))
