"""When compiling a better kernel pays. All times are seconds; GPU seconds unless said otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass


def net_gain_s(launches: float, present_s: float, better_s: float, price_s: float) -> float:
    """What compiling a better kernel gains over so many launches: N · (t0 - t) - C."""
    return launches * (present_s - better_s) - price_s


def pays_back_after(present_s: float, better_s: float, price_s: float) -> float:
    """Launches after which a better kernel has earned its price; infinity when it is no better."""
    gain_s = present_s - better_s
    return math.ceil(price_s / gain_s) if gain_s > 0 else math.inf


def price_s(compile_s: float, waiting: int = 0, slots: int = 1, gpu_s_per_s: float = 1.0) -> float:
    """What a compile costs, in GPU seconds.

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


TRUST = 0.5
"""How far a forecast is believed, λ: with it ski rental costs at most 1.5 times the best decision if the forecast is
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
class Rental:
    """Ski rental: each launch of a slower kernel pays rent, its regret; compiling the better one is buying it.

    It buys when the regret paid, with the next, reaches the price. Without knowing what is to come this costs less
    than twice what the best decision in hindsight costs, and no deterministic rule has a better bound (Karlin, Manasse,
    Rudolph, Sleator: "Competitive Snoopy Caching", Algorithmica 1988). Where the kernel serves only once it is
    compiled, the regret paid meanwhile comes on top.

    Attributes:
        paid_s: regret so far.
    """

    paid_s: float = 0.0

    def buys(self, next_s: float, price_s: float) -> bool:
        """Whether to compile rather than pay the next regret too."""
        return self.paid_s + next_s >= price_s

    def after(self, next_s: float) -> Rental:
        """The state when the next regret is paid."""
        return Rental(self.paid_s + next_s)


def rental_cost_s(regrets_s: list[float], price_s: float) -> float:
    """What ski rental pays for a sequence of regrets: those before it buys, and the price if it does."""
    rental = Rental()
    for next_s in regrets_s:
        if rental.buys(next_s, price_s):
            return rental.paid_s + price_s
        rental = rental.after(next_s)
    return rental.paid_s


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
