"""The verbs ``replay`` and ``report``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from benchmarks import ROOT
from benchmarks.replay import documents
from benchmarks.verb import Experiment
from cache_engine.cli.support import Amount, Size, emit, json_option, open_cache, write_file
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.settings import Settings
from cache_engine.settings.extras import needing
from cache_engine.settings.kinds import parse_bytes
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, printable
from cache_engine.usage.demand import HALF_LIFE_S

if TYPE_CHECKING:
    from benchmarks.replay.batching import Limits
    from benchmarks.replay.costs import Cost
    from benchmarks.replay.kernels import Kernels
    from benchmarks.replay.machines import Compiling
    from benchmarks.replay.policies import Policy
    from benchmarks.replay.simulation import Outcome
    from benchmarks.replay.traces import Trace

_F = TypeVar("_F", bound=Callable[..., Any])

_FAMILY, _COMPILER = "tensor_core", "nvrtc"
_STARTS = ("cold", "profile", "restart")

JOURNAL = "journal"
"""In place of a trace: the store's own requests."""


def _server_options(verb: _F) -> _F:
    """Gives the verb the options of the server."""
    for decorate in (
        click.option(
            "--sequences", type=Size(), default=1024, show_default=True, help="Sequences that run at once, at most."
        ),
        click.option("--token-budget", type=Size(), default=8192, show_default=True, help="Tokens of a step, at most."),
        click.option(
            "--load",
            "loads",
            type=Amount(0.001, 1000),
            multiple=True,
            default=(1.0,),
            show_default=True,
            help="Arrivals per second, as a multiple of the trace's (repeatable).",
        ),
        click.option(
            "--gpu", metavar="GPU", help="GPU whose times are predicted. Default: the first known of the target."
        ),
        click.option("--dtype", default="bf16", show_default=True, help="Element type of A and B: bf16 or fp16."),
        click.option("--arch", metavar="ARCH", default="sm_90", show_default=True, help="Target."),
        click.option(
            "--model",
            metavar="MODEL|FILE",
            default="Llama-3.1-8B",
            show_default=True,
            help="Name of a public model, or a CSV file of shapes as warm reads it.",
        ),
    ):
        verb = decorate(verb)
    return verb


@click.command(
    "replay",
    cls=Experiment,
    examples=(
        "replay azure2023_conv --load 1 --load 4",
        "replay trace.csv.gz --model Qwen3-8B --policy ours --policy warm --json",
        "replay journal --size 500MB --size 1GB",
    ),
    missing="The extra evaluate, or the compiler, is not installed.",
)
@click.argument("trace")
@_server_options
@click.option("--policy", "names", multiple=True, metavar="NAME", help="Policy to play (repeatable). Default: all.")
@click.option(
    "--start",
    "starts",
    type=click.Choice(_STARTS),
    multiple=True,
    default=("cold",),
    show_default=True,
    help="cold: nothing is known. profile: demand is known, no kernel is left. restart: both are there (repeatable).",
)
@click.option("--profile", "learnt_from", metavar="TRACE", help="Trace of the known demand. Default: the same trace.")
@click.option("--slots", type=click.IntRange(1, 1024), default=1, show_default=True, help="Compiles at a time.")
@click.option(
    "--horizon",
    type=Amount(0, 1e9),
    default=86_400.0,
    show_default=True,
    help="ours, without a profile: GPU seconds that kernels compiled ahead are expected to serve, and how long the "
    "rates seen are expected to go on. 0: neither is expected.",
)
@click.option(
    "--ahead",
    type=Amount(0, 1e6),
    default=60.0,
    show_default=True,
    help="ours: seconds of compiling before the server is ready, at most.",
)
@click.option(
    "--size",
    "sizes",
    metavar="SIZE",
    multiple=True,
    help="journal: size of the store, such as 1GB (repeatable). Default: shares of what its kernels take.",
)
@json_option
@click.pass_obj
def replay_verb(settings: Settings, /, trace: str, as_json: bool, sizes: tuple[str, ...], **asked: Any) -> None:
    """Replay a trace of requests; print what each policy costs.

    TRACE is a CSV file with the columns arrival_s, prompt_tokens and output_tokens, or TIMESTAMP, ContextTokens and
    GeneratedTokens, which gzip may compress; or azure2023_conv or azure2023_code, which are in sample_data. GPU
    times are predicted; the time of a compile is the median of this store's records, else of our benchmark.

    TRACE may also be journal: the requests that this store has counted, by hour and day. They are played against stores
    of each size with each order of eviction; of the options, only --size applies then.
    """
    if trace == JOURNAL:
        _refuse_options_of_traces()
        _replay_journal(settings, sizes, as_json)
        return
    if sizes:
        raise UsageError(
            f"--size is for the store's own requests: python -m benchmarks replay {JOURNAL} --size {sizes[0]}"
        )
    started = time.perf_counter()
    with needing("evaluate", "replay"):
        from benchmarks.replay import batching, machines
        from benchmarks.replay.kernels import gpu_for, kernels_of
    from cache_engine.cache.selection import Selector
    from cache_engine.evaluator.catalogue import shapes_of

    limits = batching.Limits(asked["token_budget"], asked["sequences"])
    policies = _policies(asked["names"])
    gpu = gpu_for(asked["arch"], asked["gpu"])
    requests, learnt = _read(trace), asked["learnt_from"] and _read(asked["learnt_from"])
    shapes = shapes_of(asked["model"])
    kernels = kernels_of(shapes, asked["arch"], gpu, Selector(settings), limits.tokens, asked["dtype"])
    cost = _cost(settings, asked["arch"])
    compiling = machines.Compiling(cost.compile_s, cost.source, asked["slots"])
    rows = _play(kernels, requests, learnt or None, limits, compiling, policies, cost, asked)
    document = documents.replayed(
        requests,
        kernels,
        cost,
        rows,
        {
            **{name: asked[name] for name in ("model", "arch", "dtype", "slots", "token_budget", "sequences")},
            "trace": trace,
            "gpu": gpu.name,
            "horizon_seconds": asked["horizon"],
            "ahead_seconds": asked["ahead"],
            "seconds": time.perf_counter() - started,
        },
    )
    emit(document, as_json, lambda: _print(document, policies))


