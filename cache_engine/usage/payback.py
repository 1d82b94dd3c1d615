"""Computes whether it pays to compile a kernel in advance; promotion decides by this. All times are in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# ---- The price of a compile. All times are seconds; GPU seconds unless said otherwise ----


def price_s(compile_s: float, waiting: int = 0, slots: int = 1, gpu_s_per_s: float = 1.0) -> float:
    """The cost of a compile, in GPU seconds.

    It grows with the queue: each compile that waits for a slot delays this one by its own time, and until then the
    slower kernel serves. HotSpot scales its thresholds by queue length / (TierXLoadFeedback · compiler threads) + 1 in
    the same way (OpenJDK, ``compilationPolicy.hpp``); here the feedback is 1.

    Args:
        compile_s: the seconds of the compile on one processor core.
        waiting: the number of compiles before it in the queue.
        slots: the number of compiles that run at a time.
        gpu_s_per_s: the GPU seconds that one second of compiling costs. With 1, a compile costs as much as if the GPU
            were idle during it.
    """
    return compile_s * gpu_s_per_s * (1 + waiting / slots)


def stays_promoted(is_promoted: bool, forecast_s: float, price_s: float) -> bool:
    """Whether the better kernel should serve from now on.

    Args:
        is_promoted: whether the better kernel serves now.
        forecast_s: the GPU seconds that it is expected to save over the horizon: the expected number of launches, by
            ``demand.rate``, times the saving of each launch.
        price_s: the cost of compiling it.

    A kernel is promoted when it is expected to save at least its price, and demoted when it saves less than half of it.
    Between the two, nothing changes. So demand that varies a little around the price does not cause repeated compiles.
    """
    return forecast_s >= (price_s / 2 if is_promoted else price_s)


@dataclass(frozen=True, slots=True)
class Use:
    """One m that a kernel would serve.

    Attributes:
        m: the number of rows of A and C.
        per_s: the present launches per second.
        present_s: the GPU seconds of a launch of the kernel that serves now; ``None`` if none does, so that a request
            waits.
        better_s: the GPU seconds of a launch of the new kernel; ``None`` if unknown.
    """

    m: int
    per_s: float
    present_s: float | None
    better_s: float | None

    @property
    def saved_s(self) -> float:
        """The GPU seconds that each launch saves; 0 if one of the two times is unknown."""
        return 0.0 if self.present_s is None or self.better_s is None else self.present_s - self.better_s


@dataclass(frozen=True, slots=True)
class Payback:
    """The expected savings of a kernel over a horizon, and its cost.

    Attributes:
        launches: the expected number of launches.
        saved_s: the GPU seconds that these launches save.
        wait_chance: the probability that a request would wait for the kernel because no other kernel serves; 0 if one
            does.
        compile_s: the seconds of compiling it.
        price_s: the present cost of compiling, from ``payback.price_s``.
        per_s: the launches per second.
    """

    launches: float
    saved_s: float
    wait_chance: float
    compile_s: float
    price_s: float
    per_s: float

    @property
    def spared_s(self) -> float:
        """The expected seconds of waiting avoided, plus those of the compile that a waiting request would start."""
        return self.wait_chance * 2 * self.compile_s

    @property
    def net_s(self) -> float:
        """The net gain in seconds: GPU time saved, plus waiting and compiling avoided, minus the price."""
        return self.saved_s + self.spared_s - self.price_s

    @property
    def pays_back_after(self) -> float:
        """The number of launches that save the price: 1 if a request would wait; infinity if launches save no time."""
        if self.wait_chance:
            return 1.0
        if self.saved_s <= 0:
            return math.inf
        return math.ceil(self.price_s * self.launches / self.saved_s)

    @property
    def pays_back_in_s(self) -> float:
        """The seconds after which the savings equal the price, at the present rate of launches."""
        return self.pays_back_after / self.per_s if self.per_s > 0 else math.inf


def payback(uses: Sequence[Use], compile_s: float, price_s: float, horizon_s: float) -> Payback:
    """The expected savings and the cost of a kernel that would serve the sizes in ``uses``.

    Requests are assumed to be independent of each other, so the probability of at least one within time t at a rate r
    is 1 - exp(-r · t).
    """
    unserved_per_s = math.fsum(use.per_s for use in uses if use.present_s is None)
    per_s = math.fsum(use.per_s for use in uses)
    return Payback(
        launches=per_s * horizon_s,
        saved_s=math.fsum(use.per_s * use.saved_s for use in uses) * horizon_s,
        wait_chance=-math.expm1(-unserved_per_s * horizon_s),
        compile_s=compile_s,
        price_s=price_s,
        per_s=per_s,
    )
