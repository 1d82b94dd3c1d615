"""The workload of a store: the matrix of shapes and targets, and one cell of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from app.presenters import forms
from app.presenters.columns import Column
from app.presenters.figure import Bars, Series
from app.presenters.shared import COLOURS, Row, kernel_address
from cache_engine.cache.demand import DemandReport, DemandShare, in_words
from cache_engine.insight.coverage import Covering, WorkCell
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.events import DAY_S, EVICT
from cache_engine.model.shapes import Shape, sizes_text
from cache_engine.units import counted, human_ms, human_rate
from cache_engine.usage.demand import Sketch

NOW = "Now"
SPANS = {NOW: None, "24 hours": DAY_S, "7 days": 7 * DAY_S, "28 days": 28 * DAY_S}
"""Time ranges by name: the last so many seconds or, for ``None``, all time, where older launches count less."""
STORED, PINNED, MISSING, EVICTED, QUARANTINED = "✓ stored", "✓ pinned", "✗ missing", "✗ evicted", "✗ quarantined"
_ALL, _SOME, _NONE, _REFUSED = "✓", "◐", "✗", "–"
LEGEND = "✓ all kernels stored · ◐ some · ✗ none · – no kernel can serve it"


@dataclass(frozen=True, slots=True)
class States:
    """The states of kernels, by key.

    Attributes:
        stored: the keys that are stored.
        departed: for keys that left the store, the kind of the event by which they left.
        pinned: the keys that are pinned.
    """

    stored: Collection[str] = ()
    departed: Mapping[str, str] = field(default_factory=dict)
    pinned: Collection[str] = ()

    def of(self, key: str) -> str:
        """The state of a kernel, in words."""
        if key in self.stored:
            return PINNED if key in self.pinned else STORED
        kind = self.departed.get(key)
        return MISSING if kind is None else EVICTED if kind == EVICT else QUARANTINED


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells that the page shows.

    Attributes:
        rows: the cells of each shape, one for each target that it has.
        total: the demand for everything together, also for what is not shown.
        address: the parameters of the page's address that the links of cells keep.
        chosen: the cell that is shown below the matrix, if any.
    """

    rows: Sequence[Sequence[WorkCell]]
    states: States
    total: DemandShare
    address: Mapping[str, Any]
    chosen: WorkCell | None = None

    @property
    def is_timed(self) -> bool:
        """Whether shares are of the GPU time; if no launch has a known time, they are of the launches."""
        return self.total.timed > 0

    def share(self, cell: WorkCell) -> float | None:
        """A cell's share of the demand.

        ``None`` if nothing was asked for, or if shares are of GPU time and no launch of the cell has a known time.
        """
        if cell.share is None or (self.is_timed and not cell.share.timed):
            return None
        return cell.share.time_share if self.is_timed else cell.share.launch_share

    def columns(self) -> list[Column]:
        """The columns of the matrix: a model's operation, the shape, and then each target."""
        most = max((self.share(cell) or 0 for row in self.rows for cell in row), default=0)
        operation = Column("Operation", lambda row: row[0].operation)
        return [
            *([operation] if any(row[0].operation for row in self.rows) else []),
            Column("Shape", lambda row: shape_words(row[0].shape)),
            *(self._target(arch, most) for arch in in_order(cell.shape.arch for row in self.rows for cell in row)),
        ]

    def _target(self, arch: str, most: float) -> Column:
        def cell(row: Sequence[WorkCell]) -> WorkCell | None:
            return next((one for one in row if one.shape.arch == arch), None)

        def weight(row: Sequence[WorkCell]) -> float | None:
            found = cell(row)
            return None if found is None else (self.share(found) or 0) / (most or 1)

        return Column(
            arch or "any target",
            lambda row: cell_address(found.shape, self.address) if (found := cell(row)) else None,
            "link",
            lambda row: self.text(found) if (found := cell(row)) else "",
            title=lambda row: self.words(found) if (found := cell(row)) else "",
            weight=weight,
            alert=lambda row: bool((found := cell(row)) and found.missing(self.states.stored)),
        )

    def text(self, cell: WorkCell) -> str:
        """The text of a cell: its share, a mark, and the number of its kernels that are stored and of all."""
        share = self.share(cell)
        states = [self.states.of(kernel.key) for kernel in cell.kernels]
        kept = states.count(STORED) + states.count(PINNED)
        mark = _REFUSED if not states else _NONE if not kept else _SOME if kept < len(states) else _ALL
        counts = f"{kept} of {len(states)}" if states else "no kernel"
        more = [
            f", {states.count(state)} {state[2:]}" for state in (PINNED, EVICTED, QUARANTINED) if states.count(state)
        ]
        here = "▸ " if cell is self.chosen else ""
        return f"{here}{'' if share is None else f'{human_rate(share)} '}{mark} {counts}{''.join(more)}"

    def words(self, cell: WorkCell) -> str:
        """A cell's demand, or why no kernel serves it, in a sentence."""
        if cell.share is None:
            return cell.refused or "Nothing was asked for."
        said = f"{human_rate(cell.share.launch_share)} of launches"
        if cell.share.timed:
            said = f"{human_rate(cell.share.time_share)} of GPU time ({cell.share.time_from}), {said}"
        return f"{said}. {cell.refused}".strip()

    def share_words(self) -> str:
        """The quantity of which cells show shares, in words: GPU time or launches."""
        if not self.total.launches:
            return "Nothing was asked for, so cells have no share."
        if not self.is_timed:
            return "Shares are of launches: no time is known of any."
        untimed = 1 - self.total.timed / self.total.launches
        left = f" {human_rate(untimed)} of launches have no known time and no share." if untimed > 1e-9 else ""
        return f"Shares are of GPU time.{left}"


