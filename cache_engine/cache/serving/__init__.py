"""Serves a store's kernels in a process: looks up the tiers, locks keys, publishes and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cache_engine.cache.other_toolchains import OtherToolchains
from cache_engine.cache.queue import PendingKernel, Priority
from cache_engine.cache.selection import INSTALLED, ExactKernels, Request, Selection, Selector
from cache_engine.cache.stages import COMPILE, LOAD, PUBLISH, QUEUE, SELECT, StageClock
from cache_engine.cache.tiers import Found, Preloaded, Tiers
from cache_engine.errors import CompilerMissing, CorruptEntry, GemmCacheError, LockTimeout, NotCached, StoreError
from cache_engine.kernels.family import launch_of
from cache_engine.logs import DEBUG, INFO, WARNING, Log, fields
from cache_engine.model.artifact import Artifact, Blob, Record
from cache_engine.model.events import CORRUPT, UNPUBLISHED
from cache_engine.model.events import PUBLISH as PUBLISHED
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure, in_words
from cache_engine.process import unforked
from cache_engine.settings import Settings
from cache_engine.store.base import Loaded, MemoryTier, Tier
from cache_engine.store.codec import encode_blob, stored_bytes
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.lock import Held, ThreadLocks, file_lock

__all__ = ["COMPILED", "LONG_WAIT_S", "CompiledKernel", "KeyLock", "Serving", "refusal"]

# Modules that no hit needs are imported at the first miss.
if TYPE_CHECKING:
    from cache_engine.cache.queue.slots import Slots
    from cache_engine.cache.serving.remote_client import RemoteClient
    from cache_engine.upkeep.cleanup import Housekeeper

_log = Log(__name__)

SWITCHED_OFF = "caching is switched off"
"""The reason given for a cache without a store, unless the caller gives another reason."""
COMPILED = "compiled"
"""The name in place of a tier for a kernel that was compiled now."""

# Characters of an error in the log of decisions, whose size is limited: a compiler may print pages.
_LONGEST_REASON = 1000

# The modules that the first miss of a process imports, in any thread.
_FOR_A_MISS = (
    "cache_engine.cache.miss",
    "cache_engine.cache.miss",
    "cache_engine.cache.serving.remote_client",
    "cache_engine.compilers.disassembly",
    "cache_engine.upkeep.cleanup",
    "cache_engine.upkeep.plan",
)

# Seconds; most compiles take less, so a shorter wait is not reported.
LONG_WAIT_S = 1.0


class Serving:
    """Serves the kernels of a store, or without a store those in memory, in one process.

    Safe to use from several threads.
    """

    def __init__(
        self,
        store: DiskStore | None,
        elsewhere: OtherToolchains,
        settings: Settings,
        journal: Journal,
        faster: ExactKernels,
        without_store: str = SWITCHED_OFF,
    ) -> None:
        """Serves the packs of ``elsewhere``, and ``store``; ``without_store`` says why ``store`` is ``None``."""
        self._store, self._faster, self._without_store = store, faster, without_store
        self.unpublished = 0  # kernels that were compiled and could not be stored
        self._settings = settings
        self._journal = journal
        limit_device_memory(settings)
        self._elsewhere = elsewhere
        slower: list[Tier] = [*elsewhere.packs]
        if store is not None:
            slower.append(store)
        self._memory = MemoryTier(settings.memory_bytes)
        self._tiers = Tiers(self._memory, slower, journal.failure)
        self._compiling = ThreadLocks()
        if settings.remote is not None:
            self._team  # noqa: B018 (made once, before there are several threads)

    @cached_property
    def _team(self) -> RemoteClient:
        """The client of the team's remote."""
        from cache_engine.cache.serving.remote_client import RemoteClient

        return RemoteClient(self._store, self._settings, self._journal, self._stored, self._tiers)

    @cached_property
    def _slots(self) -> Slots | None:
        """The slots of the store, which limit how many kernels its processes compile at a time."""
        if self._store is None:
            return None
        from cache_engine.cache.queue.slots import Slots

        return Slots(self._store.layout, self._settings.slots, self._settings.lock_timeout_s)

    def settle(self) -> None:
        """Waits until all entries that were served from the remote are on disk."""
        if "_team" in self.__dict__:
            self._team.settle()

    @cached_property
    def _housekeeper(self) -> Housekeeper | None:
        """The object that cleans the store, if there is a store; created when something is first stored."""
        if self._store is None:
            return None
        from cache_engine.upkeep.cleanup import Housekeeper, prune_results
        from cache_engine.upkeep.plan import Limits

        s = self._settings
        pruning = partial(prune_results, self._store, s, self._journal)
        return Housekeeper(self._store, self._journal, Limits.of(s), s.cleanup_interval_h * 3600, pruning)

    def _stored(self, size_bytes: int) -> None:
        if self._housekeeper is not None:
            self._housekeeper.published(size_bytes)

    def get_or_compile(
        self,
        selector: Selector,
        asked: Request,
        stages: StageClock,
        *,
        force: bool = False,
        debug_dump: Path | None = None,
        priority: Priority = Priority.CALLER,
        is_wanted: Callable[[], bool] = lambda: True,
        for_launch: bool = False,
        installed: bool = False,
    ) -> CompiledKernel:
        """The kernel that a selector selects, from the fastest tier that has it; else compiled and stored now.

        All processes together compile a key once: after a miss, the caller locks the key and looks again. To compile,
        it then waits for a slot of the store. Arguments and errors are as for ``Cache.get_or_compile``.

        Args:
            is_wanted: a function asked while waiting for a slot.
            for_launch: whether the kernel is launched for exactly this problem only, so that an exact kernel may serve.
            installed: whether to accept only a kernel made by the compiler installed here.

        Raises:
            GivenUp: when the kernel is no longer wanted.
        """
        force = force or debug_dump is not None
        with stages(SELECT):
            selection = selector.select_installed(*asked) if force or installed else selector.select(*asked)
        if not force:
            if for_launch and (faster := self.hit_faster(asked, stages)) is not None:
                return faster
            with stages(LOAD):
                found = self.look_up(selection.key)
            if found is None and not installed and (self._elsewhere.packs or not selection.is_compilable):
                found, selection = self._find_instead(selector, asked, selection, stages, priority)
            if found is not None:
                return self.hit(selection, found, stages, priority)
        key = selection.key
        fault: Exception | None = None
        with (lock := self._key_lock(key, priority)) as no_lock:
            if not force:
                with stages(LOAD):
                    again = self._look_again(key, no_lock)
                    if not isinstance(again, Found):
                        fault, again = again, self._team.find(key, lock if no_lock is None else None)
                if again is not None:
                    return self.hit(selection, again, stages, priority)
            self._miss(selector, selection, priority, fault, force=force)
            if not self._settings.enable_jit:
                raise self._not_cached(selector, selection)
            turn = nullcontext() if self._slots is None else self._slots.turn(key, priority, is_wanted)
            try:
                with stages(QUEUE):
                    turn.__enter__()
                artifact = _make(selection, stages, debug_dump)
            except (GemmCacheError, OSError) as error:
                self._not_compiled(selection, in_words(error))
                raise
            finally:
                turn.__exit__(None, None, None)
            selector.prefer(asked, selection)
            return self._publish(selection, artifact, stages, no_lock)

    def _find_instead(
        self, selector: Selector, asked: Request, selection: Selection, stages: StageClock, priority: Priority
    ) -> tuple[Found | None, Selection]:
        """Finds the same kernel by another toolchain, when no tier has the entry of ``selection``.

        Returns the entry and the other toolchain's selection. If there is none, the entry is ``None``, and the
        selection is the one that can be compiled here.
        """
        missed: set[CacheKey] = set()
        while True:
            missed.add(selection.key)
            try:
                selection = selector.select(*asked, missed=missed)
            except CompilerMissing as error:
                self._miss(selector, selection, priority)
                if self._settings.enable_jit:
                    raise
                raise self._not_cached(selector, selection) from error
            if selection.key in missed:
                return None, selection
            with stages(LOAD):
                found = self.look_up(selection.key)
            if found is not None:
                return found, selection

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry of a key, counted as a hit; ``None`` if no tier has it."""
        found = self._tiers.get(key, lambda wanted: self._team.get(wanted))
        if found is not None:
            self.count(key, found)
        return None if found is None else found.loaded

    def preload(self, keys: Iterable[str]) -> Preloaded:
        """Reads entries into memory, up to ``memory_bytes``; not counted as hits."""
        done = self._tiers.preload(keys, self._settings.memory_bytes, self._team.get, self._team.each)
        level = WARNING if done.missing or done.no_room else INFO
        extra = fields("preload", loaded=len(done.loaded), missing=len(done.missing), no_room=len(done.no_room))
        _log.log(level, "preloaded: %s", done, extra=extra)
        return done

    def look_up(self, key: CacheKey) -> Found | None:
        """The entry of a key and the tier that has it, not counted as a hit; ``None`` if no tier has it."""
        return self._tiers.get(key)

    def _look_again(self, key: CacheKey, no_lock: Failure | None) -> Found | Exception | None:
        """Looks the key up again while its lock is held: the entry, ``None``, or the error of reading the entry.

        A damaged entry is moved to quarantine.
        """
        loaded = self._tiers.memory.get(key)
        if loaded is not None:
            return Found(MemoryTier.name, loaded)
        if self._store is None:
            return None
        try:
            loaded = self._store.get(key)
        except CorruptEntry as error:
            if no_lock is None:
                self._quarantine(self._store, key, error)
            return error
        except OSError as error:
            self._tiers.skip(self._store.name, key, error)
            return error
        if loaded is None:
            return None
        self._tiers.memory.put(key, loaded)
        return Found(self._store.name, loaded)

    def hit(
        self, selection: Selection, found: Found, stages: StageClock, priority: Priority = Priority.CALLER,
        *, problem: GemmProblem | None = None,
    ) -> CompiledKernel:  # fmt: skip
        """Returns the kernel of an entry that was found, and counts the hit.

        Args:
            problem: the problem that was asked for, if the selection is for another problem.
        """
        asked = problem or selection.problem
        self.count(selection.key, found, asked if priority is Priority.CALLER else None)
        if LOAD in stages.ms:
            self._journal.spans.add(found.tier, stages.ms[LOAD])
        kernel = kernel_of(selection, found.loaded, found.tier, stages)
        return kernel if problem is None else msgspec.structs.replace(kernel, problem=problem)

    def hit_faster(self, asked: Request, stages: StageClock) -> CompiledKernel | None:
        """The exact kernel that was measured to be faster than the selected one, if a tier has it; counted as a hit."""
        selection = self._faster.there(asked)
        if selection is None:
            return None
        with stages(LOAD):
            found = self.look_up(selection.key)
        if found is not None:
            return self.hit(selection, found, stages, problem=asked[0])
        self._faster.gone(asked)
        return None

    def ask(self, problem: GemmProblem) -> None:
        """Counts a request for a problem."""
        self._journal.asked(problem)

    def held(self) -> tuple[int, int]:
        """The number of kernels in this process's memory, and the bytes of their code."""
        return self._memory.held()

    def is_in_memory(self, key: CacheKey) -> bool:
        """Whether the memory tier has the key."""
        return self._tiers.memory.get(key) is not None

    def waiting(self, key: CacheKey) -> AbstractContextManager[object]:
        """A context manager for a caller that waits for the compile of a key: gives the compile a caller's priority.

        The compile may run in any thread or process.
        """
        return nullcontext() if self._slots is None else self._slots.waiting(key, Priority.CALLER)

    def count(self, key: CacheKey, found: Found, problem: GemmProblem | None = None) -> None:
        """Counts a hit, and the request for ``problem`` if given.

        A hit in memory saves no compile: a process would keep its kernels in memory even without this cache.
        """
        record = found.loaded.record
        is_in_memory = found.tier == MemoryTier.name
        saved_us = 0 if is_in_memory else round(record.compile_ms * 1000)
        self._journal.hit(key, found.tier, made_at=record.created_at, saved_us=saved_us, problem=problem)
        level = DEBUG if is_in_memory else INFO
        if _log.is_on(level):
            extra = fields("hit", key=key, kernel=record.name, tier=found.tier)
            _log.log(level, "hit in %s: %s (%s)", found.tier, record.name, key[:12], extra=extra)

    def _miss(
        self,
        selector: Selector,
        selection: Selection,
        priority: Priority,
        fault: Exception | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Counts a miss, and logs its reason."""
        self._journal.miss(selection.problem.arch or "")
        if priority is Priority.CALLER:
            self._journal.asked(selection.problem)
        if self._store is not None:
            from cache_engine.cache.miss import log_miss

            log_miss(self._journal, self._store, selector, selection, fault, forced=force)
        if _log.is_on(INFO):
            why = "compiling was asked for" if force else f"no entry in {', '.join(self._tiers.names)}"
            extra = fields("miss", key=selection.key, kernel=selection.name, arch=selection.problem.arch, why=why)
            _log.info("miss: %s (%s): %s", selection.name, selection.key[:12], why, extra=extra)
            _log.debug("key %s is made from %s", selection.key[:12], dict(selection.prefix.components))

    def _key_lock(self, key: CacheKey, priority: Priority) -> KeyLock:
        """Holds the key's lock while the body of a ``with`` runs; ``as`` gives the reason if it could not be locked."""
        with unforked():  # a child that is forked during an import would wait for the import for ever
            for module in _FOR_A_MISS:
                import_module(module)
        return KeyLock(partial(self._lock_key, key, priority))

    def _lock_key(self, key: CacheKey, priority: Priority, into: KeyLock) -> Failure | None:
        if self._store is None or self._slots is None:
            into.take(self._compiling.of(key))
            return Failure(self._without_store)
        started = time.perf_counter()
        try:
            lock = self._store.layout.key_lock(key)
            try:
                into.take(file_lock(lock, 0))
            except LockTimeout:
                with self._slots.waiting(key, priority):
                    into.take(file_lock(lock, self._settings.lock_timeout_s))
        except LockTimeout as error:
            self._journal.lock_wait(time.perf_counter() - started, timed_out=True)
            _log.info("no lock for %s, so it is compiled here and not stored: %s", key[:12], error)
            return Failure(str(error))
        except OSError as error:
            into.release()
            return Failure(f"the store cannot be locked: {in_words(error)}")
        waited_s = time.perf_counter() - started
        self._journal.spans.add("lock", 1e3 * waited_s)
        if waited_s > LONG_WAIT_S:
            self._journal.lock_wait(waited_s, timed_out=False)
        return None

    def _publish(
        self, selection: Selection, artifact: Artifact, stages: StageClock, no_lock: Failure | None
    ) -> CompiledKernel:
        """Stores a compiled kernel if possible, and returns it, stored or not."""
        from cache_engine.cache.miss import describe

        key, compile_us = selection.key, round(stages.ms[COMPILE] * 1000)

        def record_of(blob: Blob) -> Record:
            return describe(selection, artifact, blob, dict(stages.ms))

        self._journal.spans.add_work(stages.ms)
        failure = no_lock
        with stages(PUBLISH):
            if self._store is not None and failure is None:
                try:
                    record = self._store.publish(key, artifact, record_of)
                except (OSError, StoreError) as error:
                    failure = refusal(error)
                else:
                    size = stored_bytes(record)
                    self._journal.event(PUBLISHED, key=key, compile_us=compile_us, stored_bytes=size)
                    extra = fields("publish", key=key, kernel=record.name, stored_bytes=size, compile_us=compile_us)
                    _log.info("published: %s (%s), %s bytes", record.name, key[:12], size, extra=extra)
                    self._team.published(key)
            if failure is not None:
                self.unpublished += 1
                record = record_of(encode_blob(key, artifact, compress=True)[1])
                self._journal.event(UNPUBLISHED, key=key, compile_us=compile_us, detail=failure.reason)
                if self._store is not None:
                    _log.warning("kernel %s is served but not stored: %s", key[:12], failure)
        self._journal.spans.add(PUBLISH, stages.ms[PUBLISH])
        if failure is None:
            self._stored(stored_bytes(record))
        loaded = Loaded(record, artifact.cubin)
        self._tiers.memory.put(key, loaded)
        return kernel_of(selection, loaded, COMPILED, stages, failure)

    def _not_cached(self, selector: Selector, selection: Selection) -> NotCached:
        from cache_engine.cache.serving.pack_state import refusals

        why, packs = "compiling is switched off (enable_jit)", self._elsewhere
        self._not_compiled(selection, why)
        refused = (*refusals(packs, selector, selection), *packs.refused, *packs.useless.values())
        return NotCached("; ".join((f"no tier has {selection.name} ({selection.key[:12]}), and {why}", *refused)))

    def _not_compiled(self, selection: Selection, why: str) -> None:
        """Logs in the log of decisions why a kernel, for a caller or in the background, was not compiled."""
        from cache_engine.model.decision import NOT_COMPILED, REFUSAL

        detail = why[:_LONGEST_REASON]
        self._journal.decided(REFUSAL, key=selection.key, name=selection.name, reason=NOT_COMPILED, detail=detail)

    def result_stored(self) -> None:
        """Starts a cleaning in the background if one is due; called when a result of the evaluator is stored."""
        if self._housekeeper is not None:
            self._housekeeper.result_stored()

    def close(self) -> None:
        """Ends a running cleaning and requests to the remote."""
        wait = not self._journal.is_interrupted
        if "_team" in self.__dict__:
            self._team.close(wait=wait)
        housekeeper: Housekeeper | None = self.__dict__.get("_housekeeper")
        if housekeeper is not None:
            housekeeper.close(wait=wait)

    def _quarantine(self, store: DiskStore, key: CacheKey, damage: CorruptEntry) -> None:
        try:
            store.quarantine(key)
        except OSError as error:
            _log.warning("a damaged entry could not be moved to quarantine: %s", error)
        else:
            extra = fields("quarantine", key=key, why=str(damage))
            _log.info("a damaged entry is in quarantine: %s: %s", key[:12], damage, extra=extra)
        self._journal.event(CORRUPT, key=key, detail=str(damage))


def _make(selection: Selection, stages: StageClock, debug_dump: Path | None) -> Artifact:
    from cache_engine.cache import miss

    if debug_dump is None:
        return miss.make_artifact(selection, stages)
    return miss.make_artifact_and_dump(debug_dump, selection, stages)


def refusal(error: OSError | StoreError) -> Failure:
    """The reason why the store did not accept an entry."""
    return Failure(f"the store refused it: {in_words(error)}")


class CompiledKernel(msgspec.Struct, frozen=True):
    """A kernel ready to use: its code, and how to launch it.

    Attributes:
        key: its CacheKey.
        problem: the problem that was asked for.
        record: its metadata; ``record.resources`` has registers and shared memory, ``record.compile_ms`` the compile
            time.
        cubin: the compiled code, as ``cuModuleLoadData`` takes it.
        tier: the tier that had it: ``"memory"``, ``"pack"``, ``"disk"`` or ``"remote"``; or ``"compiled"``.
        launch: the launch parameters for the problem. They depend on m, even if the kernel's code does not: keep a
            launch for each problem, and a loaded module for each key.
        config_from: the origin of its config: ``"given"``, ``"cost model"`` or ``"measured on …"``.
        stages_ms: the milliseconds of each stage of getting it, by name.
        unpublished: the reason why it could not be stored; ``None`` if it was stored or found.
        toolchain_from: the origin of the toolchain in its key: ``"installed"``, ``"pack NAME"`` or ``"store"``. With
            the last two, the compiler installed here might make different code.
        better: the handle of the kernel that is compiled in the background while this one serves: ``better.ready``,
            ``better.wait(timeout_s)``, then ``better.kernel`` or ``better.failure``. ``None`` if there is no such
            compile.
    """

    key: CacheKey
    problem: GemmProblem
    record: Record
    cubin: bytes
    tier: str
    launch: Launch
    config_from: str
    stages_ms: dict[str, float]
    unpublished: Failure | None = None
    toolchain_from: str = INSTALLED
    better: PendingKernel[CompiledKernel] | None = None

    @property
    def entry(self) -> str:
        """The name of the kernel's function in ``cubin``, for ``cuModuleGetFunction``."""
        return self.record.name

    def __repr__(self) -> str:
        from cache_engine.units import human_bytes

        p = self.problem
        batch = f"{p.batch} × " if p.batch > 1 else ""
        what = f"{batch}{p.m} × {p.n} × {p.k}, {p.dtype}, {p.arch}; {self.record.family} {self.record.config}"
        return f"<CompiledKernel {self.key[:12]}: {what}, {human_bytes(len(self.cubin))}, {self.tier}>"


def kernel_of(
    selection: Selection, loaded: Loaded, tier: str, stages: StageClock, unpublished: Failure | None = None
) -> CompiledKernel:
    """The kernel for a selection whose entry was found or compiled."""
    s = selection
    launch = launch_of(s.family, s.problem, s.config, loaded.record.resources.shared_bytes)
    return CompiledKernel(
        s.key, s.problem, loaded.record, loaded.cubin, tier, launch, s.config_from, stages.ms, unpublished,
        s.toolchain_from,
    )  # fmt: skip


def limit_device_memory(settings: Settings) -> None:
    """Sets the limit of the device memory pool, which all caches of the process share, if the settings have one."""
    if settings.device_memory_bytes is not None:
        from cache_engine.gpu.memory_pool import shared_limit

        shared_limit.size_bytes = int(settings.device_memory_bytes)


# ---- The lock of a key, held while the key's kernel is compiled or fetched ----


class KeyLock:
    """Calls ``lock`` at the start of a ``with``; ``as`` gives the result. Releases the lock at the end."""

    __slots__ = ("_held", "_lock")

    def __init__(self, lock: Callable[[KeyLock], Failure | None]) -> None:
        """Takes no lock yet."""
        self._lock = lock
        self._held: Held | threading.Lock | None = None

    def take(self, lock: Held | threading.Lock) -> None:
        """Waits for a lock, and holds it."""
        lock.__enter__()
        self._held = lock

    def hand_over(self) -> KeyLock:
        """Moves the lock to a new ``KeyLock``, and returns that, so that the lock is held beyond this ``with``."""
        other = KeyLock(self._lock)
        other._held, self._held = self._held, None
        return other

    def release(self) -> None:
        """Releases the lock, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(None, None, None)

    def __enter__(self) -> Failure | None:
        try:
            return self._lock(self)
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()
