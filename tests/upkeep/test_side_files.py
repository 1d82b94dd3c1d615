"""Every file of a store that is no part of an entry is checked, named when it is damaged, and mended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from cache_engine.batch.jobs import Job, Jobs, LostJob
from cache_engine.evaluator.cost import SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.search import evaluate
from cache_engine.index import rows
from cache_engine.index.sync import Index
from cache_engine.model.events import PUBLISH
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.proof import PROVED, Proof
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import SNAPSHOT, Journal, fold, fold_journal, read_journal
from cache_engine.store.layout import StoreLayout, original_of_quarantined
from cache_engine.store.proofs import write_proof
from cache_engine.store.timings import Timings
from cache_engine.upkeep import cleanup, integrity, quarantine
from cache_engine.upkeep.findings import Finding, FindingKind
from cache_engine.upkeep.plan import Limits
from tests.adapters.made import put_kernel
from tests.helpers import INVENTED_GPU, fill, invented_timing
from tests.store.old_results import into_a_log

CHIP = PRESETS["SG2262"]
PROBLEM = EvaluationProblem(64, 256, 128)


@pytest.fixture
def full(store: DiskStore) -> DiskStore:
    """A store with every kind of file."""
    layout = store.layout
    keys = fill(store, 2)
    with Evaluations(layout, durable=False) as kept:
        for m in (1, 2, 3):
            kept.put(EvaluationProblem(m, 256, 128), CHIP, SearchMode(), evaluate(PROBLEM, CHIP))
    timings = Timings(layout, durable=False)
    config = KernelConfig(64, 64, 32, 2, 2, 3)
    timings.add(invented_timing(GemmProblem(16, 64, 64, arch="sm_90"), config, 5.0 + n, key=keys[0]) for n in range(3))
    for key in keys:
        journal = Journal(layout.journal, 3600.0)
        journal.event(PUBLISH, key=key, compile_us=1000)
        journal.close()
        if key == keys[0]:
            fold(layout.journal, layout.temp, lambda _: True)
    (layout.jobs / "12ab-34cd.json").write_bytes(b'{"id": "12ab-34cd", "command": ["warm"], "state": "done"}')
    (layout.jobs / "12ab-34cd.log").write_text("printed")
    proof = Proof(family="hopper", state=PROVED, device=INVENTED_GPU, toolchain="nvrtc 13.0", at=1.0, cases=22)
    write_proof(layout, keys[0], proof, durable=False)
    Index(store).sync()
    layout.cleaned.touch()
    return store


def _only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def _flip(path: Path, text: bytes) -> None:
    data = path.read_bytes()
    assert text in data
    path.write_bytes(data.replace(text, b"\0" + text[1:], 1))


def _log_of_evaluations(layout: StoreLayout) -> Path:
    path = into_a_log(layout, CHIP.fingerprint())
    _flip(path, b"latency_us")
    return path


def _snapshot_of_evaluations(layout: StoreLayout) -> Path:
    path = layout.results_file(CHIP.fingerprint())
    _flip(path, b"latency_us")
    return path


def _log_of_timings(layout: StoreLayout) -> Path:
    path = into_a_log(layout.for_timings(), INVENTED_GPU.digest())
    _flip(path, b"median_us")
    return path


def _link_to_results(layout: StoreLayout) -> Path:
    path = layout.results_file(CHIP.fingerprint())
    target = path.rename(layout.root.parent / "elsewhere")
    path.symlink_to(target)
    return path


def _pipe_for_results(layout: StoreLayout) -> Path:
    path = layout.results_file(CHIP.fingerprint())
    path.unlink()
    os.mkfifo(path)
    return path


def _line_of_the_journal(layout: StoreLayout) -> Path:
    path = _only(layout.journal, "*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"kind": "use", "at": 1, "misses": 1' + b"0" * 30 + b"}\n")
    return path


def _lines_of_two_files(layout: StoreLayout) -> None:
    """Both are folded at once, and neither damaged line goes unseen."""
    _line_of_the_journal(layout)
    (layout.journal / "0001-1-a.jsonl").write_bytes(b"second\n")


def _sums_of_the_journal(layout: StoreLayout) -> Path:
    path = layout.journal / "snapshot.json"
    path.write_bytes(b'{"format": 1, "totals": {"misses": -1}}')
    return path


def _job(layout: StoreLayout) -> Path:
    path = layout.jobs / "12ab-34cd.json"
    path.write_bytes(b'{"id": "12ab-34cd", "command": ["warm"], "state": "flying"}')
    return path


def _proof(layout: StoreLayout) -> Path:
    path = _only(layout.proofs, "*")
    _flip(path, b"proved")
    return path


def _folder_for_a_lock(layout: StoreLayout) -> Path:
    path = layout.locks / "jobs.lock"
    path.unlink()
    path.mkdir()
    return path


def _link_for_the_mirror(layout: StoreLayout) -> Path:
    layout.index.unlink()
    layout.index.symlink_to(layout.root.parent / "nowhere")
    return layout.index


def _strays(folder: str) -> Callable[[StoreLayout], Path]:
    def damage(layout: StoreLayout) -> Path:
        path = layout.root / folder / "core.1234"
        path.write_bytes(b"what")
        return path

    damage.__name__ = f"_stray_in_{folder}"
    return damage


DAMAGE: list[tuple[Callable[[StoreLayout], Path], FindingKind]] = [
    (_log_of_evaluations, FindingKind.CORRUPT_EVALUATIONS),
    (_snapshot_of_evaluations, FindingKind.CORRUPT_EVALUATIONS),
    (_link_to_results, FindingKind.CORRUPT_EVALUATIONS),
    (_pipe_for_results, FindingKind.CORRUPT_EVALUATIONS),
    (_log_of_timings, FindingKind.CORRUPT_TIMINGS),
    (_line_of_the_journal, FindingKind.CORRUPT_JOURNAL),
    (_sums_of_the_journal, FindingKind.CORRUPT_SNAPSHOT),
    (_job, FindingKind.CORRUPT_JOB),
    (_proof, FindingKind.CORRUPT_PROOF),
    (_folder_for_a_lock, FindingKind.MISNAMED),
    (_link_for_the_mirror, FindingKind.MISNAMED),
    *((_strays(name), FindingKind.MISNAMED) for name in ("journal", "jobs", "locks", "evaluations", "timings")),
]


def _findings(store: DiskStore) -> list[Finding]:
    return list(integrity.check(store))


def test_a_store_with_every_kind_of_file_is_sound(full: DiskStore, tmp_path: Path) -> None:
    assert _findings(full) == []
    put_kernel(full.layout, tmp_path / "made")
    entries: list[int] = []
    assert list(integrity.check(full, lambda: entries.append(1))) == []
    assert len(entries) == 3, "two kernels, and one of another framework; no other file moves the bar"


@pytest.mark.parametrize(("damage", "kind"), DAMAGE, ids=[damage.__name__[1:] for damage, _ in DAMAGE])
def test_damage_is_named_and_mended(full: DiskStore, damage: Callable[[StoreLayout], Path], kind: FindingKind) -> None:
    path = damage(full.layout)
    findings = _findings(full)
    assert [(finding.kind, full.layout.root / finding.path) for finding in findings] == [(kind, path)]
    assert findings[0].is_damage
    assert integrity.repair(full, Journal(full.layout.journal, 3600.0), findings) == findings
    assert _findings(full) == []
    (item,) = quarantine.items(full)
    assert item.files[0].original == path.name
    assert item.why.startswith(f"{findings[0].path}: {kind}: ")


def test_all_damage_at_once_is_named_and_mended_in_one_run(full: DiskStore) -> None:
    at_once = [(damage, kind) for damage, kind in DAMAGE if damage not in (_link_to_results, _pipe_for_results)]
    paths = {damage(full.layout): kind for damage, kind in at_once}
    findings = _findings(full)
    assert {full.layout.root / finding.path: finding.kind for finding in findings} == paths
    assert integrity.repair(full, Journal(full.layout.journal, 3600.0), findings) == findings
    assert _findings(full) == []


def test_no_damaged_line_of_the_journal_is_deleted_unseen(full: DiskStore) -> None:
    compiles = read_journal(full.layout.journal).totals.compiles
    _lines_of_two_files(full.layout)
    before = {path.read_bytes() for path in full.layout.journal.glob("*.jsonl")}
    findings = _findings(full)
    assert [finding.kind for finding in findings] == [FindingKind.CORRUPT_JOURNAL] * 2
    assert integrity.repair(full, Journal(full.layout.journal, 3600.0), findings) == findings
    assert {path.read_bytes() for path in full.layout.quarantine.iterdir()} == before
    assert read_journal(full.layout.journal).totals.compiles == compiles, "sound lines are counted, once"


def test_foreign_files_are_reported_and_left_alone(full: DiskStore) -> None:
    (full.layout.root / "README").write_text("mine")
    (finding,) = _findings(full)
    assert (finding.kind, finding.is_damage, finding.repairable) == (FindingKind.UNKNOWN_FILE, False, False)
    assert integrity.repair(full, Journal(full.layout.journal, 3600.0), [finding]) == []
    assert (full.layout.root / "README").exists()


def test_files_of_another_user_are_named_unless_trusted(full: DiskStore) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for path in (full.layout.results_file(CHIP.fingerprint()), full.layout.jobs / "12ab-34cd.json"):
        os.chown(path, 12345, -1)
    assert [finding.kind for finding in _findings(full)] == [FindingKind.FOREIGN_FILE, FindingKind.FOREIGN_FILE]
    assert list(integrity.check(full, trust=True)) == []


def test_absurd_counters_of_the_journal_end_at_their_bounds(store: DiskStore) -> None:
    """A sum beyond them would be in no file that can be read again, and in no column of the index."""
    key = fill(store, 1)[0]
    line = b'{"kind":"use","at":1.0,"key":"%b","hits":{"disk":%d},"misses":%d,"saved_us":%d}\n'
    absurd = line % (key.encode(), 2**53, 2**53, 2**53)
    (store.layout.journal / "0001-1-a.jsonl").write_bytes(absurd * 2000 + line % (key.encode(), 10**30, 1, 1))
    index = Index(store)
    assert index.sync().skipped == 1, "the line that no counter can hold"
    (store.layout.journal / "0002-1-a.jsonl").write_bytes(absurd * 2000)
    assert index.sync().skipped == 1
    with index.read() as connection:
        assert connection.execute("SELECT disk_hits, misses, saved_us FROM totals").fetchall() == [(2**53,) * 3]
        assert connection.execute("SELECT disk_hits FROM usage").fetchall() == [(2**53,)]
    assert read_journal(store.layout.journal).totals.misses == 2**53
    journal = Journal(store.layout.journal, 3600.0)
    cleanup.apply(store, journal, cleanup.plan_cleaning(store, Limits()))
    assert _findings(store) == [], "folded sums are read again"
    assert read_journal(store.layout.journal).totals.misses == 2**53


@pytest.mark.parametrize("generation", [2**63, 10**30])
def test_an_absurd_generation_of_folded_sums_keeps_no_index_from_being_made(store: DiskStore, generation: int) -> None:
    _journal(store, 3)
    fold_journal(store.layout)
    path = store.layout.journal / SNAPSHOT
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"generation": generation}))
    index = Index(store)
    for misses in (3, 7):
        index.sync()
        with index.read() as connection:
            assert connection.execute("SELECT misses FROM totals").fetchall() == [(misses,)]
        _journal(store, 4)
        fold_journal(store.layout)


def _journal(store: DiskStore, misses: int) -> None:
    journal = Journal(store.layout.journal, 3600.0)
    for _ in range(misses):
        journal.miss("sm_90")
    journal.close()


def test_a_row_that_does_not_fit_is_skipped_and_the_rest_is_mirrored(store: DiskStore) -> None:
    index = Index(store)
    index.sync()
    with duckdb.connect(str(index.path)) as connection:
        refused = rows.insert(connection, "misses", [("a", 1), ("b", 2**70), ("\ud800", 1), ("c", None), ("d", 4)])
        assert [row[0] for row, _ in refused] == ["b", "\ud800"]
        assert all("does not fit" in cause for _, cause in refused)
        assert connection.execute("SELECT arch FROM misses ORDER BY arch").fetchall() == [("a",), ("c",), ("d",)]


@pytest.mark.parametrize(
    ("name", "original"),
    [
        (f"1795318368257262345-gemm_cache_{'9' * 32}.json", f"gemm_cache_{'9' * 32}.json"),
        (f"gemm_cache_{'9' * 32}-{1795318368257262345:x}.json.zst", f"gemm_cache_{'9' * 32}.json.zst"),
    ],
)
def test_one_parser_names_all_that_is_in_quarantine(store: DiskStore, name: str, original: str) -> None:
    """Results files of version 0.1.0 had another name there; they are listed and expire like all others."""
    assert original_of_quarantined(name)[0] == original
    at = original_of_quarantined(name)[1]
    assert at is not None
    assert at == pytest.approx(1795318368, abs=1)
    (store.layout.quarantine / name).write_bytes(b"{")
    (item,) = quarantine.items(store)
    assert (item.files[0].original, item.set_aside_at) == (original, at)
    late = at + 31 * 86_400
    assert [leftover.path for leftover in cleanup.find_leftovers(store, late)] == [f"quarantine/{name}"]
    assert cleanup.find_leftovers(store, at + 60) == []


def test_a_job_that_verify_calls_corrupt_is_one_that_no_page_can_show(full: DiskStore) -> None:
    assert isinstance(Jobs(full.layout).recent()[0], Job)
    _job(full.layout)
    assert isinstance(Jobs(full.layout).recent()[0], LostJob)
    assert [finding.kind for finding in _findings(full)] == [FindingKind.CORRUPT_JOB]
