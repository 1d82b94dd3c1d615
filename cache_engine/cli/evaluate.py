"""``gemm-cache evaluate``: predicts the time of a GEMM, or of one pass of a whole model, on an accelerator or GPU."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cli.support import Size, SizedVerb, emit, json_option, only_with, open_cache, printing
from cache_engine.cli.support.completion import models
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.evaluator.grouped import GroupedProblem
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.model.outcome import Failure, in_json
from cache_engine.model.shapes import count_sizes, parse_sizes
from cache_engine.settings import Settings
from cache_engine.units import counted, defused, human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_engine.evaluator.catalogue import ModelShape
    from cache_engine.evaluator.catalogue.layers import Parallel
    from cache_engine.evaluator.chips import Gpu
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.gpu import Prediction
    from cache_engine.evaluator.hardware import Hardware
    from cache_engine.evaluator.results import Answer, Evaluations
    from cache_engine.insight.passes import ModelPass, Priced, Step

_MOST_PASSES = 10_000
_PATIENCE_S = 1.0
_CONFIG = ".json"
_MODEL_OPTIONS = ("tokens", "modes", "parallel", "experts", "sequences", "form")


@click.command(
    "evaluate",
    cls=SizedVerb,
    examples=(
        "evaluate 4096 7168 2048 --chip H100",
        "evaluate 64 7168 2112 --chip SG2262 --json",
        "evaluate DeepSeek-V3 --chip SG2262 --chip H100 --m 16,4096",
        "evaluate config.json --chip H200 --parallel tp=8 --mode decode --m 64",
    ),
    done="The prediction is printed.",
    failed="The description of the accelerator cannot be read.",
    missing="The extra evaluate is not installed, and the result is not stored.",
    completers={"m": models},
    argument_texts={"m": "Rows of A and C; or a public model, a CSV file with shapes, or the config.json of a model."},
)
@click.argument("m", metavar="M|MODEL", required=False)
@click.argument("n", type=Size(), required=False)
@click.argument("k", type=Size(), required=False)
@click.option(
    "--chip",
    "chips",
    required=True,
    multiple=True,
    metavar="NAME|FILE",
    help="A known accelerator, or a JSON file that describes one; of a model, repeatable.",
)
@click.option("--batch", type=Size(), default=1, show_default=True, help="Number of independent products.")
@click.option("--dtype", default="bf16", show_default=True, help=f"Element type of A and B: {', '.join(ITEMSIZE)}.")
@click.option("--out-dtype", default="", help="Element type of C. Default: that of A and B; bf16 for fp8 and int8.")
@click.option("--scales", default="", metavar="A,B[,e8m0]", help="On a GPU: blocks of A and B with a scale, of fp8.")
@click.option(
    "--no-search",
    multiple=True,
    type=click.Choice(("tile", "partition")),
    help="Do not search the tile, but use one cube, or the partition, but a square grid of cores over m and n "
    "(repeatable).",
)
@click.option("--reduce-partial-sums", is_flag=True, help="Count the time to add partial sums over k.")
@click.option("--compute-rate", type=float, default=1.0, help="Speed of this dtype, relative to the clock.")
@click.option("--m", "tokens", default="4096", show_default=True, help="Of a model: numbers of tokens, such as 1,16.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    metavar="NAME",
    help="Of a model (repeatable): prefill (default) or decode; of latent attention, fused or separate first products, "
    "expanded or absorbed keys and values.",
)
@click.option(
    "--parallel",
    multiple=True,
    metavar="tp=N,ep=N,dp=N",
    help="Of a model: tensor, expert and data parallel sizes. Default: 1 each.",
)
@click.option(
    "--experts",
    metavar="SKEW|FILE",
    help="Of a model: the r-th expert gets 1/r^SKEW of the first's tokens; or a CSV file, tokens of each. Default: 0.",
)
@click.option("--sequences", type=Size(), help="Of a model: logits of the last token of so many sequences only.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "csv")),
    default="table",
    help="Of a model: csv prints a row for each operation.",
)
@json_option
@click.pass_obj
def evaluate_verb(settings: Settings, /, m: str | None, n: int | None, k: int | None, **asked: Any) -> None:
    """Predict the latency of a GEMM or of a whole model.

    M N K, on an accelerator: also finds the best tile, loop order and partition. The GEMM is C (M×N) = A (M×K) · B
    (K×N). Results of accelerators are stored; predictions for GPUs are not, as they take no longer than a lookup.

    MODEL is a model of the catalogue, a CSV file with its shapes, or the config.json that a model of a known family is
    published with. Prints each operation, and the totals of a layer and of a pass, on one of the chips that share the
    model.
    """
    from cache_engine.evaluator.cost import SearchMode

    mode = SearchMode(
        "tile" not in asked["no_search"],
        "partition" not in asked["no_search"],
        asked["reduce_partial_sums"],
        asked["compute_rate"],
    )
    if n is None:
        if m is None:
            raise UsageError("give M N K, or a MODEL: one of them")
        only_with("M, N and K", False, ("batch", "out_dtype", "scales"))
        _evaluate_model(settings, m, mode, asked)
        return
    only_with("a MODEL", False, _MODEL_OPTIONS)
    if m is None or k is None:
        raise UsageError("give all of M, N and K, or a MODEL alone")
    if len(asked["chips"]) > 1:
        raise UsageError("a single shape is evaluated on one chip; give one --chip")
    size = Size().convert(m, None, None)
    problem = EvaluationProblem(size, n, k, asked["batch"], asked["dtype"], asked["out_dtype"], asked["scales"])
    _evaluate_shape(settings, problem, asked["chips"][0], mode, as_json=asked["as_json"])


def _evaluate_shape(
    settings: Settings, problem: EvaluationProblem, chip: str, mode: SearchMode, *, as_json: bool
) -> None:
    from cache_engine.evaluator import cost, gpu
    from cache_engine.evaluator.chips import load_chip
    from cache_engine.evaluator.hardware import Hardware

    hardware = load_chip(chip)
    document: dict[str, Any] = {"chip": hardware.name, "problem": problem}
    if not isinstance(hardware, Hardware):
        _check([hardware], mode)
        predicted = gpu.predict(problem, hardware)
        utilization = problem.flops / (predicted.latency_us * 1e-6 * hardware.peak_of(problem.dtype))
        document |= {"model": f"{gpu.EVALUATOR} {gpu.MODEL_VERSION}", "flops": problem.flops, **asdict(predicted)}
        document["effective_utilization"] = utilization
        emit(document, as_json, lambda: _print_predicted(document, predicted))
        return
    answer = _answer(settings, problem, hardware, mode)
    found = answer.evaluation
    document |= {
        **asdict(found),
        "tile": found.tile._asdict(),
        "partition": found.partition._asdict(),
        "key": answer.key,
        "arch_fingerprint": hardware.fingerprint(),
        "model": f"{cost.EVALUATOR} {cost.MODEL_VERSION}",
        "mode": mode,
        "cached": answer.cached,
        "search_ms": answer.search_ms,
        "unkept": in_json(answer.unkept),
        "validated": _validated(answer),
    }
    emit(document, as_json, lambda: _print_evaluated(document, answer))


def _validated(answer: Answer) -> str:
    """A sentence about the result of an older model version: that version and its latency; empty if there was none."""
    older = answer.older
    if older is None:
        return ""
    return f"model {older.model_version} had stored {older.latency_us:,.3f} µs; searched again"


def _answer(settings: Settings, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode) -> Answer:
    """The result of evaluating a problem: taken from the store, or computed by a search and then stored.

    With caching off, the result is computed and not stored.
    """
    with _results(settings) as kept:
        if kept is not None:
            return kept.evaluate(problem, hardware, mode)
    from cache_engine.evaluator.results import search

    why = "the store cannot be used" if settings.uses_directory else "caching is switched off"
    return replace(search(problem, hardware, mode), unkept=Failure(why))


def _evaluate_model(settings: Settings, name: str, mode: SearchMode, asked: dict[str, Any]) -> None:
    """Predicts the cost of one or more passes of a model, and prints the predictions."""
    from cache_engine.evaluator.catalogue.layers import Parallel
    from cache_engine.evaluator.chips import load_chip

    if asked["form"] == "csv" and asked["as_json"]:
        raise UsageError("--json and --format csv exclude each other; choose one")
    parallel = Parallel(**_parallel(",".join(asked["parallel"])))
    shapes = _shapes(name, parallel)
    step = _step(asked)
    tokens = [m for sizes in _tokens(asked["tokens"], len(asked["chips"])) for m in sizes]
    chips = [load_chip(chip) for chip in dict.fromkeys(asked["chips"])]
    _check(chips, mode)
    with _results(settings) as kept:
        passes = _passes(kept, shapes, [replace(step, tokens=m) for m in tokens], parallel, chips, mode)
    document = {
        "model": shapes[0].model,
        "source": str(Path(name).absolute()) if name.endswith(_CONFIG) else "",
        "phase": step.phase,
        "dtype": step.dtype,
        "tensor_parallel": parallel.tensor,
        "expert_parallel": parallel.expert,
        "data_parallel": parallel.data,
        "skew": step.skew,
        "expert_counts": str(Path(asked["experts"]).absolute()) if step.weights else "",
        "sequences": step.sequences,
        "alternatives": step.alternatives,
        "passes": [_pass_row(one) for one in passes],
    }
    if asked["form"] == "csv":
        with printing():
            sys.stdout.write(_csv(document))
        return
    emit(document, asked["as_json"], lambda: _print_passes(shapes[0].model, step, parallel, passes))


def _shapes(name: str, parallel: Parallel) -> list[ModelShape]:
    from cache_engine.evaluator.catalogue.layers import layers_named, layers_of
    from cache_engine.evaluator.catalogue.model_configs import read_config

    return layers_of(read_config(Path(name)), parallel) if name.endswith(_CONFIG) else layers_named(name, parallel)


def _parallel(text: str) -> dict[str, int]:
    """The sizes in a text such as ``"tp=8,ep=8"``, by the names of the fields of ``Parallel``."""
    fields = {"tp": "tensor", "ep": "expert", "dp": "data"}
    pairs = [part.partition("=") for part in text.split(",") if part]
    if unknown := next((name for name, _, _ in pairs if name not in fields), None):
        raise UsageError(f"{unknown!r} is no parallel size; write tp=N, ep=N and dp=N, such as tp=8,ep=8")
    return {fields[name]: Size().convert(size, None, None) for name, _, size in pairs}


def _step(asked: dict[str, Any]) -> Step:
    from cache_engine.evaluator.catalogue.tables import expert_counts
    from cache_engine.insight.passes import PHASES, PREFILL, Step

    skew, weights = 0.0, tuple[float, ...]()
    if asked["experts"] is not None:
        try:
            skew = float(asked["experts"])
        except ValueError:
            weights = expert_counts(Path(asked["experts"]))
    phase, *others = {name for name in asked["modes"] if name in PHASES} or {PREFILL}
    if others:
        raise UsageError(f"{' and '.join(PHASES)} exclude each other; choose one --mode")
    ways = tuple(name for name in asked["modes"] if name not in PHASES)
    return Step(1, phase, ways, asked["sequences"], skew, weights, asked["dtype"])


def _tokens(text: str, chips: int) -> tuple[range, ...]:
    sizes = parse_sizes(text)
    if count_sizes(sizes) * chips > _MOST_PASSES:
        raise UsageError(
            f"these are {count_sizes(sizes) * chips:,} passes, and the limit is {_MOST_PASSES:,} at a time"
        )
    return sizes


def _check(chips: list[Hardware | Gpu], mode: SearchMode) -> None:
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.hardware import Hardware

    for chip in chips:
        if not isinstance(chip, Hardware) and mode != SearchMode():
            raise UsageError(f"{chip.name} is a GPU; the search options are for core-grid accelerators only")


@contextmanager
def _results(settings: Settings) -> Iterator[Evaluations | None]:
    """Yields the evaluator's stored results; ``None`` where there is no store."""
    if not settings.uses_directory:
        yield None
        return
    with open_cache(settings, optional=True) as cache:
        yield cache.evaluations if cache.has_store else None


