"""The log of decisions, and pins, as the fault suite interrupts them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from cache_engine.model.decision import MISS, Decision
from cache_engine.store import notes
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal, append_decisions
from cache_engine.store.journal import decisions as log
from cache_engine.upkeep import integrity
from tests.faults.operations import Action, Operation, Promise, filled
from tests.helpers import make_entry

_BEFORE = frozenset({"first", "second"})


def _logged(store: DiskStore) -> Promise:
    promise = filled(store)
    for detail in sorted(_BEFORE):
        append_decisions(store.layout, [Decision(kind=MISS, at=time.time(), detail=detail)])
    return replace(promise, logged=_BEFORE)


def _before_deciding(store: DiskStore) -> Promise:
    return replace(_logged(store), decided="third")


def _before_deciding_first(store: DiskStore) -> Promise:
    return replace(filled(store), decided="third")


def _deciding(store: DiskStore, long_bytes: int = log.LONG_BYTES) -> Action:
    def act() -> object:
        usual, log.LONG_BYTES = log.LONG_BYTES, long_bytes
        try:
            journal = Journal(store.layout.journal, 3600.0, log=store.layout)
            journal.decided(MISS, detail="third")
            journal.close()
        finally:
            log.LONG_BYTES = usual
        return True

    return act


def _before_mending(store: DiskStore) -> Promise:
    promise = _logged(store)
    append_decisions(store.layout, [Decision(kind=MISS, at=time.time(), detail="damaged")])
    path = store.layout.decisions_log
    path.write_bytes(path.read_bytes().replace(b"damaged", b"flipped"))
    return promise


def _mending(store: DiskStore) -> Action:
    journal = Journal(store.layout.journal, 3600.0)
    return lambda: len(integrity.repair(store, journal, list(integrity.check(store))))


def _before_pinning(store: DiskStore) -> Promise:
    promise = filled(store)
    key = make_entry(1)[0]
    notes.pin(store.layout, key)
    return replace(promise, pinned=frozenset({key}), may_pin=frozenset({make_entry(0)[0]}))


def _pinning(store: DiskStore) -> Action:
    key = make_entry(0)[0]

    def act() -> object:
        notes.pin(store.layout, key)
        return key

    return act


def _before_unpinning(store: DiskStore) -> Promise:
    promise = _before_pinning(store)
    notes.pin(store.layout, make_entry(0)[0])
    return replace(promise, may_unpin=True)


def _unpinning(store: DiskStore) -> Action:
    key = make_entry(0)[0]

    def act() -> object:
        notes.unpin(store.layout, key)
        return key

    return act


def _before_noting(store: DiskStore) -> Promise:
    promise = filled(store)
    notes.annotate(store.layout, make_entry(0)[0], text="before", add=("prod",))
    return replace(promise, noted=("before", "after"))


def _before_noting_first(store: DiskStore) -> Promise:
    return replace(filled(store), noted=("", "after"))


def _noting(store: DiskStore) -> Action:
    key = make_entry(0)[0]

    def act() -> object:
        notes.annotate(store.layout, key, text="after", add=("prod",))
        return key

    return act


DECIDING = {
    "decide": Operation(_before_deciding, _deciding, may_raise=(), sure=False),
    "decide first": Operation(_before_deciding_first, _deciding, may_raise=(), sure=False),
    "decide, and begin a file": Operation(
        _before_deciding, partial(_deciding, long_bytes=200), may_raise=(), sure=False
    ),
    "mend the log": Operation(_before_mending, _mending, sure=False),
    "pin": Operation(_before_pinning, _pinning),
    "note": Operation(_before_noting, _noting),
    "note first": Operation(_before_noting_first, _noting),
    "unpin": Operation(_before_unpinning, _unpinning),
}
