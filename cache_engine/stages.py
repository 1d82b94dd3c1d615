"""The stages of getting a kernel, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

VALIDATE, SELECT, LOAD, GENERATE, START_COMPILER, COMPILE, PUBLISH = (
    "validate",
    "select",
    "load",
    "generate",
    "start_compiler",
    "compile",
    "publish",
)

OnStage = Callable[[str, float | None], None]
"""Called with a stage's name and ``None`` when it starts, and with its milliseconds when it has ended."""


class StageClock:
    """Times stages, and tells a listener as they come and go."""

    def __init__(self, on_stage: OnStage | None = None) -> None:
        """Starts with no stage timed."""
        self.ms: dict[str, float] = {}
        self._on_stage = on_stage

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Times the body of a ``with`` as ``stage``; a stage entered again adds up."""
        if self._on_stage is not None:
            self._on_stage(stage, None)
        started = time.perf_counter()
        yield
        elapsed = (time.perf_counter() - started) * 1e3
        self.ms[stage] = self.ms.get(stage, 0.0) + elapsed
        if self._on_stage is not None:
            self._on_stage(stage, elapsed)
