"""The compile queue, and a compile behind a kernel that serves, as the fault suite interrupts them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from cache_engine._version import version_and_build
from cache_engine.cache import cache as engine
from cache_engine.cache import miss
from cache_engine.cache.miss import describe
from cache_engine.cache.queue import Priority, queue_state
from cache_engine.cache.queue.slots import Slots
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.serving.stand_ins import stand_ins
from cache_engine.cache.stages import COMPILE, StageClock
from cache_engine.model.artifact import Artifact
from cache_engine.settings import Settings
from cache_engine.store.disk import DiskStore
from tests.faults.getting_operations import selection
from tests.faults.operations import NEW_BYTES, PROBLEM, Action, Counts, Operation, Promise, code_of, filled
from tests.helpers import make_entry

_SLOTS, _WAIT_S, _SERVED_WITHIN_S = 2, 10.0, 1.0


def _taking(store: DiskStore) -> Action:
    key, slots = selection().key, Slots(store.layout, _SLOTS, _WAIT_S)

    def act() -> object:
        with slots.turn(key, Priority.PROMOTION), slots.waiting(key, Priority.CALLER):
            return len(queue_state(store.layout, _SLOTS).compiling) <= 1

    return act


def stand_in() -> Selection:
    """What serves ``PROBLEM`` until its own kernel is there: the last choice, the dynamic kernel."""
    return list(stand_ins(Selector(), (PROBLEM, None, "nvrtc", None)))[-1]


def _artifact_that_serves() -> Artifact:
    return make_entry(0, cubin_bytes=NEW_BYTES)[1]


def _before_a_compile_behind(store: DiskStore) -> Promise:
    promise = filled(store)
    serves, artifact = stand_in(), _artifact_that_serves()
    store.publish(serves.key, artifact, lambda blob: describe(serves, artifact, blob, {COMPILE: 150.0}))
    promise.served[serves.key], promise.finished[serves.key] = {artifact.cubin}, artifact.cubin
    key = selection().key
    promise.served[key], promise.finished[key] = {None, code_of(0)}, code_of(0)
    return replace(promise, more=Counts(hits=1, misses=1, compiles=1, asked=1, spans=6))


def _compiling_behind(store: DiskStore) -> Action:
    served = threading.Event()

    def compile_after(_: Selection, stages: StageClock) -> Artifact:
        # Else it would be ready before anything else had to serve. If nothing else can serve, the caller waits for it.
        served.wait(_SERVED_WITHIN_S)
        with stages(COMPILE):
            return make_entry(0)[1]

    vars(miss).update(make_artifact=compile_after)
    cache = engine.Cache(DiskStore(store.layout, durable=True), Settings(cleanup_interval_h=0.0))
    # All are read once; the promise holds from then on.
    list(cache.stand_ins.look((PROBLEM, None, "nvrtc", None)))
    version_and_build()

    def act() -> object:
        with cache:
            try:
                kernel = cache.get_or_compile(PROBLEM, compiler="nvrtc", wait_ms=0)
            finally:
                served.set()
            better = kernel.better
            while better is not None and not better.done:
                time.sleep(0.001)
            if better is not None and better.kernel is not None:
                assert _answer(kernel.key, kernel.cubin) == _stand_in()
                kernel = better.kernel
        return _answer(kernel.key, kernel.cubin)

    return act


def _stand_in() -> dict[str, str]:
    return _answer(stand_in().key, _artifact_that_serves().cubin)


def _answer(key: str, cubin: bytes) -> dict[str, str]:
    return {"key": key, "cubin": hashlib.sha256(cubin).hexdigest()}


QUEUEING = {
    "take a slot": Operation(filled, _taking, may_raise=()),
    "get, compiled behind": Operation(_before_a_compile_behind, _compiling_behind, may_raise=(), sure=False),
}

MAY_STAND_IN: dict[str, Callable[[], dict[str, str]]] = {"get, compiled behind": _stand_in}
"""What else may be served, by operation: where no thread can be started, nothing is compiled behind."""
