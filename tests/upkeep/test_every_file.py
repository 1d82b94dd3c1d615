"""``verify`` names every damaged file, of every kind that a store has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.errors import StoreUnusable
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.model.decision import MISS, Decision
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.model.proof import PROVED, Proof
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import SNAPSHOT, Journal, append_decisions, fold
from cache_engine.store.layout import Below, StoreLayout
from cache_engine.store.notes import View, annotate, save_view
from cache_engine.store.proofs import write_proof
from cache_engine.store.results import compress
from cache_engine.store.timings import Timings
from cache_engine.upkeep.integrity import check
from tests.helpers import INVENTED_GPU, blob_file, invented_timing, publish, record_file
from tests.store.old_results import into_a_log

CHIP = PRESETS["SG2262"]
_PROBLEM = GemmProblem(128, 256, 192, arch="sm_90")


def _evaluations(store: DiskStore) -> Path:
    with Evaluations(store.layout, durable=False) as kept:
        kept.evaluate(EvaluationProblem(64, 128, 64), CHIP)
    return store.layout.results_file(CHIP.fingerprint())


def _compressed_evaluations(store: DiskStore) -> Path:
    plain, path = _evaluations(store), store.layout.compressed_results_file(CHIP.fingerprint())
    path.write_bytes(compress(plain.read_bytes()))
    plain.unlink()
    return path


def _log_of_evaluations(store: DiskStore) -> Path:
    _evaluations(store)
    return into_a_log(store.layout, CHIP.fingerprint())


def _timings(store: DiskStore) -> Path:
    timings = Timings(store.layout, durable=False)
    timings.add([invented_timing(_PROBLEM, KernelConfig(64, 64, 32, 2, 2, 3), 10.0)])
    timings.close()
    return next(store.layout.timings.glob("*.json"))


def _log_of_timings(store: DiskStore) -> Path:
    _timings(store)
    return into_a_log(store.layout.for_timings(), INVENTED_GPU.digest())


def _snapshot(store: DiskStore) -> Path:
    journal = Journal(store.layout.journal, 3600.0)
    journal.miss(publish(store, 2))
    journal.close()
    fold(store.layout.journal, store.layout.temp, keep=lambda _: True)
    return store.layout.journal / SNAPSHOT


def _demand(store: DiskStore) -> Path:
    journal = Journal(store.layout.journal, 3600.0)
    journal.asked(_PROBLEM)
    journal.close()
    fold(store.layout.journal, store.layout.temp, keep=lambda _: True)
    return store.layout.demand


def _decisions(store: DiskStore) -> Path:
    append_decisions(store.layout, [Decision(kind=MISS, at=1.0)])
    return store.layout.decisions_log


def _older_decisions(store: DiskStore) -> Path:
    return _decisions(store).rename(store.layout.older_decisions_log)


def _group(store: DiskStore) -> Path:
    group = Group("triton", "ABC234", "scale.json", {"scale.json": b"{}"})
    put_group(store.layout, group, durable=False)
    return Path(store.layout.group_path(group.key))


def _proof(store: DiskStore) -> Path:
    proof = Proof(family="hopper", state=PROVED, device=INVENTED_GPU, toolchain="nvrtc 13.0", at=1.0, cases=22)
    write_proof(store.layout, CacheKey("ab" * 32), proof, durable=False)
    return Path(store.layout.proof_path(CacheKey("ab" * 32)))


def _note(store: DiskStore) -> Path:
    annotate(store.layout, CacheKey("ab" * 32), text="slow")
    return Path(store.layout.note_path(CacheKey("ab" * 32)))


def _view(store: DiskStore) -> Path:
    save_view(store.layout, View("slow ones"))
    return Path(store.layout.view_path("slow ones"))


def _temporary(store: DiskStore) -> Path:
    return store.layout.temp / "1234-abcd"


DAMAGED: dict[str, tuple[Callable[[DiskStore], Path], ...]] = {
    "kernels": (lambda store: blob_file(store, publish(store, 1)),),
    "metadata": (lambda store: record_file(store, publish(store, 1)),),
    "temp": (_temporary,),
    "journal": (_snapshot,),
    "demand": (_demand,),
    "evaluations": (_evaluations, _compressed_evaluations, _log_of_evaluations),
    "timings": (_timings, _log_of_timings),
    "decisions_log": (_decisions,),
    "older_decisions_log": (_older_decisions,),
    "groups": (_group,),
    "proofs": (_proof,),
    "notes": (_note, _view),
}
"""By the name in ``StoreLayout``: each makes a file of this kind, to be damaged."""

NOT_CHECKED = {
    "marker": "a store with a damaged one is not opened at all",
    "locks": "their content means nothing",
    "decisions": "the folder of the two files of the log",
    "decisions_lock": "its content means nothing",
    "notes_lock": "its content means nothing",
    "pins": "their content means nothing; test_orders checks their names",
    "quarantine": "it is there because it is damaged",
    "results_folder": "another name of the folders of evaluations and timings",
    "jobs": "jobs of a dashboard, shown as lost if unreadable",
    "index": "disposable, and rebuilt if damaged",
    "index_log": "likewise",
    "index_lock": "its content means nothing",
    "population": "an estimate, recomputed if unreadable",
    "digests": "remembered digests: what cannot be read is computed again",
    "cleaned": "empty; only its time counts",
    "maintenance_lock": "its content means nothing",
    "jobs_lock": "its content means nothing",
    "runs": "reports of runs, left out if unreadable",
}


def test_every_kind_of_file_is_damaged_here_or_needs_no_check() -> None:
    paths = {name for name, value in vars(StoreLayout).items() if isinstance(value, Below)}
    assert paths | {"results_folder"} == {*DAMAGED, *NOT_CHECKED}


@pytest.mark.parametrize("make", [make for makes in DAMAGED.values() for make in makes], ids=lambda make: make.__name__)
def test_verify_names_each(make: Callable[[DiskStore], Path], store: DiskStore) -> None:
    path = make(store)
    if path.exists():
        assert list(check(store)) == []
    path.write_bytes(b"\n0123456789abcdef damaged\n")
    findings = {finding.path for finding in check(store)}
    # Results and timings are named by the file of their accelerator or device, whichever of its files it is.
    stem = str(path.relative_to(store.layout.root)).partition(".")[0]
    assert [found for found in findings if found.startswith(stem)]


def test_a_store_with_a_damaged_marker_is_refused(store: DiskStore) -> None:
    store.layout.marker.write_bytes(b"damaged")
    with pytest.raises(StoreUnusable, match="marker"):
        open_store(store.layout.root)
