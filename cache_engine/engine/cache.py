"""The cache: where all rooms meet. ``Cache.get_or_compile`` is what the rest exists for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache_engine.config import Settings
from cache_engine.engine.history import History
from cache_engine.engine.selection import Selection, Selector, describe, make_artifact, measurement
from cache_engine.engine.stages import COMPILE, LOAD, PUBLISH, SELECT, VALIDATE, OnStage, StageClock
from cache_engine.engine.tiers import Found, Tiers
from cache_engine.engine.view import StoreView
from cache_engine.errors import (
    CorruptEntry,
    LockTimeout,
    NotCached,
    PackUnusable,
    StoreError,
    UsageError,
)
from cache_engine.kernels.family import launch_of
from cache_engine.model.artifact import Artifact, Blob, Record
from cache_engine.model.events import CORRUPT, UNPUBLISHED
from cache_engine.model.events import PUBLISH as PUBLISHED
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig, Launch
from cache_engine.model.key import CacheKey, Components
from cache_engine.store.base import Loaded, Tier
from cache_engine.store.codec import encode_blob, stored_bytes
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal, NoJournal
from cache_engine.store.lock import ThreadLocks, file_lock
from cache_engine.store.memory import MemoryTier
from cache_engine.store.pack import Pack, find_packs
from cache_engine.upkeep.cleaning import Housekeeper

if TYPE_CHECKING:
    from cache_engine.device.timer import Timing

_log = logging.getLogger(__name__)

COMPILED = "compiled"
"""The tier of a kernel that no tier had."""

# Most compiles take less, so a wait for one is nothing to look at.
_LONG_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel in hand.

    Attributes:
        key: its CacheKey.
        problem: the problem it was asked for.
        record: what is kept about it.
        cubin: the compiled code.
        tier: which tier had it, or ``"compiled"``.
        launch: how to launch it for the problem.
        config_from: what chose its config for the problem; see ``model.measurement``.
        stages_ms: what each stage of getting it took.
        unpublished: why it could not be kept; empty when it was, or was found.
    """

    key: CacheKey
    problem: GemmProblem
    record: Record
    cubin: bytes
    tier: str
    launch: Launch
    config_from: str
    stages_ms: dict[str, float]
    unpublished: str = ""


