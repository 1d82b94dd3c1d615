"""Many machines that ask one object store for the same kernels, event by event.

The model: a machine asks for its kernels one after the other, all machines in the same order. A request waits for its
turn at the store, which serves a fixed number a second, then takes a round trip and the bytes' way through the
machine's network. A machine waits ``patience_s`` for an answer; then it compiles, and leaves the store alone for
``retry_s``. A kernel that was compiled is sent behind the request's back; one that the store has stays as it is. What
compiling takes, how large a kernel is and what taking one costs is measured (``costs``); the rest is assumed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from cache_engine.bench.fleet.costs import Costs

_ASK, _ANSWER, _SENT, _COMPILED = range(4)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What cannot be measured on one machine.

    Attributes:
        store_requests_per_s: what the store serves. 5,500 reads a second for each prefix is what Amazon documents for
            S3 ("Best practices design patterns: optimizing Amazon S3 performance").
        round_trip_s, machine_bytes_per_s: the way to the store and back.
        patience_s, retry_s: how long a lookup waits, and how long the store is left alone afterwards.
        poll_s: how often a machine looks for a kernel that another compiles.
    """

    store_requests_per_s: float = 5_500.0
    round_trip_s: float = 0.02
    machine_bytes_per_s: float = 125e6
    patience_s: float = 1.0
    retry_s: float = 30.0
    poll_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fleet starts.

    Attributes:
        within_s: the machines start spread over so many seconds; 0 is all at once.
        uses_store: whether they ask the store at all.
        is_stocked: whether it has all kernels before.
        as_pack: whether they fetch all kernels as one file, which is there before.
        one_compile: whether a kernel that one machine compiles is waited for by the others.
        down_s: the store does not answer for so many seconds from the start.
    """

    name: str
    within_s: float = 0.0
    uses_store: bool = True
    is_stocked: bool = False
    as_pack: bool = False
    one_compile: bool = False
    down_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan.

    Attributes:
        requests, moved_bytes: all that the store was asked for, and all that went through it, both ways.
        peak_requests, peak_bytes: the most in one second, by when they were asked, and when they were served.
        compiles, duplicates: kernels compiled, and those of them that another machine compiled as well.
        gave_up: requests that were not answered in time.
        warm_p50_s, warm_p99_s: from a machine's start until it has all kernels.
        last_s: from the start until the last machine has.
        asked: requests in each second that had any.
    """

    plan: Plan
    requests: int
    moved_bytes: int
    peak_requests: int
    peak_bytes: int
    compiles: int
    duplicates: int
    gave_up: int
    warm_p50_s: float
    warm_p99_s: float
    last_s: float
    asked: dict[int, int]


PLANS = (
    Plan("cold start, no shared store", uses_store=False),
    Plan("cold start, empty store"),
    Plan("cold start over 5 min, empty store", within_s=300),
    Plan("cold start, empty store, one compile per key", one_compile=True),
    Plan("cold start, stocked store", is_stocked=True),
    Plan("cold start over 5 min, stocked store", within_s=300, is_stocked=True),
    Plan("cold start, a pack each", is_stocked=True, as_pack=True),
    Plan("cold start over 5 min, a pack each", within_s=300, is_stocked=True, as_pack=True),
    Plan("upgrade over 2 h, empty store", within_s=7200),
    Plan("upgrade over 2 h, one compile per key", within_s=7200, one_compile=True),
    Plan("upgrade over 2 h, stocked store", within_s=7200, is_stocked=True),
    Plan("the same, store down for the first hour", within_s=7200, is_stocked=True, down_s=3600),
    Plan("upgrade over 2 h, empty store down for 1 h", within_s=7200, down_s=3600),
)
"""Cold starts of a fleet; an upgrade of the toolchain, which makes every key a new one; and a store that is down."""


def outcome(plan: Plan, nodes: int, costs: Costs, assumed: Assumed | None = None, *, seed: int = 0) -> Outcome:
    """What a fleet of ``nodes`` machines asks of its store, and how long it takes until each has all kernels."""
    return _Fleet(plan, nodes, costs, assumed or Assumed(), seed).run()