def _passes(
    kept: Evaluations | None,
    shapes: list[ModelShape],
    steps: list[Step],
    parallel: Parallel,
    chips: list[Hardware | Gpu],
    mode: SearchMode,
) -> list[ModelPass]:
    """The predicted cost of each step of a model, such as a decode, on each chip."""
    from cache_engine.insight.passes import asking, model_pass, operations

    ask, found = asking(kept, mode), []
    with _progress_when_slow(len(steps) * len(chips)) as advance:
        for step in steps:
            computed = operations(shapes, step, parallel)
            for chip in chips:
                found.append(model_pass(computed, chip, step.tokens, ask))
                advance()
    return found


@contextmanager
def _progress_when_slow(total: int) -> Iterator[Callable[[], None]]:
    """Shows a progress bar if the work takes longer than a second; yields the function that advances it."""
    started, done = time.monotonic(), 0
    with ExitStack() as stack:
        bar: Any = None
        task: Any = None

        def advance() -> None:
            nonlocal bar, task, done
            done += 1
            if bar is None and done < total and time.monotonic() - started > _PATIENCE_S:
                bar, task = stack.enter_context(progress("Evaluating passes", total))
            if bar is not None:
                bar.update(task, completed=done)

        yield advance


def _pass_row(one: ModelPass) -> dict[str, Any]:
    return {
        "chip": one.chip.name,
        "model": one.predicted_by,
        "tokens": one.tokens,
        "operations": [_operation_row(row, one.pass_us) for row in one.rows],
        "layers": [{"kind": kind, "latency_us": latency_us} for kind, latency_us in one.layers().items()],
        "pass_us": one.pass_us,
        "flops": one.flops,
        "bytes": one.moved_bytes,
        "effective_utilization": one.utilization,
    }


