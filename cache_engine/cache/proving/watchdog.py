"""The parent's side of a proof: starts the process that runs the canaries, and kills it if a kernel never ends.

A kernel that hangs or faults takes the CUDA context of its process with it. So canaries run in a process of their own,
and no caller's context is lost.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from cache_engine.cache.selection import Selection
from cache_engine.gpu.timer import Timing
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.outcome import in_words
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED, identity
from cache_engine.process import unforked
from cache_engine.settings import Settings

BUDGET_S = 2.0
"""The seconds that the GPU may compute for one proof: all canaries, then the launches to be timed."""

HANG_S = 10.0
"""Seconds after which a launched canary is taken as one that never ends; a correct one takes a thousandth of this."""
ENDED = "its process was ended before the result"
"""The reason in a verdict if its proof was no longer wanted."""
_SILENT_S = 120.0  # without a line, while a canary is compiled or the GPU is set up
_LOOK_MS = 100  # between two checks that the verdict is still wanted
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
# -P: nothing is imported from the directory in which the caller happens to be.
_PROGRAM = (sys.executable, "-P", "-m", "cache_engine.cache.proving.canary_process")


class Kernel(msgspec.Struct, frozen=True):
    """A kernel for a problem that a caller asked for."""

    family: str
    problem: RecordedProblem
    config: KernelConfig
    cubin: bytes


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The family that the process must prove, and the settings and the GPU for this.

    Attributes:
        identity: ``model.proof.identity`` of the proof. The process computes it as well; if the two differ, the
            toolchain has changed meanwhile, and nothing is proved.
        asked: for each problem that callers asked for, its kernel of the family, and the plain kernel that serves now.
            They are proved first and timed.
        most: the most canaries to run besides those problems; ``None`` for all.
        device: the number of the GPU, as CUDA counts.
        compiler_flags, cuda: the settings with which kernels are compiled.
        budget_s: the seconds that the GPU may compute, for each problem asked for.
    """

    identity: str
    family: str
    arch: str
    device: int
    compiler_flags: tuple[str, ...]
    cuda: str
    asked: tuple[tuple[Kernel, Kernel], ...] = ()
    most: int | None = None
    budget_s: float = BUDGET_S


def order_of(
    selection: Selection, device: DeviceFingerprint, number: int, settings: Settings,
    asked: tuple[tuple[Kernel, Kernel], ...] = (), most: int | None = None,
) -> Order:  # fmt: skip
    """The order to prove a selection's family on the GPU with the number ``number``."""
    return Order(
        identity=identity(device, selection.prefix.components), family=selection.family.name,
        arch=selection.problem.arch or "", device=number, compiler_flags=settings.compiler_flags, cuda=settings.cuda,
        asked=asked, most=most,
    )  # fmt: skip


class Verdict(msgspec.Struct, omit_defaults=True):
    """The outcome of a proof, or what is known so far. The process writes it at each step, on one line.

    Attributes:
        cases: the number of canaries whose results were correct.
        refused: the fault of the last canary, if it had one; else empty.
        undecided: the reason why the family is neither proved nor refused; else empty.
        case, seed, command: the last canary, the seed of its operands, and the command that runs the same kernel again.
        timings: for each problem asked for, the timings of the family and of the plain family; empty if not measured.
        untimed: the reason why there are no timings.
        is_launched: whether a kernel runs now, so that it must end soon.
        is_over: whether all kernels were correct, and were timed.
    """

    cases: int = 0
    refused: str = ""
    undecided: str = ""
    case: str = ""
    seed: int = 0
    command: str = ""
    timings: list[tuple[Timing, ...]] = msgspec.field(default_factory=list)
    untimed: str = ""
    is_launched: bool = False
    is_over: bool = False

    @property
    def state(self) -> Literal["unproved", "proved", "refused"]:
        """The state of the family after this outcome."""
        return REFUSED if self.refused else UNPROVED if self.undecided else PROVED


def watched(order: Order, is_wanted: Callable[[], bool], command: Sequence[str] = _PROGRAM) -> Verdict:
    """Runs the canaries of a proof in a process, and returns the outcome.

    Args:
        is_wanted: asked several times a second; once it returns false, the process is ended.
    """
    try:
        with _started(order, command) as process:
            try:
                return _followed(process, is_wanted)
            finally:
                process.kill()
    except OSError as error:
        return Verdict(undecided=in_words(error))


def _started(order: Order, command: Sequence[str]) -> subprocess.Popen[bytes]:
    # A file in memory, because the kernels of an order do not fit in a pipe, which the process might not read.
    file = os.memfd_create("order")
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(msgspec.json.encode(order))
        path = os.pathsep.join(filter(os.path.isabs, sys.path))
        with unforked():
            # In its own process group, so that Ctrl-C reaches only the caller.
            return subprocess.Popen(
                (*command, f"/proc/self/fd/{file}"), pass_fds=(file,), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, process_group=0, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
    finally:
        os.close(file)


def _followed(process: subprocess.Popen[bytes], is_wanted: Callable[[], bool]) -> Verdict:
    """The last verdict of the process, completed if the process does not end as it should."""
    assert process.stdout is not None  # noqa: S101 (a pipe was asked for)
    pipe, poll, found, rest, heard = process.stdout.fileno(), select.poll(), Verdict(), b"", time.monotonic()
    poll.register(pipe, select.POLLIN)
    while not (found.refused or found.undecided or found.is_over):
        if not is_wanted():
            found.undecided = ENDED
        elif poll.poll(_LOOK_MS):
            data = os.read(pipe, 2**16)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                found, heard = msgspec.json.decode(line, type=Verdict), time.monotonic()
            if not data and found.is_launched and -process.wait() in _CRASHES:
                found.refused = f"its process ended with {signal.Signals(-process.wait()).name}"
            elif not data:
                found.undecided = f"the process of the canaries ended early, with status {process.wait()}"
        elif found.is_launched and time.monotonic() - heard > HANG_S:
            found.refused = f"it did not end within {HANG_S:g} s"
        elif time.monotonic() - heard > _SILENT_S:
            found.undecided = f"the process of the canaries said nothing for {_SILENT_S:g} s"
    return found
