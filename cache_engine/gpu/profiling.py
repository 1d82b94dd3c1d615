"""Profiles of operators: sums, and single calls, whose time on the GPU is measured by events."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.process import renew_after_fork

if TYPE_CHECKING:
    from cache_engine.gpu.launch import Operands, Startable
    from cache_engine.model.gemm import GemmProblem


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Counts of an operator's work in this process since it was made.

    Attributes:
        calls: products that it started on a GPU.
        kernels: how often it got a kernel from its cache, by the tier that had it: ``"memory"``, ``"pack"``,
            ``"disk"``, ``"remote"``, or ``"compiled"``. A call whose kernel is loaded on the GPU already gets none.
        compiles: how many of these were compiled.
        refused: how often there was an error in place of a kernel, such as ``NotCached``.
        get_ms: milliseconds of getting all of these, compiling and waiting for others included.
        compile_ms: milliseconds of these that compiling took.
    """

    calls: int = 0
    kernels: Mapping[str, int] = field(default_factory=dict)
    compiles: int = 0
    refused: int = 0
    get_ms: float = 0.0
    compile_ms: float = 0.0


class ProfilerCounts:
    """Adds up what an operator does. Safe to use from several threads."""

    def __init__(self) -> None:
        self._calls = self._compiles = self._refused = 0
        self._get_ms = self._compile_ms = 0.0
        self._kernels: Counter[str] = Counter()
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def called(self) -> None:
        """Counts a product."""
        with self._lock:
            self._calls += 1

    def got(self, tier: str, get_ms: float, compile_ms: float, *, is_compiled: bool) -> None:
        """Counts a kernel."""
        with self._lock:
            self._kernels[tier] += 1
            self._compiles += is_compiled
            self._get_ms += get_ms
            self._compile_ms += compile_ms

    def refused(self, get_ms: float) -> None:
        """Counts an error in place of a kernel."""
        with self._lock:
            self._refused += 1
            self._get_ms += get_ms

    def read(self) -> OperatorStatistics:
        """The sums."""
        with self._lock:
            kernels = dict(self._kernels)
            return OperatorStatistics(
                self._calls, kernels, self._compiles, self._refused, self._get_ms, self._compile_ms
            )


class Watch:
    """Starts a kernel between two events on the current stream. For one launch."""

    def __init__(self) -> None:
        self.kernel: Startable | None = None
        self._events: tuple[Any, Any] | None = None
        self._ms: float | None = None

    def launch(self, kernel: Startable, operands: Operands) -> None:
        """Starts it, and waits for nothing."""
        import cupy

        self.kernel = kernel
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel(operands)
        end.record()
        self._events = start, end

    def ms(self) -> float | None:
        """Milliseconds between the events; waits for the second, the first time. ``None`` where nothing was started."""
        events = self._events
        if events is not None:
            import cupy

            events[1].synchronize()
            self._ms = float(cupy.cuda.get_elapsed_time(*events))
            self._events = None
        return self._ms


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator, or one of its ``kernel``.

    Attributes:
        kernel: the name of the kernel's function.
        problem: the sizes, types and target.
        tier: the tier that had the kernel: ``"memory"``, ``"pack"``, ``"disk"``, ``"remote"`` or ``"compiled"``;
            ``None`` where the kernel was loaded on the GPU already.
        stages_ms: milliseconds of each stage of getting the kernel, by name; empty where it was loaded already.
    """

    kernel: str
    problem: GemmProblem
    tier: str | None
    stages_ms: Mapping[str, float]
    _watch: Watch | None = field(default=None, repr=False, compare=False)

    @property
    def gpu_ms(self) -> float | None:
        """Milliseconds from the start of the kernel on its stream to its end; waits until it has ended.

        Between two CUDA events, so it has the time to start a kernel on an idle GPU, some microseconds, and not that of
        copying operands. ``None`` where nothing was launched, as by ``kernel``: no time is estimated.
        """
        return None if self._watch is None else self._watch.ms()


class OperatorCalls:
    """The last calls of an operator, oldest first. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        """Stores the last ``most``; raises ``UsageError`` when that is no number of calls."""
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise UsageError(f"profiling stores the last {most!r} calls; give a whole number of at least 1")
        self._calls: deque[OperatorCall] = deque(maxlen=most)
        self._count = 0
        self._lock = threading.Lock()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """As of ``ProfilerCounts``."""
        self._lock = threading.Lock()

    def add(self, call: OperatorCall) -> None:
        """Stores one more, in place of the oldest where there is no room."""
        with self._lock:
            self._calls.append(call)
            self._count += 1

    @property
    def dropped(self) -> int:
        """The number of calls that are no longer here, because later ones took their place."""
        with self._lock:
            return self._count - len(self._calls)

    def __iter__(self) -> Iterator[OperatorCall]:
        with self._lock:
            return iter(list(self._calls))

    def __len__(self) -> int:
        return len(self._calls)