def _operation_row(row: Priced, pass_us: float) -> dict[str, Any]:
    work = row.operation.work
    groups = work.groups if isinstance(work, GroupedProblem) else ()
    return {
        "operation": row.operation.name,
        "part": row.operation.part,
        **{name: getattr(work, name) for name in ("m", "n", "k", "batch")},
        "groups": [{"rows": rows, "count": count} for rows, count in groups],
        "calls": row.operation.calls,
        "latency_us": row.cost.latency_us,
        "pass_us": row.pass_us,
        "share": row.pass_us / pass_us,
        "flops": row.flops,
        "bytes": row.moved_bytes,
        "bound_by": row.bound_by,
        "effective_utilization": row.utilization,
    }


# ---- For people, and for spreadsheets ----


def _print_evaluated(d: dict[str, Any], answer: Answer) -> None:
    found = answer.evaluation
    tile, partition = found.tile, found.partition
    print_fields(
        {
            "problem": _problem_text(d["problem"]),
            "chip": f"{d['chip']}, predicted by {d['model']}",
            "latency": f"{found.latency_us:,.3f} µs",
            "compute time": f"{found.compute_us:,.3f} µs, {found.arch_utilization:.1%} of the latency",
            "memory time": f"{found.memory_us:,.3f} µs, {human_bytes(found.traffic_bytes)} of DRAM traffic",
            "% of peak": f"{found.effective_utilization:.1%}; at most {found.alignment_efficiency:.1%} with this "
            "padding",
            "tile": f"m {tile.m} × n {tile.n} × k {tile.k}, loop order {found.order}",
            "partition": f"g {partition.g} × m {partition.m} × n {partition.n} × k {partition.k}",
            "source": "stored result" if answer.cached else f"searched in {answer.search_ms:.2f} ms",
            **({"validated": d["validated"]} if d["validated"] else {}),
            **({"not saved": d["unkept"]} if d["unkept"] else {}),
        }
    )