class Cache(StoreView):
    """A persistent cache of compiled GEMM kernels. Safe to use from several threads and processes at once.

    Opened with :func:`open_cache`. Use it in a ``with``, or call :meth:`close`, to have its last usage counts written
    at once; else they are at the end of the process. A closed cache can still be used.

    With caching switched off there is no store: kernels are compiled and kept in this process alone, and what looks
    into a store raises ``StoreUnusable``.
    """

    def __init__(self, store: DiskStore | None, settings: Settings) -> None:
        """Serves an opened store, or none."""
        history = None
        if store is not None and settings.use_timings:
            history = History(lambda: self.timings, settings.timings_of)
        self._selector = Selector(fast_math=settings.fast_math, compiler_flags=settings.compiler_flags, history=history)
        journal = NoJournal() if store is None else Journal(store.layout.journal, settings.journal_flush_s)
        super().__init__(store, settings, journal, self._selector.is_stale)
        self._housekeeper: Housekeeper | None = None
        slower: list[Tier] = []
        if store is not None:
            self._housekeeper = Housekeeper(store, journal, self.policy(), settings.cleanup_interval_h * 3600)
            slower = [*self._mount_packs(), store]
        self._tiers = Tiers(MemoryTier(settings.memory_bytes), slower, journal.failure)
        self._compiling = ThreadLocks()

    def get_or_compile(
        self,
        problem: GemmProblem,
        *,
        arch: str | None = None,
        family: str | None = None,
        compiler: str | None = None,
        config: KernelConfig | None = None,
        force: bool = False,
        debug_dump: Path | None = None,
        on_stage: OnStage | None = None,
    ) -> CompiledKernel:
        """The kernel for a problem, from the fastest tier that has it, else compiled and kept.

        Args:
            problem: what is asked.
            arch: compile for this target, whichever the problem names.
            family, config: use these instead of choosing.
            compiler: which compiler makes it; by default one that takes the family, and ``nvrtc`` where none is named.
            force: compile even if there is an entry, and replace it.
            debug_dump: compile likewise, and write all that goes in and comes out into this folder.
            on_stage: told of each stage as it starts and ends.

        Raises:
            UsageError: when the request cannot be right.
            NotCached: when no tier has it and compiling is switched off.
            CompilerMissing: when the compiler is not installed.
            CompileError: when the compiler refuses the source.
        """
        stages = StageClock(on_stage)
        with stages(VALIDATE):
            if not isinstance(problem, GemmProblem):
                raise UsageError(f"a kernel is asked for with a GemmProblem, not with {type(problem).__name__}")
            if config is not None and not isinstance(config, KernelConfig):
                raise UsageError(f"config is a {type(config).__name__}; it must be a KernelConfig")
            problem = self.targeted(problem, arch)
        with stages(SELECT):
            selection = self.select(problem, family=family, compiler=compiler, config=config)
        key = selection.key
        force = force or debug_dump is not None
        if not force:
            with stages(LOAD):
                found = self._tiers.get(key)
            if found is not None:
                return self._hit(selection, found, stages)
        with self._key_lock(key) as no_lock:
            if not force:
                with stages(LOAD):
                    found = self._get_again(key, no_lock)
                if found is not None:
                    return self._hit(selection, found, stages)
            self.journal.miss(key, selection.problem.arch or "")
            if not self.settings.enable_jit:
                raise NotCached(
                    f"no tier has {selection.name} ({key[:12]}), and compiling is switched off (enable_jit)"
                )
            artifact = _make(selection, stages, debug_dump)
            return self._publish(selection, artifact, stages, no_lock)

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry of a key from the fastest tier that has it, counted as a hit; ``None`` when there is none."""
        found = self._tiers.get(key)
        if found is None:
            return None
        self._count(key, found)
        return found.loaded

    def look_up(self, key: CacheKey) -> Found | None:
        """The entry of a key and the tier that has it, not counted as a use; ``None`` when there is none."""
        return self._tiers.get(key)

    def select(
        self,
        problem: GemmProblem,
        *,
        family: str | None = None,
        compiler: str | None = None,
        config: KernelConfig | None = None,
    ) -> Selection:
        """What would serve a problem whose target is set; see ``Selector.select``."""
        return self._selector.select(problem, family, compiler, config)

    def present_components(self, family: str, compiler: str, level: int, arch: str) -> Components | None:
        """What the keys of a family, compiler at a level, and target start with here; see ``Selector.present``."""
        return self._selector.present(family, compiler, level, arch)

    def targeted(self, problem: GemmProblem, arch: str | None = None) -> GemmProblem:
        """The problem with its target set: as given, else that of the local GPU, else the default."""
        if arch is not None:
            return problem.on(arch)
        if problem.arch is not None:
            return problem
        from cache_engine.device.probe import local_arch

        return problem.on(local_arch() or self.settings.default_arch)

    def keep_timing(self, kernel: CompiledKernel, timing: Timing, config_from: str | None = None) -> str:
        """Keeps a timing of a kernel, to choose configs by; returns why it could not be kept, else an empty text.

        Args:
            config_from: what chose the kernel's config, where that is not what the kernel says.
        """
        if self._store is None:
            return "caching is switched off"
        try:
            origin = config_from or kernel.config_from
            self.timings.add([measurement(kernel.record, kernel.problem, timing, origin)])
        except (OSError, StoreError) as error:
            return f"the store refused it: {(isinstance(error, OSError) and error.strerror) or error}"
        self._selector.forget()
        return ""

    def close(self) -> None:
        """Writes the last usage counts and ends cleaning that is under way."""
        if "evaluations" in self.__dict__:
            self.evaluations.close()
        if "timings" in self.__dict__:
            self.timings.close()
        if self._housekeeper is not None:
            self._housekeeper.close()
        self.journal.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- Parts of get_or_compile ----

    def _hit(self, selection: Selection, found: Found, stages: StageClock) -> CompiledKernel:
        self._count(selection.key, found)
        return _kernel(selection, found.loaded, found.tier, stages)

    def _count(self, key: CacheKey, found: Found) -> None:
        in_memory = found.tier == MemoryTier.name
        record = found.loaded.record
        saved_us = 0 if in_memory else round(record.compile_ms * 1000)
        self.journal.hit(key, found.tier, made_at=record.created_at, saved_us=saved_us)

    def _get_again(self, key: CacheKey, no_lock: str) -> Found | None:
        """Looks again under the key's lock, whose last holder may have made the entry; sets a damaged one aside."""
        loaded = self._tiers.memory.get(key)
        if loaded is not None:
            return Found(MemoryTier.name, loaded)
        if self._store is None:
            return None
        try:
            loaded = self.store.get(key)
        except CorruptEntry as error:
            if not no_lock:
                self._set_aside(key, error)
        except OSError as error:
            self._tiers.passed_over(self.store.name, key, error)
        if loaded is None:
            return None
        self._tiers.memory.put(key, loaded)
        return Found(self.store.name, loaded)

    def _mount_packs(self) -> Iterator[Pack]:
        """Opens the packs that the settings name. One that cannot be used is passed over."""
        for path in find_packs(self.settings.packs):
            try:
                yield Pack(path, trust=self.settings.trust_store)
            except PackUnusable as error:
                self.journal.failure(Pack.name)
                _log.warning("%s", error)

    def _set_aside(self, key: CacheKey, damage: CorruptEntry) -> None:
        try:
            self.store.quarantine(key)
        except OSError as error:
            _log.warning("damaged entry could not be set aside: %s", error)
        self.journal.event(CORRUPT, key=key, detail=str(damage))

    def _publish(self, selection: Selection, artifact: Artifact, stages: StageClock, no_lock: str) -> CompiledKernel:
        """Keeps the kernel if that is possible, and hands it out in any case."""
        key, compile_us = selection.key, round(stages.ms[COMPILE] * 1000)

        def record_of(blob: Blob) -> Record:
            return describe(selection, artifact, blob, dict(stages.ms))

        reason = no_lock
        with stages(PUBLISH):
            if not reason:
                try:
                    record = self.store.publish(key, artifact, record_of)
                    self.journal.event(PUBLISHED, key=key, compile_us=compile_us, stored_bytes=stored_bytes(record))
                except (OSError, StoreError) as error:
                    cause = error.strerror if isinstance(error, OSError) and error.strerror else error
                    reason = f"the store refused it: {cause}"
            if reason:
                record = record_of(encode_blob(key, artifact, compress=self.settings.compression)[1])
                self.journal.event(UNPUBLISHED, key=key, compile_us=compile_us, detail=reason)
                if self._store is not None:
                    _log.warning("kernel %s is served but not kept: %s", key[:12], reason)
        if self._housekeeper is not None and not reason:
            self._housekeeper.published()
        loaded = Loaded(record, artifact.cubin)
        self._tiers.memory.put(key, loaded)
        return replace(_kernel(selection, loaded, COMPILED, stages), unpublished=reason)

    @contextmanager
    def _key_lock(self, key: CacheKey) -> Iterator[str]:
        """Holds the key's lock for the body; yields why not when it cannot be had, else an empty text."""
        with ExitStack() as stack:
            reason = ""
            if self._store is None:
                stack.enter_context(self._compiling.of(key))
                yield "caching is switched off"
                return
            started = time.perf_counter()
            try:
                stack.enter_context(file_lock(self.layout.key_lock(key), self.settings.lock_timeout_s))
            except LockTimeout as error:
                reason = str(error)
                self.journal.lock_wait(time.perf_counter() - started, in_vain=True)
            except OSError as error:
                reason = f"the store cannot be locked: {error.strerror or error}"
            else:
                waited_s = time.perf_counter() - started
                if waited_s > _LONG_WAIT_S:
                    self.journal.lock_wait(waited_s, in_vain=False)
            yield reason


