"""Demand on a store: its ledger of requests, and the share of each shape, kernel, model or target.

``times`` gives the durations of launches, ``report`` computes the shares.
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
        """The shares, as calling this object returns them, for a given ledger, such as that of ``index.summaries``.

        Args:
            may_go_on: a function asked before each size of a shape, to stop early; a hundred shapes have some thousand
                sizes.

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
