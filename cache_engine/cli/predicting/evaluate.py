"""The verb ``evaluate``: how long a GEMM takes on an accelerator, or a pass of a whole model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cli.support import Size, SizedVerb, emit, json_option, open_cache
from cache_engine.cli.support.completion import models
from cache_engine.cli.terminal import print_fields
from cache_engine.errors import UsageError
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.model.outcome import Failure
from cache_engine.settings import Settings
from cache_engine.units import human_bytes

if TYPE_CHECKING:
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.hardware import Hardware
    from cache_engine.evaluator.results import Answer


@click.command(
    "evaluate",
    cls=SizedVerb,
    examples=(
        "evaluate 4096 7168 2048 --chip H100",
        "evaluate 64 7168 2112 --chip SG2262 --json",
        "evaluate DeepSeek-V3 --chip SG2262 --chip H100 --m 16,4096",
        "evaluate --config config.json --chip H200 --tp 8 --phase decode --m 64",
    ),
    done="The prediction is printed.",
    failed="The description of the accelerator cannot be read.",
    missing="The extra evaluate is not installed, and the result is not stored.",
    completers={"m": models},
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
@click.option("--no-tile-search", is_flag=True, help="Use one cube as the tile; do not search.")
@click.option("--no-partition-search", is_flag=True, help="Use a square grid of cores over m and n; do not search.")
@click.option("--reduce-partial-sums", is_flag=True, help="Count the time to add partial sums over k.")
@click.option("--compute-rate", type=float, default=1.0, help="Speed of this dtype, relative to the clock.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A model's published config.json.")
@click.option("--m", "tokens", default="4096", show_default=True, help="Of a model: numbers of tokens, such as 1,16.")
@click.option("--phase", default="prefill", metavar="prefill|decode", show_default=True, help="Of a model: the phase.")
@click.option("--tp", type=Size(), default=1, show_default=True, help="Of a model: tensor parallel size.")
@click.option("--ep", type=Size(), default=1, show_default=True, help="Of a model: expert parallel size.")
@click.option("--dp", type=Size(), default=1, show_default=True, help="Of a model: data parallel size.")
@click.option("--skew", type=float, help="Of a model: the r-th expert gets 1/r^SKEW of the first's tokens. Default: 0.")
@click.option(
    "--expert-counts", type=click.Path(path_type=Path), metavar="FILE", help="Of a model: CSV, tokens of each expert."
)
@click.option("--sequences", type=Size(), help="Of a model: logits of the last token of so many sequences only.")
@click.option(
    "--alternative", "alternatives", multiple=True, metavar="NAME", help="Of a model: another way to compute."
)
@click.option("--csv", "as_csv", is_flag=True, help="Of a model: print CSV, a row for each operation.")
@json_option
@click.pass_obj
def evaluate_verb(settings: Settings, /, m: str | None, n: int | None, k: int | None, **asked: Any) -> None:
    """Predict the latency of a GEMM or of a whole model.

    M N K, on an accelerator: also finds the best tile, loop order and partition. The GEMM is C (M×N) = A (M×K) · B
    (K×N). Results of accelerators are stored; predictions for GPUs take no longer than a lookup and are not.

    MODEL is a model of the catalogue or a CSV file with its shapes; --config reads any model of a known family. Prints
    each operation, and the totals of a layer and of a pass, on one chip of those that share the model. Alternatives are
    fused or separate (the first products of latent attention), expanded or absorbed (its keys and values).
    """
    from cache_engine.evaluator.cost import SearchMode

    mode = SearchMode(
        not asked["no_tile_search"],
        not asked["no_partition_search"],
        asked["reduce_partial_sums"],
        asked["compute_rate"],
    )
    if n is None:
        from cache_engine.cli.predicting.models import evaluate_model

        _only_of(("batch", "out_dtype", "scales"), "a single shape")
        evaluate_model(settings, m, mode, asked)
        return
    _only_of(("config", "tokens", "phase", *_MODEL_OPTIONS), "a model")
    if m is None or k is None:
        raise UsageError("give all of M, N and K, or a MODEL alone")
    if len(asked["chips"]) > 1:
        raise UsageError("a single shape is evaluated on one chip; give one --chip")
    size = Size().convert(m, None, None)
    problem = EvaluationProblem(size, n, k, asked["batch"], asked["dtype"], asked["out_dtype"], asked["scales"])
    _evaluate_shape(settings, problem, asked["chips"][0], mode, as_json=asked["as_json"])


_MODEL_OPTIONS = ("tp", "ep", "dp", "skew", "expert_counts", "sequences", "alternatives", "as_csv")


def _only_of(names: tuple[str, ...], what: str) -> None:
    """Refuses options that mean nothing here."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            raise UsageError(f"{parameter.opts[0]} is an option of {what}")