def open_cache(
    dir: str | Path | None = None,
    policy: str | None = None,
    *,
    settings: Settings | None = None,
    create: bool = True,
    **overrides: Any,
) -> Cache:
    """Opens the store in ``dir``, making it when it does not exist.

    Args:
        dir: the store's directory; by default ``GEMM_CACHE_DIR``, else the user cache directory.
        policy: ``"standard"``, ``"development"`` or ``"production"``: when entries expire.
        settings: in place of those of the environment.
        create: whether to make a store where there is none.
        overrides: single settings by name.

    Raises:
        UsageError: when there is no setting of a name, or it cannot have a value.
        StoreUnusable: when the directory cannot serve as a store.
    """
    if dir is not None:
        overrides["dir"] = Path(dir)
    if policy is not None:
        overrides["policy"] = policy
    settings = Settings.load(**overrides) if settings is None else settings.with_overrides(overrides)
    if not settings.enable_caching:
        return Cache(None, settings)
    layout = open_store(settings.directory(), trust=settings.trust_store, create=create)
    store = DiskStore(layout, durable=settings.durability == "durable", compress=settings.compression)
    return Cache(store, settings)


def _make(selection: Selection, stages: StageClock, debug_dump: Path | None) -> Artifact:
    if debug_dump is None:
        return make_artifact(selection, stages)
    from cache_engine.engine.debug_dump import make_artifact_and_dump  # for nobody else

    return make_artifact_and_dump(debug_dump, selection, stages)


def _kernel(selection: Selection, loaded: Loaded, tier: str, stages: StageClock) -> CompiledKernel:
    shared_bytes = loaded.record.resources.shared_bytes
    s = selection
    launch = launch_of(s.family, s.problem, s.config, shared_bytes)
    return CompiledKernel(s.key, s.problem, loaded.record, loaded.cubin, tier, launch, s.config_from, stages.ms)
