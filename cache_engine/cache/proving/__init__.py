"""Proves faster kernel families on the user's own GPU: they serve there only after test kernels were correct.

Callers that launch (``matmul``, operators) get a kernel of a plain family until all canaries (test kernels) of the
faster family have given correct results on their GPU. Then a kernel of each family is timed, launch by launch in
alternation, and the faster family serves for m near the timed m. A family with a wrong result is refused on that device
until its toolchain changes. Everything else, such as ``compile`` and ``warm``, selects as if all families were proved,
since it launches nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import msgspec

from cache_engine.background import BackgroundQueue
from cache_engine.cache.proving.watchdog import Asked, Order, Verdict, Watchdog
from cache_engine.cache.queue import PendingKernel, Priority
from cache_engine.cache.selection import ExactKernels, Request, Selection, Selector
from cache_engine.cache.serving import CompiledKernel, Serving
from cache_engine.cache.stages import StageClock
from cache_engine.errors import CorruptEntry, GemmCacheError, NotHereError
from cache_engine.gpu.probe import current_gpu
from cache_engine.gpu.timer import Timing
from cache_engine.kernels.select import TO_PROVE, plain_family
from cache_engine.logs import Log
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.decision import PROOF
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure, in_words
from cache_engine.model.proof import PROVED, REFUSED, UNPROVED, Proof, identity, is_shipped
from cache_engine.process import renew_after_fork
from cache_engine.settings import BEFORE, NEVER, Settings
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.lock import file_lock
from cache_engine.store.proofs import UnknownProof, read_proof, write_proof

_log = Log(__name__)

FASTER = 0.95
"""A proved family serves if its median time is at most this share of the plain family's median time."""
_LOCK_S = 600.0  # the longest wait for another process that proves the same

Keep = Callable[[CompiledKernel, Timing], Failure | None]


def order_of(
    selection: Selection, name: CacheKey, number: int, settings: Settings, asked: Asked | None = None
) -> Order:
    """The ``Order`` to prove a selection's family on the GPU with this number."""
    return Order(
        identity=name, family=selection.family.name, arch=selection.problem.arch or "", device=number,
        compiler_flags=settings.compiler_flags, cuda=settings.cuda, asked=asked,
    )  # fmt: skip


