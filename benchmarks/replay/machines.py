"""The kernels of a server during a replay: which serve a step, which a step waits for, which are compiled behind it.

``Fixed`` asks for one kernel for each m and waits when it is missing. ``Adaptive`` serves each m with the fastest
kernel there is, never waits, and has better ones compiled meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.replay.batching import Ran
from benchmarks.replay.kernels import Floats, Kernels, Places
from cache_engine.usage.payback import price_s

_MOST_AT_ONCE = 32
"""Steps between two looks at what pays: a fraction of a second."""

Kernel = tuple[int, int]
"""An operation's place, and which of its kernels."""

TRUST = 0.5
"""The trust in a forecast, λ: with it ski rental costs at most 1.5 times the best decision if the forecast is
right, and 3 times whatever it is. Without a forecast that is 2."""


def threshold_s(price_s: float, forecast_s: float, trust: float = TRUST) -> float:
    """The regret at which to compile, with a forecast of what the kernel would save.

    That is λ · price if the kernel is worth its price by the forecast, else price / λ. It costs at most 1 + λ times
    what the best decision in hindsight costs if the forecast is right, and 1 + 1 / λ times whatever comes (Purohit,
    Svitkina, Kumar: "Improving Online Algorithms via ML Predictions", NeurIPS 2018).

    Args:
        forecast_s: regret expected in all, the past included.
        trust: λ, above 0 and at most 1; 1 is plain ski rental.
    """
    return price_s * trust if forecast_s >= price_s else price_s / trust


@dataclass(frozen=True, slots=True)
class Compiling:
    """The time that compiling takes.

    Attributes:
        seconds: of one kernel.
        source: where that is from.
        slots: how many compiles run at a time, in the background and before the server is ready.
        gpu_s_per_s: GPU seconds that one second of compiling in the background is worth.
    """

    seconds: float
    source: str
    slots: int = 1
    gpu_s_per_s: float = 1.0

    @property
    def price_s(self) -> float:
        """Of one kernel, in GPU seconds."""
        return price_s(self.seconds, gpu_s_per_s=self.gpu_s_per_s)


@dataclass(slots=True)
class Account:
    """The work that a machine did.

    Attributes:
        steps_at: by m, how many steps.
        gpu_s: seconds of steps.
        stored: every kernel that is there, with what an earlier run left.
        before, waited, behind: kernels compiled before the first request, while steps waited, and in the background.
        served_best, served_other, served_late: launches with the kernel that the policy wants for this m, with another
            one, and after a wait for it.
    """

    steps_at: list[int]
    gpu_s: float = 0.0
    stored: set[Kernel] = field(default_factory=set)
    before: int = 0
    waited: int = 0
    behind: int = 0
    served_best: int = 0
    served_other: int = 0
    served_late: int = 0

    @property
    def compiled(self) -> int:
        """All kernels compiled."""
        return self.before + self.waited + self.behind


