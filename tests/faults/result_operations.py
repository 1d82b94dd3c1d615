"""Operations on stored evaluator results that the fault suite interrupts: all of them."""

from __future__ import annotations

import json
from dataclasses import replace

import cache_engine.evaluator.search
from cache_engine.evaluator.cost import Evaluation, SearchMode
from cache_engine.evaluator.hardware import PRESETS
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.evaluator.results.entry import encode_entry, key_of, make_entry
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.upkeep import integrity
from tests.faults import operations
from tests.faults.decision_operations import DECIDING
from tests.faults.getting_operations import GETTING
from tests.faults.group_operations import GROUPS
from tests.faults.operations import OPERATIONS, Action, Operation, Promise
from tests.faults.queue_operations import QUEUEING
from tests.helpers import make_store
from tests.store.old_results import write_log

CHIP = PRESETS["SG2262"]
RESULTS = 6
_EXCHANGED = "results.json"


def _problem(m: int) -> EvaluationProblem:
    return EvaluationProblem(m, 128, 64)


def _found(m: int) -> Evaluation:
    return cache_engine.evaluator.search.evaluate(_problem(m), CHIP)


def _key(m: int) -> str:
    return key_of(_problem(m), SearchMode())


def _keep(kept: Evaluations, m: int) -> None:
    unkept = kept.put(_problem(m), CHIP, SearchMode(), _found(m))
    if unkept:
        raise OSError(unkept.reason)


def _filled(store: DiskStore) -> Promise:
    """Results in a file and in a log of version 0.2; nothing is to change."""
    promise = operations.filled(store)
    with Evaluations(store.layout) as kept:
        for m in range(1, RESULTS // 2 + 1):
            _keep(kept, m)
    made = {m: make_entry(_problem(m), SearchMode(), _found(m), 0.5, 1e9) for m in range(RESULTS // 2 + 1, RESULTS + 1)}
    write_log(store.layout, CHIP.fingerprint(), {_key(m): encode_entry(entry) for m, entry in made.items()})
    return _promised(promise, range(1, RESULTS + 1))


def _promised(promise: Promise, there: range, new: tuple[int, ...] = (), going: tuple[int, ...] = ()) -> Promise:
    """Also the results of these m; those that are new, or going, may be there or not until it is done."""
    latencies = {m: _found(m).latency_us for m in {*there, *new}}
    return replace(
        promise,
        results={_key(m): {us, None} if m in (*new, *going) else {us} for m, us in latencies.items()},
        results_finished={_key(m): None if m in going else us for m, us in latencies.items()},
    )


def _before_keeping(store: DiskStore) -> Promise:
    return _promised(_filled(store), range(1, RESULTS + 1), new=(100,))


def _before_keeping_the_first(store: DiskStore) -> Promise:
    return _promised(operations.filled(store), range(0), new=(100,))


def _keeping(store: DiskStore) -> Action:
    def act() -> object:
        kept = Evaluations(store.layout, lock_timeout_s=10.0)
        _keep(kept, 100)
        return True

    return act


def _merging(store: DiskStore) -> Action:
    kept = Evaluations(store.layout, lock_timeout_s=10.0)

    def act() -> object:
        kept._of(CHIP).file.change(lambda _: None)
        return True

    return act


def _before_pruning(store: DiskStore) -> Promise:
    return _promised(_filled(store), range(1, RESULTS + 1), going=tuple(range(1, RESULTS + 1)))


def _pruning(store: DiskStore) -> Action:
    kept = Evaluations(store.layout, lock_timeout_s=10.0)
    plan = kept.plan_pruning(max_entries=0)
    return lambda: kept.prune(plan)


def _before_taking_in(store: DiskStore) -> Promise:
    """A file of results that are there, and of some that are not; it lies where it is copied along."""
    other = make_store(store.layout.root.parent / "other")
    with Evaluations(other.layout, durable=False) as kept:
        for m in (1, 100, 101, 102):
            _keep(kept, m)
        exported = kept.export(CHIP.fingerprint())
    promise = _promised(_filled(store), range(1, RESULTS + 1), new=(100, 101, 102))
    (store.layout.quarantine / _EXCHANGED).write_bytes(exported)
    return promise


def _taking_in(store: DiskStore) -> Action:
    data = (store.layout.quarantine / _EXCHANGED).read_bytes()

    def act() -> object:
        return Evaluations(store.layout, lock_timeout_s=10.0).import_file(data).taken

    return act


def _before_repairing(store: DiskStore) -> Promise:
    """A file that lost its form in the middle of one result, and a line of a log that does not match its sum."""
    promise = _filled(store)
    path = store.layout.results_file(CHIP.fingerprint())
    data = path.read_bytes()
    within = data.index(b'"latency_us":', data.index(_key(2).encode()))
    path.write_bytes(data[:within] + b"\0" + data[within + 1 :])
    (log,) = store.layout.evaluations.glob("*.log")
    log.write_bytes(log.read_bytes().replace(b'"latency_us":', b'"latency_us":1', 1))
    lost: dict[str, float | None] = {_key(m): None for m in (2, RESULTS // 2 + 1)}
    return replace(
        promise,
        results=promise.results | {key: {None} for key in lost},
        results_finished=promise.results_finished | lost,
        results_damaged=True,
    )


def _repairing(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)
    return lambda: len(integrity.repair(store, journal, list(integrity.check(store))))


def _exporting(store: DiskStore) -> Action:
    def act() -> object:
        kept = Evaluations(store.layout, lock_timeout_s=10.0)
        kept.evaluate(_problem(1), CHIP)  # to be counted
        exported = json.loads(kept.export(CHIP.fingerprint()))["cache_entries"]
        assert set(exported) == {_key(m) for m in range(1, RESULTS + 1)}
        return True

    return act


_MAY_RAISE = ("OSError", "StoreError")

EVERY_OPERATION = (
    OPERATIONS
    | GETTING
    | DECIDING
    | GROUPS
    | QUEUEING
    | {
        "keep a result": Operation(_before_keeping, _keeping, _MAY_RAISE),
        "keep the first result": Operation(_before_keeping_the_first, _keeping, _MAY_RAISE),
        "merge results": Operation(_filled, _merging, _MAY_RAISE),
        "prune results": Operation(_before_pruning, _pruning, _MAY_RAISE),
        "repair results": Operation(_before_repairing, _repairing, _MAY_RAISE, sure=False),
        "import results": Operation(_before_taking_in, _taking_in, _MAY_RAISE),
        "export results": Operation(_filled, _exporting, _MAY_RAISE),
    }
)
"""All that is interrupted, by name."""
