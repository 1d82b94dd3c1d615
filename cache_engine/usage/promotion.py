"""When compiling a better kernel pays. All times are seconds; GPU seconds unless said otherwise."""

from __future__ import annotations


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
