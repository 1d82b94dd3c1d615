"""Demand on a store: its ledger of requests, and the share of each shape, kernel, model or target.

``times`` gives the durations of launches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

from cache_engine.cache.demand.times import MEASURED, UNKNOWN, LaunchTimes
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, SearchStopped, UsageError
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.gemm.fields import Options, chosen
from cache_engine.model.measurement import Measurement
from cache_engine.model.shapes import Shape
from cache_engine.store.journal import Journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.layout import StoreLayout
from cache_engine.units import counted
from cache_engine.usage.demand import HALF_LIFE_S, Ledger, by_bytes, by_flops, rate
from cache_engine.usage.timeline import Timeline

__all__ = ["BY", "Demand", "DemandReport", "LaunchTimes"]

SHAPE, KERNEL, MODEL, ARCH = BY = ("shape", "kernel", "model", "arch")
"""The kinds of subject that shares are computed for."""

KernelOf = Callable[[Shape, int], tuple[str, str]]
"""A function that returns the name and key of the kernel that serves a shape for an m today; both empty if none can."""


class Demand:
    """The requests to a store by all processes, across restarts. Calling it returns the shares."""

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        timings: Iterable[Measurement],
        select: Callable[[GemmProblem], Selection],
    ) -> None:
        """Reads nothing yet.

        Args:
            timings: measurements of launches, newest first.
            select: a function that selects the kernel for a problem.
        """
        self._layout, self._journal = layout, journal
        self._timings, self._select = timings, select

    def timeline(self) -> Timeline:
        """The demand over time, including unwritten requests of this process."""
        self._journal.flush()
        return read_timeline(self._layout)

    def ledger(self, since_s: float | None = None) -> Ledger:
        """The counts of requests, weighted by age: a request counts half as much after each half-life of a week.

        Args:
            since_s: count only the requests of the last so many seconds, each fully. Counts are stored by the hour for
                2 days, by the day for 32 days, and by 28 days before that. The span begins where one of these periods
                does; ``Ledger.since`` has that time.

        Raises:
            UsageError: when ``since_s`` is not a positive number.
        """
        now = time.time()
        if since_s is None:
            return self.timeline().ledger(HALF_LIFE_S, now)
        if not 0 < since_s < math.inf:
            raise UsageError(f"since_s is {since_s:g}; it must be a positive number of seconds")
        return self.timeline().after(now - since_s).ledger(math.inf, now)

    def __call__(self, by: str = SHAPE, *, since_s: float | None = None) -> DemandReport:
        """The shares of the launches, of their time, of their bytes and of their FLOPs.

        Args:
            by: ``"shape"``; ``"kernel"``, the kernel that serves today; ``"model"``, a model of the catalogue with the
                same n and k, the most similar first; or ``"arch"``, the target.
            since_s: as for ``ledger``.

        Raises:
            UsageError: when ``by`` is another text, or as ``ledger``.
        """
        return self.report(self.ledger(since_s), by)

    def report(self, ledger: Ledger, by: str = SHAPE, *, may_go_on: Callable[[], bool] = lambda: True) -> DemandReport:
        """The same shares as ``__call__``, for a given ledger, such as the result of ``index.summaries.ledger``.

        Args:
            may_go_on: a function called before each size of a shape; false stops the report. A hundred shapes have some
                thousand sizes.

        Raises:
            UsageError: when ``by`` is not one of ``BY``.
            SearchStopped: when ``may_go_on`` returns false.
        """
        if by not in BY:
            raise UsageError(f"by is {by!r}; use one of: {', '.join(BY)}")
        return report(ledger, by, self.times(), self.kernel_of, may_go_on)

    def times(self) -> LaunchTimes:
        """The durations of launches, measured or predicted."""
        return LaunchTimes(self._timings)

    def kernel_of(self, shape: Shape, m: int) -> tuple[str, str]:
        """The name and key of the kernel that serves a shape for this m today; both empty if no kernel can."""
        try:
            selection = self._select(shape.problem(m))
        except GemmCacheError:
            return "", ""
        return selection.name, selection.key


# ---- Shares of the demand: by shape, kernel, model or target ----


@dataclass
class DemandShare:
    """The demand for one shape, kernel, model or target.

    Launches, FLOPs, bytes and seconds decay with the ledger's half-life, unless that is infinite.

    Attributes:
        name: the name of the subject, for people.
        shape: the shape, in a report by shape.
        key: the key of the kernel, in a report by kernel.
        launches: the number of launches asked for.
        per_hour: launches per hour; for a ledger younger than an hour, the launches so far.
        flops, moved_bytes: sums over the launches; a launch moves A, B and C once.
        gpu_s: the GPU seconds of the launches with a known time.
        timed, measured: the number of launches with a known time, and the number with a measured time.
        launch_share, flops_share, bytes_share, time_share: shares of the whole report; for time, of all known times.
        asked_shapes, all_shapes: for a model, the number of its (n, k) that were asked for, and of all its (n, k).
    """

    name: str
    shape: Shape | None = None
    key: str = ""
    launches: float = 0.0
    per_hour: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0
    gpu_s: float = 0.0
    timed: float = 0.0
    measured: float = 0.0
    launch_share: float = 0.0
    flops_share: float = 0.0
    bytes_share: float = 0.0
    time_share: float = 0.0
    asked_shapes: int = 0
    all_shapes: int = 0

    @property
    def time_from(self) -> str:
        """The origins of the launch times: ``"measured"``, ``"predicted"``, ``"unknown"``, or several of these."""
        parts = {
            "measured": self.measured,
            "predicted": self.timed - self.measured,
            UNKNOWN: self.launches - self.timed,
        }
        return ", ".join(name for name, weight in parts.items() if weight > 1e-9 * self.launches) or UNKNOWN

    def add(self, launches: float, flops: float, moved_bytes: float, us: float, source: str) -> None:
        """Counts launches of one problem, each of ``us`` microseconds."""
        self.launches += launches
        self.flops += launches * flops
        self.moved_bytes += launches * moved_bytes
        if source != UNKNOWN:
            self.timed += launches
            self.gpu_s += launches * us / 1e6
            if source == MEASURED:
                self.measured += launches

    def add_all(self, other: DemandShare) -> None:
        """Adds the sums of another share."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMS = [one.name for one in fields(DemandShare) if one.type == "float"]


