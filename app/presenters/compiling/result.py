"""A kernel that was asked for: hit or miss and why, what it takes, its time, or what is predicted of that.

A job's file may say anything: what cannot be right raises one of ``NO_RESULT``.
"""

from __future__ import annotations

import json
import math

import plotly.graph_objects as go

from app.presenters.shared import COLOURS, GREY, Row, Tile
from cache_engine.evaluator.gpu import DTYPES as PREDICTED_DTYPES
from cache_engine.evaluator.gpu import GPUS, MODEL_VERSION, predict
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import GemmProblem
from cache_engine.units import human_bytes, human_ms

NO_RESULT = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a job's result may raise."""


def kernel_of(result: str) -> tuple[Row, Row]:
    """A job's document, and the part of it that is about the kernel."""
    document = json.loads(result)
    return document, document.get("kernel", document)


def verdict(kernel: Row, again: bool = False) -> tuple[bool, str]:
    """Whether it was a hit, and the same in words; ``again`` where it was to be compiled in any case."""
    made, tier = human_ms(_number(kernel, "compile_ms")), kernel["tier"]
    if tier == "compiled":
        return False, f"Compiled again, in {made}." if again else f"Miss: compiled in {made}."
    if tier not in ("memory", "pack", "disk"):
        raise ValueError(f"there is no tier {tier!r}")
    return True, f"Hit ({tier}): found in {human_ms(_number(kernel, 'load_ms'))}; compiling it took {made}."


def why_table(why: Row) -> list[Row]:
    """The key components in which the nearest entry differs, causes first."""
    nearest = why["nearest"]
    differences = [] if nearest is None else nearest["differences"]
    return [
        {
            "Component": str(one["component"]),
            "There": str(one["there"]),
            "Here": str(one["here"]),
            "Follows from another": bool(one["follows"]),
        }
        for one in differences
    ]


def why_lines(why: Row) -> list[str]:
    """Why a kernel was missed, a sentence a line."""
    notes = [str(note) for note in why["notes"]]
    nearest, compared = why["nearest"], int(why["compared"])
    if nearest is None:
        return notes or ["The store had no other kernel to compare with."]
    texts = [str(one["text"]) for one in nearest["differences"] if not one["follows"]]
    found = f"The nearest of {compared:,} kernels in the store: {nearest['name']}"
    return [found, *texts, *notes] if texts else [found, "its key is made in another way", *notes]


def resource_tiles(kernel: Row) -> list[Tile]:
    """What a kernel takes."""
    spilled = int(_number(kernel, "spill_bytes"))
    return [
        Tile("Registers", f"{_number(kernel, 'registers'):,}", "Per thread."),
        Tile("Spilled", human_bytes(spilled), "Register contents moved to local memory."),
        Tile("Shared memory", human_bytes(_number(kernel, "shared_bytes")), "Per block."),
        Tile("Code", human_bytes(_number(kernel, "size_bytes")), "Size of the compiled code."),
    ]


def timing_tiles(document: Row) -> list[Tile]:
    """How fast a kernel is; beside the reference where one was timed."""
    check = "Its result was checked." if document["verified"] is True else "NOT VERIFIED: its result is wrong."
    launches = f"Of {int(_number(document, 'repeats')):,} launches, each with a cold L2 cache. {check}"
    tiles = [
        Tile("Median", human_ms(_number(document, "median_us") / 1e3), launches),
        Tile(
            "Speed", f"{_number(document, 'tflops'):,.1f} TFLOP/s", f"The problem's operations over the median. {check}"
        ),
    ]
    if document.get("reference_median_us") is not None:
        reference = human_ms(_number(document, "reference_median_us") / 1e3)
        tiles.append(
            Tile("Reference", reference, "Median of the library's kernel for the same problem, timed likewise.")
        )
        if document.get("speed_ratio") is not None:
            ratio = f"{_number(document, 'speed_ratio'):.2f}×"
            tiles.append(Tile("Beside the reference", ratio, "More than 1 is faster than the reference."))
    return tiles


