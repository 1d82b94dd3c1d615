"""A table of kernels, and a submission that another thread follows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from cache_engine.cache.cache import Cache
from cache_engine.cache.selection import Selection
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.team.submission import Farmed, Submission


def table(cache: Cache, count: int) -> list[Selection]:
    """So many kernels that compile fast."""
    problems = (GemmProblem(16, 48 + 16 * n, 32, dtype=DType.FP32, arch="sm_80") for n in range(count))
    return [cache.select(problem) for problem in problems]


class InBackground:
    """A submission that another thread follows."""

    def __init__(self, submission: Submission, selections: Sequence[Selection]) -> None:
        self.left: list[int] = []
        self.some_done = threading.Event()
        self.troubles: list[str] = []
        self._found: list[Farmed | BaseException] = []
        self._total = len(selections)
        self.submission = submission
        self._thread = threading.Thread(target=self._run, args=(selections,), daemon=True)
        self._thread.start()

    def _run(self, selections: Sequence[Selection]) -> None:
        try:
            self._found.append(self.submission.run(selections, self._on_left, self.troubles.append))
        except BaseException as error:
            self._found.append(error)

    def _on_left(self, left: int) -> None:
        self.left.append(left)
        if left < self._total:
            self.some_done.set()

    def result(self, log: Path, timeout: float = 180) -> Farmed:
        """What became of it; what it raised is raised here."""
        self._thread.join(timeout)
        assert self._found, (self.left[-1:], self.troubles[-3:], log.read_text()[-3000:])
        (found,) = self._found
        if isinstance(found, BaseException):
            raise found
        return found