def shape_words(shape: Shape) -> str:
    """A shape without its target, as text, which is also its name in addresses."""
    return in_words(shape).removesuffix(f" {shape.arch}") if shape.arch else in_words(shape)


def in_order(archs: Iterable[str]) -> list[str]:
    """The targets, each once: known ones by age, then the others."""
    known = list(ARCHITECTURES)
    return sorted(set(archs), key=lambda arch: (known.index(arch) if arch in known else len(known), arch))


def cell_address(shape: Shape, kept: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The address of the page with the cell of a shape chosen, and the parameters ``kept``."""
    asked = {**kept, "shape": shape_words(shape), "target": shape.arch}
    return f"workload?{urlencode(asked, doseq=True)}"


# ---- The whole demand ----


def demand_words(report: DemandReport) -> str:
    """The sums of a report on demand, in words."""
    total = report.total
    said = f"{total.per_hour:,.0f} launches an hour, {total.flops / 1e12:,.1f} TFLOP"
    if total.timed:
        said = f"{said}, {human_ms(total.gpu_s * 1e3)} of GPU time ({total.time_from})"
    return f"{said}, {report.dropped:,.0f} launches of rare shapes not listed." if report.dropped else f"{said}."


def source_words(report: DemandReport) -> str:
    """The GPUs on which a report's times were measured, or for which they were predicted, in words."""
    ways = {"measured": "measured on", "predicted": "predicted for"}
    parts = [
        f"{arch}: {', '.join(f'{ways[how]} {gpu}' for how, gpu in sorted(gpus.items()))}"
        for arch, gpus in sorted(report.gpus.items())
    ]
    said = f"GPU times of {'; '.join(parts)}." if parts else "No time is known of any launch."
    return f"{said} Times are not predicted: {report.unpredicted}" if report.unpredicted else said


MODELS = (
    Column("Model", "name"),
    Column("Shapes asked for", lambda one: f"{one.asked_shapes} of {one.all_shapes}"),
    Column("Launches", "launch_share", "share", bar=True),
    Column("GPU time", lambda one: one.time_share if one.timed else None, "share", bar=True),
)
"""The columns of the models whose shapes programs asked for."""


def again_columns(compile_ms: Mapping[str, float], titles: Mapping[str, str]) -> list[Column]:
    """The columns of kernels that were evicted and asked for again.

    Args:
        compile_ms, titles: compile times and titles, by key, of the kernels that are stored now.
    """
    return [
        Column("Kernel", lambda one: kernel_address(one.key), "link", lambda one: titles.get(one.key) or one.name),
        Column("Times", "times", "count"),
        Column("Evicted", "evicted_at", "age"),
        Column("Because", "rule"),
        Column("Asked for again", "asked_at", "age"),
        Column("Compile time", lambda one: compile_ms.get(one.key), "ms"),
    ]


# ---- One cell ----


def m_figure(sketch: Sketch) -> Bars:
    """The number of launches of a shape, by power of two of m; the ledger's histogram has these numbers exactly."""
    weights = sketch.by_power()
    last = max((power for power, weight in enumerate(weights) if weight), default=0)
    names = [power_words(power) for power in range(last + 1)]
    words = [
        f"m = {name}: {weight:,.0f} launches, {weight / (sketch.total or 1):.1%}"
        for name, weight in zip(names, weights, strict=False)
    ]
    return Bars(
        "Launches by m", names, [Series("", weights[: last + 1], words, COLOURS[0])], "Launches", "m", height=260
    )


def power_words(power: int) -> str:
    """The m that belong to a power of two, as text: ``"5–8"`` for power 3."""
    first, last = (1 << power) // 2 + 1, 1 << power
    return f"{last:,}" if power < 2 else f"{first:,}–{last:,}"


def kernel_columns(states: States, *, of_one: bool) -> list[Column]:
    """The columns of kernels, each with its cell and its share; those of one cell do not repeat its shape."""
    shape = (
        Column("Operation", lambda row: row[0].operation),
        Column("Shape", lambda row: shape_words(row[0].shape)),
        Column("Target", lambda row: row[0].shape.arch),
    )
    return [
        *(() if of_one else shape),
        Column("State", lambda row: states.of(row[1].key)),
        Column("m", lambda row: sizes_text(row[1].ms)),
        Column("Launches", lambda row: row[2].launch_share if row[2].launches else None, "share", bar=True),
        Column("GPU time", lambda row: row[2].time_share if row[2].timed else None, "share", bar=True),
        Column("Mean time", lambda row: 1e3 * row[2].gpu_s / row[2].timed if row[2].timed else None, "ms"),
        Column("Time", lambda row: row[2].time_from if row[2].launches else ""),
        Column("Config", lambda row: str(row[1].selection.config)),
        Column(
            "Kernel",
            lambda row: kernel_address(row[1].key) if row[1].key in states.stored else "",
            "link",
            lambda row: row[1].key[:12],
        ),
    ]


# ---- Compiling what is missing ----


def stored_words(cells: Iterable[WorkCell], stored: Collection[str]) -> str:
    """The number of kernels of these cells that are stored, and the number of all, in words."""
    needed = {kernel.key for cell in cells for kernel in cell.kernels}
    return f"{sum(key in stored for key in needed):,} of {counted(len(needed), 'kernel')} stored."


def shape_job(form: Iterable[forms.Field], missing: Sequence[Covering]) -> tuple[Row, bytes]:
    """The values of the form of a whole model, and a table of one shape, that together make these kernels of a cell."""
    form, problem = list(form), missing[0].selection.problem
    known = forms.values_of(problem)
    values = forms.model_values(form, **{one.name: known[one.name] for one in form if one.name in known})
    tokens = ",".join(map(str, sorted({kernel.ms[0][0] for kernel in missing})))
    # In the modes of experts, each token goes to one of as many experts as there are groups: m is then its number.
    experts = f"{problem.batch},1" if problem.mode else ","
    table = f"n,k,batch,experts,experts_per_token\n{problem.n},{problem.k},{problem.batch},{experts}\n"
    return values | {"model": forms.OWN_TABLE, "arch": [known["arch"]], "tokens": tokens}, table.encode()
