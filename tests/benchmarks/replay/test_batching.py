"""The server in small: it does what one that runs step by step does, and computes each token once."""

from __future__ import annotations

import math
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replay.batching import Limits, Ran, serve
from benchmarks.replay.traces import Trace
from cache_engine.errors import UsageError

# Sums of these are exact, so two ways to add them give one result.
TICK = 1 / 64
REQUESTS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=25)
LIMITS = st.integers(1, 6).flatmap(lambda n: st.builds(Limits, st.integers(n + 1, 32), st.just(n)))
Requests = list[tuple[int, int, int]]


def trace_of(requests: Requests) -> Trace:
    ordered = sorted(requests)
    return Trace(
        array("d", (ticks * TICK for ticks, _, _ in ordered)),
        array("l", (prompt for _, prompt, _ in ordered)),
        array("l", (output for _, _, output in ordered)),
    )


def step_s(m: int) -> float:
    return TICK * (1 + m // 8)


class Recorder:
    """Runs as many steps as it may; the first of each new m stalls by some ticks."""

    def __init__(self, stall: int = 0) -> None:
        self.steps_at: Counter[int] = Counter()
        self.stall = stall

    def run(self, m: int, most: int, now: float, until: float) -> Ran:
        """As ``Machine``."""
        stall_s = 0.0 if m in self.steps_at else self.stall * TICK
        fit = math.inf if until == math.inf else math.ceil((until - now - stall_s) / step_s(m))
        steps = int(max(1, min(most, fit)))
        self.steps_at[m] += steps
        return Ran(steps, stall_s, step_s(m))


def step_by_step(requests: Requests, limits: Limits, stall: int) -> tuple[Counter[int], list[float], float]:
    """A second server, with a list of sequences and one step at a time: steps by m, first tokens, the end."""
    ordered = sorted(requests)
    state = [[prompt, output] for _, prompt, output in ordered]
    steps_at: Counter[int] = Counter()
    first = [0.0] * len(ordered)
    now = 0.0
    while any(prompt or output for prompt, output in state):
        here = [i for i, (ticks, _, _) in enumerate(ordered) if ticks * TICK <= now]
        running = [i for i in here if not state[i][0] and state[i][1]]
        room, places, chunk = limits.tokens - len(running), limits.sequences - len(running), 0
        done = []
        for i in here:
            if state[i][0] and room and places:
                part = min(room, state[i][0])
                state[i][0] -= part
                room, chunk = room - part, chunk + part
                if state[i][0]:
                    break
                places -= 1
                done.append(i)
        m = len(running) + chunk
        if not m:
            now = min(ticks * TICK for i, (ticks, _, _) in enumerate(ordered) if state[i][0])
            continue
        now += step_s(m) + (0 if m in steps_at else stall * TICK)
        steps_at[m] += 1
        for i in (*running, *done):
            state[i][1] -= 1
        for i in done:
            first[i] = now - ordered[i][0] * TICK
    return steps_at, first, now


@given(REQUESTS, LIMITS, st.integers(0, 5))
def test_steps_in_runs_are_the_steps_of_a_server_that_makes_one_at_a_time(
    requests: Requests, limits: Limits, stall: int
) -> None:
    machine = Recorder(stall)
    served = serve(trace_of(requests), limits, machine)
    steps_at, first, end = step_by_step(requests, limits, stall)
    assert machine.steps_at == steps_at
    assert list(served.first_token_s) == first
    assert served.end_s == end
    assert served.steps == steps_at.total()
    assert sum(seconds for seconds, _ in served.stalls) == stall * TICK * len(steps_at)


@given(REQUESTS, LIMITS)
def test_each_token_is_computed_once_and_no_step_is_above_the_budget(requests: Requests, limits: Limits) -> None:
    machine = Recorder()
    served = serve(trace_of(requests), limits, machine)
    tokens = sum(prompt + output - 1 for _, prompt, output in requests)
    assert sum(m * steps for m, steps in machine.steps_at.items()) == tokens
    assert max(machine.steps_at) <= limits.tokens
    assert served.busy_s == sum(step_s(m) * steps for m, steps in machine.steps_at.items())
    assert min(served.first_token_s) > 0


def test_a_stall_is_counted_for_everyone_who_is_there() -> None:
    served = serve(trace_of([(0, 4, 9), (0, 4, 9), (0, 4, 9)]), Limits(16, 2), Recorder(stall=1))
    assert served.stalls[0] == (TICK, 3)
    assert served.stalls[1] == (TICK, 3)


def test_finished_requests_are_reported_to_the_last() -> None:
    seen: list[int] = []
    serve(trace_of([(0, 1, 1)] * 2500), Limits(), Recorder(), seen.append)
    assert seen == [1000, 2000, 2500]


@pytest.mark.parametrize(
    ("tokens", "sequences", "said"),
    [(1, 1, "token budget is 1"), (2**17 + 1, 4, "from 2 to 131,072"), (8, 8, "from 1 to 7"), (8, 0, "from 1 to 7")],
)
def test_limits_that_no_server_can_have_are_refused(tokens: int, sequences: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Limits(tokens, sequences)
