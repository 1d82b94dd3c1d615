"""What the verbs of the command line share: options, output, and how errors end the program."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from cache_engine.errors import (
    CompileError,
    GemmCacheError,
    InvalidProblem,
    Level,
    NotHereError,
    StoreUnusable,
    UsageError,
)
from cache_engine.mirror.queries import SORTS
from cache_engine.model.gemm import INPUT_DTYPES, OPT_LEVELS, DType, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.config import Settings
    from cache_engine.engine.cache import Cache

_F = TypeVar("_F", bound=Callable[..., Any])

OK, FAILED, WRONG_USAGE, NOT_HERE, INTERRUPTED = 0, 1, 2, 3, 130


def run(commands: click.Group) -> NoReturn:
    """Runs a command line; every error becomes one line and an exit code of the contract."""
    _prepare_output()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("cache_engine").addHandler(handler)
    try:
        code = commands.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(WRONG_USAGE)
    except click.ClickException as error:
        _fail("UsageError", error.format_message(), WRONG_USAGE)
    except CompileError as error:
        from cache_engine.compilers.diagnostics import report

        print(printable(report(error), keep="\n\t"), file=sys.stderr)
        _fail("CompileError", str(error), FAILED, level=error.level, **_told(error), flags=error.flags)
    except GemmCacheError as error:
        _fail(type(error).__name__, str(error), _code_of(error), level=error.level)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _fail("OSError", f"{where}{error.strerror or error}; look at the disk and at its permissions", FAILED)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("Interrupted", "interrupted; the store is as it was after the last finished step", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else OK)


def _prepare_output() -> None:
    """Makes standard output and error take whatever is written, also where they are closed or know no ``×``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open to the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def reporting(job: Path | None) -> Iterator[Reporter | None]:
    """With a job file, yields what reports to it; an error that ends the body is reported as well.

    Whoever cancels a job does so with SIGTERM, which then does what Ctrl-C does.
    """
    if job is None:
        yield None
        return
    from cache_engine.batch.jobs import Reporter

    # Also where whoever started the dashboard has Ctrl-C ignored, which programs inherit.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reporter = Reporter(job)
    try:
        if reporter.cancel_asked:
            raise KeyboardInterrupt
        yield reporter
    except CompileError as error:
        reporter.fail(str(error), error.level, {**_told(error), "flags": shlex.join(error.flags)})
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


def open_cache(settings: Settings, *, create: bool = True) -> Cache:
    """Opens the store.

    What only looks must not make one, or a mistyped name would show an empty store. And it looks into the store also
    where caching is switched off.
    """
    from cache_engine.engine import cache as engine

    if not create:
        settings = settings.with_overrides({"enable_caching": True})
    return engine.open_cache(settings=settings, create=create)


def emit(document: Any, as_json: bool, print_text: Callable[[], None]) -> None:
    """Prints a result: as its JSON document, or as text for people."""
    with printing():
        if as_json:
            print(to_json(document))
        else:
            print_text()


@contextmanager
def printing() -> Iterator[None]:
    """Whoever reads what the body prints may go away, and is then done; any other trouble is an ``OSError``."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from error


def to_json(document: Any) -> str:
    """The text of a JSON document, indented."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


class SizedVerb(click.Command):
    """A verb that takes sizes: a negative one is a wrong size, not an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses negative sizes, then parses as ever."""
        for argument in args:
            if re.fullmatch(r"-\d+", argument):
                raise InvalidProblem(f"{argument} is not a size; m, n, k and the batch are whole numbers from 1 on")
        return super().parse_args(ctx, args)


class Size(click.ParamType[int]):
    """A whole number in plain digits; what Python would also take, such as ``1_000``, is more likely a slip."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        if isinstance(value, int):
            return value
        if not re.fullmatch("[0-9]{1,40}", value):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return int(value)


def json_option(verb: _F) -> _F:
    """Gives a verb ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(verb)


def job_option(verb: _F) -> _F:
    """Gives a verb what it needs to be run as a job."""
    return click.option("--report-to", "job", type=click.Path(path_type=Path), hidden=True)(verb)


