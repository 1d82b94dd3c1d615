"""``evaluate`` of a whole model: a table of its operations, and what they add up to."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine.cli.documents import models as documents
from cache_engine.cli.support import emit, open_cache, printing
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, progress
from cache_engine.errors import UsageError
from cache_engine.model.sizes import count_sizes, parse_sizes
from cache_engine.units import counted, defused, human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cache_engine.evaluator.catalogue import ModelShape
    from cache_engine.evaluator.catalogue.layers import Parallel
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.gpus import Gpu
    from cache_engine.evaluator.hardware import Hardware
    from cache_engine.evaluator.results import Evaluations
    from cache_engine.insight.passes import ModelPass, Step
    from cache_engine.settings import Settings

_MOST_PASSES = 10_000
_PATIENCE_S = 1.0


def evaluate_model(settings: Settings, name: str | None, mode: SearchMode, asked: dict[str, Any]) -> None:
    """Evaluates the passes of a model, and prints them."""
    from cache_engine.evaluator.catalogue.layers import Parallel
    from cache_engine.evaluator.chips import load_chip

    parallel = Parallel(asked["tp"], asked["ep"], asked["dp"])
    shapes = _shapes(name, asked["config"], parallel)
    step = _step(asked)
    tokens = [m for sizes in _tokens(asked["tokens"], len(asked["chips"])) for m in sizes]
    chips = [load_chip(chip) for chip in dict.fromkeys(asked["chips"])]
    _check(chips, mode)
    with _results(settings) as kept:
        passes = _passes(kept, shapes, [replace(step, tokens=m) for m in tokens], parallel, chips, mode)
    counts = asked["expert_counts"]
    document = documents.model_evaluated(
        shapes[0].model,
        "" if asked["config"] is None else str(asked["config"].absolute()),
        step,
        "" if counts is None else str(counts.absolute()),
        parallel,
        passes,
    )
    if asked["as_csv"]:
        if asked["as_json"]:
            raise UsageError("--json and --csv exclude each other; choose one")
        with printing():
            sys.stdout.write(_csv(document))
        return
    emit(document, asked["as_json"], lambda: _print_passes(document))


def _shapes(name: str | None, config: Path | None, parallel: Parallel) -> list[ModelShape]:
    from cache_engine.evaluator.catalogue.layers import layers_named, layers_of
    from cache_engine.evaluator.catalogue.published import read_config

    if (name is None) == (config is None):
        raise UsageError("give M N K, or a MODEL, or --config FILE: one of them")
    if config is None:
        return layers_named(str(name), parallel)
    if config.suffix == ".toml":
        raise UsageError(
            f"--config {str(config)!r} is no config.json of a model; a settings file is given by --settings-file"
        )
    return layers_of(read_config(config), parallel)


def _step(asked: dict[str, Any]) -> Step:
    from cache_engine.evaluator.catalogue.tables import expert_counts
    from cache_engine.insight.passes import Step

    if asked["skew"] is not None and asked["expert_counts"] is not None:
        raise UsageError("--skew and --expert-counts exclude each other; choose one")
    weights = () if asked["expert_counts"] is None else expert_counts(asked["expert_counts"])
    return Step(
        1, asked["phase"], asked["alternatives"], asked["sequences"], asked["skew"] or 0.0, weights, asked["dtype"]
    )


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
    """The stored results; none where there is no store."""
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
    """Each step on each chip."""
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
    """A progress bar, once the work has taken a second."""
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


# ---- For people, and for spreadsheets ----


def _print_passes(d: documents.ModelEvaluated) -> None:
    spread = {"tensor": d.tensor_parallel, "expert": d.expert_parallel, "data": d.data_parallel}
    on = ", ".join(f"{name} parallel {size}" for name, size in spread.items() if size > 1)
    for number, one in enumerate(d.passes):
        print("" if number == 0 else "\n", end="")
        print(f"{printable(d.model)}, {d.phase}, {counted(one.tokens, 'token')}, {d.dtype}, on {one.chip}", end="")
        print(f" (one of {d.tensor_parallel * d.data_parallel} chips: {on})" if on else "", end="")
        print(f", predicted by {one.model}")
        _print_pass(one)


def _print_pass(one: documents.PassRow) -> None:
    numbers = ("batch", "calls", "µs each", "ms a pass", "share", "GFLOP", "bytes")
    rows: list[tuple[str, ...]] = [
        (
            row.operation, _shape(row), f"{row.batch}", f"{row.calls}", f"{row.latency_us:,.2f}",
            f"{row.pass_us / 1e3:,.3f}", f"{row.share:.1%}", f"{row.flops / 1e9:,.1f}", human_bytes(row.bytes),
            f"{row.effective_utilization:.1%}", row.bound_by,
        )
        for row in one.operations
    ]  # fmt: skip
    rows += [(f"one {row.kind}", "", "", "", f"{row.latency_us:,.2f}", "", "", "", "", "", "") for row in one.layers]
    rows.append(
        (
            "pass", "", "", "", "", f"{one.pass_us / 1e3:,.3f}", "100.0%", f"{one.flops / 1e9:,.1f}",
            human_bytes(one.bytes), f"{one.effective_utilization:.1%}", "",
        )
    )  # fmt: skip
    print_table(
        {"operation": LEFT, "m × n × k": LEFT, **dict.fromkeys(numbers, RIGHT), "% of peak": RIGHT, "bound by": LEFT},
        rows,
        dispensable=("GFLOP", "bytes", "batch"),
    )


def _shape(row: documents.OperationRow) -> str:
    least = row.groups[-1].rows if row.groups else row.m
    rows = f"{row.m}" if least == row.m else f"{least}–{row.m}"
    return f"{rows} × {row.n} × {row.k}"


def _csv(d: documents.ModelEvaluated) -> str:
    """A row for each operation of each pass. No totals, so that a sum over a column is right."""
    out = io.StringIO()
    names = [field for field in documents.OperationRow.__struct_fields__ if field != "groups"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "phase", "chip", "tokens", *names])
    for one in d.passes:
        for row in one.operations:
            values = msgspec.to_builtins(row)
            writer.writerow([defused(d.model), d.phase, one.chip, one.tokens, *(values[name] for name in names)])
    return out.getvalue()
