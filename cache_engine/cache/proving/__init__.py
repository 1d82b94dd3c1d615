"""Proves faster kernel families on the user's own GPU: they serve there only after test kernels were correct.

Callers that launch (``matmul``, operators) get a kernel of a plain family until all canaries (test kernels) of the
faster family have given correct results on their GPU. Then a kernel of each family is timed, launch by launch in
alternation, and the faster family serves for m near the timed m. A family with a wrong result is refused on that device
until its toolchain changes. ``warm`` on a GPU does this ahead, for all problems of a model. Everything else, such as
``compile``, selects as if all families were proved, since it launches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from cache_engine.background import BackgroundQueue
from cache_engine.cache.proving.watchdog import ENDED, Asked, Order, Verdict, Watchdog
from cache_engine.cache.queue import PendingKernel, Priority
from cache_engine.cache.selection import ExactKernels, Request, Selection, Selector
from cache_engine.cache.serving import CompiledKernel
from cache_engine.errors import CorruptEntry, NotHereError
from cache_engine.gpu.probe import current_gpu
from cache_engine.gpu.timer import Timing
from cache_engine.kernels.select import TO_PROVE, plain_family
from cache_engine.logs import Log
from cache_engine.model.architecture import compiled_for
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.decision import PROOF
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure, in_words
from cache_engine.model.proof import HINT, PROVED, REFUSED, UNPROVED, Proof, identity, is_shipped, kernels_digest
from cache_engine.process import renew_after_fork
from cache_engine.settings import BEFORE, NEVER, Settings
from cache_engine.store.journal import Journal
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import file_lock
from cache_engine.store.proofs import UnknownProof, proofs, read_proof, write_proof

_log = Log(__name__)

FASTER = 0.95
"""A proved family serves if its median time is at most this share of the plain family's median time."""
_MOST_AHEAD = 64
_LOCK_S = 600.0  # the longest wait for another process that proves the same

_Pair = tuple[CompiledKernel, CompiledKernel]  # of one problem: that of the family to prove, and the plain one


def order_of(
    selection: Selection, name: CacheKey, number: int, settings: Settings, asked: tuple[Asked, ...] = ()
) -> Order:
    """The ``Order`` to prove a selection's family on the GPU with this number."""
    return Order(
        identity=name, family=selection.family.name, arch=selection.problem.arch or "", device=number,
        compiler_flags=settings.compiler_flags, cuda=settings.cuda, asked=asked,
    )  # fmt: skip


class OpenedCache(Protocol):
    """The attributes of an opened cache that proofs need."""

    settings: Settings
    has_store: bool
    selector: Selector
    exact_kernels: ExactKernels
    journal: Journal

    @property
    def layout(self) -> StoreLayout:
        """The files of the store."""
        ...

    def get_or_compile(
        self, problem: GemmProblem, *, family: str | None = None, priority: Priority = ...
    ) -> CompiledKernel:
        """The kernel for a problem."""
        ...

    def keep_timing(self, kernel: CompiledKernel, timing: Timing) -> Failure | None:
        """Stores a timing; returns the reason if it cannot."""
        ...


class _Candidate(msgspec.Struct, frozen=True):
    """A request for a kernel of a family that this GPU must prove, with its proof's identity, and the GPU.

    Attributes:
        plain: the request for a family that needs no proof, to serve until then.
        is_exact: whether only timings offer the kernel, in place of the selected one.
    """

    asked: Request
    plain: Request
    selection: Selection
    name: CacheKey
    number: int
    device: DeviceFingerprint
    is_exact: bool


def prove_ahead(cache: OpenedCache, problems: Iterable[GemmProblem]) -> None:
    """Proves the families that will serve these problems on the current GPU, and times them; waits for the end.

    Does nothing for families that need no proof or have one, or without a GPU of the problems' target.
    """
    needing = [one for one in problems if cache.selector.select(one, None, None, None).family.name in TO_PROVE]
    if needing:
        proving = Proofs(cache)
        try:
            proving.ahead(needing)
        finally:
            proving.close()


