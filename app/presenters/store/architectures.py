"""Sums for each target, as a table and as figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo
from urllib.parse import urlencode

from app.presenters.figure import Bars, Series
from app.presenters.shared import COLOURS, Row, moment
from cache_engine.units import bytes_unit, ms_unit

# These have fixed colours in every store.
_KINDS = (("simt", "fp32"), ("tensor_core", "bf16"), ("tensor_core", "fp16"), ("simt", "fp64"))
# Enough that no two kinds have one colour: three families with six dtypes at most.
_COLOURS = (
    *COLOURS, "#7f3b08", "#542788", "#01665e", "#c51b7d", "#35978f", "#8c510a", "#2d004b", "#b2182b", "#4d4d4d",
    "#1b7837", "#053061", "#dfc27d",
)  # fmt: skip


def architecture_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """Sums for each target, as numbers, so that every column can be sorted."""
    return [
        {
            "Target": row["arch"],
            "Open": f"kernels?{urlencode({'arch': row['arch']})}",
            "Kernels": row["entries"],
            "Cubin size": row["size_bytes"],
            "On disk": row["stored_bytes"],
            "Total compile time": row["compile_ms"],
            "Median compile time": row["median_compile_ms"],
            "Hits": row["hits"],
            "Misses": row["misses"],
            "Last used": moment(row["last_used_at"], zone),
            "Families": ", ".join(row["families"]),
            "Dtypes": ", ".join(row["dtypes"]),
        }
        for row in rows
    ]


def entries_figure(families: Sequence[Row]) -> Bars:
    """Kernels per target, stacked by family and dtype."""
    archs = list(dict.fromkeys(row["arch"] for row in families))  # in the order of the compute capabilities
    kinds = sorted({(row["family"], row["dtype"]) for row in families})
    unlisted = [kind for kind in kinds if kind not in _KINDS]
    counts = {(row["family"], row["dtype"], row["arch"]): row["entries"] for row in families}
    series = []
    for kind in kinds:
        number = _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + unlisted.index(kind)
        values = [counts.get((*kind, arch)) for arch in archs]
        words = [f"{arch}, {' '.join(kind)}: {value or 0:,}" for arch, value in zip(archs, values, strict=True)]
        series.append(Series(" ".join(kind), values, words, _COLOURS[number % len(_COLOURS)]))
    return Bars("Kernels by family and dtype", archs, series, "Kernels", stacked=True)


def compile_time_figure(architectures: Sequence[Row]) -> Bars:
    """Median compile time per target."""
    times = [row["median_compile_ms"] or 0.0 for row in architectures]
    unit, length = ms_unit(max(times, default=0.0))
    return _bars("Median compile time", unit, architectures, [one / length for one in times])


def stored_bytes_figure(architectures: Sequence[Row]) -> Bars:
    """Bytes on disk per target."""
    unit, length = bytes_unit(max((row["stored_bytes"] for row in architectures), default=0))
    return _bars("Size on disk", unit, architectures, [row["stored_bytes"] / length for row in architectures])


def hits_figure(architectures: Sequence[Row]) -> Bars:
    """Hits per target."""
    return _bars("Hits", "Hits", architectures, [row["hits"] for row in architectures])


def _bars(title: str, unit: str, rows: Sequence[Row], values: Sequence[float]) -> Bars:
    archs = [row["arch"] for row in rows]
    words = [f"{arch}: {value:,.6g} {unit}" for arch, value in zip(archs, values, strict=True)]
    return Bars(title, archs, [Series("", values, words, COLOURS[0])], unit)


def speed_table(rows: Iterable[Row], zone: tzinfo) -> list[Row]:
    """What was measured for each target and GPU."""
    return [
        {
            "Target": row["arch"],
            "GPU": row["device"],
            "Kernels timed": row["kernels"],
            "Timings": row["timings"],
            "Median TFLOP/s": row["median_tflops"],
            "Best TFLOP/s": row["best_tflops"],
            "Compared with a library": row["compared"],
            "Median speed, % of the library's": row["median_ratio"],
            "Last timed": moment(row["measured_at"], zone),
        }
        for row in rows
    ]
