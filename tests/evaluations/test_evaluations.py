"""Results of the evaluator are found again, are what they were, and none is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.evaluations import Evaluations
from cache_engine.evaluations.entry import decode_entry, encode_entry, key_of, make_entry
from cache_engine.evaluator import search
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS, Hardware
from cache_engine.evaluator.problem import ITEMSIZE, EvaluationProblem
from cache_engine.mirror.sync import Mirror
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.results import file as results
from cache_engine.store.results import log
from cache_engine.store.results.file import UnknownResults, Usage
from cache_engine.upkeep import cleaning as housekeeping
from cache_engine.upkeep import integrity, quarantine
from cache_engine.upkeep.integrity import Kind
from tests.helpers import make_store

CHIP, OTHER = PRESETS["SG2262"], PRESETS["SG2261"]
PROBLEM = EvaluationProblem(64, 2112, 7168)
DAY = 86_400.0


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return open_store(tmp_path / "store")


@pytest.fixture
def kept(layout: StoreLayout) -> Iterator[Evaluations]:
    with Evaluations(layout, durable=False) as opened:
        yield opened


def fill(layout: StoreLayout, count: int, hardware: Hardware = CHIP, at: float = 1e9) -> list[str]:
    """Keeps results of consecutive m, made one second after the other; returns their keys."""
    evaluation = search.evaluate(PROBLEM, hardware)
    clock = iter(range(10**9))
    with Evaluations(layout, durable=False, now=lambda: at + next(clock)) as kept:
        problems = [replace(PROBLEM, m=m) for m in range(1, count + 1)]
        for problem in problems:
            assert kept.put(problem, hardware, SearchMode(), evaluation, 0.5) == ""
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
    assert (made.cached, again.cached, made.unkept) == (False, True, "")
    assert made.evaluation == again.evaluation == search.evaluate(PROBLEM, CHIP)
    code = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.evaluations import Evaluations\n"
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
    assert (back.problem(), back.mode(), back.evaluation()) == (problem, mode, evaluation)


def test_other_tools_read_and_write_the_file(layout: StoreLayout, tmp_path: Path) -> None:
    """With the standard JSON module, other spacing, no checksums, and fields that are ours alone left out."""
    with Evaluations(layout) as kept:
        made = kept.evaluate(PROBLEM, CHIP).evaluation
        path = layout.results_file(CHIP.fingerprint())
        exported = json.loads(kept.export(CHIP.fingerprint()))
    assert {
        "version",
        "cache_format_version",
        "arch_fingerprint",
        "architecture",
        "cache_entries",
        "statistics",
    } <= set(exported)
    (written,) = exported["cache_entries"].values()
    assert set(written) == {"shape", "dtypes", "search_mode", "result", "metadata"}
    assert written["shape"] == {"G": 1, "M": 64, "K": 7168, "N": 2112}
    assert Hardware.from_dict(exported["architecture"]) == CHIP
    del written["metadata"]["checksum"], exported["usage"], exported["generation"], exported["evaluator"]
    other = open_store(tmp_path / "other")
    (other.evaluations / path.name).write_text(json.dumps(exported, indent=4))
    with Evaluations(other) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        assert (answer.cached, answer.evaluation) == (True, made)


def test_export_and_import_bring_back_exactly_the_same(layout: StoreLayout, tmp_path: Path) -> None:
    fill(layout, 30)
    with Evaluations(layout) as kept:
        kept.evaluate(replace(PROBLEM, m=3), CHIP)
        exported = kept.export(CHIP.fingerprint())
    other = open_store(tmp_path / "other")
    with Evaluations(other) as kept:
        taken = kept.import_file(exported)
        assert (taken.taken, taken.present, taken.refused) == (30, 0, ())
        back = json.loads(kept.export(CHIP.fingerprint()))
        assert back == json.loads(exported)
        assert kept.import_file(exported).present == 30
        assert kept.evaluate(replace(PROBLEM, m=3), CHIP).cached


def test_import_merges_and_refuses_what_cannot_be_right(layout: StoreLayout, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    mine, theirs = fill(layout, 20), fill(other, 30)
    exported = document(other)
    entries = list(exported["cache_entries"].values())
    entries[25]["result"]["latency_us"] += 1  # no longer what its checksum was made of
    entries[26]["shape"]["M"] = 0
    entries[27]["result"]["order"] = "kmn"
    entries[28] = {"shape": 3}
    exported["cache_entries"] = {f"named otherwise {number}": entry for number, entry in enumerate(entries)}
    with Evaluations(layout) as kept:
        taken = kept.import_file(json.dumps(exported).encode())
    assert (taken.taken, taken.present) == (6, 20)
    assert [name for name, _ in taken.refused] == [f"named otherwise {number}" for number in (25, 26, 27, 28)]
    assert keys(layout) == {*mine, *theirs[:25], theirs[29]}


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"arch_fingerprint": "f" * 32}, UsageError, "arch_fingerprint"),
        ({"evaluator": "gpu"}, UsageError, "gpu"),
        ({"cache_format_version": "2.0"}, UnknownResults, "2.0"),
        ({"architecture": {"name": "x"}}, UsageError, "num_cores"),
        ({"cache_entries": 7}, CorruptEntry, "damaged"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(
    layout: StoreLayout, change: dict[str, Any], error: type[Exception], named: str
) -> None:
    fill(layout, 1)
    exported = {**document(layout), **change}
    with Evaluations(layout) as kept, pytest.raises(error, match=named):
        kept.import_file(json.dumps(exported).encode())


def test_folding_keeps_everything(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_FOLD_BYTES", 4000)
    expected = fill(layout, 100)
    assert keys(layout) == set(expected)
    stored = json.loads(layout.results_file(CHIP.fingerprint()).read_text())
    assert stored["generation"] > 1
    assert len(stored["cache_entries"]) > 50
    assert len(list(layout.evaluations.glob("*.log"))) == 1


def test_a_fold_cut_short_anywhere_loses_and_doubles_nothing(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set(fill(layout, 10))
    kept = Evaluations(layout, durable=False)
    kept.evaluate(replace(PROBLEM, m=1), CHIP)
    kept.flush()
    hits = document(layout)["statistics"]["cache_hits"]
    file = kept._sets[CHIP.fingerprint()].file

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("_write", "unlink"):
        with monkeypatch.context() as patch:
            patch.setattr(results.ResultFile if place == "_write" else Path, place, cut)
            with pytest.raises(KeyboardInterrupt):
                file.fold()
        assert keys(layout) == expected
        assert document(layout)["statistics"]["cache_hits"] == hits
        assert kept.put(replace(PROBLEM, m=1000), CHIP, SearchMode(), search.evaluate(PROBLEM, CHIP)) == ""
        expected.add(key_of(replace(PROBLEM, m=1000), SearchMode()))
        assert keys(layout) == expected
    file.fold()
    assert keys(layout) == expected
    assert document(layout)["statistics"]["cache_hits"] == hits


def test_damaged_lines_are_skipped_and_counted(layout: StoreLayout, caplog: pytest.LogCaptureFixture) -> None:
    expected = fill(layout, 20)
    (log,) = layout.evaluations.glob("*.log")
    data = bytearray(log.read_bytes())
    lines = [found.start() for found in re.finditer(rb"\n(?=[0-9a-f]{16} )", data)]
    data[lines[3] + 200] ^= 1
    data[lines[7] + 5] ^= 1
    # A writer killed half-way, and others after it.
    log.write_bytes(bytes(data) + b"\n0123456789abcdef core-grid-1/1x1")
    kept = Evaluations(layout)
    kept.evaluate(replace(PROBLEM, m=500), CHIP)
    assert keys(layout) == {*expected[:3], *expected[4:7], *expected[8:], key_of(replace(PROBLEM, m=500), SearchMode())}
    assert document(layout)["statistics"]["corrupt_lines"] == 3
    kept._sets[CHIP.fingerprint()].file.fold()
    assert document(layout)["statistics"]["corrupt_lines"] == 3, "also when they are gone"
    assert "damaged lines" in caplog.text


def test_a_damaged_entry_is_no_hit_and_made_again(layout: StoreLayout) -> None:
    fill(layout, 5)
    kept = Evaluations(layout)
    kept.evaluate(replace(PROBLEM, m=9), CHIP)
    kept._sets[CHIP.fingerprint()].file.fold()
    path = layout.results_file(CHIP.fingerprint())
    stored = json.loads(path.read_text())
    damaged = key_of(replace(PROBLEM, m=2), SearchMode())
    stored["cache_entries"][damaged]["result"]["latency_us"] *= 2
    path.write_text(json.dumps(stored))
    with Evaluations(layout) as fresh:
        answer = fresh.evaluate(replace(PROBLEM, m=2), CHIP)
        assert not answer.cached
        assert answer.evaluation == search.evaluate(replace(PROBLEM, m=2), CHIP)
    with Evaluations(layout) as fresh:
        assert fresh.evaluate(replace(PROBLEM, m=2), CHIP).cached


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', "\x00" * 100, "[" * 10_000])
def test_a_damaged_file_is_set_aside_never_overwritten(
    layout: StoreLayout, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    path.write_text(content)
    with Evaluations(layout) as kept:
        assert kept.evaluate(replace(PROBLEM, m=3), CHIP).cached, "what the log has still counts"
        assert not kept.evaluate(replace(PROBLEM, m=77), CHIP).unkept
    (copied,) = layout.quarantine.iterdir()
    assert copied.read_text() == content
    assert "quarantine" in caplog.text
    assert keys(layout) >= set(expected)
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP


def test_pruning_what_a_damaged_file_left_does_not_forget_the_accelerator(layout: StoreLayout) -> None:
    fill(layout, 5)
    layout.results_file(CHIP.fingerprint()).write_text("{")
    with Evaluations(layout) as kept:
        assert kept.prune(kept.plan_pruning(max_entries=3, unused_days=10**6)) == 2
    with Evaluations(layout) as kept:
        kept.evaluate(replace(PROBLEM, m=99), CHIP)
        kept._sets[CHIP.fingerprint()].file.fold()
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP
    assert len(keys(layout)) == 4


def test_an_unknown_format_is_left_alone(layout: StoreLayout) -> None:
    fill(layout, 5)
    path = layout.results_file(CHIP.fingerprint())
    stored = {**json.loads(path.read_text()), "cache_format_version": "9.0", "cache_entries": "elsewhere"}
    path.write_text(json.dumps(stored))
    before = path.read_bytes()
    with Evaluations(layout) as kept:
        answer = kept.evaluate(PROBLEM, CHIP)
        assert "9.0" in answer.unkept
        assert answer.evaluation == search.evaluate(PROBLEM, CHIP)
        assert kept.plan_pruning(max_entries=0) == []
        assert "9.0" in kept.summaries()[0]["error"]
    assert path.read_bytes() == before
    assert list(layout.quarantine.iterdir()) == []


def test_versions_of_the_model(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another major version is another key, another minor one is made again, a patch is a hit."""
    fill(layout, 2)
    with Evaluations(layout) as kept:
        evaluation = search.evaluate(PROBLEM, CHIP)
        for version, hit in (("1.0.7", True), ("1.3.0", False), ("2.0.0", False)):
            problem = replace(PROBLEM, n=int(version.replace(".", "")))
            made = make_entry(problem, SearchMode(), evaluation, 1.0, 1e9)
            metadata = msgspec.structs.replace(made.metadata, model_version=version, checksum="")
            kept._set(CHIP).add(msgspec.structs.replace(made, metadata=metadata))
            assert kept._set(CHIP).save(usage=False) == ""
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
            assert "No space" in answer.unkept
            assert kept.evaluate(PROBLEM, CHIP).cached
        # What could not be kept is kept with the next.
        assert kept.evaluate(replace(PROBLEM, m=2), CHIP).unkept == ""
    assert len(keys(layout)) == 2