class Fixed:
    """One kernel for each m, which a step waits for.

    Args:
        keys: for each operation, the kernel of each m.
        rows: for each operation, the tile of that kernel.
        seconds: by m, a step.
        ready: kernels compiled before the first request.
        stored: kernels that an earlier run left.
        floor: kernels of ``dynamic``, which are there in any case.
    """

    def __init__(
        self,
        kernels: Kernels,
        keys: list[Places],
        rows: list[Places],
        seconds: Floats,
        compiling: Compiling,
        ready: Iterable[Kernel] = (),
        stored: Iterable[Kernel] = (),
        floor: Iterable[Kernel] = (),
    ) -> None:
        self.account = Account([0] * len(seconds), stored=set(stored))
        self._floor = frozenset(floor)
        there = len(self.account.stored)
        self.account.stored.update(ready)
        self.account.before = len(self.account.stored) - there
        self._keys = [places.tolist() for places in keys]
        self._rows = [places.tolist() for places in rows]
        self._seconds = seconds.tolist()
        self._compile_s = compiling.seconds
        self._complete: set[int] = set()  # m whose kernels are all there
        self._launches = [operation.launches for operation in kernels.operations]

    def run(self, m: int, most: int, now: float, until: float) -> Ran:
        """As ``batching.Machine``: compiles what is missing first, one kernel after the other."""
        account, step_s = self.account, self._seconds[m]
        stall_s = 0.0
        late = 0
        if m not in self._complete:
            self._complete.add(m)
            for place, keys in enumerate(self._keys):
                if (place, keys[m]) not in account.stored and (place, keys[m]) not in self._floor:
                    account.stored.add((place, keys[m]))
                    account.waited += 1
                    stall_s += self._compile_s
                    late += 1
        steps = _steps(most, now + stall_s, until, step_s)
        account.steps_at[m] += steps
        account.gpu_s += steps * step_s
        account.served_late += late
        account.served_best += steps * sum(self._launches) - late
        return Ran(steps, stall_s, step_s)

    def tiles(self) -> frozenset[Kernel]:
        """The tiles of the kernels that are there, as rows of ``Operation.seconds``."""
        return frozenset(
            (place, row)
            for place, (keys, rows) in enumerate(zip(self._keys, self._rows, strict=True))
            for key, row in zip(keys[1:], rows[1:], strict=True)
            if (place, key) in self.account.stored
        )


class Adaptive:
    """The fastest kernel there is serves; better ones are compiled in the background.

    Args:
        ready: kernels compiled before the first request; those of ``dynamic`` are there in any case.
        stored: kernels that an earlier run left.
    """

    def __init__(
        self,
        kernels: Kernels,
        compiling: Compiling,
        ready: Iterable[Kernel] = (),
        stored: Iterable[Kernel] = (),
    ) -> None:
        self._kernels, self._compiling = kernels, compiling
        self.account = Account([0] * (kernels.most + 1), stored=set(stored))
        there = len(self.account.stored)
        self.account.stored.update(ready)
        self.account.before = len(self.account.stored) - there
        self._queue: deque[Kernel] = deque()
        self._under_way: list[tuple[float, Kernel]] = []
        self._refresh()

    def run(self, m: int, most: int, now: float, until: float) -> Ran:
        """As ``batching.Machine``; never stalls."""
        self._settle(now)
        account, step_s = self.account, self._seconds[m]
        steps = _steps(min(most, _MOST_AT_ONCE), now, min(until, self._next_end), step_s)
        account.steps_at[m] += steps
        account.gpu_s += steps * step_s
        best = steps * self._launches_best[m]
        account.served_best += best
        account.served_other += steps * self._launches - best
        self.consider(m, steps, now + steps * step_s)
        return Ran(steps, 0.0, step_s)

    def tiles(self) -> frozenset[Kernel]:
        """The kernels that are there, as rows of ``Operation.seconds``."""
        return frozenset(self.account.stored)

    def consider(self, m: int, steps: int, now: float) -> None:
        """Compiles nothing."""

    def ask(self, kernel: Kernel, now: float) -> None:
        """Has a kernel compiled in the background, once."""
        if kernel not in self.account.stored and kernel not in self.pending:
            self._queue.append(kernel)
            self._start(now)

    @property
    def pending(self) -> set[Kernel]:
        """Kernels that wait or are being compiled."""
        return {*self._queue, *(kernel for _, kernel in self._under_way)}

    def _settle(self, now: float) -> None:
        """Uses the kernels whose compile has ended."""
        while self._under_way and self._under_way[0][0] <= now:
            end, kernel = self._under_way.pop(0)
            self.account.stored.add(kernel)
            self.account.behind += 1
            self._start(end)
            self._refresh()
            self.changed()

    def changed(self) -> None:
        """A kernel more is there."""

    def _start(self, now: float) -> None:
        while self._queue and len(self._under_way) < self._compiling.slots:
            self._under_way.append((now + self._compiling.seconds, self._queue.popleft()))
            self._under_way.sort()

    @property
    def _next_end(self) -> float:
        return self._under_way[0][0] if self._under_way else math.inf

    def _refresh(self) -> None:
        """Updates the time of a step of each m with the kernels there, and its launches that have the best one."""
        operations = self._kernels.operations
        now = [each.seconds[self.there(place)].min(axis=0) for place, each in enumerate(operations)]
        self._seconds: list[float] = np.sum(now, axis=0).tolist()
        best = [each.launches * (mine <= each.seconds.min(axis=0)) for each, mine in zip(operations, now, strict=True)]
        self._launches_best: list[int] = np.sum(best, axis=0).tolist()
        self._launches = sum(each.launches for each in operations)

    def there(self, place: int) -> list[int]:
        """The kernels of an operation that can serve."""
        mine = {kernel for operation, kernel in self.account.stored if operation == place}
        return sorted({self._kernels.operations[place].dynamic, *mine})


