"""The program that proves a family on a GPU: runs the canaries (test kernels), then times the family and a plain one.

It reads one ``Order`` from standard input, writes a ``Line`` for each step to standard output, and ends when its parent
ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

import msgspec

from cache_engine.cache.miss import make_artifact
from cache_engine.cache.proving.watchdog import (
    CASE,
    END,
    LANDED,
    LAUNCH,
    LOST,
    RIGHT,
    TIMED,
    UNTIMED,
    WRONG,
    Asked,
    Line,
    Order,
)
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.stages import StageClock
from cache_engine.errors import GemmCacheError, OutOfDeviceMemory
from cache_engine.gpu.canary import run_canary
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.gpu.probe import choose, require_gpu
from cache_engine.gpu.timer import time_in_turn
from cache_engine.kernels.canaries import Canary, canaries
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.proof import identity
from cache_engine.settings import Settings

SEED = 34
# Errors of the driver that say nothing about the kernel: the GPU is gone, broken, or taken by another program.
_GONE = (
    "NoDevice", "NO_DEVICE", "DevicesUnavailable", "DEVICE_UNAVAILABLE", "ECCUncorrectable", "ECC_UNCORRECTABLE",
    "SystemNotReady", "SYSTEM_NOT_READY", "DEVICE_NOT_LICENSED",
)  # fmt: skip


class Lost(Exception):
    """The proof cannot continue, for a reason that is no fault of the kernels; the family remains unproved."""


def main() -> None:
    """Reads one ``Order``, proves its family, and ends the process."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if order.device:
            choose(order.device)
        _prove(order)
        say(Line(END))
    except Lost as why:
        say(Line(LOST, str(why)))
    except (GemmCacheError, RuntimeError, MemoryError, OSError) as error:  # nothing was launched then
        say(Line(LOST, f"{type(error).__name__}: {error}"))
    os._exit(0)  # a broken context may hang at a regular end


def say(line: Line) -> None:
    """Writes a line to standard output at once."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> NoReturn:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


def _prove(order: Order) -> None:
    selector = Selector(Settings().with_overrides({"compiler_flags": order.compiler_flags, "cuda": order.cuda}))
    budget_s = left_s = order.budget_s * max(1, len(order.asked))
    family, cubins = FAMILIES[order.family], [one.cubin for one in order.asked]
    some = [Canary(family, one.problem.on(order.arch), one.config, is_asked=True) for one in order.asked]
    for number, canary in enumerate(some + canaries(order.family, order.arch)[: order.most]):
        selection = selector.select(canary.problem, order.family, None, canary.config)
        if identity(require_gpu("a proof"), selection.prefix.components) != order.identity:
            raise Lost("the toolchain has changed while this process ran")
        say(Line(CASE, str(canary), SEED, selection.command.replace("gemm-cache compile", "gemm-cache time")))
        ran = _run(selection, canary, cubins[number] if canary.is_asked else b"")
        if ran is None:
            if not canary.is_asked:
                raise Lost("the GPU has no memory for the canaries")
            continue
        mistake, gpu_s = ran
        if mistake:
            say(Line(WRONG, mistake))
            return
        say(Line(RIGHT))
        left_s -= gpu_s
        if left_s <= 0:
            raise Lost(f"the budget of {budget_s:g} s ended after {number + 1} canaries")
    for asked in order.asked:
        _time(order, asked, selector, left_s / len(order.asked))


def _cubin(selection: Selection, given: bytes = b"") -> bytes:
    """The code of a kernel: as the caller has given it, else compiled here."""
    return given or make_artifact(selection, StageClock()).cubin


def _run(selection: Selection, canary: Canary, given: bytes) -> tuple[str, float] | None:
    """Launches a canary; returns the mistake and the seconds, or ``None`` if the GPU has no memory for its operands."""
    cubin, launch = _cubin(selection, given), canary.launch

    def load() -> LoadedKernel:
        return LoadedKernel(cubin, selection.name, launch, canary.problem, has_workspace=False)

    def watch(starts: bool) -> None:
        say(Line(LAUNCH if starts else LANDED))

    try:
        return run_canary(load, launch, canary.problem, SEED, watch)
    except OutOfDeviceMemory:
        return None
    except RuntimeError as error:  # CuPy's errors derive from it; those of loading are UsageErrors
        if any(name in str(error) for name in _GONE):
            raise Lost(f"the GPU was lost: {error}") from error
        return f"it faulted: {error}", 0.0


def _time(order: Order, asked: Asked, selector: Selector, left_s: float) -> None:
    """Times the family and the plain one on the problem asked for, launch by launch in alternation."""
    problem = asked.problem.on(order.arch)
    try:
        kernels = []
        for family, config, given in (
            (order.family, asked.config, asked.cubin), (asked.plain, asked.plain_config, asked.plain_cubin)
        ):  # fmt: skip
            selection = selector.select(problem, family, None, config)
            launch = Canary(selection.family, problem, config, is_asked=True).launch
            kernels.append(LoadedKernel(_cubin(selection, given), selection.name, launch, problem))
        timings = time_in_turn(kernels, left_s / 2 * 1e6)
        if not timings[0].verified:
            say(Line(CASE, f"{order.family} {asked.problem!r}, {asked.config}", timings[0].seed))
            say(Line(WRONG, f"on random operands its largest relative error is {timings[0].max_rel_error:.2g}"))
            return
        say(Line(TIMED, timings=tuple(msgspec.to_builtins(one) for one in timings)))
    except (GemmCacheError, RuntimeError, MemoryError) as error:
        say(Line(UNTIMED, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