@dataclass(frozen=True)
class DemandReport:
    """The demand on a store, with the share of each subject.

    Attributes:
        by: the kind of subject: one of ``BY``.
        since: the time of the first counted request, or the start of the span, in seconds since 1970.
        at: the time of the report, in seconds since 1970.
        half_life_s: the age, in seconds, at which a request counts half; infinite if all count fully.
        total: the demand for everything together; its shares are 1.
        dropped: launches of shapes for which the ledger had no room.
        shares: sorted by share of time, then of launches, largest first. Models that have shapes in common overlap.
        gpus: for each target, the GPU that times were measured on, and the GPU that times are predicted for.
        unpredicted: the reason why times cannot be predicted here; empty when they can.
    """

    by: str
    since: float
    at: float
    half_life_s: float
    total: DemandShare
    dropped: float
    shares: tuple[DemandShare, ...]
    gpus: dict[str, dict[str, str]] = field(default_factory=dict)
    unpredicted: str = ""


def report(
    ledger: Ledger, by: str, times: LaunchTimes, kernel_of: KernelOf, may_go_on: Callable[[], bool] = lambda: True
) -> DemandReport:
    """The shares of all requests in a ledger.

    Args:
        may_go_on: called before each size of a shape; false stops the report.

    Raises:
        SearchStopped: when ``may_go_on`` returns false.
    """
    if by == MODEL:
        found = report(ledger, SHAPE, times, kernel_of, may_go_on)
        return replace(found, by=MODEL, shares=models_like(found))
    total, shares = DemandShare("all"), dict[object, DemandShare]()
    for shape, m, weight, us, source in _launches(ledger, times):
        if not may_go_on():
            raise SearchStopped(f"adding up {counted(len(ledger.sketches), 'shape')} was stopped")
        name, key = kernel_of(shape, m) if by == KERNEL else ("", "")
        place = shape if by == SHAPE else shape.arch if by == ARCH else key or name
        share = shares.get(place)
        if share is None:
            share = shares[place] = _new_share(by, shape, name, key)
        share.add(weight, by_flops(shape, m), by_bytes(shape, m), us, source)
    for share in shares.values():
        total.add_all(share)
    for share in (total, *shares.values()):
        # A ledger counts as at least an hour old: a rate over seconds says nothing about an hour.
        share.per_hour = 3600 * rate(ledger, share.launches, max(ledger.at, ledger.since + 3600))
        share.launch_share = _part(share.launches, total.launches)
        share.flops_share = _part(share.flops, total.flops)
        share.bytes_share = _part(share.moved_bytes, total.moved_bytes)
        share.time_share = _part(share.gpu_s, total.gpu_s)
    ordered = tuple(sorted(shares.values(), key=_weight))
    return DemandReport(
        by, ledger.since, ledger.at, ledger.half_life_s, total, ledger.dropped, ordered, times.gpus, times.missing
    )


