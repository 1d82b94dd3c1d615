"""Real processes prove families: killed with ``kill -9`` at any step, and two of them at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.model.decision import PROOF
from cache_engine.model.proof import PROVED
from cache_engine.store.proofs import proofs
from cache_engine.upkeep.findings import FindingKind
from tests.device.proving_process import STARTED, STEPS, WRITTEN
from tests.helpers import of_today

_LONGEST_S = 120.0


@contextmanager
def _started(store: Path, last: str = "") -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-m", "tests.device.proving_process", str(store), last]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str], first: str) -> str:
    """The next line of a process that begins with this word."""
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(first))


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _ends(pid: int) -> bool:
    """Whether a process ends; a zombie has ended."""
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("steps", [of_today(STEPS, 2), pytest.param(STEPS, marks=pytest.mark.soak)])
def test_killed_at_any_step_a_proof_is_whole_or_absent(tmp_path: Path, steps: Sequence[str]) -> None:
    for step in steps:
        print(step)
        store = tmp_path / step
        with _started(store, step) as process:
            canaries = int(_line(process, STARTED).split()[1])
            _go(process)
            assert process.wait(_LONGEST_S) == -signal.SIGKILL
        assert _ends(canaries)
        with open_cache(store, durability="fast") as cache:
            damaged = {finding.kind for finding in cache.admin.verify() if finding.is_damage}
            assert damaged <= {FindingKind.STALE_TEMPORARY}
            assert [proof.state for _, proof in proofs(cache.layout)] == ([PROVED] if step == WRITTEN else [])
        with _started(store) as again:
            if step != WRITTEN:
                _line(again, STARTED)
                _go(again)
            assert _line(again, "hopper")
            assert again.wait(_LONGEST_S) == 0


def test_two_processes_that_prove_at_once_prove_once(tmp_path: Path) -> None:
    with open_cache(tmp_path, durability="fast"):
        pass
    with _started(tmp_path) as one, _started(tmp_path) as other:
        for process in (one, other):
            _line(process, "locking")
        for process in (one, other):
            _go(process)
        printed = [line for process in (one, other) for line in process.stdout or ()]
        assert [process.wait(_LONGEST_S) for process in (one, other)] == [0, 0]
    assert sorted(line.split()[0] for line in printed) == ["hopper", "hopper", STARTED]
    with open_cache(tmp_path, durability="fast") as cache:
        assert [proof.state for _, proof in proofs(cache.layout)] == [PROVED]
        assert len([one for one in cache.admin.decisions() if one.kind == PROOF]) == 1
