"""Interrupting an operation at any of its system calls, with strace.

``Zygote.run`` has a forked child do the operation with strace attached from its very start. Without a fault, that lists
the system calls; with one, the n-th call of a name is where the child is killed, or what is refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_MARK = "getsid"
_INJECTED = "(INJECTED)"
# Nothing may depend on chance, or an n-th call would not be the same one in every trial; and what forks may have no
# threads, of which NumPy and Arrow start some when imported.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_CALL = re.compile(r"^(\d+) +([a-z_0-9]+)\(")


def needs_strace() -> None:
    """Skips the test, or fails it in CI, where strace is missing."""
    if shutil.which("strace") is None:
        message = "no strace to interrupt system calls with (apt-get install strace)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``when``-th call of ``syscall``, by any thread, is refused with ``error``; with none, the child is killed."""

    syscall: str
    when: int
    error: str = ""

    def __str__(self) -> str:
        return f"{self.error or 'killed'} at {self.syscall} {self.when}"

    @property
    def expression(self) -> str:
        """As strace wants it."""
        return f"inject={self.syscall}:{f'error={self.error}' if self.error else 'signal=KILL'}:when={self.when}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a child.

    Attributes:
        reached: whether the fault came to happen.
        killed: whether it was killed by it.
        value: what it acknowledged; ``None`` when it was killed, or raised.
        error: what it raised, for people.
        types: the class of what it raised, and its bases.
        signal: what ended it, where it was not the fault's doing.
        trace: its system calls.
    """

    reached: bool
    killed: bool
    value: Any
    error: str
    types: tuple[str, ...]
    signal: int
    trace: str

    @property
    def acknowledged(self) -> bool:
        """Whether the operation returned."""
        return not self.killed and not self.signal and not self.error

    @property
    def place(self) -> str:
        """The refused call, with the two before it."""
        lines = self.trace[: self.trace.find(_INJECTED)].splitlines()
        return "\n".join(lines[-3:])


class Zygote:
    """The process that forks a child per trial."""

    def __init__(self, folder: Path) -> None:
        """Starts it; its traces are written in ``folder``."""
        # Without the watch over the user's caches, which is not the operation's.
        environment = {**os.environ, **_ENVIRONMENT}
        environment.pop("TESTS_WATCHED_CACHES", None)
        self._trace = folder / "trace"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        assert self._hear() == {"threads": 1}

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=600)

    def run(self, operation: str, store: Path, fault: Fault | None = None) -> Outcome:
        """Does an operation on a store, with a fault or without."""
        self._tell({"operation": operation, "store": str(store)})
        began = self._hear()
        command = ["strace", "-f", "-p", str(began["pid"]), "-o", str(self._trace)]
        if fault is not None:
            command += ["-e", fault.expression]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            attached = strace.stderr.readline()
            self._tell({})
            ended = self._hear()
            strace.stderr.read()
        assert began["ready"], f"{operation} could not be prepared"
        assert "attached" in attached, attached
        return self._outcome(fault, ended)

    def _outcome(self, fault: Fault | None, ended: dict[str, Any]) -> Outcome:
        trace = self._trace.read_text(errors="replace")
        killing = fault is not None and not fault.error
        killed = killing and ended["signal"] == 9
        # In the run of the fault the operation may have made fewer calls, and be over when it happened.
        over = trace.count(f" {_MARK}(") == 2
        inside = trace[: trace.rindex(f" {_MARK}(")] if over else trace
        answer = json.loads(ended["answer"] or "{}")
        return Outcome(
            reached=(killed and not over) or _INJECTED in inside,
            killed=killed,
            value=answer.get("value"),
            error=answer.get("error", ""),
            types=tuple(answer.get("types", ())),
            signal=0 if killed else ended["signal"],
            trace=trace,
        )

    def _tell(self, message: dict[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the zygote has died"
        answer: dict[str, Any] = json.loads(line)
        return answer


def points(trace: str) -> dict[str, range]:
    """The calls between the marks by name: from which to which each can be counted. Strace counts by thread."""
    calls = [(match[1], match[2]) for line in trace.splitlines() if (match := _CALL.match(line))]
    marks = [number for number, (_, name) in enumerate(calls) if name == _MARK]
    assert len(marks) == 2, trace
    counted: Counter[tuple[str, str]] = Counter(calls[: marks[0]])
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for thread, name in calls[marks[0] + 1 : marks[1]]:
        counted[thread, name] += 1
        first[name] = min(counted[thread, name], first.get(name, counted[thread, name]))
        last[name] = max(counted[thread, name], last.get(name, 0))
    return {name: range(first[name], last[name] + 1) for name in first}