class Counting(Adaptive):
    """Thresholds by count: after so many launches of an m its kernel is compiled, after more the best one."""

    first, second = 400, 3000

    def consider(self, m: int, steps: int, now: float) -> None:
        """Compiles what has been launched often enough."""
        after = self.account.steps_at[m]
        for place, operation in enumerate(self._kernels.operations):
            launched, before = after * operation.launches, (after - steps) * operation.launches
            if before < self.first <= launched:
                self.ask((place, int(operation.chosen[m])), now)
            if before < self.second <= launched:
                self.ask((place, int(operation.best[m])), now)


class Renting(Adaptive):
    """Ski rental: a kernel is compiled when the seconds lost without it reach its price.

    What is lost is counted against the kernels there are, or will be when the queue is done: after each new kernel all
    losses so far are computed again, as if it had always been there. So two kernels that are fast for the same m are
    not both compiled for it (Fotakis, "A Primal-Dual Algorithm for Online Non-uniform Facility Location", Journal of
    Discrete Algorithms 2007).

    Args:
        expected_s: for so long the rates seen so far are expected to go on, which is a forecast; with 0 there is none.
    """

    def __init__(
        self,
        kernels: Kernels,
        compiling: Compiling,
        ready: Iterable[Kernel] = (),
        stored: Iterable[Kernel] = (),
        expected_s: float = 0.0,
    ) -> None:
        super().__init__(kernels, compiling, ready, stored)
        self._expected_s = expected_s
        self._rows = [(place, row) for place, each in enumerate(kernels.operations) for row in range(len(each.tiles))]
        self.changed()

    def consider(self, m: int, steps: int, now: float) -> None:
        """Counts what was lost, and compiles what has become worth its price."""
        self._lost += steps * self._gains[m]
        while True:
            waiting = len(self._queue) + len(self._under_way)
            price = price_s(self._compiling.seconds, waiting, self._compiling.slots, self._compiling.gpu_s_per_s)
            place = int(self._lost.argmax())
            lost_s = float(self._lost[place])
            if self._expected_s:
                forecast_s = lost_s * (1 + self._expected_s / now) if now > 0 else 0.0
                price = threshold_s(price, forecast_s)
            if lost_s < price:
                return
            self.ask(self._rows[place], now)
            self.changed()

    def changed(self) -> None:
        """Computes all losses again, against the kernels that are there or will be."""
        gains = []
        for place, each in enumerate(self._kernels.operations):
            coming = [kernel for operation, kernel in self.pending if operation == place]
            present = each.seconds[sorted({*self.there(place), *coming})].min(axis=0)
            gains.append(np.maximum(present - each.seconds, 0.0))
        self._gains = np.ascontiguousarray(np.concatenate(gains).T)
        self._lost = np.asarray(self.account.steps_at, dtype=np.float64) @ self._gains


def _steps(most: int, now: float, until: float, step_s: float) -> int:
    """The number of steps that start before ``until``: 1 to ``most``."""
    if until == math.inf:
        return most
    return max(1, min(most, math.ceil((until - now) / step_s)))