def _evaluate_shape(
    settings: Settings, problem: EvaluationProblem, chip: str, mode: SearchMode, *, as_json: bool
) -> None:
    from cache_engine.cli.documents import evaluator as documents
    from cache_engine.evaluator.chips import load_chip
    from cache_engine.evaluator.cost import SearchMode
    from cache_engine.evaluator.hardware import Hardware

    hardware = load_chip(chip)
    if not isinstance(hardware, Hardware):
        if mode != SearchMode():
            raise UsageError(f"{hardware.name} is a GPU; the search options are for core-grid accelerators only")
        predicted = documents.predicted(problem, hardware)
        emit(predicted, as_json, lambda: _print_predicted(predicted))
        return
    answer = _answer(settings, problem, hardware, mode)
    document = documents.evaluated(problem, hardware, mode, answer)
    emit(document, as_json, lambda: _print_evaluated(document))


def _answer(settings: Settings, problem: EvaluationProblem, hardware: Hardware, mode: SearchMode) -> Answer:
    """A result: from the store, or searched for and stored; with caching switched off, only searched for."""
    if settings.uses_directory:
        with open_cache(settings, optional=True) as cache:
            if cache.has_store:
                return cache.evaluations.evaluate(problem, hardware, mode)
    from cache_engine.evaluator.results import search

    why = "the store cannot be used" if settings.uses_directory else "caching is switched off"
    return replace(search(problem, hardware, mode), unkept=Failure(why))


# ---- For people ----


def _print_evaluated(d: documents.Evaluated) -> None:
    tile, partition = d.tile, d.partition
    print_fields(
        {
            "problem": _problem_text(d.problem),
            "chip": f"{d.chip}, predicted by {d.model}",
            "latency": f"{d.latency_us:,.3f} µs",
            "compute time": f"{d.compute_us:,.3f} µs, {d.arch_utilization:.1%} of the latency",
            "memory time": f"{d.memory_us:,.3f} µs, {human_bytes(d.traffic_bytes)} of DRAM traffic",
            "% of peak": f"{d.effective_utilization:.1%}; at most {d.alignment_efficiency:.1%} with this padding",
            "tile": f"m {tile['m']} × n {tile['n']} × k {tile['k']}, loop order {d.order}",
            "partition": f"g {partition['g']} × m {partition['m']} × n {partition['n']} × k {partition['k']}",
            "source": "stored result" if d.cached else f"searched in {d.search_ms:.2f} ms",
            **({"validated": d.validated} if d.validated else {}),
            **({"not saved": d.unkept} if d.unkept else {}),
        }
    )


def _print_predicted(d: documents.Predicted) -> None:
    gpus = "all measured GPUs" if d.calibrated_on == "all" else d.calibrated_on
    print_fields(
        {
            "problem": _problem_text(d.problem),
            "chip": f"{d.chip}, predicted by {d.model}, calibrated on measurements of {d.calibration or gpus}",
            "latency": f"{d.latency_us:,.2f} µs; 68 % of measurements from {d.low_us:,.2f} to {d.high_us:,.2f} µs",
            "roofline": f"{d.roofline_us:,.2f} µs",
            "% of peak": f"{d.effective_utilization:.1%}",
            "model config": f"tile {d.tile_m} × {d.tile_n}, split-k {d.split_k}",
        }
    )


def _problem_text(p: EvaluationProblem) -> str:
    scales = f", scales {p.scales}" if p.scales else ""
    return f"{p.m} × {p.n} × {p.k}, batch {p.batch}, {p.dtype} in, {p.out_dtype} out{scales}"
