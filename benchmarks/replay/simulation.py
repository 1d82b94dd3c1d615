"""Plays policies against a trace, and reckons up what each cost."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.replay import ORACLE
from benchmarks.replay.batching import Limits, Served, serve
from benchmarks.replay.kernels import Kernels
from benchmarks.replay.machines import Account, Adaptive, Compiling, Fixed, Kernel
from benchmarks.replay.optimum import optimum
from benchmarks.replay.policies import Policy, Start
from benchmarks.replay.traces import Trace
from cache_engine.usage.demand import Sketch

COLD, PROFILE, RESTART = STARTS = ("cold", "profile", "restart")
"""Nothing is known or stored; the demand of an earlier run is known, but no kernel is left, as after an upgrade of the
compiler; kernels and demand are both there."""


_ROUNDING = 1e-11
"""Of sums of half a million steps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a policy. Seconds of steps and of losses are predicted; those of compiling are as given.

    Attributes:
        policy, start: their names.
        steps, distinct_m: steps, and different m among them.
        busy_s, end_s: GPU seconds of all steps; when the last step ended.
        kernels: that there are in the end.
        before, waited, behind: compiles before the server was ready, while a step waited, in the background.
        compile_s: seconds of all compiles.
        stall_s: seconds that steps waited.
        request_stall_s: the same, each stall counted for every request that was there.
        stall_p99_s: the 99th percentile over steps.
        first_token_p50_s, first_token_p99_s: percentiles over requests.
        lost_s: GPU seconds that the fastest kernels would have saved.
        cost_s: ``lost_s``, ``stall_s``, and the price of the compiles that no step waited for.
        after_s: the same without the compiles before the server was ready.
        optimum_s: what the best kernels in hindsight cost for the same steps, from below.
        best, other, late: shares of launches by the kernel that served: the one that the policy wants for the m,
            another one, the wanted one after a wait.
    """

    policy: str
    start: str
    steps: int
    distinct_m: int
    busy_s: float
    end_s: float
    kernels: int
    before: int
    waited: int
    behind: int
    compile_s: float
    stall_s: float
    request_stall_s: float
    stall_p99_s: float
    first_token_p50_s: float
    first_token_p99_s: float
    lost_s: float
    cost_s: float
    after_s: float
    optimum_s: float
    best: float
    other: float
    late: float

    @property
    def ratio(self) -> float:
        """The cost in that of the optimum, which pays for all of its kernels."""
        return _ratio(self.cost_s, self.optimum_s)

    @property
    def after_ratio(self) -> float:
        """The cost after the server was ready, as a multiple of the optimum's."""
        return _ratio(self.after_s, self.optimum_s)


