"""An inference server in small: requests become steps of a batch, and each step asks for GEMMs with m tokens.

Continuous batching with chunked prefill, as vLLM and SGLang do it: a step computes one token for each running sequence,
and fills what is left of the token budget with prompts in the order of arrival, cut where the budget ends. A sequence
joins when its prompt is computed and leaves when its output is complete. Memory for keys and values has no limit here.

The server waits for what the kernels' machine says: steps, and stalls before them. So a stall lets requests queue up,
and later batches are larger. Steps between two events have the same m and are run as one.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.replay.traces import Trace
from cache_engine.errors import UsageError

MOST_BUDGET = 2**17


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Attributes:
        tokens: in one step; by default as vLLM on an H100 (``max_num_batched_tokens`` of its server, 8192).
        sequences: that run at once; by default likewise (``max_num_seqs``, 1024).

    Raises:
        UsageError: when no server can have them.
    """

    tokens: int = 8192
    sequences: int = 1024

    def __post_init__(self) -> None:
        if not 2 <= self.tokens <= MOST_BUDGET:
            raise UsageError(f"the token budget is {self.tokens:,}; it must be from 2 to {MOST_BUDGET:,}")
        if not 1 <= self.sequences < self.tokens:
            raise UsageError(
                f"the limit of sequences is {self.sequences:,}; it must be from 1 to {self.tokens - 1:,}, "
                "as each takes a token of the budget"
            )


@dataclass(frozen=True, slots=True)
class Ran:
    """Steps of one m.

    Attributes:
        steps: how many, at least 1.
        stall_s: how long the first waited before it started.
        step_s: how long each took.
    """

    steps: int
    stall_s: float
    step_s: float


class Machine(Protocol):
    """A machine that runs steps."""

    def run(self, m: int, most: int, now: float, until: float) -> Ran:
        """Runs steps of m tokens from ``now``: at least one, at most so many, and no second one from ``until`` on."""
        ...


@dataclass(slots=True)
class Served:
    """The latencies that requests saw.

    Attributes:
        first_token_s: of each request, in the order of arrival: from arrival to its first token.
        stalls: each stall's seconds, and the requests that waited or ran when it began.
        steps: how many there were.
        busy_s, end_s: seconds spent in steps, and when the last one ended.
    """

    first_token_s: array[float]
    stalls: list[tuple[float, int]] = field(default_factory=list)
    steps: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0


def serve(
    trace: Trace, limits: Limits, machine: Machine, on_finished: Callable[[int], None] = lambda _: None
) -> Served:
    """Serves all requests of a trace.

    Args:
        on_finished: is called with the number of requests whose prompt is computed, from time to time.
    """
    server = _Server(trace, limits)
    served = Served(array("d", bytes(8 * len(trace))))
    finished = 0
    while True:
        server.admit()
        if server.is_idle:
            if not server.skip_to_next():
                break
            continue
        present = server.present
        prompts, chunk, most = server.next_batch()
        ran = machine.run(len(server.ends) + chunk, most, server.now, server.next_arrival if not chunk else math.inf)
        server.now += ran.stall_s + ran.steps * ran.step_s
        served.steps += ran.steps
        served.busy_s += ran.steps * ran.step_s
        if ran.stall_s:
            served.stalls.append((ran.stall_s, present))
        for request in server.complete(prompts, ran.steps):
            served.first_token_s[request] = server.now - trace.arrivals_s[request]
            finished += 1
            if finished % 1000 == 0:
                on_finished(finished)
    served.end_s = server.now
    on_finished(finished)
    return served


class _Server:
    """The state between two steps."""

    def __init__(self, trace: Trace, limits: Limits) -> None:
        self.now = 0.0
        self.ends: list[int] = []  # of the running sequences: the step after which each is complete
        self._trace, self._limits = trace, limits
        self._arrived = 0
        self._steps = 0
        self._waiting: deque[int] = deque()
        self._left = 0  # tokens of the first waiting prompt

    @property
    def is_idle(self) -> bool:
        return not self.ends and not self._waiting

    @property
    def present(self) -> int:
        """Requests that wait or run."""
        return len(self.ends) + len(self._waiting)

    @property
    def next_arrival(self) -> float:
        return self._trace.arrivals_s[self._arrived] if self._arrived < len(self._trace) else math.inf

    def admit(self) -> None:
        """Lets those wait who have arrived."""
        while self.next_arrival <= self.now:
            self._waiting.append(self._arrived)
            if len(self._waiting) == 1:
                self._left = self._trace.prompts[self._arrived]
            self._arrived += 1

    def skip_to_next(self) -> bool:
        """Sleeps until a request arrives; whether there is one."""
        if self._arrived == len(self._trace):
            return False
        self.now = self.next_arrival
        return True

    def next_batch(self) -> tuple[list[int], int, int]:
        """The work of the next step.

        Returns:
            The prompts that it completes, the tokens of prompts that it computes, and how many steps at most are alike.
        """
        completed: list[int] = []
        room = self._limits.tokens - len(self.ends)
        places = self._limits.sequences - len(self.ends)
        chunk = 0
        while self._waiting and room and places:
            part = min(self._left, room)
            chunk, room = chunk + part, room - part
            self._left -= part
            if self._left:
                break
            places -= 1
            completed.append(self._waiting.popleft())
            self._left = self._trace.prompts[self._waiting[0]] if self._waiting else 0
        return completed, chunk, 1 if chunk else self.ends[0] - self._steps

    def complete(self, prompts: list[int], steps: int) -> list[int]:
        """Counts steps; returns the requests that have their first token, which are those of the prompts."""
        self._steps += steps
        while self.ends and self.ends[0] <= self._steps:
            heapq.heappop(self.ends)
        for request in prompts:
            if self._trace.outputs[request] > 1:
                heapq.heappush(self.ends, self._steps + self._trace.outputs[request] - 1)
        return prompts
