"""The worth of compiling one more kernel ahead of need: the sum behind each promotion. All times are seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# ---- The price of a compile. All times are seconds; GPU seconds unless said otherwise ----


def price_s(compile_s: float, waiting: int = 0, slots: int = 1, gpu_s_per_s: float = 1.0) -> float:
    """The cost of a compile, in GPU seconds.

    It grows with the queue: each compile that waits for a slot delays this one by its own time, and the regret goes on
    meanwhile. HotSpot scales its thresholds by queue length / (TierXLoadFeedback · compiler threads) + 1 in the same
    way (OpenJDK, ``compilationPolicy.hpp``); here the feedback is 1.

    Args:
        compile_s: seconds of one processor.
        waiting: compiles in front of it.
        slots: compiles at a time.
        gpu_s_per_s: GPU seconds that one second of compiling is worth. With 1, a compile costs what it would cost if
            the GPU stood still for it.
    """
    return compile_s * gpu_s_per_s * (1 + waiting / slots)


def stays_promoted(is_promoted: bool, forecast_s: float, price_s: float) -> bool:
    """Whether the better kernel should serve, from now on.

    Args:
        is_promoted: whether it does now.
        forecast_s: the GPU seconds that it is expected to save over the horizon: launches by ``demand.rate``, times the
            gain of each.
        price_s: what compiling it costs.

    It is promoted when it is expected to earn its price, and demoted when it earns less than half of it: between the
    two nothing changes, so demand that varies a little around the price does not compile again and again.
    """
    return forecast_s >= (price_s / 2 if is_promoted else price_s)


@dataclass(frozen=True, slots=True)
class Use:
    """One size that a kernel would serve.

    Attributes:
        m: the size.
        per_s: launches a second, at the rate of now.
        present_s: GPU seconds of one launch of what serves it now; ``None`` where nothing does, and a request waits.
        better_s: GPU seconds of one launch of the kernel; ``None`` where that is not known.
    """

    m: int
    per_s: float
    present_s: float | None
    better_s: float | None

    @property
    def saved_s(self) -> float:
        """GPU seconds that each launch saves; 0 where one of the two times is not known."""
        return 0.0 if self.present_s is None or self.better_s is None else self.present_s - self.better_s


@dataclass(frozen=True, slots=True)
class Payback:
    """The worth of a kernel over a horizon.

    Attributes:
        launches: how many it is expected to serve.
        saved_s: GPU seconds that these save.
        wait_chance: how likely a request would wait for the kernel, as nothing else serves it; 0 where something does.
        compile_s: seconds that compiling takes.
        price_s: what compiling costs now; ``promotion.price_s`` of ``compile_s``.
        per_s: launches a second.
    """

    launches: float
    saved_s: float
    wait_chance: float
    compile_s: float
    price_s: float
    per_s: float

    @property
    def spared_s(self) -> float:
        """Expected seconds of waiting that are spared, and of the compile that the waiting request would start."""
        return self.wait_chance * 2 * self.compile_s

    @property
    def net_s(self) -> float:
        """The gain: launches · (present - better) + waiting and compiling spared - price."""
        return self.saved_s + self.spared_s - self.price_s

    @property
    def pays_back_after(self) -> float:
        """Launches after which the price is earned: 1 where a request would wait; infinity where none saves time."""
        if self.wait_chance:
            return 1.0
        if self.saved_s <= 0:
            return math.inf
        return math.ceil(self.price_s * self.launches / self.saved_s)

    @property
    def pays_back_in_s(self) -> float:
        """The same in seconds, at the rate of now."""
        return self.pays_back_after / self.per_s if self.per_s > 0 else math.inf


def payback(uses: Sequence[Use], compile_s: float, price_s: float, horizon_s: float) -> Payback:
    """The gain by a kernel that would serve these sizes.

    Requests are taken to come independently of each other, so the chance that one comes in time t at a rate r is
    1 - exp(-r · t).
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
