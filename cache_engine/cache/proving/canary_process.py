"""The program that proves a family on a GPU: runs the canaries (test kernels), then times the family and a plain one.

It reads an ``Order``, writes its ``Verdict`` to standard output after each step, and ends when its parent ends.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cache_engine.cache.miss import make_artifact
from cache_engine.cache.proving.watchdog import Kernel, Order, Verdict
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.stages import StageClock
from cache_engine.errors import GemmCacheError, OutOfDeviceMemory
from cache_engine.gpu.canary import run_canary
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.gpu.probe import choose, require_gpu
from cache_engine.gpu.timer import Timing, time_in_turn
from cache_engine.kernels.canaries import Canary, canaries
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.outcome import in_words
from cache_engine.model.proof import identity
from cache_engine.settings import Settings

SEED = 34
_LONGEST_REASON = 2_000  # letters; with a longer one the proof could be written, and not be read
# Errors of the driver that say nothing about the kernel: the GPU is gone, broken, or taken by another program.
_GONE = (
    "NoDevice", "NO_DEVICE", "DevicesUnavailable", "DEVICE_UNAVAILABLE", "ECCUncorrectable", "ECC_UNCORRECTABLE",
    "SystemNotReady", "SYSTEM_NOT_READY", "DEVICE_NOT_LICENSED",
)  # fmt: skip


def main() -> None:
    """Carries out the order in the file that the last argument names, and ends the process."""
    order = msgspec.json.decode(Path(sys.argv[-1]).read_bytes(), type=Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    proof = _Proof(order)
    try:
        if order.device:
            choose(order.device)
        proof.make()
    except (GemmCacheError, RuntimeError, MemoryError, OSError) as error:  # no fault of the kernels
        proof.say(undecided=in_words(error) or repr(error))
    os._exit(0)  # a broken context may hang at a regular end


def _end_with_parent() -> NoReturn:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


class _Proof:
    """The proof of a family, made step by step."""

    def __init__(self, order: Order) -> None:
        """Sends everything that libraries print to standard error, so that it cannot mix with the verdicts."""
        self._order, self._found, self._lines = order, Verdict(), os.dup(1)
        os.dup2(2, 1)
        settings = Settings().with_overrides({"compiler_flags": order.compiler_flags, "cuda": order.cuda})
        self._selector = Selector(settings)

    def say(self, **changes: Any) -> None:
        """Writes the verdict with these changes to the parent, at once."""
        for name, value in changes.items():
            setattr(self._found, name, value)
        with open(self._lines, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self._found) + b"\n")

    def make(self) -> None:
        """Runs and times the kernels.

        Raises:
            GemmCacheError, RuntimeError: when the proof cannot continue; the family remains unproved.
        """
        order = self._order
        budget_s = left_s = order.budget_s * max(1, len(order.asked))
        asked = [self._canary(one) for one, _ in order.asked]
        for canary in asked + canaries(order.family, order.arch)[: order.most]:
            left_s -= self._run(canary)
            if self._found.refused:
                return
            if left_s <= 0:
                raise GemmCacheError(f"the budget of {budget_s:g} s ended after {self._found.cases} canaries")
        timings = []
        for pair in order.asked:
            timings.append(self._timed([self._canary(one) for one in pair], left_s / len(order.asked)))
            if self._found.refused:
                return
        self.say(timings=timings, is_over=True)

    def _canary(self, one: Kernel) -> Canary:
        return Canary(FAMILIES[one.family], one.problem.on(self._order.arch), one.config, one.cubin)

    def _selected(self, canary: Canary) -> Selection:
        return self._selector.select(canary.problem, canary.family.name, None, canary.config)

    def _loaded(self, canary: Canary, *, has_workspace: bool = True) -> LoadedKernel:
        selection = self._selected(canary)
        cubin = _cubin(selection, canary.cubin)
        return LoadedKernel(cubin, selection.name, canary.launch, canary.problem, has_workspace=has_workspace)

    def _begin(self, canary: Canary) -> None:
        selection = self._selected(canary)
        if identity(require_gpu("a proof"), selection.prefix.components) != self._order.identity:
            raise GemmCacheError("the toolchain has changed while this process ran")
        command = selection.command.replace("gemm-cache compile", "gemm-cache time")
        self.say(case=str(canary), seed=SEED, command=command)

    def _run(self, canary: Canary) -> float:
        """Launches a canary, and reports the result; returns the seconds that the GPU computed.

        A problem that a caller asked for is left out if the GPU has no memory for its operands.
        """
        self._begin(canary)
        mistake, gpu_s = "", 0.0
        try:
            mistake, gpu_s = run_canary(
                lambda: self._loaded(canary, has_workspace=False), canary.launch, canary.problem, SEED,
                lambda starts: self.say(is_launched=starts),
            )  # fmt: skip
        except OutOfDeviceMemory:
            if not canary.cubin:
                raise
            return gpu_s
        except RuntimeError as error:  # CuPy's errors derive from it; those of loading are UsageErrors
            if any(name in str(error) for name in _GONE):
                raise GemmCacheError(f"the GPU was lost: {error}") from error
            mistake = f"it faulted: {error}"
        self.say(refused=mistake[:_LONGEST_REASON], cases=self._found.cases + (not mistake))
        return gpu_s

    def _timed(self, canaries: list[Canary], left_s: float) -> tuple[Timing, ...]:
        """The timings of the family and of the plain family, launch by launch in alternation; empty if not measured."""
        self._begin(canaries[0])
        try:
            timings = time_in_turn([self._loaded(one) for one in canaries], left_s / 2 * 1e6)
        except (GemmCacheError, RuntimeError, MemoryError) as error:
            self.say(untimed=in_words(error) or repr(error))
            return ()
        if all(one.verified for one in timings):
            return tuple(timings)
        self.say(untimed="the plain kernel was wrong")
        if not timings[0].verified:
            size = f"{timings[0].max_rel_error:.2g}"
            self.say(refused=f"on random operands its largest relative error is {size}", seed=timings[0].seed)
        return ()


def _cubin(selection: Selection, given: bytes) -> bytes:
    """The code of a kernel: as the caller has given it, else compiled here."""
    return given or make_artifact(selection, StageClock()).cubin


if __name__ == "__main__":
    main()
