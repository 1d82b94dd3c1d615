"""Getting a kernel, as the fault suite interrupts it: by an engine whose compiler takes no time."""

from __future__ import annotations

import hashlib

from cache_engine._version import version_and_build
from cache_engine.cache import cache as engine
from cache_engine.cache import miss
from cache_engine.cache.miss import describe
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.stages import COMPILE, StageClock
from cache_engine.model.artifact import Artifact
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import TicketName
from tests.faults.operations import PROBLEM, Action, Counts, Operation, Promise, code_of, filled
from tests.helpers import blob_file, make_entry


def selection() -> Selection:
    """What the engine makes of ``PROBLEM``."""
    return Selector().select(PROBLEM, None, "nvrtc", None)


def _artifact(_: Selection, stages: StageClock) -> Artifact:
    with stages(COMPILE):
        return make_entry(0)[1]


def _before_a_miss(store: DiskStore) -> Promise:
    promise = filled(store)
    key = selection().key
    promise.served[key], promise.finished[key] = {None, code_of(0)}, code_of(0)
    more = Counts(misses=1, compiles=1, asked=1, spans=5)
    return Promise(promise.served, promise.finished, counts=promise.counts, usage=promise.usage, more=more)


def _before_a_miss_behind_a_killed_one(store: DiskStore) -> Promise:
    store.layout.ticket(TicketName("queued", 0, 1, selection().key, 1, "0" * 8)).touch()
    return _before_a_miss(store)


def _before_a_hit(store: DiskStore) -> Promise:
    promise = filled(store)
    chosen, artifact = selection(), make_entry(0)[1]
    store.publish(chosen.key, artifact, lambda blob: describe(chosen, artifact, blob, {COMPILE: 150.0}))
    promise.served[chosen.key], promise.finished[chosen.key] = {artifact.cubin}, artifact.cubin
    more = Counts(hits=1, asked=1, spans=1)
    return Promise(promise.served, promise.finished, counts=promise.counts, usage=promise.usage, more=more)


def _before_a_damaged_hit(store: DiskStore) -> Promise:
    promise = _before_a_hit(store)
    key = selection().key
    path = blob_file(store, key)
    path.write_bytes(path.read_bytes()[:-2000])
    promise.served[key].add(None)
    more = Counts(misses=1, compiles=1, asked=1, spans=5)
    return Promise(promise.served, promise.finished, frozenset({key}), promise.counts, promise.usage, more)


def _preloading(store: DiskStore) -> Action:
    return _getting(store, preload=True)


def _getting(store: DiskStore, *, preload: bool = False) -> Action:
    vars(miss).update(make_artifact=_artifact)
    cache = engine.Cache(DiskStore(store.layout, durable=True), Settings(cleanup_interval_h=0.0))
    # Both are read once; the promise holds from then on.
    cache.select(PROBLEM)
    version_and_build()

    def act() -> object:
        with cache:
            if preload:
                cache.preload([selection().key])
            kernel = cache.get_or_compile(PROBLEM)
        return {"key": kernel.key, "cubin": hashlib.sha256(kernel.cubin).hexdigest()}

    return act


GETTING = {
    "get, missing": Operation(_before_a_miss, _getting, may_raise=(), sure=False),
    "get, missing, behind a killed one": Operation(
        _before_a_miss_behind_a_killed_one, _getting, may_raise=(), sure=False
    ),
    "get, there": Operation(_before_a_hit, _getting, may_raise=(), sure=False),
    "preload, then get": Operation(_before_a_hit, _preloading, may_raise=(), sure=False),
    "get, damaged": Operation(_before_a_damaged_hit, _getting, may_raise=(), sure=False),
}
"""Operations that return a kernel when any system call is refused."""
