"""Profiles of operators: counts over all calls, and single calls with their GPU time, measured by CUDA events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cache_engine.errors import UsageError
from cache_engine.process import Locked

if TYPE_CHECKING:
    from cache_engine.gpu.launch import Operands, Startable
    from cache_engine.model.gemm import GemmProblem


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """Counts of an operator's work in this process since its creation.

    Attributes:
        calls: the number of products that it started on a GPU.
        kernels: the number of kernels that it got from its cache, by tier: ``"memory"``, ``"pack"``, ``"disk"``,
            ``"remote"``, or ``"compiled"``. A call whose kernel is already loaded on the GPU gets none.
        compiles: the number of these kernels that were compiled.
        refused: the number of errors in place of a kernel, such as ``NotCached``.
        get_ms: the sum of the milliseconds of getting kernels, including compiling and waiting for other processes.
        compile_ms: the part of ``get_ms`` that was spent compiling.
    """

    calls: int = 0
    kernels: Mapping[str, int] = field(default_factory=dict)
    compiles: int = 0
    refused: int = 0
    get_ms: float = 0.0
    compile_ms: float = 0.0


class ProfilerCounts(Locked):
    """Adds up the work of an operator. Safe to use from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = self._compiles = self._refused = 0
        self._get_ms = self._compile_ms = 0.0
        self._kernels: Counter[str] = Counter()

    def called(self) -> None:
        """Counts a product."""
        with self._lock:
            self._calls += 1

    def got(self, tier: str, get_ms: float, compile_ms: float, *, is_compiled: bool) -> None:
        """Counts a kernel that was got from the cache."""
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
        """The counts so far."""
        with self._lock:
            kernels = dict(self._kernels)
            return OperatorStatistics(
                self._calls, kernels, self._compiles, self._refused, self._get_ms, self._compile_ms
            )


class Watch:
    """Measures one launch: starts a kernel between two CUDA events on the current stream."""

    def __init__(self) -> None:
        self.kernel: Startable | None = None
        self._events: tuple[Any, Any] | None = None
        self._ms: float | None = None

    def launch(self, kernel: Startable, operands: Operands) -> None:
        """Starts the kernel, and does not wait."""
        import cupy

        self.kernel = kernel
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel(operands)
        end.record()
        self._events = start, end

    def ms(self) -> float | None:
        """The milliseconds between the events; waits for the second event. ``None`` if nothing was started."""
        events = self._events
        if events is not None:
            import cupy

            events[1].synchronize()
            self._ms = float(cupy.cuda.get_elapsed_time(*events))
            self._events = None
        return self._ms


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator, or of its method ``kernel``.

    Attributes:
        kernel: the name of the kernel's function.
        problem: the sizes, types and target.
        tier: the tier that had the kernel: ``"memory"``, ``"pack"``, ``"disk"``, ``"remote"`` or ``"compiled"``;
            ``None`` if the kernel was already loaded on the GPU.
        stages_ms: the milliseconds of each stage of getting the kernel, by name; empty if it was already loaded.
    """

    kernel: str
    problem: GemmProblem
    tier: str | None
    stages_ms: Mapping[str, float]
    _watch: Watch | None = field(default=None, repr=False, compare=False)

    @property
    def gpu_ms(self) -> float | None:
        """The milliseconds from the kernel's start on its stream to its end; waits until it has ended.

        It is measured between two CUDA events, so it includes the start of a kernel on an idle GPU, some microseconds,
        but not the copying of operands. ``None`` if nothing was launched, as by ``kernel``: no time is estimated.
        """
        return None if self._watch is None else self._watch.ms()


class OperatorCalls(Locked):
    """The last calls of an operator, oldest first. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        """Stores the last ``most`` calls; raises ``UsageError`` if ``most`` is not a valid number."""
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise UsageError(f"profiling stores the last {most!r} calls; give a whole number of at least 1")
        super().__init__()
        self._calls: deque[OperatorCall] = deque(maxlen=most)
        self._count = 0

    def add(self, call: OperatorCall) -> None:
        """Stores a call, in place of the oldest one if there is no room."""
        with self._lock:
            self._calls.append(call)
            self._count += 1

    @property
    def dropped(self) -> int:
        """The number of calls that were replaced by later ones."""
        with self._lock:
            return self._count - len(self._calls)

    def __iter__(self) -> Iterator[OperatorCall]:
        with self._lock:
            return iter(list(self._calls))

    def __len__(self) -> int:
        return len(self._calls)
