"""Demand on a store: its ledger, and the share of it that each shape, kernel, model or target takes.

``times`` says how long launches take, ``report`` adds up the shares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from cache_engine.cache.demand.report import BY, SHAPE, DemandReport, report
from cache_engine.cache.demand.times import LaunchTimes
from cache_engine.cache.selection import Selection
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.measurement import Measurement
from cache_engine.model.shape_counts import Shape
from cache_engine.store.journal import Journal
from cache_engine.store.journal.demand import read_timeline
from cache_engine.store.layout import StoreLayout
from cache_engine.usage.demand import HALF_LIFE_S, Ledger
from cache_engine.usage.timeline import Timeline

__all__ = ["BY", "Demand", "DemandReport", "LaunchTimes"]


class Demand:
    """The demand on a store, by all processes and across restarts. Called, it reports the shares."""

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        timings: Iterable[Measurement],
        select: Callable[[GemmProblem], Selection],
    ) -> None:
        """Reads nothing yet.

        Args:
            timings: measurements of launches, the newest first.
            select: what serves a problem today.
        """
        self._layout, self._journal = layout, journal
        self._timings, self._select = timings, select

    def timeline(self) -> Timeline:
        """The demand by time, this process's own requests included."""
        self._journal.flush()
        return read_timeline(self._layout)

    def ledger(self, since_s: float | None = None) -> Ledger:
        """The present demand: a request counts half as much with each half-life, a week.

        Args:
            since_s: count what was asked for in the last so many seconds instead, each request the same. Requests are
                counted by the hour for 2 days, by the day for 32, and by 28 days beyond, so the span begins where one
                of these does; ``Ledger.since`` says when.

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
        """The shares of the launches, their time, bytes and FLOPs.

        Args:
            by: ``"shape"``, ``"kernel"`` (that serves today), ``"model"`` (of the catalogue, by n and k; most alike
                first) or ``"arch"``.
            since_s: as of ``ledger``.

        Raises:
            UsageError: when ``by`` is none of these, or as ``ledger``.
        """
        return self.report(self.ledger(since_s), by)

    def report(self, ledger: Ledger, by: str = SHAPE, *, may_go_on: Callable[[], bool] = lambda: True) -> DemandReport:
        """The same of a ledger, such as that of ``index.summaries``.

        Args:
            may_go_on: asked before each size of a shape; a hundred shapes have some thousand.

        Raises:
            UsageError: when ``by`` is none of these.
            SearchStopped: when ``may_go_on`` says no.
        """
        if by not in BY:
            raise UsageError(f"by is {by!r}; use one of: {', '.join(BY)}")
        return report(ledger, by, self.times(), self.kernel_of, may_go_on)

    def times(self) -> LaunchTimes:
        """The durations of launches."""
        return LaunchTimes(self._timings)

    def kernel_of(self, shape: Shape, m: int) -> tuple[str, str]:
        """The name and key of the kernel that serves a shape with an m today; both empty if no kernel can."""
        try:
            selection = self._select(shape.problem(m))
        except GemmCacheError:
            return "", ""
        return selection.name, selection.key