def timing_table(document: Row) -> list[Row]:
    """What was measured, number by number."""
    rows = [
        {"Measured": label, "µs": _number(document, name)}
        for label, name in (("10th percentile", "p10_us"), ("median", "median_us"), ("90th percentile", "p90_us"))
    ]
    if document.get("reference_median_us") is not None:
        rows.append({"Measured": "reference, median", "µs": _number(document, "reference_median_us")})
    return rows


def timing_figure(document: Row) -> go.Figure:
    """From the 10th to the 90th percentile of the launches, with the median; the reference's median below."""
    p10, median, p90 = (_number(document, name) for name in ("p10_us", "median_us", "p90_us"))
    figure = go.Figure()
    figure.add_scatter(
        x=[median],
        y=["this kernel"],
        error_x={"type": "data", "symmetric": False, "array": [p90 - median], "arrayminus": [median - p10]},
        mode="markers+text",
        marker={"color": COLOURS[0], "size": 12, "symbol": "diamond"},
        text=[human_ms(median / 1e3)],
        textposition="top center",
        hovertemplate=f"median {median:.1f} µs, 10th to 90th percentile {p10:.1f} to {p90:.1f} µs<extra></extra>",
    )
    if document.get("reference_median_us") is not None:
        reference = _number(document, "reference_median_us")
        figure.add_scatter(
            x=[reference],
            y=["reference"],
            mode="markers+text",
            marker={"color": GREY, "size": 12, "symbol": "circle"},
            text=[human_ms(reference / 1e3)],
            textposition="top center",
            hovertemplate=f"median {reference:.1f} µs<extra></extra>",
        )
    figure.update_layout(
        title="Time of one launch: median, and 10th to 90th percentile",
        margin={"t": 48, "b": 40, "l": 8, "r": 16},
        height=240,
        showlegend=False,
    )
    figure.update_xaxes(title="µs", rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _number(document: Row, name: str) -> float:
    """A number that a document must hold; raises ``TypeError`` for anything else."""
    value = document[name]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value < 1e15
    ):
        raise TypeError(f"{name} is {value!r}")
    return value


# ---- What can be told of its time without a GPU ----

# Mean absolute percentage error on measurements kept out of the fit, by GPU: docs/evaluator.md, "The GPU model".
PUBLISHED_ERROR = {"A100": 7.0, "B200": 9.0, "H100": 6.0, "H200": 7.3}
PUBLISHED_ERROR_UNMEASURED = (9.7, 18.9)
"""That of each GPU when predicted by the others, from the best to the worst."""
_GPUS_OF = {(8, 0): ("A100",), (8, 9): ("L40S",), (9, 0): ("H100", "H200"), (10, 0): ("B200",)}


def prediction_tiles(problem: GemmProblem) -> list[Tile]:
    """How long the problem would take on each GPU of its target, as the model predicts; none where it says nothing."""
    gpus = _GPUS_OF.get(architecture(problem.arch or "").compute_capability, ())
    if problem.dtype not in PREDICTED_DTYPES or problem.output not in PREDICTED_DTYPES:
        return []
    tiles = []
    for name in gpus:
        asked = EvaluationProblem(problem.m, problem.n, problem.k, problem.batch, problem.dtype, problem.output)
        prediction = predict(asked, GPUS[name])
        rate = asked.flops / prediction.latency_us / 1e6
        if prediction.calibrated_on in PUBLISHED_ERROR:
            error = f"It is off by {PUBLISHED_ERROR[prediction.calibrated_on]} % on average."
        else:
            best, worst = PUBLISHED_ERROR_UNMEASURED
            error = f"No {name} was measured; on GPUs left out of the fit it is off by {best} to {worst} % on average."
        tiles.append(
            Tile(
                f"{name}, predicted",
                f"{prediction.latency_us:,.1f} µs",
                f"{rate:,.1f} TFLOP/s, by GPU model {MODEL_VERSION}. {error}",
            )
        )
    return tiles
