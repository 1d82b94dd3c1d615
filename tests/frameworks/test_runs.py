"""The stored reports of runs: the last fifty, the newest first, damaged ones left out; and the causes of compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.frameworks.watch import (
    AGAIN,
    GONE,
    MOST_KEPT,
    NEW,
    OTHER_KEY,
    Compiled,
    Run,
    causes_of,
    keep_run,
    kept_runs,
)
from cache_engine.store.disk import open_store
from cache_engine.upkeep.side_files import check_side_files


def run_of(started_at: float, *compiled: Compiled) -> Run:
    return Run(command=["serve"], root="/kernels", started_at=started_at, compiled=list(compiled))


def compiled(id: str, cause: str = NEW, phase: str = "before") -> Compiled:
    return Compiled("triton", "add", id, phase, 1.5, {}, cause)


def test_the_last_are_kept_and_damaged_ones_left_out(tmp_path: Path) -> None:
    layout = open_store(tmp_path / "store")
    assert kept_runs(layout) == []
    for number in range(MOST_KEPT + 3):
        keep_run(layout, run_of(float(number)))
    assert [run.started_at for run in kept_runs(layout)] == [float(number) for number in range(MOST_KEPT + 2, 2, -1)]
    names = sorted(path.name for path in layout.runs.iterdir())
    for name, data in zip(names, (b"", b"[" * 100_000, b"{}", b'{"command":["\xff"]}'), strict=False):
        (layout.runs / name).write_bytes(data)
    assert len(kept_runs(layout)) == MOST_KEPT - 4


@pytest.mark.parametrize(("name", "is_ours"), [("0" * 16 + "-1.json", True), ("note.txt", False)])
def test_verify_knows_their_names(tmp_path: Path, name: str, is_ours: bool) -> None:
    layout = open_store(tmp_path / "store")
    layout.runs.mkdir(mode=0o700)
    (layout.runs / name).touch(0o600)
    found = [Path(finding.path).name for finding in check_side_files(layout, trust=False)]
    assert found == ([] if is_ours else [name])


def test_a_compile_of_what_an_earlier_run_had_says_that_it_was_gone() -> None:
    earlier = [run_of(1.0, compiled("a"), compiled("c"))]
    now = run_of(
        2.0, compiled("a", OTHER_KEY, "after"), compiled("b"), compiled("c", AGAIN), compiled("d", OTHER_KEY, "after")
    )
    assert {name: counts for name, *counts in causes_of(now, earlier)} == {
        GONE: [0, 1], NEW: [1, 0], AGAIN: [1, 0], OTHER_KEY: [0, 1],
    }  # fmt: skip