def _last_first(*decorators: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
    """Decorators in the order to apply them, so that help shows them in the order given."""
    return iter(decorators[::-1])


def specialise_option(verb: _F) -> _F:
    """Gives a verb ``--specialise``."""
    return click.option(
        "--specialise",
        "specialisation",
        metavar="|".join(Specialisation),
        default=Specialisation.NK.value,
        show_default=True,
        help="Sizes that are constants of the kernel: n and k; m too; n and k, with m bounded by a power of two; none.",
    )(verb)


def opt_level_option(verb: _F) -> _F:
    """Gives a verb ``--opt-level``."""
    return click.option(
        "--opt-level",
        type=Size(),
        default=OPT_LEVELS[-1],
        show_default=True,
        help=f"How hard the compiler optimises, {OPT_LEVELS[0]} to {OPT_LEVELS[-1]}.",
    )(verb)


def problem_options(verb: _F) -> _F:
    """Gives a verb the arguments and options that ask for a kernel: for which problem, and made how."""
    return shape_options(_choice_options(verb))


def shape_options(verb: _F) -> _F:
    """Gives a verb the arguments and options of a problem."""
    for decorate in _last_first(
        click.argument("m", type=Size()),
        click.argument("n", type=Size()),
        click.argument("k", type=Size()),
        click.option("--batch", type=Size(), default=1, show_default=True, help="Number of independent products."),
        click.option("--dtype", default=DType.BF16.value, show_default=True, help=f"{', '.join(INPUT_DTYPES)}."),
        click.option("--out-dtype", help="Element type of C; by default that of A and B."),
        click.option(
            "--layout",
            default=Layout.NT.value,
            show_default=True,
            help=f"How A and B are stored: n as is, t transposed; {', '.join(Layout)}.",
        ),
        click.option(
            "--epilogue",
            default="",
            metavar="PART+…",
            help="What is done to the product before it is stored: alpha, beta, bias, and relu or gelu, joined with +.",
        ),
        specialise_option,
        opt_level_option,
        click.option("--arch", metavar="ARCH", help="Target, such as sm_90a. Default: the local GPU, else sm_90."),
    ):
        verb = decorate(verb)
    return verb


def _choice_options(verb: _F) -> _F:
    for decorate in _last_first(
        click.option(
            "--compiler", help="What compiles: nvrtc, nvcc or triton. Default: what the family needs, else nvrtc."
        ),
        click.option("--family", help="Kernel family: tensor_core, simt or triton. Default: by compiler and dtype."),
        click.option("--config", metavar="NAME=VALUE,…", help="Use these tiles instead of choosing."),
        job_option,
    ):
        verb = decorate(verb)
    return verb


def asked_problem(asked: dict[str, Any]) -> GemmProblem:
    """The problem that the options of ``shape_options`` ask for."""
    names = (
        "m", "n", "k", "batch", "dtype", "out_dtype", "layout", "arch", "epilogue", "specialisation", "opt_level",
    )  # fmt: skip
    return GemmProblem(**{name: asked[name] for name in names})


def asked_choice(asked: dict[str, Any]) -> dict[str, Any]:
    """What the further ones of ``problem_options`` leave to the engine or not, by the names of its parameters."""
    config = asked["config"]
    return {
        "family": asked["family"],
        "compiler": asked["compiler"],
        "config": None if config is None else KernelConfig.parse(config),
    }


def filter_options(verb: _F) -> _F:
    """Gives a verb the options of a list of kernels."""
    sorts = [name.replace(" ", "-") for name in SORTS]
    for decorate in _last_first(
        click.option("--arch", multiple=True, help="Only this target. May be given several times, as may the next."),
        click.option("--dtype", multiple=True, help="Only this element type."),
        click.option("--family", multiple=True, help="Only this family."),
        click.option("--compiler", multiple=True, help="Only this compiler."),
        click.option(
            "--sort",
            type=click.Choice(sorts),
            metavar="BY",
            default=sorts[0],
            show_default=True,
            help=f"One of: {', '.join(sorts)}.",
        ),
        click.option("--ascending", is_flag=True, help="Smallest, oldest or A first; without it, last."),
        click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows to show."),
        click.option("--offset", type=click.IntRange(0, 10**9), default=0, help="Rows to pass over first."),
        json_option,
    ):
        verb = decorate(verb)
    return verb


def _fail(kind: str, message: str, code: int, level: Level = Level.ERROR, **told: object) -> NoReturn:
    """Says what went wrong: in one line on standard error, and as the JSON document when one was asked for."""
    print(f"error: {message}", file=sys.stderr)
    if "--json" in sys.argv:
        print(to_json({"error": {"kind": kind, "level": level, "message": message, **told}}))
    sys.exit(code)


def _told(error: CompileError) -> dict[str, str]:
    """What a failed compile tells beside its message."""
    from cache_engine.compilers.diagnostics import error_excerpt

    return {"log": error.log, "excerpt": error_excerpt(error), "command": error.command}


def _code_of(error: GemmCacheError) -> int:
    if isinstance(error, (UsageError, StoreUnusable)):
        return WRONG_USAGE
    return NOT_HERE if isinstance(error, NotHereError) else FAILED