def test_pruning_says_what_goes_and_takes_the_longest_unused(layout: StoreLayout) -> None:
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


def test_saving_later_loses_nothing_that_was_waited_for(layout: StoreLayout) -> None:
    evaluation = search.evaluate(PROBLEM, CHIP)
    with Evaluations(layout, durable=False, save_later=True) as kept:
        for m in range(1, 301):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) == ""
    assert len(keys(layout)) == 300
    code = (
        "import sys\nfrom pathlib import Path\nfrom cache_engine.evaluations import Evaluations\n"
        "from cache_engine.evaluator.hardware import PRESETS\n"
        "from cache_engine.evaluator.problem import EvaluationProblem\nfrom cache_engine.store.disk import open_store\n"
        "kept = Evaluations(open_store(Path(sys.argv[1])), save_later=True)\n"
        "for m in range(1001, 1021):\n"
        "    kept.evaluate(EvaluationProblem(m, 64, 64), PRESETS['SG2262'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(layout.root)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(keys(layout)) == 320, "also without closing"


def _put_many(root: Path, first: int, count: int) -> None:
    results._FOLD_BYTES = 20_000  # folds now and then, while others write
    evaluation = search.evaluate(PROBLEM, CHIP)
    with Evaluations(open_store(root), durable=False) as kept:
        for m in range(first, first + count):
            assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) == ""