def _refuse_options_of_traces() -> None:
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if (
            given
            and isinstance(parameter, click.Option)
            and parameter.expose_value
            and name not in ("sizes", "as_json")
        ):
            raise UsageError(f"{parameter.opts[0]} is for traces; replay {JOURNAL} takes --size")


def _replay_journal(settings: Settings, sizes: Sequence[str], as_json: bool) -> None:
    from benchmarks.replay.stored_traces import played, requests_of, sizes_of

    with open_cache(settings, create=False) as cache:
        with progress("reading requests", None) as (bar, task):
            stored = requests_of(cache, lambda: bar.advance(task))
        asked = [parse_bytes(size) for size in sizes] or sizes_of(stored)
        rows = played(stored, asked, HALF_LIFE_S) if stored.requests else []
        document = documents.replayed_store(stored, rows, settings.max_bytes)
    emit(document, as_json, lambda: _print_journal(document))


def _policies(names: Sequence[str]) -> list[Policy]:
    from benchmarks.replay.policies import POLICIES

    for name in names:
        if name not in POLICIES:
            raise UsageError(f"unknown policy {name!r}; use one or more of: {', '.join(POLICIES)}")
    return [policy for name, policy in POLICIES.items() if not names or name in names]


def _read(trace: str) -> Trace:
    """The trace of a file, or one of the checkout."""
    from benchmarks.replay.traces import read_trace

    bundled = {
        path.name.removesuffix(".csv.gz"): path for path in sorted((ROOT / "sample_data" / "traces").glob("*.csv.gz"))
    }
    path = Path(trace)
    if trace in bundled and not path.exists():
        path = bundled[trace]
    with progress("reading requests", None) as (bar, task):
        return read_trace(path, lambda rows: bar.update(task, completed=rows))


def _cost(settings: Settings, arch: str) -> Cost:
    """By the records of the store, if there is one."""
    from benchmarks.replay.costs import cost_of

    with open_cache(settings, create=False, optional=True) as cache:
        return cost_of(cache.records() if cache.has_store else (), _FAMILY, _COMPILER, arch)


def _play(
    kernels: Kernels,
    requests: Trace,
    learnt: Trace | None,
    limits: Limits,
    compiling: Compiling,
    policies: Sequence[Policy],
    cost: Cost,
    asked: dict[str, Any],
) -> list[documents.ReplayRow]:
    from benchmarks.replay.policies import Start
    from benchmarks.replay.simulation import play, runs

    rows = []
    start = Start(horizon_s=asked["horizon"], budget_s=asked["ahead"])
    loads, starts = list(dict.fromkeys(asked["loads"])), asked["starts"]
    each = runs(policies, starts) * len(requests)
    with progress("serving requests", each * len(loads)) as (bar, task):
        for number, load in enumerate(loads):
            before = number * each
            outcomes: Iterable[Outcome] = play(
                kernels,
                requests.at_load(load),
                limits,
                compiling,
                policies,
                starts,
                start,
                None if learnt is None else learnt.at_load(load),
                lambda served, before=before: bar.update(task, completed=before + served),  # type: ignore[misc]
            )
            rows += [documents.replay_row(outcome, load, cost) for outcome in outcomes]
    return rows