def _print_predicted(d: dict[str, Any], p: Prediction) -> None:
    gpus = "all measured GPUs" if p.calibrated_on == "all" else p.calibrated_on
    print_fields(
        {
            "problem": _problem_text(d["problem"]),
            "chip": f"{d['chip']}, predicted by {d['model']}, calibrated on measurements of {p.calibration or gpus}",
            "latency": f"{p.latency_us:,.2f} µs; 68 % of measurements from {p.low_us:,.2f} to {p.high_us:,.2f} µs",
            "roofline": f"{p.roofline_us:,.2f} µs",
            "% of peak": f"{d['effective_utilization']:.1%}",
            "model config": f"tile {p.tile_m} × {p.tile_n}, split-k {p.split_k}",
        }
    )


def _problem_text(p: EvaluationProblem) -> str:
    scales = f", scales {p.scales}" if p.scales else ""
    return f"{p.m} × {p.n} × {p.k}, batch {p.batch}, {p.dtype} in, {p.out_dtype} out{scales}"


def _print_passes(model: str, step: Step, parallel: Parallel, passes: list[ModelPass]) -> None:
    spread = {"tensor": parallel.tensor, "expert": parallel.expert, "data": parallel.data}
    on = ", ".join(f"{name} parallel {size}" for name, size in spread.items() if size > 1)
    for number, one in enumerate(passes):
        print("" if number == 0 else "\n", end="")
        print(f"{printable(model)}, {step.phase}, {counted(one.tokens, 'token')}, {step.dtype}", end="")
        print(f", on {one.chip.name}", end="")
        print(f" (one of {parallel.tensor * parallel.data} chips: {on})" if on else "", end="")
        print(f", predicted by {one.predicted_by}")
        _print_pass(one)