def test_16_processes_with_200_puts_each_lose_nothing(layout: StoreLayout) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_put_many, args=(layout.root, 1 + 200 * number, 200)) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert keys(layout) == {key_of(replace(PROBLEM, m=m), SearchMode()) for m in range(1, 3201)}


def test_a_killed_writer_loses_nothing_that_was_kept(layout: StoreLayout) -> None:
    code = (
        "import sys\nfrom tests.evaluations.test_evaluations import *\nresults._FOLD_BYTES = 5000\n"
        "evaluation = search.evaluate(PROBLEM, CHIP)\n"
        "kept = Evaluations(open_store(Path(sys.argv[1])), durable=False)\n"
        "for m in range(1, 10**6):\n"
        "    assert kept.put(replace(PROBLEM, m=m), CHIP, SearchMode(), evaluation) == ''\n    print(m, flush=True)\n"
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


# ---- What a file says is not believed ----


def test_an_import_of_a_pretty_printed_file_stores_every_result(layout: StoreLayout, tmp_path: Path) -> None:
    """Other tools write one line for each field, and lines are what a log is made of."""
    fill(layout, 20)
    exported = document(layout)
    for entry in list(exported["cache_entries"].values())[:10]:
        del entry["metadata"]["checksum"]
    other = open_store(tmp_path / "other")
    with Evaluations(other) as kept:
        taken = kept.import_file(json.dumps(exported, indent=2).encode())
        assert (taken.taken, taken.refused) == (20, ())
    assert keys(other) == keys(layout)
    stored = document(other)["cache_entries"].values()
    assert all(entry["metadata"]["checksum"] for entry in stored)
    assert list(integrity.check(DiskStore(other))) == []


def test_an_import_counts_what_it_stored_and_not_what_it_read(
    layout: StoreLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(layout, 4)
    exported = json.dumps(document(layout)).encode()
    monkeypatch.setattr(results, "log_lines", lambda new, usage: log.log_lines(list(new)[1:], usage))
    with Evaluations(open_store(tmp_path / "other")) as kept:
        taken = kept.import_file(exported)
    assert (taken.taken, len(taken.refused)) == (3, 1)
    assert taken.refused[0][0] == expected[0]


_ABSURD: list[tuple[str, Any]] = [
    ("metadata.model_version", "1 2.0.0"),
    ("metadata.model_version", "1.0.0\n0123456789abcdef ~ {}"),
    ("metadata.model_version", "1.0.0\n"),
    ("metadata.timestamp", -1e10),
    ("metadata.timestamp", 1e300),
    ("metadata.search_time_ms", -5),
    ("metadata.num_searched_tiles", 10**30),
    ("result.latency_us", -1),
    ("result.latency_us", 0),
    ("result.compute_us", -1),
    ("result.flops", 10**400),
    ("result.flops", -2),
    ("result.traffic_bytes", 10**400),
    ("result.arch_utilization", -0.5),
    ("result.effective_utilization", 1e300),
    ("result.order", "x" * 10**6),
    ("result.tile", {"m": 0, "n": 1, "k": 1}),
    ("result.tile", {"m": 10**30, "n": 1, "k": 1}),
    ("result.partition", {"g": 1, "m": 1, "n": 1}),
    ("shape.M", 10**30),
    ("dtypes.input", "bf16 bf16"),
    ("search_mode.compute_rate", 1e300),
]


def test_no_absurd_field_of_a_result_is_imported_or_served(layout: StoreLayout, tmp_path: Path) -> None:
    """One result for each absurd field, and one that is sound."""
    sound, *names = fill(layout, len(_ABSURD) + 1)
    exported = document(layout)
    for key, (field, value) in zip(names, _ABSURD, strict=True):
        section, name = field.split(".")
        forged = exported["cache_entries"][key]
        forged[section][name] = value
        del forged["metadata"]["checksum"]
    other = make_store(tmp_path / "other")
    with Evaluations(other.layout, durable=False) as kept:
        taken = kept.import_file(json.dumps(exported).encode())
    assert taken.taken == 1
    assert [key for key, _ in taken.refused] == names
    assert keys(other.layout) == {sound}
    # The same file put in the store's place is read, checked, mirrored and mended, without those results.
    layout.results_file(CHIP.fingerprint()).write_text(json.dumps(exported))
    for path in layout.evaluations.glob("*.log"):
        path.unlink()
    store = DiskStore(layout)
    assert keys(layout) == {sound}
    assert Mirror(store).sync().skipped == len(_ABSURD)
    assert Mirror(store).sync().skipped == len(_ABSURD), "all there are, not only new ones"
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [Kind.CORRUPT_EVALUATIONS]
    assert integrity.repair(store, Journal(layout.journal, 3600.0), findings) == findings
    assert list(integrity.check(store)) == []
    assert keys(layout) == {sound}


@pytest.mark.parametrize(
    "change",
    [
        {"statistics": {"cache_hits": 10**30}},
        {"statistics": {"cache_misses": -1}},
        {"statistics": {"last_updated": 1e300}},
        {"statistics": {"total_search_time_hours": -3}},
        {"usage": {"x": 1e300}},
        {"generation": 10**30},
        {"version": "1" * 10**5},
    ],
    ids=str,
)
def test_no_absurd_sum_stops_the_store(layout: StoreLayout, tmp_path: Path, change: dict[str, Any]) -> None:
    """Import refuses the file; where it lies in the store, its results go on without that field."""
    expected = fill(layout, 3)
    exported = document(layout)
    exported.update({name: {**exported[name], **v} if isinstance(v, dict) else v for name, v in change.items()})
    with Evaluations(open_store(tmp_path / "other")) as kept, pytest.raises(CorruptEntry):
        kept.import_file(json.dumps(exported).encode())
    layout.results_file(CHIP.fingerprint()).write_text(json.dumps(exported))
    for path in layout.evaluations.glob("*.log"):
        path.unlink()
    assert keys(layout) == set(expected)
    (summary,) = Evaluations(layout).summaries()
    assert summary["cache_hits"] >= 0
    with Evaluations(layout) as kept:
        assert kept.evaluate(replace(PROBLEM, m=2), CHIP).cached
    assert keys(layout) == set(expected)


def test_sums_end_at_their_bounds_and_are_read_again(layout: StoreLayout) -> None:
    fill(layout, 1)
    (key,) = keys(layout)
    kept = Evaluations(layout)
    file = kept._set(CHIP).file
    for _ in range(3):
        file.append([], Usage(1e9, {key: 2**53}, 2**53))
    file.fold()
    assert document(layout)["statistics"]["cache_hits"] == 2**53
    assert list(integrity.check(DiskStore(layout))) == []


def test_a_result_out_of_range_is_answered_and_not_stored(kept: Evaluations, layout: StoreLayout) -> None:
    absurd = replace(search.evaluate(PROBLEM, CHIP), latency_us=float("inf"))
    assert "no result" in kept.put(PROBLEM, CHIP, SearchMode(), absurd)
    assert keys(layout) == set() if kept.fingerprints() else True


@pytest.mark.parametrize("torn", ["cut", "flipped"])
def test_a_damaged_file_keeps_each_result_whose_own_checksum_is_right(layout: StoreLayout, torn: str) -> None:
    expected = fill(layout, 100)
    with Evaluations(layout) as kept:
        kept.preload(CHIP)
        kept._set(CHIP).file.fold()
    path = layout.results_file(CHIP.fingerprint())
    data = path.read_bytes()
    middle = data.index(expected[49].encode()) + 200
    path.write_bytes(data[:middle] if torn == "cut" else data[:middle] + b"\0" + data[middle + 1 :])
    sound = set(expected[:49]) if torn == "cut" else {*expected[:49], *expected[50:]}
    assert keys(layout) == sound
    store = DiskStore(layout)
    findings = list(integrity.check(store))
    assert [finding.kind for finding in findings] == [Kind.CORRUPT_EVALUATIONS]
    with Evaluations(layout) as kept:
        assert not kept.evaluate(replace(PROBLEM, m=1000), CHIP).unkept
    assert keys(layout) == {*sound, key_of(replace(PROBLEM, m=1000), SearchMode())}
    assert Hardware.from_dict(document(layout)["architecture"]) == CHIP
    assert list(integrity.check(store)) == []
    (item,) = quarantine.items(store)
    assert (item.files[0].original, item.files[0].stored_bytes) == (path.name, len(data) if torn != "cut" else middle)
    late = time.time() + 31 * DAY
    assert [leftover.path for leftover in housekeeping.find_leftovers(store, late)] == [f"quarantine/{item.name}"]


def test_results_of_another_accelerator_are_never_salvaged(layout: StoreLayout) -> None:
    fill(layout, 5, OTHER)
    with Evaluations(layout) as kept:
        kept._set(OTHER).file.fold()
    other = layout.results_file(OTHER.fingerprint())
    layout.results_file(CHIP.fingerprint()).write_bytes(other.read_bytes()[:-20])
    assert keys(layout) == set()


def test_no_file_stays_open_however_many_accelerators_there_are(layout: StoreLayout) -> None:
    evaluation = search.evaluate(PROBLEM, CHIP)
    before = len(os.listdir("/proc/self/fd"))
    with Evaluations(layout, durable=False) as kept:
        for number in range(200):
            assert not kept.put(PROBLEM, replace(CHIP, name=f"chip {number}"), SearchMode(), evaluation)
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(kept._sets) <= 64
    assert len(Evaluations(layout).fingerprints()) == 200


def test_a_result_is_never_added_to_a_log_that_was_folded(layout: StoreLayout) -> None:
    """The folding process may be killed after it wrote the snapshot and before it deleted the log."""
    kept = Evaluations(layout)
    kept.put(PROBLEM, CHIP, SearchMode(), search.evaluate(PROBLEM, CHIP))
    (log_path,) = layout.evaluations.glob("*.log")
    os.link(log_path, layout.temp / "undeleted")
    with Evaluations(layout) as other:
        other.preload(CHIP)
        other._set(CHIP).file.fold()
    (layout.temp / "undeleted").rename(log_path)  # as after that kill
    assert kept.put(replace(PROBLEM, m=2), CHIP, SearchMode(), search.evaluate(PROBLEM, CHIP)) == ""
    assert key_of(replace(PROBLEM, m=2), SearchMode()) in keys(layout)


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