def _launches(ledger: Ledger, times: LaunchTimes) -> Iterator[tuple[Shape, int, float, float, str]]:
    spread = {shape: sketch.spread() for shape, sketch in ledger.sketches.items()}
    times.predict_ahead({shape: [m for m, _ in pairs] for shape, pairs in spread.items()})
    for shape, pairs in spread.items():
        for (m, weight), each in zip(pairs, times.of(shape, [m for m, _ in pairs]), strict=True):
            yield shape, m, weight, each.us, each.source


def _new_share(by: str, shape: Shape, name: str, key: str) -> DemandShare:
    if by == SHAPE:
        return DemandShare(in_words(shape), shape)
    return DemandShare(shape.arch) if by == ARCH else DemandShare(name or f"no kernel: {in_words(shape)}", key=key)


def models_like(found: DemandReport) -> tuple[DemandShare, ...]:
    """The share of each model of the catalogue that has shapes in ``found``, a report by shape; most similar first."""
    models, shares, asked = _models(), dict[str, DemandShare](), dict[str, set[tuple[int, int]]]()
    for one in found.shares:
        place = (one.shape.n, one.shape.k) if one.shape else (0, 0)
        for name in (name for name, shapes in models.items() if place in shapes):
            share = shares.setdefault(name, DemandShare(name, all_shapes=len(models[name])))
            share.add_all(one)
            asked.setdefault(name, set()).add(place)
    for name, share in shares.items():
        share.asked_shapes = len(asked[name])
    return tuple(sorted(shares.values(), key=_likeness))


def _models() -> dict[str, set[tuple[int, int]]]:
    """The (n, k) of each model of the catalogue."""
    found: dict[str, set[tuple[int, int]]] = {}
    for one in model_shapes():
        found.setdefault(one.model, set()).add((one.n, one.k))
    return found


def _weight(share: DemandShare) -> tuple[float, float, str]:
    return -share.time_share, -share.launch_share, share.name


def _likeness(share: DemandShare) -> tuple[float, float, str]:
    """A sort key that puts the most similar model first: the harmonic mean of demand covered and shapes asked for."""
    precision, recall = share.launch_share, _part(share.asked_shapes, share.all_shapes)
    return -_part(2 * precision * recall, precision + recall), -share.launch_share, share.name


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def in_words(shape: Shape) -> str:
    """A shape as text for people."""
    s = shape
    types = s.dtype if s.out_dtype == s.dtype else f"{s.dtype}→{s.out_dtype}"
    parts = [f"{s.batch} × " if s.batch > 1 else "", f"m × {s.n} × {s.k} {types}"]
    extra = (field.in_brief(value) for field, value in chosen(s, ("layout", *Options.__struct_fields__)))
    return " ".join(["".join(parts), *extra, *filter(None, (s.arch,))])