class Proofs:
    """Proves families on this process's GPUs, and reads and stores their proofs. Safe to use from several threads."""

    def __init__(self, cache: OpenedCache) -> None:
        """Proves nothing yet."""
        self._cache, self._settings = cache, cache.settings
        self._layout = cache.layout if cache.has_store else None
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._known: dict[CacheKey, Proof] = {}
        self._undecided: dict[CacheKey, str] = {}
        self._pending: dict[Request, PendingKernel[CompiledKernel]] = {}
        self._queue = BackgroundQueue()
        self._watchdogs: set[Watchdog] = set()

    def renew_after_fork(self) -> None:
        """In a forked child: forgets running proofs, because the parent continues them."""
        pending = list(self._pending.values())
        self._start()
        for handle in pending:
            handle.renew_after_fork()

    def served(self, asked: Request) -> tuple[Request, PendingKernel[CompiledKernel] | None]:
        """The request to serve now in place of ``asked``, and a handle of the kernel that serves after its proof.

        The request is ``asked`` itself if its family needs no proof, is proved, or cannot be proved here. The handle is
        ``None`` if no proof is running.
        """
        one = self._candidate(asked)
        if one is None:
            return asked, None
        state, handle = self._state(one), None
        if state == UNPROVED and one.name not in self._undecided:
            if self._settings.prove == NEVER:
                return asked, None
            if not one.is_exact:  # no proof begins with a kernel that only timings offer
                handle = self._prove((one,), waits=self._settings.prove == BEFORE)
                state = self._state(one)
        if state == UNPROVED:
            return one.plain, handle
        return (asked if state == PROVED and not self._is_slower(one) else one.plain), None

    def ahead(self, problems: Iterable[GemmProblem]) -> None:
        """Proves the families of problems that callers will ask for, and times the problems; waits for the end.

        Of more than ``_MOST_AHEAD`` problems, only some are run and timed, evenly chosen.
        """
        by_name: dict[CacheKey, list[_Candidate]] = {}
        for problem in problems:
            one = self._candidate((problem, None, None, None))
            if one is not None and not one.is_exact and self._settings.prove != NEVER:
                by_name.setdefault(one.name, []).append(one)
        for name, every in by_name.items():
            if self._state(every[0]) == UNPROVED and name not in self._undecided:
                self._prove(every[:: -(-len(every) // _MOST_AHEAD)], waits=True)

    def _candidate(self, asked: Request) -> _Candidate | None:
        """The request with a family that this GPU must prove first; ``None`` without such a family or a GPU."""
        selected, exact = self._cache.selector.select(*asked), self._cache.exact_kernels.measured(asked)
        selection = next((one for one in (selected, exact) if one is not None and one.family.name in TO_PROVE), None)
        plain = None if selection is None else self._plain(asked, selection)
        if selection is None or plain is None:
            return None
        try:
            number, device = current_gpu()
        except NotHereError:  # nothing is launched here
            return None
        if compiled_for(device.arch) != selection.problem.arch:
            return None
        name = identity(device, selection.prefix.components)
        return _Candidate(asked, plain, selection, name, number, device, selection is exact)

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

    def _state(self, one: _Candidate) -> str:
        toolchain, proof = one.selection.compiler.fingerprint(), self._known.get(one.name)
        if proof is None and self._layout is not None:
            with suppress(CorruptEntry, UnknownProof, OSError):  # then it is proved again
                proof = read_proof(self._layout, one.name)
        if proof is not None and (proof.family, proof.device) != (one.selection.family.name, one.device):
            proof = None  # a file that was given another's name
        if proof is not None and proof.state != HINT:
            self._known[one.name] = proof
            return proof.state
        shipped = is_shipped(one.selection.family.name, one.device, toolchain.compiler, toolchain.version)
        return PROVED if shipped else UNPROVED

    def _is_hinted(self, one: _Candidate) -> bool:
        """Whether a pack says that another device of this name has proved the same kernels."""
        digest = kernels_digest(one.selection.prefix.components)
        return self._layout is not None and any(
            (hint.state, hint.device.name, hint.kernels) == (HINT, one.device.name, digest)
            for _, hint in proofs(self._layout)
        )

    def _is_slower(self, one: _Candidate) -> bool:
        """Whether timings near the problem's m say that the plain family takes about as long, or less time."""
        history = self._cache.selector.history
        for ranked in () if history is None else history.rankings(one.asked[0]):
            times_us: dict[bool, float] = {}
            for each in ranked:  # fastest first
                if each.family in TO_PROVE or each.family == one.plain[1]:
                    times_us.setdefault(each.family in TO_PROVE, each.median_us)
            if len(times_us) == 2:
                return times_us[True] > FASTER * times_us[False]
        return False

    # ---- A proof ----

    def _prove(self, every: Sequence[_Candidate], *, waits: bool) -> PendingKernel[CompiledKernel]:
        """Queues a proof behind those that run; returns a handle of the first kernel asked for.

        If the family is proved by then, the handle gets its kernel at once. If ``waits``, returns only after the end.
        """
        asked = every[0].asked
        handle = self._pending.get(asked)
        if handle is None:
            handle = self._pending[asked] = PendingKernel(every[0].name, nullcontext)
            if not self._queue.put(partial(self._work, every, handle)):
                self._pending.pop(asked, None)
                handle.fail("this process can start no thread")
        if waits:
            handle.wait()
        return handle

    def _work(self, every: Sequence[_Candidate], handle: PendingKernel[CompiledKernel]) -> None:
        """Proves the family of ``every``, and completes the handle."""
        why, kernels, name = "the proof was interrupted", list[_Pair](), every[0].name
        try:
            kernels = [(self._kernel(one.asked), self._kernel(one.plain)) for one in every]
            why = self._decide(every[0], kernels)
        except Exception as error:  # whatever happens, the caller is served by the plain family
            why = self._undecided[name] = in_words(error)
            _log.warning("the proof of %s could not be made: %s", every[0].asked[0], why)
        finally:
            self._pending.pop(every[0].asked, None)
            if why:
                handle.fail(why)
            else:
                handle.succeed(kernels[0][0])

    def _decide(self, one: _Candidate, kernels: Sequence[_Pair]) -> str:
        """Proves a family and logs the outcome; returns the reason why the first kernel of it does not serve."""
        if one.name in self._undecided:  # since this was queued
            return self._undecided[one.name]
        with self._locked(one.name):
            if (state := self._state(one)) != UNPROVED:  # another process has proved it
                return "" if state == PROVED else self._known[one.name].words
            asked = tuple(
                Asked(
                    problem=RecordedProblem.of(kernel.problem), config=kernel.record.config, cubin=kernel.cubin,
                    plain=plain.record.family, plain_config=plain.record.config, plain_cubin=plain.cubin,
                )
                for kernel, plain in kernels
            )  # fmt: skip
            order = order_of(one.selection, one.name, one.number, self._settings, asked)
            is_hinted = self._is_hinted(one)
            verdict = self._watched(msgspec.structs.replace(order, most=1) if is_hinted else order)
            return self._record(one, kernels, verdict, is_hinted)

    def _kernel(self, asked: Request) -> CompiledKernel:
        return self._cache.get_or_compile(asked[0], family=asked[1], priority=Priority.PROMOTION)

    def _locked(self, name: CacheKey) -> AbstractContextManager[None]:
        """The lock of a proof between processes; none if no lock file can be written."""
        with suppress(OSError):
            return nullcontext() if self._layout is None else file_lock(self._layout.key_lock(name), _LOCK_S)
        return nullcontext()

    def _watched(self, order: Order) -> Verdict:
        watchdog = Watchdog(order)
        self._watchdogs.add(watchdog)
        try:
            return watchdog.verdict()
        finally:
            self._watchdogs.discard(watchdog)

    def _record(self, one: _Candidate, kernels: Sequence[_Pair], v: Verdict, is_hinted: bool) -> str:
        kernel, device, record = kernels[0][0], one.device, kernels[0][0].record
        decided = partial(self._cache.journal.decided, PROOF, key=kernel.key, name=record.name)
        if v.undecided:
            self._undecided[one.name] = v.undecided
            decided(reason=UNPROVED, detail=f"{record.family} on {device.name}: {v.undecided}")
            say = _log.info if v.undecided == ENDED else _log.warning  # a program may end before a proof
            say("%s stays unproved on %s in this process: %s", record.family, device.name, v.undecided)
            return v.undecided
        proof = Proof(
            family=record.family, state=REFUSED if v.refused else PROVED, device=device,
            toolchain=f"{record.compiler} {record.compiler_version}", at=time.time(), cases=v.cases,
            kernels=kernels_digest(one.selection.prefix.components), confirms=is_hinted,
        )  # fmt: skip
        if v.refused:
            refusal = {"case": v.case, "seed": v.seed, "reason": v.refused, "command": v.command}
            proof = msgspec.structs.replace(proof, **refusal)
        self._known[one.name] = proof
        self._write(one.name, proof)
        if v.refused:
            decided(reason=REFUSED, detail=f"{proof.family} {proof.words}; again: {v.command}")
            _log.warning("%s is %s; it serves there no more. To see it again: %s", proof.family, proof.words, v.command)
            return proof.words
        compared = [self._compared(*pair, proof, timings) for pair, timings in zip(kernels, v.timings, strict=False)]
        words, slower = "; ".join(words for words, _ in compared if words), compared[0][1] if compared else ""
        words = words or f"no timing ({v.untimed}); the choice stays by prediction"
        decided(reason=PROVED, detail=f"{proof.family} {proof.words}; {words}")
        _log.info("%s is %s; %s", proof.family, proof.words, words)
        return slower

    def _compared(
        self, kernel: CompiledKernel, plain: CompiledKernel, proof: Proof, timings: Sequence[dict[str, Any]]
    ) -> tuple[str, str]:
        """Stores timings; returns what they say, and the reason if the plain kernel serves. Both empty without any."""
        us: list[float] = []
        for one, fields in zip((kernel, plain), timings, strict=False):
            timing = Timing(**{**fields, "device": proof.device})
            us.append(timing.median_us)
            self._cache.keep_timing(one, timing)
        if len(us) < 2:
            return "", ""
        is_faster = us[0] <= FASTER * us[1]
        against = f"{us[0]:.4g} µs, {plain.record.family} {us[1]:.4g} µs at m = {kernel.problem.m}"
        words = f"{against}; {proof.family if is_faster else plain.record.family} serves near there"
        return words, "" if is_faster else words

    def _write(self, name: CacheKey, proof: Proof) -> None:
        """Stores a proof; if the store cannot be written, only this process knows the proof."""
        if self._layout is None:
            return
        try:
            write_proof(self._layout, name, proof, durable=self._settings.is_durable)
        except (OSError, UnknownProof) as error:
            _log.info("the proof of %s is kept in this process alone: %s", proof.family, error)

    def close(self) -> None:
        """Ends running proofs; their families remain unproved."""
        for watchdog in list(self._watchdogs):
            watchdog.end()
        self._queue.close(0.0)
        for handle in list(self._pending.values()):
            handle.fail("the cache was closed")
