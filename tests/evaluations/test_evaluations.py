"""Results of the evaluator are found again, are what they were, and none is lost."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.evaluator import results, search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import decode_entry, encode_entry, key_of, make_entry
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout

CHIP, OTHER = PRESETS["SG2262"], PRESETS["SG2261"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
DAY = 86_400.0
ROOT = Path(__file__).parents[2]


def fill(layout: StoreLayout, count: int, hardware: Hardware = CHIP, at: float = 1e9) -> list[str]:
    """Keeps results of consecutive m, made one second after the other; returns their keys."""
    evaluation = search.evaluate(PROBLEM, hardware)
    clock = iter(range(10**9))
    with Evaluations(layout, durable=False, now=lambda: at + next(clock)) as kept:
        problems = [replace(PROBLEM, m=m) for m in range(1, count + 1)]
        for problem in problems:
            assert kept.put(problem, hardware, SearchMode(), evaluation, 0.5) is None
    return [key_of(problem, SearchMode()) for problem in problems]


def keys(layout: StoreLayout, hardware: Hardware = CHIP) -> set[str]:
    return {key for key, _ in Evaluations(layout).entries(hardware.fingerprint())}


def document(layout: StoreLayout, hardware: Hardware = CHIP) -> dict[str, Any]:
    exported: dict[str, Any] = json.loads(Evaluations(layout).export(hardware.fingerprint()))
    return exported


def test_a_result_is_found_again_by_another_process(layout: StoreLayout) -> None:
    with Evaluations(layout) as first:
        made = first.evaluate(PROBLEM, CHIP)
        again = first.evaluate(PROBLEM, CHIP)
    assert (made.cached, again.cached, made.unkept) == (False, True, None)
    assert made.evaluation == again.evaluation == search.evaluate(PROBLEM, CHIP)
    code = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.evaluator.results import Evaluations\n"
        "from cache_engine.evaluator.hardware import PRESETS\n"
        "from cache_engine.evaluator.problem import EvaluationProblem\nfrom cache_engine.store.disk import open_store\n"
        "with Evaluations(open_store(Path(sys.argv[1]))) as kept:\n"
        "    answer = kept.evaluate(EvaluationProblem(64, 2112, 7168), PRESETS['SG2262'])\n"
        "    print(answer.cached, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(layout.root)], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr
    statistics = document(layout)["statistics"]
    assert (statistics["cache_hits"], statistics["cache_misses"], statistics["total_entries"]) == (2, 1, 1)
    assert statistics["total_search_time_hours"] * 3_600_000 == pytest.approx(made.search_ms)


OTHERS: tuple[tuple[EvaluationProblem, SearchMode], ...] = (
    (replace(PROBLEM, m=65), SearchMode()),
    (replace(PROBLEM, n=65), SearchMode()),
    (replace(PROBLEM, k=65), SearchMode()),
    (replace(PROBLEM, batch=65), SearchMode()),
    (replace(PROBLEM, dtype="fp16"), SearchMode()),
    (replace(PROBLEM, out_dtype="fp32"), SearchMode()),
    (PROBLEM, SearchMode(tile_search=False)),
    (PROBLEM, SearchMode(partition_search=False)),
    (PROBLEM, SearchMode(reduce_partial_sums=True)),
    (PROBLEM, SearchMode(compute_rate=2)),
)


@pytest.mark.parametrize("asked", OTHERS, ids=lambda asked: key_of(*asked))
def test_each_thing_asked_gives_a_result_of_its_own(
    asked: tuple[EvaluationProblem, SearchMode], kept: Evaluations
) -> None:
    kept.evaluate(PROBLEM, CHIP)
    assert not kept.evaluate(asked[0], CHIP, asked[1]).cached
    assert not kept.evaluate(asked[0], OTHER, asked[1]).cached
    assert kept.evaluate(asked[0], CHIP, asked[1]).cached
    assert key_of(*asked) != key_of(PROBLEM, SearchMode())


sizes = st.integers(1, 10**12)
problems = st.builds(
    EvaluationProblem, sizes, sizes, sizes, sizes, st.sampled_from(sorted(ITEMSIZE)), st.sampled_from(sorted(ITEMSIZE))
)
modes = st.builds(SearchMode, st.booleans(), st.booleans(), st.booleans(), st.floats(1e-6, 1e6))


@given(problems, modes, st.floats(0, 1e12), st.floats(0, 1e12))
def test_an_entry_comes_back_as_it_was(
    problem: EvaluationProblem, mode: SearchMode, search_ms: float, at: float
) -> None:
    evaluation = search.evaluate(replace(problem, m=5, n=7, k=9, batch=1), CHIP, replace(mode, partition_search=False))
    evaluation = replace(evaluation, flops=problem.flops, traffic_bytes=problem.moved_bytes)
    made = make_entry(problem, mode, evaluation, search_ms, at)
    back = decode_entry(encode_entry(made), key_of(problem, mode))
    assert back == made
    assert (back.problem(), back.search_mode, back.evaluation()) == (problem, mode, evaluation)


def test_versions_of_the_model(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another major version is another key, another minor one is made again, a patch is a hit."""
    fill(layout, 2)
    with Evaluations(layout) as kept:
        evaluation = search.evaluate(PROBLEM, CHIP)
        for version, hit in (("1.0.7", True), ("1.3.0", False), ("2.0.0", False)):
            problem = replace(PROBLEM, n=int(version.replace(".", "")))
            made = make_entry(problem, SearchMode(), evaluation, 1.0, 1e9)
            metadata = msgspec.structs.replace(made.metadata, model_version=version, checksum="")
            kept._of(CHIP).file.append([results._new_result(msgspec.structs.replace(made, metadata=metadata))])
            with Evaluations(layout) as fresh:
                assert fresh.evaluate(problem, CHIP).cached is hit, version
                assert fresh.evaluate(problem, CHIP).cached


