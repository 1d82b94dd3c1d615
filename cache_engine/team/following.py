"""The progress of a submitter: what it asks for, in which order, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from cache_engine.cache.cache import Cache
from cache_engine.cache.making import compile_of
from cache_engine.cache.selection import Selection
from cache_engine.insight.covering import Covering
from cache_engine.model.asked import Shape
from cache_engine.team.board import Board, Run, eta_s
from cache_engine.usage.compile_time import CompileTimes, fitted
from cache_engine.usage.demand import Ledger

_EVERY_S = 1.0


def by_demand(kernels: Sequence[Covering], ledger: Ledger) -> list[Covering]:
    """Kernels in the order in which their shapes and sizes are asked for, most first; the others as they were.

    What is asked for on one target counts for every target: a store knows the requests of its own GPU only.
    """
    weights: dict[Shape, dict[int, float]] = {}
    for shape, sketch in ledger.sketches.items():
        sizes = weights.setdefault(_anywhere(shape), {})
        for m, asked in sketch.spread():
            sizes[m] = sizes.get(m, 0.0) + asked

    def weight(kernel: Covering) -> float:
        sizes = weights.get(_anywhere(Shape.of(kernel.selection.problem)), {})
        return sum(asked for m, asked in sizes.items() if any(m in ms for ms in kernel.ms))

    return sorted(kernels, key=lambda kernel: -weight(kernel))


def compile_times(cache: Cache) -> CompileTimes:
    """The predictor of compile times: the records of the store, else published figures."""
    return fitted(cache.records() if cache.has_store else ())


class Following:
    """Predicts when a run ends, and says on the board how far it is."""

    def __init__(
        self, board: Board, job: str, table: str, selections: Sequence[Selection], times: CompileTimes
    ) -> None:
        """Writes nothing yet.

        Args:
            selections: in the order in which they are sent, which is that in which workers take them.
        """
        self._board, self._job = board, job
        self._seconds = [times.seconds(compile_of(one)) for one in selections]
        archs = list(dict.fromkeys(one.problem.arch or "" for one in selections))
        self._run = Run(table[:200], archs[:20], len(selections), 0, len(selections), board.now(), 0.0)
        self._started = self._said = 0.0
        self._first_s: float | None = None
        self.processes = 0

    def left(self, left: int) -> float:
        """Says how many kernels the remote lacks; returns the predicted seconds to the end."""
        now = time.monotonic()
        if self._first_s is None:
            self._first_s, self._started = self._left_s(left), now
            self._run = msgspec.structs.replace(self._run, present=len(self._seconds) - left)
        left_s = self._left_s(left)
        if now - self._said >= _EVERY_S or not left:
            takes = eta_s(left_s, self._first_s - left_s, now - self._started, self.processes)
            self._run = msgspec.structs.replace(self._run, left=left, eta_s=takes)
            self.processes = self._board.follows(self._job, self._run)
            self._said = time.monotonic()
        return eta_s(left_s, self._first_s - left_s, now - self._started, self.processes)

    def end(self) -> None:
        """Says that the run is not followed any more."""
        self._board.follows(self._job, msgspec.structs.replace(self._run, ended=True, eta_s=0.0))

    def _left_s(self, left: int) -> float:
        """The predicted seconds of one process for the last so many: about those that are left."""
        return sum(self._seconds[len(self._seconds) - left :])


def _anywhere(shape: Shape) -> Shape:
    return msgspec.structs.replace(shape, arch="")
