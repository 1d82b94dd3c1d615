"""The parent's side of a proof: starts the process that runs the canaries, and kills it if a kernel never ends.

A kernel that hangs or faults takes the CUDA context of its process with it. So canaries run in a process of their own,
and no caller's context is lost.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec

from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED
from cache_engine.process import unforked

BUDGET_S = 2.0
"""The seconds that the GPU may compute for one proof: all canaries, then the launches to be timed."""

HANG_S = 10.0
"""Seconds after which a launched canary is taken as one that never ends; a correct one takes a thousandth of this."""
ENDED = "its process was ended before the result"
"""The reason of a verdict after ``Watchdog.end``."""
_SILENT_S = 120.0  # without a line, while a canary is compiled or the GPU is set up
_LONGEST_LINE = 64 * 1024
_LONGEST_REASON = 2_000  # letters; with a longer one the proof could be written, and not be read
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's request: the problem, its kernel of the family to prove, and the plain kernel that serves now."""

    problem: RecordedProblem
    config: KernelConfig
    cubin: bytes
    plain: str
    plain_config: KernelConfig
    plain_cubin: bytes


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The family that the process must prove, and the settings and the GPU for this.

    Attributes:
        identity: ``model.proof.identity`` of the proof. The process computes it as well; if the two differ, the
            toolchain has changed meanwhile, and nothing is proved.
        family: the name of the family.
        arch: the target.
        asked: the problems that callers asked for, which are proved first and timed; by default the canaries alone.
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
    asked: tuple[Asked, ...] = ()
    most: int | None = None
    budget_s: float = BUDGET_S


CASE, LAUNCH, LANDED, RIGHT, WRONG, LOST, TIMED, UNTIMED, END = (
    "case", "launch", "landed", "right", "wrong", "lost", "timed", "untimed", "end",
)  # fmt: skip


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that the process writes about one step of the proof.

    Attributes:
        kind: the step, such as ``launch`` or ``wrong``.
        text: the canary or the reason, by the kind of step.
        seed: the seed of the canary's operands.
        command: the command that runs the same kernel again.
        timings: of one problem asked for, the timings of the family and of the plain one.
    """

    kind: str
    text: str = ""
    seed: int = 0
    command: str = ""
    timings: tuple[dict[str, Any], ...] = ()


class Verdict(msgspec.Struct):
    """The outcome of a proof.

    Attributes:
        cases: the number of canaries whose results were correct.
        refused: the reason, if a kernel was wrong; ``case``, ``seed`` and ``command`` say where.
        undecided: the reason, if the family is neither proved nor refused.
        timings: of each problem asked for, the timings of the family and of the plain one; empty if not measured.
        untimed: the reason why there are no timings.
    """

    cases: int = 0
    refused: str = ""
    undecided: str = ""
    case: str = ""
    seed: int = 0
    command: str = ""
    timings: list[tuple[dict[str, Any], ...]] = msgspec.field(default_factory=list)
    untimed: str = ""

    @property
    def state(self) -> Literal["unproved", "proved", "refused"]:
        """The state of the family after this outcome."""
        return REFUSED if self.refused else UNPROVED if self.undecided else PROVED


class Watchdog:
    """The process that runs the canaries of one proof."""

    def __init__(self, order: Order, command: list[str] | None = None) -> None:
        """Starts the process.

        Args:
            command: the program; by default ``cache_engine.cache.proving.canary_process``.

        Raises:
            OSError: when no process can be started.
        """
        # -P: nothing is imported from the directory in which the caller happens to be.
        program = command or [sys.executable, "-P", "-m", "cache_engine.cache.proving.canary_process"]
        path = os.pathsep.join(filter(os.path.isabs, sys.path))
        with unforked():
            # In its own process group, so that Ctrl-C reaches only the caller.
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        self._is_ended = False
        self._order = msgspec.json.encode(order) + b"\n"

    def _send(self) -> None:
        """Writes the order, in a thread of its own: kernels do not fit in a pipe, and the process may not read it."""
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):  # the process has ended
                self._process.stdin.write(self._order)
                self._process.stdin.flush()

    def end(self) -> None:
        """Ends the process, also while another thread waits for its verdict."""
        self._is_ended = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def verdict(self) -> Verdict:
        """Waits for the end of the proof, and returns its outcome."""
        found, is_launched, is_ended = Verdict(), False, False
        sender = threading.Thread(target=self._send, daemon=True)
        sender.start()
        try:
            for line in self._lines():
                if line is None:
                    if is_launched:
                        found.refused = f"it did not end within {HANG_S:g} s"
                    else:
                        found.undecided = f"the process of the canaries said nothing for {_SILENT_S:g} s"
                    return found
                is_launched, is_ended = line.kind == LAUNCH, line.kind == END
                self._take(found, line)
                if found.refused or found.undecided or is_ended:
                    return found
        finally:
            self._kill()
            status = self._process.wait()
            sender.join()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if self._is_ended:
            found.undecided = ENDED
        elif is_launched and -status in _CRASHES:
            found.refused = f"its process ended with {signal.Signals(-status).name}"
        else:
            found.undecided = f"the process of the canaries ended early, with status {status}"
        return found

    @staticmethod
    def _take(found: Verdict, line: Line) -> None:
        """Enters the content of a line in ``found``."""
        if line.kind == CASE:
            found.case, found.seed, found.command = line.text, line.seed, line.command
        elif line.kind == RIGHT:
            found.cases += 1
        elif line.kind == WRONG:
            found.refused = line.text[:_LONGEST_REASON] or "unknown"
        elif line.kind == LOST:
            found.undecided = line.text or "unknown"
        elif line.kind in (TIMED, UNTIMED):
            found.timings.append(line.timings)
            found.untimed = line.text

    def _lines(self) -> Iterator[Line | None]:
        """The lines of the process as they are written; ``None`` if the next one takes too long."""
        pipe, waiting, until = self._process.stdout, b"", time.monotonic() + _SILENT_S
        with selectors.DefaultSelector() as selector:
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
            while True:
                if pipe is None or not selector.select(max(0.0, until - time.monotonic())):
                    yield None
                    return
                data = os.read(pipe.fileno(), _LONGEST_LINE)
                if not data or len(waiting) > _LONGEST_LINE:
                    return
                *lines, waiting = (waiting + data).split(b"\n")
                for text in lines:
                    with suppress(msgspec.MsgspecError):  # a library may print something
                        line = msgspec.json.decode(text, type=Line)
                        until = time.monotonic() + (HANG_S if line.kind == LAUNCH else _SILENT_S)
                        yield line