class Proofs:
    """Proves families on this process's GPUs, and reads and stores their proofs. Safe to use from several threads."""

    def __init__(
        self, selector: Selector, exact: ExactKernels, serving: Serving, settings: Settings, journal: Journal,
        store: DiskStore | None, keep: Keep,
    ) -> None:  # fmt: skip
        """Proves nothing yet.

        Args:
            keep: a function that stores a timing of a kernel; returns the reason if it cannot.
        """
        self._selector, self._exact, self._serving, self._settings = selector, exact, serving, settings
        self._journal, self._store, self._keep = journal, store, keep
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[CacheKey, Proof] = {}
        self._undecided: dict[CacheKey, str] = {}
        self._pending: dict[CacheKey, PendingKernel[CompiledKernel]] = {}
        self._queue = BackgroundQueue()
        self._watchdogs: set[Watchdog] = set()

    def renew_after_fork(self) -> None:
        """In a forked child: forgets running proofs, because the parent continues them."""
        self._start()

    def served(self, asked: Request) -> tuple[Request, PendingKernel[CompiledKernel] | None]:
        """The request to serve now in place of ``asked``, and a handle of the kernel that serves after its proof.

        The request is ``asked`` itself if its family needs no proof, is proved, or cannot be proved here. The handle is
        ``None`` if no proof is running.
        """
        selected, exact = self._selector.select(*asked), self._exact.measured(asked)
        selection = next((one for one in (selected, exact) if one is not None and one.family.name in TO_PROVE), None)
        plain = None if selection is None else self._plain(asked, selection)
        if selection is None or plain is None:
            return asked, None
        try:
            number, device = current_gpu()
        except NotHereError:  # nothing is launched here
            return asked, None
        name = identity(device, selection.prefix.components)
        state = self._state(selection, device, name)
        if state == UNPROVED and name not in self._undecided:
            if self._settings.prove == NEVER:
                return asked, None
            if selection is exact:  # no proof begins with a kernel that only timings offer
                return plain, None
            handle = self._prove(asked, plain, number, device, name)
            state = self._state(selection, device, name)
            if state == UNPROVED:
                return plain, handle
        if state != PROVED or self._is_slower(asked, plain):
            return plain, None
        return asked, None

    def _plain(self, asked: Request, selection: Selection) -> Request | None:
        """The request for a family that needs no proof, to serve until the family of ``selection`` is proved.

        ``None`` if ``selection`` serves without a proof: if there is no such family, if the caller named a family or a
        compiler, if compiling is switched off, or if another toolchain made the kernel, which canaries compiled here
        would not test.
        """
        problem, family, compiler, config = asked
        if family is not None or compiler is not None or not self._settings.enable_jit or not selection.is_compilable:
            return None
        plain = plain_family(problem, selection.compiler.takes)
        return None if plain is None else (problem, plain, None, config)

    def _state(self, selection: Selection, device: DeviceFingerprint, name: CacheKey) -> str:
        toolchain = selection.compiler.fingerprint()
        if name not in self._known and self._store is not None:
            with suppress(CorruptEntry, UnknownProof, OSError):  # then it is proved again
                proof = read_proof(self._store.layout, name)
                if proof is not None:
                    self._known[name] = proof
        if name in self._known:
            return self._known[name].state
        shipped = is_shipped(selection.family.name, device, toolchain.compiler, toolchain.version)
        return PROVED if shipped else UNPROVED

    def _is_slower(self, asked: Request, plain: Request) -> bool:
        """Whether timings near the problem's m say that the plain family takes about as long, or less time."""
        history = self._selector.history
        for ranked in () if history is None else history.rankings(asked[0]):
            times_us: dict[bool, float] = {}
            for one in ranked:  # fastest first
                if one.family in TO_PROVE or one.family == plain[1]:
                    times_us.setdefault(one.family in TO_PROVE, one.median_us)
            if len(times_us) == 2:
                return times_us[True] > FASTER * times_us[False]
        return False

    # ---- A proof ----

    def _prove(
        self, asked: Request, plain: Request, number: int, device: DeviceFingerprint, name: CacheKey
    ) -> PendingKernel[CompiledKernel]:
        """Starts a proof, or joins the running proof of this family; returns a handle of the kernel asked for.

        If the setting ``prove`` is ``before``, returns only after the proof has ended; else at once.
        """
        handle: PendingKernel[CompiledKernel] = PendingKernel(name, nullcontext)
        with self._lock:
            running = self._pending.get(name)
            if running is None:
                self._pending[name] = handle
        work = partial(self._work, asked, plain, number, device, name, handle)
        if running is not None:
            running.on_done(partial(self._join, asked, handle))
            if self._settings.prove == BEFORE:
                running.wait()
        elif self._settings.prove == BEFORE:
            work()
        elif not self._queue.put(work):
            self._pending.pop(name, None)
            handle.fail("this process can start no thread")
        return handle

    def _join(
        self, asked: Request, handle: PendingKernel[CompiledKernel], ended: PendingKernel[CompiledKernel]
    ) -> None:
        """After a proof that another problem started: completes the handle for the problem ``asked``."""
        if not ended.ready:
            handle.fail(str(ended.failure))
            return
        try:
            handle.succeed(self._serving.get_or_compile(self._selector, asked, StageClock(), priority=Priority.WARM))
        except (GemmCacheError, OSError) as error:
            handle.fail(in_words(error), error)

    def _work(
        self, asked: Request, plain: Request, number: int, device: DeviceFingerprint, name: CacheKey,
        handle: PendingKernel[CompiledKernel],
    ) -> None:  # fmt: skip
        why, kernel = "", None
        try:
            get = partial(self._serving.get_or_compile, self._selector, priority=Priority.PROMOTION)
            kernel, now = get(asked, StageClock()), get(plain, StageClock())
            why = self._decide(kernel, now, number, device, name)
        except Exception as error:  # whatever happens, the caller is served by the plain family
            why = self._undecided[name] = in_words(error)
            _log.warning("the proof of %s could not be made: %s", asked[0], why)
        finally:
            self._pending.pop(name, None)
            if kernel is None or why:
                handle.fail(why or "the proof was interrupted")
            else:
                handle.succeed(kernel)

    def _decide(
        self, kernel: CompiledKernel, now: CompiledKernel, number: int, device: DeviceFingerprint, name: CacheKey
    ) -> str:
        """Proves the family of ``kernel`` and logs the outcome; returns the reason why ``kernel`` does not serve."""
        selection = self._selector.select(kernel.problem, kernel.record.family, None, kernel.record.config)
        lock = None if self._store is None else self._store.layout.key_lock(name)
        with self._locked(lock):
            if (state := self._state(selection, device, name)) != UNPROVED:  # another process has proved it
                return "" if state == PROVED else self._known[name].words
            asked = Asked(
                problem=RecordedProblem.of(kernel.problem), config=kernel.record.config, plain=now.record.family,
                plain_config=now.record.config,
            )  # fmt: skip
            order = order_of(selection, name, number, self._settings, asked)
            verdict = self._watched(order)
            return self._record(kernel, now, device, name, verdict)

    @staticmethod
    def _locked(lock: Any) -> Any:
        """A context manager that holds the lock; one without a lock if no lock file can be written."""
        if lock is None:
            return nullcontext()
        try:
            return file_lock(lock, _LOCK_S)
        except OSError:
            return nullcontext()

    def _watched(self, order: Order) -> Verdict:
        watchdog = Watchdog(order)
        self._watchdogs.add(watchdog)
        try:
            return watchdog.verdict()
        finally:
            self._watchdogs.discard(watchdog)

    def _record(
        self, kernel: CompiledKernel, now: CompiledKernel, device: DeviceFingerprint, name: CacheKey, v: Verdict
    ) -> str:
        family, toolchain = kernel.record.family, f"{kernel.record.compiler} {kernel.record.compiler_version}"
        decided = partial(self._journal.decided, PROOF, key=kernel.key, name=kernel.record.name)
        if v.undecided:
            self._undecided[name] = v.undecided
            decided(reason=UNPROVED, detail=f"{family} on {device.name}: {v.undecided}")
            _log.warning("%s stays unproved on %s in this process: %s", family, device.name, v.undecided)
            return v.undecided
        proof = Proof(
            family=family, state=REFUSED if v.refused else PROVED, device=device, toolchain=toolchain, at=time.time(),
            cases=v.cases,
        )  # fmt: skip
        if v.refused:
            refusal = {"case": v.case, "seed": v.seed, "reason": v.refused, "command": v.command}
            proof = msgspec.structs.replace(proof, **refusal)
        self._known[name] = proof
        self._write(name, proof)
        if v.refused:
            decided(reason=REFUSED, detail=f"{family} {proof.words}; again: {v.command}")
            _log.warning("%s is %s; it serves there no more. To see it again: %s", family, proof.words, v.command)
            return proof.words
        return self._compared(kernel, now, proof, v, decided)

    def _compared(
        self, kernel: CompiledKernel, now: CompiledKernel, proof: Proof, v: Verdict, decided: Callable[..., object]
    ) -> str:
        """Stores the timings of a proved family and logs whether it serves; returns the reason if it does not."""
        us: list[float] = []
        for one, plain in zip((kernel, now), v.timings, strict=False):
            timing = Timing(**{**plain, "device": proof.device})
            us.append(timing.median_us)
            self._keep(one, timing)
        words, is_faster = f"no timing ({v.untimed}); the choice stays by prediction", True
        if us:
            is_faster = us[0] <= FASTER * us[1]
            against = f"{us[0]:.4g} µs, {now.record.family} {us[1]:.4g} µs at m = {kernel.problem.m}"
            words = f"{against}; {proof.family if is_faster else now.record.family} serves near there"
        decided(reason=PROVED, detail=f"{proof.family} {proof.words}; {words}")
        _log.info("%s is %s; %s", proof.family, proof.words, words)
        return "" if is_faster else words

    def _write(self, name: CacheKey, proof: Proof) -> None:
        """Stores a proof; if the store cannot be written, only this process knows the proof."""
        if self._store is None:
            return
        try:
            write_proof(self._store.layout, name, proof, durable=self._settings.is_durable)
        except (OSError, UnknownProof) as error:
            _log.info("the proof of %s is kept in this process alone: %s", proof.family, error)

    def close(self) -> None:
        """Ends running proofs; their families remain unproved."""
        for watchdog in list(self._watchdogs):
            watchdog.end()
        self._queue.close(0.0)
