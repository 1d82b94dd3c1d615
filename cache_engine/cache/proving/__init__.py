"""Proves faster kernel families on the user's own GPU: they serve there only after test kernels were correct.

Callers that launch (``matmul``, operators) get a kernel of a plain family until all canaries (test kernels) of the
faster family have given correct results on their GPU. Then a kernel of each family is timed, launch by launch in
alternation, and the faster family serves for m near the timed m. A family with a wrong result is refused on that device
until its toolchain changes. ``warm`` on a GPU proves families ahead, for all problems of a model. Everything else,
such as ``compile``, selects as if all families were proved, since it launches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Protocol

import msgspec

from cache_engine.cache.proving.watchdog import ENDED, Kernel, Verdict, order_of, watched
from cache_engine.cache.queue import PendingKernel, Priority
from cache_engine.cache.queue.slots import GivenUp
from cache_engine.cache.selection import ExactKernels, Request, Selection, Selector
from cache_engine.cache.serving import CompiledKernel
from cache_engine.cache.serving.stand_ins import BackgroundCompiles
from cache_engine.errors import CorruptEntry, NotHereError
from cache_engine.gpu.probe import current_gpu
from cache_engine.gpu.timer import Timing
from cache_engine.kernels.select import TO_PROVE, plain_family
from cache_engine.logs import INFO, WARNING, Log
from cache_engine.model.architecture import compiled_for
from cache_engine.model.artifact import RecordedProblem
from cache_engine.model.decision import PROOF
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure, in_words
from cache_engine.model.proof import HINT, PROVED, REFUSED, UNPROVED, Proof, identity, is_shipped, kernels_digest
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
    """A request for a kernel of a family that this GPU must prove, with the identity of the proof, and the GPU.

    Attributes:
        plain: the request for a family that needs no proof, to serve until the proof.
        is_exact: whether the kernel is the exact one that timings prefer to the selected kernel.
    """

    asked: Request
    plain: Request
    selection: Selection
    name: CacheKey
    number: int
    device: DeviceFingerprint
    is_exact: bool


class Proofs:
    """Proves families on this process's GPUs, and reads and stores their proofs. Safe to use from several threads."""

    def __init__(self, cache: OpenedCache) -> None:
        """Proves nothing yet."""
        self._cache, self._settings = cache, cache.settings
        self._layout = cache.layout if cache.has_store else None
        self._known: dict[CacheKey, Proof] = {}
        self._undecided: dict[CacheKey, str] = {}
        self._behind = BackgroundCompiles[CompiledKernel](1)

    def served(self, asked: Request) -> tuple[Request, PendingKernel[CompiledKernel] | None]:
        """The request to serve now in place of ``asked``, and a handle of the kernel that serves after its proof.

        The request is ``asked`` itself if its family needs no proof, is proved, or cannot be proved here. The handle is
        ``None`` if no proof is running.
        """
        one = self._candidate(asked)
        if one is None:
            return asked, None
        state, handle = self._state(one), None
        may_prove = self._settings.prove != NEVER and not one.is_exact  # not for a kernel that only timings offer
        if state == UNPROVED and may_prove and one.name not in self._undecided:
            handle = self._prove((one,))
            if self._settings.prove == BEFORE:
                handle.wait()
            state = self._state(one)
        if state == UNPROVED:
            return one.plain, handle
        return (asked if state == PROVED and not self._is_slower(one) else one.plain), None

    def ahead(self, problems: Iterable[GemmProblem]) -> None:
        """Proves the families that will serve these problems on the current GPU, and times them; waits for the end.

        Does nothing for families that need no proof or have one, or without a GPU of the problems' target. Of more
        than ``_MOST_AHEAD`` problems, only some are run and timed, evenly chosen.
        """
        by_name: dict[CacheKey, list[_Candidate]] = {}
        for problem in problems:
            one = self._candidate((problem, None, None, None))
            if one is not None and not one.is_exact and self._settings.prove != NEVER:
                by_name.setdefault(one.name, []).append(one)
        for every in by_name.values():
            if self._state(every[0]) == UNPROVED:
                self._prove(every[:: -(-len(every) // _MOST_AHEAD)]).wait()

    def close(self) -> None:
        """Ends running proofs; their families remain unproved."""
        self._behind.close(wait=False)

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
        family, toolchain = one.selection.family.name, one.selection.compiler.fingerprint()
        proof = self._known.get(one.name)
        if proof is None and self._layout is not None:
            with suppress(CorruptEntry, UnknownProof, OSError):  # then it is proved again
                proof = read_proof(self._layout, one.name)
            # A file may have been given another's name. That of an earlier version has no digest.
            if proof is not None and proof.kernels not in ("", kernels_digest(one.selection.prefix.components)):
                proof = None
        if proof is not None and (proof.family, proof.device) == (family, one.device) and proof.state != HINT:
            self._known[one.name] = proof
            return proof.state
        return PROVED if is_shipped(family, one.device, toolchain.compiler, toolchain.version) else UNPROVED

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

    def _prove(self, every: Sequence[_Candidate]) -> PendingKernel[CompiledKernel]:
        """Queues a proof behind those that run; returns a handle of the first kernel asked for.

        If the family is proved when this proof begins, the handle gets its kernel at once.
        """
        return self._behind.start(every[0].selection.key, partial(self._proved, every), nullcontext)

    def _proved(self, every: Sequence[_Candidate], is_wanted: Callable[[], bool]) -> CompiledKernel:
        """The first kernel asked for, after the proof of its family; raises ``GivenUp`` if it does not serve."""
        try:
            kernels = [(self._kernel(one.asked), self._kernel(one.plain)) for one in every]
            why = self._decide(every[0], kernels, is_wanted)
        except Exception as error:  # whatever happens, the caller is served by the plain family
            why = self._undecided[every[0].name] = in_words(error) or repr(error)
            _log.warning("the proof of %s could not be made: %s", every[0].asked[0], why)
        if why:
            raise GivenUp(why)
        return kernels[0][0]

    def _kernel(self, asked: Request) -> CompiledKernel:
        return self._cache.get_or_compile(asked[0], family=asked[1], priority=Priority.PROMOTION)

    def _decide(self, one: _Candidate, kernels: Sequence[_Pair], is_wanted: Callable[[], bool]) -> str:
        """Proves a family and logs the outcome; returns the reason why the first kernel of it does not serve."""
        if one.name in self._undecided:  # since this was queued
            return self._undecided[one.name]
        with self._locked(one.name):
            if (state := self._state(one)) != UNPROVED:  # another process has proved it
                return "" if state == PROVED else self._known[one.name].words
            asked = tuple((_asked(kernel), _asked(plain)) for kernel, plain in kernels)
            is_hinted = self._is_hinted(one)
            order = order_of(
                one.selection, one.device, one.number, self._settings, asked, most=1 if is_hinted else None
            )
            return self._entered(one, kernels, watched(order, is_wanted), is_hinted)

    def _locked(self, name: CacheKey) -> AbstractContextManager[None]:
        """The lock against the same proof in another process; none if no lock file can be written."""
        with suppress(OSError):
            return nullcontext() if self._layout is None else file_lock(self._layout.key_lock(name), _LOCK_S)
        return nullcontext()

    def _entered(self, one: _Candidate, kernels: Sequence[_Pair], v: Verdict, is_hinted: bool) -> str:
        """Stores and logs a verdict; returns the reason why the first kernel does not serve."""
        record = kernels[0][0].record
        if v.undecided:
            why = self._undecided[one.name] = v.undecided
            detail = f"{record.family} stays unproved on {one.device.name} in this process: {why}"
            level = INFO if why == ENDED else WARNING  # a program may end before a proof
        else:
            proof = Proof(
                family=record.family, state=REFUSED if v.refused else PROVED, device=one.device,
                toolchain=f"{record.compiler} {record.compiler_version}", at=time.time(), cases=v.cases,
                kernels=kernels_digest(one.selection.prefix.components), confirms=is_hinted,
            )  # fmt: skip
            if v.refused:
                refusal = {"case": v.case, "seed": v.seed, "reason": v.refused, "command": v.command}
                proof = msgspec.structs.replace(proof, **refusal)
            self._keep(one.name, proof)
            if v.refused:
                why, level = proof.words, WARNING
                detail = f"{proof.family} {why}; it serves there no more; again: {v.command}"
            else:
                words, why = self._compared(kernels, v.timings)
                words = words or f"no timing ({v.untimed}); the choice stays by prediction"
                detail, level = f"{proof.family} {proof.words}; {words}", INFO
        self._cache.journal.decided(PROOF, reason=v.state, detail=detail, key=record.key, name=record.name)
        _log.log(level, "%s", detail)
        return why

    def _keep(self, name: CacheKey, proof: Proof) -> None:
        """Stores a proof; if the store cannot be written, only this process knows the proof."""
        self._known[name] = proof
        try:
            if self._layout is not None:
                write_proof(self._layout, name, proof, durable=self._settings.is_durable)
        except (OSError, UnknownProof) as error:
            _log.info("the proof of %s is kept in this process alone: %s", proof.family, error)

    def _compared(self, kernels: Sequence[_Pair], timings: Sequence[Sequence[Timing]]) -> tuple[str, str]:
        """Stores timings; returns a text about them, and why the first kernel does not serve; both may be empty."""
        every, slower = [], ""
        for pair, timed in zip(kernels, timings, strict=False):
            for kernel, timing in zip(pair, timed, strict=False):
                self._cache.keep_timing(kernel, timing)
            if timed:
                (us, plain_us), (family, plain) = (one.median_us for one in timed), (one.record.family for one in pair)
                is_faster = us <= FASTER * plain_us
                against = f"{us:.4g} µs, {plain} {plain_us:.4g} µs at m = {pair[0].problem.m}"
                every.append(f"{against}; {family if is_faster else plain} serves near there")
                slower = every[0] if pair is kernels[0] and not is_faster else slower
        return "; ".join(every), slower


def _asked(kernel: CompiledKernel) -> Kernel:
    return Kernel(kernel.record.family, RecordedProblem.of(kernel.problem), kernel.record.config, kernel.cubin)