def test_a_full_disk_or_read_only_store_still_answers(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        if b"core-grid" in bytes(data):
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    with Evaluations(layout) as kept:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            answer = kept.evaluate(PROBLEM, CHIP)
            assert "No space" in str(answer.unkept)
            assert kept.evaluate(PROBLEM, CHIP).cached
        # What could not be kept is kept with the next.
        assert kept.evaluate(replace(PROBLEM, m=2), CHIP).unkept is None
    assert len(keys(layout)) == 2


def test_pruning_lists_and_removes_the_longest_unused(layout: StoreLayout) -> None:
    made = fill(layout, 50, at=1000 * DAY)
    with Evaluations(layout, now=lambda: 1001 * DAY) as kept:
        for m in (1, 2, 3):
            kept.evaluate(replace(PROBLEM, m=m), CHIP)
    with Evaluations(layout, now=lambda: 1002 * DAY) as kept:
        assert kept.plan_pruning() == []
        plan = kept.plan_pruning(max_entries=49)
        assert [victim.key for victim in plan] == made[3:8], "a tenth, and those used last stay"
        assert {victim.reason for victim in plan} == {"too many results"}
        assert len(kept.plan_pruning(max_entries=10)) == 40
        assert keys(layout) == set(made), "a plan changes nothing"
        kept.evaluate(replace(PROBLEM, m=4), CHIP)
        kept.flush()
        assert kept.prune(plan) == 4, "one was used meanwhile"
        assert keys(layout) == {*made[:4], *made[8:]}
    with Evaluations(layout, now=lambda: 1090.5 * DAY) as kept:
        plan = kept.plan_pruning()
        assert {victim.reason for victim in plan} == {"unused for long"}
        assert kept.prune(plan) == len(plan) == 42
        assert keys(layout) == set(made[:4])


def test_results_found_in_a_row_are_written_together(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first at once; the others when it is time, or with ``flush``, ``close`` or the end of the process."""
    evaluation, times = search.evaluate(PROBLEM, CHIP), iter(range(10**9))
    clock = SimpleNamespace(monotonic=lambda: float(next(times)))  # a write takes a second
    monkeypatch.setattr(results, "time", clock)
    with Evaluations(layout, durable=False) as kept:
        seen = []
        for m in range(1, 31):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) is None
            seen.append(len(keys(layout)))
        kept.flush()
        assert len(keys(layout)) == 30
    assert seen[:9] == [1] * 9
    assert 10 < seen[20] < 30
    code = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.evaluator.results import Evaluations\n"
        "from cache_engine.evaluator.hardware import PRESETS\n"
        "from cache_engine.evaluator.problem import EvaluationProblem\nfrom cache_engine.store.disk import open_store\n"
        "kept = Evaluations(open_store(Path(sys.argv[1])))\n"
        "for m in range(1001, 1021):\n"
        "    kept.evaluate(EvaluationProblem(m, 64, 64), PRESETS['SG2262'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(layout.root)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(keys(layout)) == 50, "also without closing"


def test_what_is_dropped_without_closing_is_written_and_freed(layout: StoreLayout) -> None:
    evaluation, kept = search.evaluate(PROBLEM, CHIP), Evaluations(layout, durable=False)
    for m in range(1, 21):
        assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) is None
    dropped = weakref.ref(kept)
    del kept
    gc.collect()
    assert dropped() is None
    assert len(keys(layout)) == 20


def test_a_result_stored_after_closing_is_written(layout: StoreLayout) -> None:
    code = (
        "import sys\nfrom tests.evaluations.test_evaluations import *\n"
        "evaluation, kept = search.evaluate(PROBLEM, CHIP), Evaluations(open_store(Path(sys.argv[1])), durable=False)\n"
        "for _ in range(2):\n"
        "    for m in range(1, 51):\n        kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation)\n"
        "    kept.close()\n"
        "for m in range(51, 101):\n    kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(layout.root)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(keys(layout)) == 100


_INTERRUPTED = """
import sys
from dataclasses import replace
from pathlib import Path
from cache_engine.evaluator import results
from cache_engine.evaluator.results import Evaluations
from tests.evaluations.test_evaluations import CHIP, PROBLEM, SearchMode, keys, open_store, search

FILES = {results.__file__}
evaluation = search.evaluate(PROBLEM, CHIP)

def put_and_close_at(line, layout):
    kept = Evaluations(layout, durable=False)
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename not in FILES:
            return None
        seen += event == "line"
        if event == "line" and seen == line:
            kept.close()
        return trace

    sys.settrace(trace)
    kept.put(replace(PROBLEM, m=line), CHIP, SearchMode(), evaluation)
    sys.settrace(None)
    kept.close()
    return seen >= line

layout, line = open_store(Path(sys.argv[1])), 1
while put_and_close_at(line, layout):
    line += 1
print(line - 1, len(keys(layout)))
"""


def test_closing_in_a_signal_handler_anywhere_in_a_put_neither_hangs_nor_loses_the_result(layout: StoreLayout) -> None:
    """A handler runs between any two instructions; a trace function runs there at each line in turn."""
    command = [sys.executable, "-c", _INTERRUPTED, str(layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    lines, stored = map(int, done.stdout.split())
    assert lines > 20
    assert stored == lines + 1, "the last put was not interrupted"


def _put_many(root: Path, first: int, count: int) -> None:
    evaluation = search.evaluate(PROBLEM, CHIP)
    with Evaluations(open_store(root), durable=False) as kept:
        for m in range(first, first + count):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) is None


@pytest.mark.parametrize("processes", [4, pytest.param(16, marks=pytest.mark.soak)])
def test_processes_with_200_puts_each_lose_nothing(layout: StoreLayout, processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_put_many, args=(layout.root, 1 + 200 * number, 200)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    assert keys(layout) == {key_of(replace(PROBLEM, m=m), SearchMode()) for m in range(1, 200 * processes + 1)}


def test_a_killed_writer_loses_no_written_result(layout: StoreLayout) -> None:
    code = (
        "import sys\nfrom tests.evaluations.test_evaluations import *\n"
        "evaluation = search.evaluate(PROBLEM, CHIP)\n"
        "kept = Evaluations(open_store(Path(sys.argv[1])), durable=False)\n"
        "for m in range(1, 10**6):\n"
        "    assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) is None\n"
        "    kept.flush()\n    print(m, flush=True)\n"
    )
    for count in (3, 40, 173):
        command = [sys.executable, "-c", code, str(layout.root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(count)]
            writer.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        assert keys(layout) >= {key_of(replace(PROBLEM, m=m), SearchMode()) for m in acknowledged}


def test_the_key_names_everything() -> None:
    assert key_of(PROBLEM, SearchMode()) == "core-grid-1/1x64x7168x2112/bf16-bf16/tp"
    assert key_of(PROBLEM, SearchMode(False, False, True, 2.5)).endswith("/-rx2.5")


def test_no_file_stays_open_however_many_accelerators_there_are(layout: StoreLayout) -> None:
    evaluation = search.evaluate(PROBLEM, CHIP)
    before = len(os.listdir("/proc/self/fd"))
    with Evaluations(layout, durable=False) as kept:
        for number in range(200):
            assert not kept.put(PROBLEM, replace(CHIP, name=f"chip {number}"), SearchMode(), evaluation)
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(kept._sets) <= 64
    assert len(Evaluations(layout).fingerprints()) == 200


def test_looking_up_leaves_no_trace(layout: StoreLayout) -> None:
    fill(layout, 1)
    before = sorted(layout.root.rglob("*"))
    with Evaluations(layout) as kept:
        found = kept.look_up(replace(PROBLEM, m=1), CHIP)
        assert found is not None
        assert found.cached
        assert kept.look_up(replace(PROBLEM, m=2), CHIP) is None
        assert kept.look_up(PROBLEM, OTHER) is None
    assert sorted(layout.root.rglob("*")) == before
    assert document(layout)["statistics"]["cache_hits"] == 0