def play(
    kernels: Kernels,
    trace: Trace,
    limits: Limits,
    compiling: Compiling,
    policies: Sequence[Policy],
    starts: Sequence[str] = (COLD,),
    start: Start | None = None,
    learnt_from: Trace | None = None,
    on_run: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Plays each policy from each start, and the oracle last.

    A restart follows the same policy's cold start on the same trace. From the start with a profile only those policies
    are played that use one; to the others it is a cold start.

    Args:
        start: horizon and budget of what is compiled ahead.
        learnt_from: the trace whose demand is known at the start with a profile; by default the same.
        on_run: is called with how many requests are served, of all runs together; see ``runs``.
    """
    start = start or Start()
    done = 0

    def run(policy: str, name: str, machine: Fixed | Adaptive) -> tuple[Outcome, Account]:
        nonlocal done
        base, stored = done, machine.tiles()
        served = serve(trace, limits, machine, lambda count: on_run(base + count))
        done += len(trace)
        account = machine.account
        free = stored if name == RESTART else frozenset()
        return _outcome(policy, name, kernels, compiling, account, served, free), account

    outcomes = {name: list[Outcome]() for name in STARTS}
    account = None
    for policy in policies:
        outcome, account = run(policy.name, COLD, policy.machine(kernels, compiling, start))
        outcomes[COLD].append(outcome)
        if PROFILE in starts and policy.learns:
            learnt = account
            if learnt_from is not None:
                machine = policy.machine(kernels, compiling, start)
                serve(learnt_from, limits, machine)
                learnt = machine.account
            known = replace(start, profile=sketch_of(learnt))
            outcomes[PROFILE].append(run(policy.name, PROFILE, policy.machine(kernels, compiling, known))[0])
        if RESTART in starts:
            left = replace(start, profile=sketch_of(account), stored=frozenset(account.stored))
            outcomes[RESTART].append(run(policy.name, RESTART, policy.machine(kernels, compiling, left))[0])
    if COLD in starts and account is not None:
        chosen, _ = in_hindsight(kernels, compiling, account)
        outcomes[COLD].append(run(ORACLE, COLD, Adaptive(kernels, compiling, chosen))[0])
    return [outcome for name in STARTS if name in starts for outcome in outcomes[name]]


def runs(policies: Sequence[Policy], starts: Sequence[str]) -> int:
    """The number of times that ``play`` serves the trace."""
    profiled = sum(policy.learns for policy in policies) if PROFILE in starts else 0
    return len(policies) * (1 + (RESTART in starts)) + profiled + (COLD in starts)


def sketch_of(account: Account) -> Sketch:
    """The sketch that the ledger has of a run."""
    sketch = Sketch()
    for m, steps in enumerate(account.steps_at):
        if steps:
            sketch.add(m, float(steps))
    return sketch


def in_hindsight(
    kernels: Kernels, compiling: Compiling, account: Account, free: frozenset[Kernel] = frozenset()
) -> tuple[list[Kernel], float]:
    """The best kernels for the steps that were run, and a lower bound of what they cost.

    Args:
        free: kernels that cost nothing, as those of ``dynamic``.
    """
    chosen: list[Kernel] = []
    bound_s = 0.0
    steps = np.asarray(account.steps_at, dtype=np.float64)
    for place, operation in enumerate(kernels.operations):
        prices = np.full(len(operation.tiles), compiling.price_s)
        prices[[operation.dynamic, *(kernel for of, kernel in free if of == place)]] = 0.0
        found = optimum((operation.seconds - operation.seconds.min(axis=0)) * steps, prices)
        chosen += [(place, kernel) for kernel in sorted(found.chosen) if prices[kernel]]
        bound_s += found.bound_s
    return chosen, bound_s


def _outcome(
    policy: str,
    start: str,
    kernels: Kernels,
    compiling: Compiling,
    account: Account,
    served: Served,
    free: frozenset[Kernel],
) -> Outcome:
    stall_s = math.fsum(stall for stall, _ in served.stalls)
    lost_s = account.gpu_s - float(np.asarray(account.steps_at) @ kernels.ideal_s)
    lost_s = lost_s if lost_s > _ROUNDING * account.gpu_s else 0.0
    after_s = lost_s + stall_s + compiling.price_s * account.behind
    launches = account.served_best + account.served_other + account.served_late
    return Outcome(
        policy=policy,
        start=start,
        steps=served.steps,
        distinct_m=sum(steps > 0 for steps in account.steps_at),
        busy_s=served.busy_s,
        end_s=served.end_s,
        kernels=len(account.stored),
        before=account.before,
        waited=account.waited,
        behind=account.behind,
        compile_s=compiling.seconds * account.compiled,
        stall_s=stall_s,
        request_stall_s=math.fsum(stall * there for stall, there in served.stalls),
        stall_p99_s=_percentile(array("d", (stall for stall, _ in served.stalls)), 99, served.steps),
        first_token_p50_s=_percentile(served.first_token_s, 50, len(served.first_token_s)),
        first_token_p99_s=_percentile(served.first_token_s, 99, len(served.first_token_s)),
        lost_s=lost_s,
        cost_s=after_s + compiling.price_s * account.before,
        after_s=after_s,
        optimum_s=in_hindsight(kernels, compiling, account, free)[1],
        best=account.served_best / launches,
        other=account.served_other / launches,
        late=account.served_late / launches,
    )


def _percentile(values: array[float], percent: int, count: int) -> float:
    """The nearest-rank percentile of so many values, of which those not given are 0."""
    rank = -(-count * percent // 100)
    zeros = count - len(values)
    return 0.0 if rank <= zeros else sorted(values)[rank - zeros - 1]


def _ratio(cost_s: float, optimum_s: float) -> float:
    if optimum_s > 0:
        return cost_s / optimum_s
    return 1.0 if cost_s <= 0 else math.inf