@click.command(
    "report",
    cls=Experiment,
    examples=("report replay.json -o replay.html",),
    done="The report is written.",
)
@click.argument("replayed", metavar="FILE", type=click.Path(path_type=Path))
@click.option("-o", "--output", "file", type=click.Path(path_type=Path), required=True, help="The HTML file to write.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
def report_verb(replayed: Path, file: Path, force: bool, as_json: bool) -> None:
    """Write one HTML file with figures of what `replay --json` printed into FILE."""
    from benchmarks.replay.replay_results import replay_report
    from cache_engine.insight.report.page import written

    report = replay_report(replayed)
    text = written(report, time.time()).encode()
    write_file(file, text, force=force)
    document = {"file": str(file), "title": report.title, "bytes": len(text)}
    emit(document, as_json, lambda: print(printable(f"{report.title}: {file}, {human_bytes(len(text))}.")))


# ---- For people ----


def _print(d: documents.Replayed, policies: Sequence[Policy]) -> None:
    print_fields(
        {
            "trace": f"{d.trace}: {counted(d.requests, 'request')} in {human_ms(d.duration_seconds * 1e3)}",
            "model": f"{d.model}, {d.dtype}, {d.arch}",
            "GPU times": f"predicted by the {d.gpu_times}; GEMMs alone",
            "a compile": f"{human_ms(d.compile_seconds * 1e3)}, {human_bytes(d.kernel_bytes)}: {d.compile_from}",
            "server": f"{d.token_budget:,} tokens, {d.sequences:,} sequences; {counted(d.slots, 'compile')} at a time",
        }
    )
    for text in d.left_out:
        print(printable(f"left out: {text}"))
    for load, start in dict.fromkeys((row.load, row.start) for row in d.rows):
        print(f"\nload × {load:g}, start: {start}\n")
        _print_rows([row for row in d.rows if (row.load, row.start) == (load, start)])
    print("\nafter, waited: compiles after the server was ready, and those that a step waited for.")
    print("lost: GPU seconds that the fastest kernels would have saved. cost: lost, stalls, and compiles that no step")
    print("waited for, at a GPU second each. × optimum: the cost in that of the best kernels in hindsight.")
    for policy in policies:
        print(f"{policy.name}: {policy.like}.")


def _print_journal(d: documents.ReplayedStore) -> None:
    if not d.rows:
        print("no request has been counted yet")
        return
    print_fields(
        {
            "requests": f"{d.requests:,.0f} since {human_age(time.time() - (d.since or 0))}",
            "kernels": f"{d.kernels:,}, of {human_bytes(d.needed_bytes)} together",
            "limit": human_bytes(d.max_bytes),
        }
    )
    if d.predicted_kernels:
        print(
            f"{d.predicted_kernels:,} of the kernels are not in the store: their sizes and compile times are predicted."
        )
    if d.left_out:
        print(f"{d.left_out:,.0f} requests are left out: no kernel can be chosen for them here.")
    print()
    columns = {"size": RIGHT, "order": LEFT} | dict.fromkeys(("hit rate", "compiling", "again", "evictions"), RIGHT)
    print_table(
        columns,
        (
            (
                human_bytes(row.size_bytes), row.order, human_rate(row.hit_rate), _seconds(row.compile_seconds),
                _seconds(row.again_seconds), f"{row.evictions:,}",
            )
            for row in d.rows
        ),
    )  # fmt: skip
    print(
        "\nagain: of compiling, the seconds for kernels that had been evicted. Requests are known by hour and day, so"
    )
    print("each kernel is compiled at most once in each of these.")


def _print_rows(rows: Sequence[documents.ReplayRow]) -> None:
    columns = {"policy": LEFT} | dict.fromkeys(
        (
            "kernels", "before", "after", "waited", "compiling", "stall", "P99 step", "P50 first token",
            "P99 first token", "lost", "cost", "× optimum", "size", "wanted", "other",
        ),
        RIGHT,
    )  # fmt: skip
    print_table(
        columns,
        (
            (
                row.policy, f"{row.kernels:,}", f"{row.compiled_before:,}",
                f"{row.compiled_waited_for + row.compiled_behind:,}", f"{row.compiled_waited_for:,}",
                _seconds(row.compile_seconds), _seconds(row.stall_seconds), _seconds(row.stall_p99_seconds),
                _seconds(row.first_token_p50_seconds), _seconds(row.first_token_p99_seconds),
                _seconds(row.lost_gpu_seconds), _seconds(row.cost_gpu_seconds),
                "–" if row.ratio is None else f"{row.ratio:,.2f}", human_bytes(row.stored_bytes),
                human_rate(row.wanted_share), human_rate(row.other_share),
            )
            for row in rows
        ),
        dispensable=("other", "size", "P50 first token", "compiling", "P99 step"),
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    return "0 s" if not seconds else human_ms(seconds * 1e3)