class _Fleet:
    def __init__(self, plan: Plan, nodes: int, costs: Costs, assumed: Assumed, seed: int) -> None:
        self.plan, self.costs, self.assumed, self.nodes = plan, costs, assumed, nodes
        self.random = random.Random(seed)  # noqa: S311 (no secret: the same numbers each time)
        self.events: list[tuple[float, int, int, int, int]] = []  # time, order, kind, machine, kernel
        self.order = 0
        self.steps = 1 if plan.as_pack else costs.kernels
        self.there = set(range(self.steps)) if plan.is_stocked else set()
        self.compiling: set[int] = set()
        self.open_until = [0.0] * nodes
        self.started = [self.random.uniform(0, plan.within_s) for _ in range(nodes)]
        self.warm = [0.0] * nodes
        self.free_at = 0.0
        self.asked: Counter[int] = Counter()
        self.moved: Counter[int] = Counter()
        self.compiles, self.gave_up = 0, 0

    def run(self) -> Outcome:
        for node, start in enumerate(self.started):
            self._later(start, _ASK, node, 0)
        handlers = (self._ask, self._answer, self._sent, self._compiled)
        while self.events:
            now, _, kind, node, kernel = heappop(self.events)
            handlers[kind](now, node, kernel)
        took = sorted(end - start for start, end in zip(self.started, self.warm, strict=True))
        return Outcome(
            plan=self.plan,
            requests=self.asked.total(),
            moved_bytes=self.moved.total(),
            peak_requests=max(self.asked.values(), default=0),
            peak_bytes=max(self.moved.values(), default=0),
            compiles=self.compiles,
            duplicates=self.compiles - min(self.compiles, self.costs.kernels),
            gave_up=self.gave_up,
            warm_p50_s=took[len(took) // 2],
            warm_p99_s=took[len(took) * 99 // 100],
            last_s=max(self.warm),
            asked=dict(sorted(self.asked.items())),
        )

    def _later(self, at: float, kind: int, node: int, kernel: int) -> None:
        self.order += 1
        heappush(self.events, (at, self.order, kind, node, kernel))

    def _request(self, now: float, kind: int, node: int, kernel: int) -> bool:
        """Sends a request; whether its answer comes. The store serves it also where the machine gives up."""
        self.asked[int(now)] += 1
        if now < self.plan.down_s:
            return False
        self.free_at = max(now, self.free_at) + 1 / self.assumed.store_requests_per_s
        waits = self.free_at - now + self.assumed.round_trip_s
        patience = (
            float("inf") if self.plan.as_pack else self.assumed.patience_s
        )  # a pack is fetched before work starts
        if kind == _ANSWER and waits > patience:
            return False
        self._later(self.free_at, kind, node, kernel)
        return True

    def _ask(self, now: float, node: int, kernel: int) -> None:
        if kernel == self.steps:
            self.warm[node] = now
        elif not self.plan.uses_store or now < self.open_until[node]:
            self._compile(now, node, kernel)
        elif not self._request(now, _ANSWER, node, kernel):
            self.gave_up += 1
            self.open_until[node] = now + self.assumed.patience_s + self.assumed.retry_s
            self._compile(now + self.assumed.patience_s, node, kernel)

    def _answer(self, now: float, node: int, kernel: int) -> None:
        arrives = now + self.assumed.round_trip_s
        if kernel in self.there:
            size, taking = self._size(kernel), self.costs.take_s * (self.costs.kernels if self.plan.as_pack else 1)
            self.moved[int(now)] += size
            self._later(arrives + size / self.assumed.machine_bytes_per_s + taking, _ASK, node, kernel + 1)
        elif self.plan.one_compile and kernel in self.compiling:
            self._later(arrives + self.assumed.poll_s, _ASK, node, kernel)
        else:
            self.compiling.add(kernel)
            self._compile(arrives, node, kernel)

    def _compile(self, now: float, node: int, kernel: int) -> None:
        self.compiles += 1
        self._later(now + self.random.choice(self.costs.compile_s), _COMPILED, node, kernel)

    def _compiled(self, now: float, node: int, kernel: int) -> None:
        if self.plan.uses_store and now >= self.open_until[node]:
            self._request(now, _SENT, node, kernel)
        self._ask(now, node, kernel + 1)

    def _sent(self, now: float, node: int, kernel: int) -> None:  # noqa: ARG002 (all handlers take the same)
        self.moved[int(now)] += self._size(kernel)
        self.there.add(kernel)

    def _size(self, kernel: int) -> int:
        sizes: Sequence[int] = self.costs.object_bytes
        return self.costs.pack_bytes if self.plan.as_pack else sizes[kernel % len(sizes)]