def _print_pass(one: ModelPass) -> None:
    numbers = ("batch", "calls", "µs each", "ms a pass", "share", "GFLOP", "bytes")
    rows: list[tuple[str, ...]] = [
        (
            row.operation.name, row.operation.shape_text, f"{row.operation.work.batch}", f"{row.operation.calls}",
            f"{row.cost.latency_us:,.2f}", f"{row.pass_us / 1e3:,.3f}", f"{row.pass_us / one.pass_us:.1%}",
            f"{row.flops / 1e9:,.1f}", human_bytes(row.moved_bytes), f"{row.utilization:.1%}", row.bound_by,
        )
        for row in one.rows
    ]  # fmt: skip
    rows += [(f"one {kind}", "", "", "", f"{us:,.2f}", "", "", "", "", "", "") for kind, us in one.layers().items()]
    rows.append(
        (
            "pass", "", "", "", "", f"{one.pass_us / 1e3:,.3f}", "100.0%", f"{one.flops / 1e9:,.1f}",
            human_bytes(one.moved_bytes), f"{one.utilization:.1%}", "",
        )
    )  # fmt: skip
    print_table(
        {"operation": LEFT, "m × n × k": LEFT, **dict.fromkeys(numbers, RIGHT), "% of peak": RIGHT, "bound by": LEFT},
        rows,
        dispensable=("GFLOP", "bytes", "batch"),
    )


def _csv(d: dict[str, Any]) -> str:
    """The passes as CSV: one row for each operation.

    The CSV has no rows of totals, so that the sum over a column is right.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, one in enumerate(d["passes"]):
        for place, row in enumerate(one["operations"]):
            values = {name: value for name, value in row.items() if name != "groups"}
            if number == place == 0:
                writer.writerow(["model", "phase", "chip", "tokens", *values])
            writer.writerow([defused(d["model"]), d["phase"], one["chip"], one["tokens"], *values.values()])
    return out.getvalue()
