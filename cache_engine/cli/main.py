"""The ``gemm-cache`` command: one function per verb.

Every verb takes ``--json`` and then prints one JSON document on standard output; progress and logs go to standard
error. Exit: 0 done · 1 findings or failure · 2 wrong usage · 3 needs a GPU or a compiler that is not here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cache_engine._version import __version__
from cache_engine.cli import documents, terminal, terminal_inspect
from cache_engine.cli.bench import bench_kernels, kernel_bench_options
from cache_engine.cli.evaluator import evaluate_verb, evaluations_verb
from cache_engine.cli.inspect import diff_verb, explain_verb
from cache_engine.cli.quarantine import quarantine_verb
from cache_engine.cli.support import (
    FAILED,
    SizedVerb,
    asked_choice,
    asked_problem,
    emit,
    filter_options,
    json_option,
    open_cache,
    printing,
    problem_options,
    reporting,
    run,
    to_json,
)
from cache_engine.cli.timings import timings_verb, tune_verb
from cache_engine.cli.upkeep import clean_verb, export_verb, import_verb, sync_verb, verify_verb
from cache_engine.cli.warm import warm_verb
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.artifact import CUBIN, LOG, PTX, SOURCE
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.batch.jobs import Reporter
    from cache_engine.bench.results import Line
    from cache_engine.engine.cache import Cache, CompiledKernel

# How long a job, which somebody waits for, may look for the nearest entry.
_EXPLAIN_S = 2.0


def main() -> NoReturn:
    """Runs the command line and exits with the code of the contract."""
    run(commands)


@click.group(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="The store's directory. Default: $GEMM_CACHE_DIR, else your cache directory.",
)
@click.version_option(__version__, prog_name="gemm-cache")
@click.pass_context
def commands(ctx: click.Context, store: Path | None) -> None:
    """A persistent cache of compiled GPU matrix-multiply kernels."""
    if store == Path():
        raise UsageError("--store is empty; give a directory")
    ctx.obj = Settings.load() if store is None else Settings.load(dir=store)


# ---- Getting kernels ----


@commands.command("compile", cls=SizedVerb)
@problem_options
@click.option("--force", is_flag=True, help="Compile even if it is cached, and replace it.")
@click.option(
    "--debug-dump",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Compile, and write source, log, PTX, SASS, environment and more here; also if it fails.",
)
@json_option
@click.pass_obj
def compile_verb(
    settings: Settings, /, force: bool, debug_dump: Path | None, as_json: bool, job: Path | None, **asked: Any
) -> None:
    """Get the kernel of a shape: from the cache, else compiled.

    C (M×N) = A (M×K) · B (K×N).
    """
    with reporting(job) as reporter, open_cache(settings) as cache:
        again = {"force": force, "debug_dump": debug_dump} if force or debug_dump else {}
        kernel, why = _get(cache, asked, reporter, **again)
        document = documents.compiled(kernel)
        if reporter:
            reporter.finish(to_json({**document, "why": why}))
    emit(document, as_json, lambda: terminal.print_kernel(kernel))
    terminal.print_warnings(kernel.record.warnings)


@commands.command("time", cls=SizedVerb)
@problem_options
@click.option("--profile", is_flag=True, help="Launch it once more in the end, between start and stop of a profiler.")
@json_option
@click.pass_obj
def time_verb(settings: Settings, /, profile: bool, as_json: bool, job: Path | None, **asked: Any) -> None:
    """Get a kernel, check its result and time it on the local GPU, beside cuBLAS.

    The timing is kept: see gemm-cache timings.
    """
    from cache_engine.device.memory_pool import shared_pool
    from cache_engine.device.probe import require_gpu
    from cache_engine.device.timer import time_kernel

    with reporting(job) as reporter:
        require_gpu("timing a kernel")
        with open_cache(settings) as cache:
            kernel, why = _get(cache, asked, reporter)
            timing = time_kernel(kernel.cubin, kernel.record.name, kernel.launch, kernel.problem, profile=profile)
            unkept = cache.keep_timing(kernel, timing)
        document = documents.timed(kernel, timing, unkept, shared_pool().statistics())
        if reporter:
            reporter.finish(to_json({**document, "why": why}))
    emit(document, as_json, lambda: terminal.print_timing(document))
    if not timing.verified:
        click.get_current_context().exit(FAILED)


@commands.command("sample")
@click.option("--jobs", type=click.IntRange(1), help="Compiles at a time. Default: one per processor.")
@json_option
@click.pass_obj
def sample_verb(settings: Settings, /, jobs: int | None, as_json: bool) -> None:
    """Fill the store with kernels of public models."""
    from cache_engine.batch.sample import sample_problems
    from cache_engine.batch.warm import compile_all

    problems = sample_problems()
    started = time.perf_counter()
    with open_cache(settings) as cache, terminal.progress("Compiling kernels", len(problems)) as (bar, task):
        done = compile_all(cache, problems, jobs, on_done=lambda _: bar.advance(task))
    with open_cache(settings) as cache:
        # With an empty memory, as another process would: every kernel must now come from disk.
        again = compile_all(cache, problems, jobs)
    failed = [warmed for warmed in done if warmed.kernel is None]
    compiled = sum(warmed.kernel is not None and warmed.kernel.tier == "compiled" for warmed in done)
    document = {
        "store": str(settings.directory()),
        "compiled": compiled,
        "found": len(done) - compiled - len(failed),
        "failed": [{"problem": str(warmed.problem), "error": warmed.error} for warmed in failed],
        "found_again": sum(warmed.kernel is not None and warmed.kernel.tier == "disk" for warmed in again),
        "seconds": time.perf_counter() - started,
    }
    emit(document, as_json, lambda: terminal.print_sample(document))
    if failed:
        click.get_current_context().exit(FAILED)


# ---- Looking ----


@commands.command("ls")
@filter_options
@click.pass_obj
def ls_verb(settings: Settings, /, **options: Any) -> None:
    """List kernels, the last used first."""
    _list(settings, "", **options)


@commands.command("search")
@click.argument("text", nargs=-1, required=True)
@filter_options
@click.pass_obj
def search_verb(settings: Settings, /, text: tuple[str, ...], **options: Any) -> None:
    """List kernels that hold every word of TEXT.

    Words are looked for in name, key, shape, target, dtype, family, compiler and config.
    """
    _list(settings, " ".join(text), **options)


@commands.command("show")
@click.argument("key")
@click.option("--source", "part", flag_value=SOURCE, help="Print the source.")
@click.option("--ptx", "part", flag_value=PTX, help="Print the PTX.")
@click.option("--sass", "part", flag_value="sass", help="Print the machine code, disassembled.")
@click.option("--log", "part", flag_value=LOG, help="Print what the compiler said.")
@click.option(
    "--cubin", type=click.Path(path_type=Path, allow_dash=True), help="Write the compiled code here; - prints it."
)
@json_option
@click.pass_obj
def show_verb(settings: Settings, /, key: str, part: str | None, cubin: Path | None, as_json: bool) -> None:
    """Show one kernel; KEY may be shortened to its first digits."""
    from cache_engine.insight.inspection import inspect_kernel

    with open_cache(settings, create=False) as cache:
        record = cache.find(key)
        if cubin is not None:
            _write(cubin, cache.store.section(record, CUBIN))
        if part is not None:
            text = cache.text(record, part)
            emit({"key": record.key, part: text}, as_json, lambda: print(printable(text, keep="\n\t")))
        elif cubin is None or as_json:
            inspection, timings = inspect_kernel(cache, record), cache.timings.of_key(record.key)
            document = documents.record(record, inspection, timings)
            emit(document, as_json, lambda: terminal_inspect.print_inspection(inspection, timings))


@commands.command("stats")
@click.option("--by-arch", is_flag=True, help="Also one line for each architecture.")
@json_option
@click.pass_obj
def stats_verb(settings: Settings, /, by_arch: bool, as_json: bool) -> None:
    """Show what the store holds and what it has saved."""
    with open_cache(settings, create=False) as cache:
        document = documents.statistics(cache.stats())
        if by_arch:
            from cache_engine.mirror import queries

            document["architectures"] = cache.query(queries.architectures)
    emit(document, as_json, lambda: terminal.print_statistics(document))


@commands.command("doctor")
@json_option
@click.pass_obj
def doctor_verb(settings: Settings, /, as_json: bool) -> None:
    """Check what this machine has and what it lacks."""
    from cache_engine.cli.doctor import PROBLEM, examine

    checks = examine(settings)
    in_force = documents.settings_in_force(settings)
    document = {"checks": checks, "ok": all(check.status != PROBLEM for check in checks), "settings": in_force}
    emit(document, as_json, lambda: terminal.print_checks(checks, in_force))
    if not document["ok"]:
        click.get_current_context().exit(FAILED)


# ---- Measuring and serving ----


@commands.command("bench")
@click.argument(
    "what", type=click.Choice(["all", "compile", "store", "pages", "evaluator", "dashboard", "kernels"]), default="all"
)
@click.option(
    "--entries",
    type=click.IntRange(10),
    default=10_000,
    show_default=True,
    help="Entries of the large store; opening is measured up to ten times as many.",
)
@click.option("--rows", type=click.IntRange(10), default=100_000, show_default=True, help="Records that are mirrored.")
@kernel_bench_options
@json_option
@click.pass_obj
def bench_verb(settings: Settings, /, what: str, entries: int, rows: int, as_json: bool, **kernels: Any) -> None:
    """Measure speed, each thing beside something known.

    compile: NVRTC and NVCC. store: hits, keys, opening, publishing, other caches, bytes on disk. pages: syncing and
    queries. evaluator: searching, keeping and loading results. dashboard: pages in Chromium, with up to ten times the
    rows mirrored. all: these, and importing; takes some minutes. kernels: launched on the local GPU beside cuBLAS, for
    all shapes of three models; called again, it goes on.
    """
    if what == "kernels":
        bench_kernels(settings, as_json, **kernels)
        return
    from cache_engine.bench import cases

    lines: list[Line] = []
    if not as_json:
        terminal.print_benchmark_heading()

    def report(line: Line) -> None:
        lines.append(line)
        if not as_json:
            terminal.print_benchmark(line)

    cases.run(report, what, entries, rows)
    if as_json:
        print(to_json(documents.benchmark(lines)))


@commands.command("dashboard")
@click.option("--port", type=click.IntRange(1, 65_535), default=8501, show_default=True, help="Port to answer at.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at; 0.0.0.0 is every one of this machine.",
)
@click.option("--name", multiple=True, help="A name by which others ask for it. May be given several times.")
@click.option("--headless/--browser", default=True, help="Whether to open a browser.")
@click.pass_obj
def dashboard_verb(settings: Settings, /, port: int, host: str, name: tuple[str, ...], headless: bool) -> None:
    """Serve the dashboard on this store, until Ctrl-C.

    It answers at http://127.0.0.1:PORT, on this machine alone, unless --host says otherwise. Deleting and importing
    there then ask for the admin token (GEMM_CACHE_ADMIN_TOKEN) or a login, and are off without either.
    """
    from cache_engine.cli.dashboard import serve

    with open_cache(settings) as cache:
        root = cache.layout.root
    guarded = settings.admin_token is not None
    serve(root, port, headless=headless, address=host, names=name, guarded=guarded)


for verb in (
    warm_verb, tune_verb, timings_verb, diff_verb, explain_verb, clean_verb, verify_verb, quarantine_verb, sync_verb,
    export_verb, import_verb, evaluate_verb, evaluations_verb,
):  # fmt: skip
    commands.add_command(verb)


# ---- Shared by verbs ----


def _get(
    cache: Cache, asked: dict[str, Any], reporter: Reporter | None, **again: Any
) -> tuple[CompiledKernel, documents.Document | None]:
    """The kernel; for a job that was not told to compile again, also why it was missed, if it was."""
    if reporter is None or again:
        on_stage = reporter.stage if reporter else None
        return cache.get_or_compile(asked_problem(asked), **asked_choice(asked), on_stage=on_stage, **again), None
    from cache_engine.insight.explanation import get_and_explain

    kernel, why = get_and_explain(
        cache, asked_problem(asked), **asked_choice(asked), on_stage=reporter.stage, within_s=_EXPLAIN_S
    )
    return kernel, None if why is None else documents.explanation(why)


def _list(
    settings: Settings,
    text: str,
    *,
    arch: tuple[str, ...],
    dtype: tuple[str, ...],
    family: tuple[str, ...],
    compiler: tuple[str, ...],
    sort: str,
    ascending: bool,
    limit: int,
    offset: int,
    as_json: bool,
) -> None:
    from cache_engine.catalogue import named_shapes
    from cache_engine.mirror import queries

    words, shapes = named_shapes(text)
    chosen = queries.KernelFilter(words, arch, dtype, family, compiler, shapes=shapes)
    with open_cache(settings, create=False) as cache:
        order = sort.replace("-", " ")
        rows = cache.query(queries.kernels, chosen, sort=order, descending=not ascending, limit=limit, offset=offset)
        document = {"total": cache.query(queries.count, chosen), "offset": offset, "rows": rows}
        there = cache.query(queries.facets) if not rows else {}
    emit(document, as_json, lambda: terminal.print_kernels(document, there))


def _write(path: Path, data: bytes) -> None:
    if str(path) == "-":
        with printing():
            sys.stdout.buffer.write(data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
