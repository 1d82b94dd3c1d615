"""The result of a compile job: hit or miss and why, the kernel's resources, and its time, measured or predicted.

A job's file may hold anything: an invalid value raises one of ``NO_RESULT``.
"""

from __future__ import annotations

import msgspec
import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile
from cache_engine.batch.jobs import Job
from cache_engine.batch.results import Compiled, Explained, Timed
from cache_engine.evaluator.chips import gpus_running
from cache_engine.evaluator.gpu import DTYPES as PREDICTED_DTYPES
from cache_engine.evaluator.gpu import MODEL_VERSION, RATED
from cache_engine.evaluator.grouped import predict_work, work_of
from cache_engine.evaluator.validation import PUBLISHED_MAPE, PUBLISHED_MAPE_UNMEASURED
from cache_engine.model.events import TIERS
from cache_engine.model.gemm import GemmProblem
from cache_engine.units import counted, human_bytes, human_ms, human_us, ms_unit

NO_RESULT = (ValueError, RecursionError)
"""The exceptions of an invalid job result."""


def document_of(job: Job) -> Compiled | Timed:
    """What a job about one kernel has printed; raises one of ``NO_RESULT``."""
    document: type[Compiled | Timed] = Timed if job.command[:1] == ["time"] else Compiled
    return msgspec.json.decode(job.result, type=document)


def verdict(kernel: Compiled, again: bool = False) -> tuple[bool, str]:
    """Whether the lookup was a hit, and the same in words; ``again`` where the job forced a recompile."""
    spent, tier = human_ms(kernel.compile_ms), kernel.tier
    if tier == "compiled":
        return False, f"Recompiled in {spent}." if again else f"Miss. Compiled in {spent}."
    if tier not in TIERS:
        raise ValueError(f"there is no tier {tier!r}")
    return True, f"Hit ({tier}): loaded in {human_ms(kernel.load_ms)}; saved {spent} of compiling."


def why_table(why: Explained) -> list[Row]:
    """The key components in which the nearest kernel differs, causes first."""
    differences = [] if why.nearest is None else why.nearest.differences
    return [
        {
            "Component": one.component,
            "Nearest kernel": str(one.there),
            "Requested": str(one.here),
            "Consequence": one.follows,
        }
        for one in differences
    ]


def why_lines(why: Explained) -> list[str]:
    """Why the lookup missed, a sentence a line."""
    if why.nearest is None:
        return why.notes or ["No other kernels to compare with."]
    texts = [one.text for one in why.nearest.differences if not one.follows]
    found = f"Closest of {counted(why.compared, 'cached kernel')}: {why.nearest.name}"
    return [found, *texts, *why.notes] if texts else [found, "It uses a different key format.", *why.notes]


def resource_tiles(kernel: Compiled) -> list[Tile]:
    """The resources of a kernel."""
    return [
        Tile("Registers", f"{kernel.registers:,}", "Per thread."),
        Tile("Spills", human_bytes(kernel.spill_bytes), "Register spills to local memory, bytes per thread."),
        Tile("Shared memory", human_bytes(kernel.shared_bytes), "Per block."),
        Tile("Cubin size", human_bytes(kernel.size_bytes), "Size of the cubin."),
    ]


def timing_tiles(document: Timed) -> list[Tile]:
    """How fast a kernel is, and how fast the reference, where one was timed."""
    check = "The result is verified." if document.verified else "WRONG RESULT."
    launches = f"Median of {document.repeats:,} launches, each with a cold L2 cache. {check}"
    tiles = [
        Tile("Median", human_ms(document.median_us / 1e3), launches),
        Tile("Speed", f"{document.tflops:,.1f} TFLOP/s", f"2·m·n·k·batch ÷ median. {check}"),
    ]
    if document.reference_median_us is not None:
        reference = human_ms(document.reference_median_us / 1e3)
        tiles.append(Tile("Reference", reference, "Median of the library kernel for the same problem."))
        if document.speed_ratio is not None:
            ratio = f"{document.speed_ratio:.2f}×"
            tiles.append(Tile("Speed-up vs reference", ratio, "Above 1: faster than the reference."))
    return tiles


def timing_table(document: Timed) -> list[Row]:
    """The timing, number by number."""
    rows = [
        {"Time": "10th percentile", "µs": document.p10_us},
        {"Time": "median", "µs": document.median_us},
        {"Time": "90th percentile", "µs": document.p90_us},
    ]
    if document.reference_median_us is not None:
        rows.append({"Time": "reference, median", "µs": document.reference_median_us})
    return rows


def timing_figure(document: Timed) -> go.Figure:
    """From the 10th to the 90th percentile of the launches, with the median; the reference's median below."""
    times = (document.p10_us, document.median_us, document.p90_us)
    unit, length = ms_unit(max(times[-1], document.reference_median_us or 0.0) / 1e3)
    p10, median, p90 = (time / 1e3 / length for time in times)
    figure = go.Figure()
    figure.add_scatter(
        x=[median],
        y=["this kernel"],
        error_x={"type": "data", "symmetric": False, "array": [p90 - median], "arrayminus": [median - p10]},
        mode="markers+text",
        marker={"color": COLOURS[0], "size": 12, "symbol": "diamond"},
        text=[human_ms(document.median_us / 1e3)],
        textposition="top center",
        hovertemplate="median {1}, 10th to 90th percentile {0} to {2}<extra></extra>".format(*map(human_us, times)),
    )
    if document.reference_median_us is not None:
        reference = document.reference_median_us
        figure.add_scatter(
            x=[reference / 1e3 / length],
            y=["reference"],
            mode="markers+text",
            marker={"color": GREY, "size": 12, "symbol": "circle"},
            text=[human_ms(reference / 1e3)],
            textposition="top center",
            hovertemplate=f"median {human_us(reference)}<extra></extra>",
        )
    figure.update_layout(
        title="Launch time: median, and 10th to 90th percentile",
        margin={"t": 48, "b": 40, "l": 8, "r": 16},
        height=240,
        showlegend=False,
    )
    figure.update_xaxes(title=unit, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


# ---- Its predicted time, without a GPU ----


def prediction_tiles(problem: GemmProblem) -> list[Tile]:
    """The predicted time of the problem on each GPU that runs its target; none where the model does not apply."""
    asked = work_of(problem)
    if asked.dtype not in RATED or problem.output not in PREDICTED_DTYPES:
        return []
    tiles = []
    for gpu in gpus_running(problem.arch or ""):
        prediction = predict_work(asked, gpu)
        rate = asked.flops / prediction.latency_us / 1e6
        if asked.dtype not in PREDICTED_DTYPES:
            error = f"{asked.dtype} was never measured; the datasheet's rate is taken."
        elif prediction.calibrated_on in PUBLISHED_MAPE:
            error = f"Mean error {PUBLISHED_MAPE[prediction.calibrated_on]}%."
        else:
            best, worst = PUBLISHED_MAPE_UNMEASURED
            error = f"{gpu.name} was not in the calibration set; held-out error {best}–{worst}%."
        tiles.append(
            Tile(
                f"{gpu.name}, predicted",
                human_us(prediction.latency_us),
                f"{rate:,.1f} TFLOP/s (GPU model {MODEL_VERSION}). {error}",
            )
        )
    return tiles
