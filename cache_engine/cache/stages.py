"""Times the stages of getting a kernel, such as selecting and compiling."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

VALIDATE, SELECT, LOAD, QUEUE, GENERATE, START_COMPILER, COMPILE, PUBLISH = (
    "validate",
    "select",
    "load",
    "queue",
    "generate",
    "start_compiler",
    "compile",
    "publish",
)

OnStage = Callable[[str, float | None], None]
"""A function called with a stage's name, and with ``None`` at the stage's start or its milliseconds at the end."""


class StageClock:
    """Times stages, and reports to a listener as each starts and ends."""

    def __init__(self, on_stage: OnStage | None = None) -> None:
        """Starts with no stage timed."""
        self.ms: dict[str, float] = {}
        self._on_stage = on_stage

    def __call__(self, stage: str) -> _Running:
        """A context manager that times its body as the given stage; if a stage is repeated, its times are added."""
        return _Running(stage, self.ms, self._on_stage)


class _Running:
    # A class in place of a generator: every lookup has three stages, and this takes half the time.
    __slots__ = ("_ms", "_on_stage", "_stage", "_started")

    def __init__(self, stage: str, ms: dict[str, float], on_stage: OnStage | None) -> None:
        self._stage, self._ms, self._on_stage = stage, ms, on_stage

    def __enter__(self) -> None:
        if self._on_stage is not None:
            self._on_stage(self._stage, None)
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        elapsed = (time.perf_counter() - self._started) * 1e3
        self._ms[self._stage] = self._ms.get(self._stage, 0.0) + elapsed
        if self._on_stage is not None:
            self._on_stage(self._stage, elapsed)
