"""The class through which programs use a store: ``Cache`` gets kernels, shows what is stored, and maintains the store.

``Cache.get_or_compile`` is its main method. Modules that no hit needs are imported when they are first used.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import msgspec

from cache_engine.cache.history import History
from cache_engine.cache.other_toolchains import OtherToolchains
from cache_engine.cache.queue import Priority, QueueState, queue_state
from cache_engine.cache.selection import ExactKernels, Request, Selection, Selector, check_asked, check_wait
from cache_engine.cache.serving import COMPILED, SWITCHED_OFF, CompiledKernel, Serving, refusal
from cache_engine.cache.stages import VALIDATE, OnStage, StageClock
from cache_engine.cache.tiers import Found, Preloaded
from cache_engine.errors import ExtraMissing, PackUnusable, StoreError, StoreUnusable, UsageError
from cache_engine.kernels.select import TO_PROVE
from cache_engine.logs import Log
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.events import Statistics, Tally
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.settings import FAST_MATH, NO_DEVICE, Settings
from cache_engine.store.base import Loaded
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import Journal, NoJournal, fold_when_long
from cache_engine.store.layout import StoreLayout

if TYPE_CHECKING:
    from cache_engine.cache.demand import Demand
    from cache_engine.cache.proving import Proofs
    from cache_engine.cache.queue import PendingKernel
    from cache_engine.cache.serving.stand_ins import StandIns
    from cache_engine.evaluator.results import Evaluations
    from cache_engine.gpu.timer import Timing
    from cache_engine.index import Connection
    from cache_engine.index.framework_caches import Progress, Scanned
    from cache_engine.index.sync import Index
    from cache_engine.store.pack import Pack
    from cache_engine.store.timings import Timings
    from cache_engine.upkeep.admin import Admin

__all__ = ["COMPILED", "Cache", "CompiledKernel", "open_cache"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

PACKS_ALONE = "only packs are used (enable_caching = packs)"
"""The reason given when a cache uses packs only and so has no store."""
_log = Log(__name__)

_MOVED = {"mirror": "index", "present_components": "selector.present"}
"""Attributes that ``Cache`` had in 0.2 and that are not methods of ``admin``, with their new names."""


class Cache:
    """A persistent cache of compiled GEMM kernels, opened with ``open_cache``; safe in several threads and processes.

    The end of a ``with``, ``close`` or the end of the process writes the last usage counts. With caching switched off
    there is no store: kernels are held in the memory of this process only, and every method that needs a store raises
    ``StoreUnusable``. Methods that change the store take ``by``, the name of the user for the audit log; by default the
    user of this process.
    """

    def __init__(self, store: DiskStore | None, settings: Settings, without_store: str = SWITCHED_OFF) -> None:
        """Uses an opened store, or no store for the reason ``without_store``."""
        self.settings, self._without_store = settings, without_store
        self._store, self.has_store = store, store is not None
        history = (
            History(self._timings_there, settings.timings_of) if store and settings.timings_of != NO_DEVICE else None
        )
        self.journal = journal_of(store)
        packs, refused = packs_of(settings, self.journal)
        self.other_toolchains = OtherToolchains(packs, store, refused)
        self.packs = self.other_toolchains.packs
        self.selector = Selector(settings, history=history, elsewhere=self.other_toolchains)
        self.exact_kernels = ExactKernels(self.selector, self.other_toolchains)
        self._serving = Serving(store, self.other_toolchains, settings, self.journal, self.exact_kernels, without_store)

    @cached_property
    def stand_ins(self) -> StandIns:
        """The kernels that serve a problem while its own kernel is compiled in the background."""
        from cache_engine.cache.serving.stand_ins import StandIns

        return StandIns(self._serving, self.selector, self.other_toolchains, self.settings)

    @cached_property
    def _proofs(self) -> Proofs:
        """The proofs that faster families compute correctly on this machine's GPUs."""
        from cache_engine.cache.proving import Proofs

        return Proofs(self)

    @cached_property
    def admin(self) -> Admin:
        """The administration of the store: pins, integrity, quarantine, packs, other frameworks' caches, decisions."""
        from cache_engine.upkeep.admin import Admin

        return Admin(self, self.selector.is_stale)

    def get_or_compile(
        self, problem: GemmProblem, *, arch: str | None = None, family: str | None = None,
        compiler: str | None = None, config: KernelConfig | None = None, force: bool = False,
        debug_dump: Path | None = None, on_stage: OnStage | None = None,
        priority: Priority = Priority.CALLER, wait_ms: float | None = None, wait: float | None = None,
    ) -> CompiledKernel:  # fmt: skip
        """The kernel for a problem, from the fastest tier that has it. If no tier has it, it is compiled and stored.

        Args:
            problem: the GEMM to compute.
            arch: the target, in place of the one that the problem names.
            family: the family of kernels to choose from, such as ``tensor_core`` or ``triton``; by default the best.
            compiler: the compiler to use; by default one that can compile the family, or ``nvrtc`` if no family is
                named.
            config: the config to use; by default the cache chooses one.
            force: compile even if there is an entry, and replace it.
            debug_dump: compile as with ``force``, and write all inputs and outputs of the compile to this folder.
            on_stage: a function called when each stage starts and ends.
            priority: the priority of the compile among all that wait for a slot of the store. Only a request with the
                priority ``CALLER`` counts as demand.
            wait_ms: the longest wait for a compile, in milliseconds; by default without limit, 0 for no wait. After it,
                another stored kernel that computes the problem correctly is returned; its ``better`` says when the
                kernel asked for is ready. If the store has no other such kernel, the call waits for the compile;
                ``submit`` never waits.
            wait: the old name of ``wait_ms``.

        Raises:
            UsageError: when the request is invalid.
            NotCached: when no tier has the kernel and compiling is switched off.
            CompilerMissing: when the compiler is not installed, and no pack or store has the kernel.
            CompileError: when the compiler refuses the source.
        """
        stages, wait_ms = StageClock(on_stage), check_wait(wait_ms, wait)
        with stages(VALIDATE):
            check_asked(problem, config)
            asked = (self.targeted(problem, arch), family, compiler, config)
        if wait_ms is not None and not force and debug_dump is None:
            return self.stand_ins.get_or_compile(asked, stages, wait_ms)
        return self._serving.get_or_compile(
            self.selector, asked, stages, force=force, debug_dump=debug_dump, priority=priority
        )

    def submit(
        self, problem: GemmProblem, *, arch: str | None = None, family: str | None = None,
        compiler: str | None = None, config: KernelConfig | None = None,
    ) -> PendingKernel[CompiledKernel]:  # fmt: skip
        """A handle of a problem's kernel; returns at once.

        A kernel that no local tier has is compiled in the background.

        The handle's ``ready`` says whether the kernel is available, ``on_done`` calls a function when it is, and a
        coroutine can ``await`` it. The arguments are those of ``get_or_compile``.

        Raises:
            UsageError: when the request is invalid.
            CompilerMissing: as ``get_or_compile``.
        """
        check_asked(problem, config)
        return self.stand_ins.submit((self.targeted(problem, arch), family, compiler, config), StageClock())

    @overload
    def get_to_launch(
        self, problem: GemmProblem, *, family: str | None = None, compiler: str | None = None
    ) -> CompiledKernel: ...

    @overload
    def get_to_launch(
        self, problem: GemmProblem, *, family: str | None = None, compiler: str | None = None, wait_ms: float | None
    ) -> CompiledKernel | PendingKernel[CompiledKernel]: ...

    def get_to_launch(
        self, problem: GemmProblem, *, family: str | None = None, compiler: str | None = None,
        wait_ms: float | None = None,
    ) -> CompiledKernel | PendingKernel[CompiledKernel]:  # fmt: skip
        """As ``get_or_compile``, for a caller such as ``matmul`` that launches the kernel for exactly this problem.

        So it may also return an ``exact`` kernel, which is wrong for any other m, if this store's timings show that
        this kernel is faster. A new family serves only after test kernels of it have computed correct results on this
        GPU (setting ``prove``). Until then, a kernel of a plain family is returned; its ``better`` is ready when the
        new family serves.

        Args:
            wait_ms: as for ``get_or_compile``; but if no stored kernel can serve, the handle of the compile is
                returned.
        """
        asked, proved = self._proved((self.targeted(problem, None), family, compiler, None))
        if wait_ms is not None:
            got: CompiledKernel | PendingKernel[CompiledKernel] = self.stand_ins.get(asked, StageClock(), wait_ms)
        else:
            got = self._serving.get_or_compile(self.selector, asked, StageClock(), for_launch=True)
        if proved is None or not isinstance(got, CompiledKernel) or got.better is not None:
            return got
        return msgspec.structs.replace(got, better=proved)

    def _proved(self, asked: Request) -> tuple[Request, PendingKernel[CompiledKernel] | None]:
        """The request to serve now, and a handle of the kernel that will serve once its family is proved on this GPU.

        Returns ``asked`` itself and ``None`` if the family needs no proof, is proved, or cannot be proved here.
        """
        if self.selector.select(*asked).family.name in TO_PROVE or self.exact_kernels.measured(asked) is not None:
            return self._proofs.served(asked)
        return asked, None

    def get(self, key: CacheKey) -> Loaded | None:
        """The entry of a key from the fastest tier that has it, the remote last; ``None`` if no tier has it.

        Counted as a hit.
        """
        return self._serving.get(key)

    def preload(self, keys: Iterable[str]) -> Preloaded:
        """Reads kernels into memory, up to ``memory_bytes``; not counted as hits.

        Also stores on disk kernels that only the remote has.

        Raises:
            UsageError: when a text is not a key.
        """
        return self._serving.preload(keys)

    def look_up(self, key: CacheKey) -> Found | None:
        """The entry of a key and the tier that has it. Does not ask the remote, and is not counted as a hit."""
        return self._serving.look_up(key)

    def select(
        self, problem: GemmProblem, *, family: str | None = None, compiler: str | None = None,
        config: KernelConfig | None = None,
    ) -> Selection:  # fmt: skip
        """The family, config, compiler and key that ``get_or_compile`` would choose for a problem.

        Compiles nothing, and raises as ``Selector.select``.
        """
        return self.selector.select(self.targeted(problem), family, compiler, config)

    def targeted(self, problem: GemmProblem, arch: str | None = None) -> GemmProblem:
        """The problem with its target set: ``arch`` if given, else the local GPU's, else the default target.

        ``fast_math`` is also set, so that records say whether their kernels have it; it stays ``None`` if neither the
        problem nor the settings ask for it.
        """
        by_default = FAST_MATH in self.settings.compiler_flags
        fast = by_default if problem.fast_math is None else problem.fast_math
        stated = fast if fast or by_default else None
        if stated is not problem.fast_math:
            problem = replace(problem, fast_math=stated)
        if arch is None and problem.arch is None:
            from cache_engine.gpu.probe import local_arch

            arch = local_arch() or self.settings.default_arch
        return problem if arch is None else problem.on(arch)

    def keep_timing(self, kernel: CompiledKernel, timing: Timing, config_from: str | None = None) -> Failure | None:
        """Stores a timing, by which configs are chosen later; returns the reason if it could not be stored.

        Args:
            config_from: what chose the config; by default as the kernel says.
        """
        if self._store is None:
            return Failure(self._without_store)
        from cache_engine.cache.miss import measurement

        try:
            self.timings.add([measurement(kernel.record, kernel.problem, timing, config_from or kernel.config_from)])
        except (OSError, StoreError) as error:
            return refusal(error)
        self.selector.forget()
        self.exact_kernels.forget()
        return None

    @property
    def unpublished(self) -> int:
        """The number of kernels that this process has compiled and could not store."""
        return self._serving.unpublished

    @property
    def store(self) -> DiskStore:
        """The entries on disk, including those fetched from a remote.

        Raises:
            StoreUnusable: when caching is switched off, or only packs are used.
        """
        if self._store is None:
            raise StoreUnusable(f"{self._without_store}, so there is no store; set enable_caching, and dir if need be")
        self._serving.settle()
        return self._store

    @property
    def layout(self) -> StoreLayout:
        """The paths of the store; raises as ``store``."""
        return self.store.layout

    @cached_property
    def index(self) -> Index:
        """The DuckDB copy of this store."""
        from cache_engine.index.sync import Index

        return Index(self.store)

    @cached_property
    def evaluations(self) -> Evaluations:
        """The results of the evaluator. They are written when the cache is closed, else at the end of the process."""
        from cache_engine.evaluator.results import Evaluations

        s = self.settings
        return Evaluations(
            self.layout, durable=s.is_durable, lock_timeout_s=s.lock_timeout_s, stored=self._serving.result_stored,
            acted=lambda *event: self.admin.acted(*event),
        )  # fmt: skip

    @cached_property
    def timings(self) -> Timings:
        """The measurements of this store's kernels."""
        from cache_engine.store.timings import Timings

        return Timings(self.layout, durable=self.settings.is_durable, lock_timeout_s=self.settings.lock_timeout_s)

    def _timings_there(self) -> Timings | None:
        """The measurements of this store's kernels; ``None`` if the store has none. Takes one disk access."""
        there = "timings" in self.__dict__ or (self._store is not None and self._store.layout.timings.is_dir())
        return self.timings if there else None

    @cached_property
    def demand(self) -> Demand:
        """The requests to this store: ``demand("shape")`` gives each shape's share, ``demand.ledger()`` all counts."""
        from cache_engine.cache.demand import Demand

        return Demand(self.layout, self.journal, self.timings, self.select)

    def find(self, prefix: str) -> Record:
        """The record whose key starts with ``prefix``; raises ``UsageError`` or ``KeyNotFound``."""
        return self.store.find(prefix)

    def records(self) -> Iterator[Record]:
        """All records, read from disk in the order of their keys."""
        return self.store.records()

    def text(self, record: Record, part: str) -> str:
        """A text of an entry: ``source``, ``ptx``, ``log`` or ``sass``; ``sass`` may raise ``ToolMissing``."""
        if part == "sass":
            from cache_engine.compilers.disassembly import sass

            return sass(self.section(record, CUBIN))
        return self.section(record, part).decode("utf-8", "replace")

    def section(self, record: Record, part: str) -> bytes:
        """The checked content of one of an entry's ``SECTIONS``; raises ``CorruptEntry`` if missing or damaged."""
        return self.store.section(record, part)

    def query(
        self, question: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **options: _P.kwargs
    ) -> _T:
        """The result of ``question``, a function of ``index.queries``; raises ``IndexUnavailable``."""
        self.index.sync()
        return self.index.query(question, *arguments, **options)

    def scan_caches(self, given: Iterable[str] = (), progress: Progress | None = None) -> Scanned:
        """Brings the index of the caches of other frameworks up to date, for ``index.framework_queries``.

        Directories that the frameworks do not use on this machine are left out (``Place.replaced_by``).

        Args:
            given: further directories as ``KIND=DIR``, besides those of the setting ``caches``.
            progress: a function called from time to time with the number of entries seen.

        Raises:
            UsageError: when a directory is not of the form ``KIND=DIR``, or the kind is unknown.
            IndexUnavailable: when the index cannot be written.
        """
        from cache_engine.frameworks.registry import load_sources, surroundings
        from cache_engine.index.framework_caches import scan

        sources = load_sources()
        places = sources.places(surroundings([*given, *self.settings.caches]))
        return scan(self.index, sources, (place for place in places if not place.replaced_by), progress)

    def search(self, text: str, limit: int = 50) -> list[dict[str, Any]]:
        """Rows of the entries that match the search ``text``, last used first.

        ``catalogue.read_search`` describes the language.

        Raises:
            UsageError: when ``text`` names an unknown field, or gives a field a value that the field cannot have.
        """
        from cache_engine.evaluator.catalogue import read_search
        from cache_engine.index import queries

        return self.query(queries.kernels, queries.KernelFilter.of(read_search(text)), limit=limit)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Attributes of 0.2 that have moved, most of them to ``admin``; a warning gives the new name."""
            from cache_engine.upkeep.admin import Admin

            if name.startswith("_") or not (name in _MOVED or hasattr(Admin, name)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            place = _MOVED.get(name, f"admin.{name}")
            warnings.warn(f"Cache.{name} is Cache.{place} now; the old name goes with 0.4", DeprecationWarning, 2)
            return attrgetter(place)(self)

    def count(self) -> tuple[int, int]:
        """The number of entries in the store, and the bytes that they take on disk together."""
        from cache_engine.upkeep.cleanup import count

        return count(self.layout)

    def stats(self) -> Statistics:
        """The state and history of the store, including unwritten counts of this process.

        If only packs are used, this process's counts.
        """
        self._serving.settle()
        self.journal.flush()
        s = self.settings
        memory = (*self._serving.held(), s.memory_bytes)
        if isinstance(self.journal, NoJournal) and s.enable_caching:
            totals = self.journal.totals
            return Statistics(0, 0, s.max_entries, s.max_bytes, 0, totals, totals, s.reads_remote, *memory)
        from cache_engine.store.journal.snapshot import journal_bytes, last_day, read_journal

        tally = read_journal(self.layout.journal)
        size, day = journal_bytes(self.layout.journal), last_day(tally.periods, time.time())
        return Statistics(*self.count(), s.max_entries, s.max_bytes, size, tally.totals, day, s.reads_remote, *memory)

    def tally(self) -> Tally:
        """The sums of the journal: use over time, and the last events; including unwritten counts of this process."""
        from cache_engine.store.journal import read_journal

        self._serving.settle()
        self.journal.flush()
        return read_journal(self.layout.journal)

    def queue(self) -> QueueState:
        """The compiles that run or wait now, in all processes of the store."""
        return queue_state(self.layout, self.settings.slots)

    def __repr__(self) -> str:
        return f"<Cache of {self._store.layout.root if self._store else 'no store'}, {len(self.packs)} packs>"

    def close(self) -> None:
        """Writes the last usage counts, and ends background cleaning and compiles. Safe in a signal handler."""
        if "stand_ins" in self.__dict__:
            self.stand_ins.close(wait=not self.journal.is_interrupted)
        for opened in {"_proofs", "evaluations", "timings"} & self.__dict__.keys():
            getattr(self, opened).close()
        self._serving.close()
        self.journal.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_cache(
    dir: str | Path | None = None,
    policy: str | None = None,
    *,
    settings: Settings | None = None,
    create: bool = True,
    **overrides: Any,
) -> Cache:
    """Opens the store in ``dir``, and creates it if it does not exist.

    Args:
        dir: the store's directory; by default ``GEMM_CACHE_DIR``, else the user cache directory.
        policy: ``"standard"``, ``"development"`` or ``"production"``; the setting ``expire_days``.
        settings: the settings to use in place of those of the environment.
        create: whether to create the store if it does not exist.
        overrides: values of single settings, by name.

    Raises:
        UsageError: when a setting does not exist, or cannot have the value.
        StoreUnusable: when the directory cannot serve as a store; see ``opening.store_of``.
        PackUnusable: when only packs are used, and no kernel in them can serve on this machine.
    """
    if policy is not None:
        overrides.setdefault("expire_days", policy)
    overrides |= {} if dir is None else {"dir": dir}
    settings = Settings.load(**overrides) if settings is None else settings.with_overrides(overrides)
    cache = Cache(*store_of(settings, create=create))
    if settings.packs and settings.enable_caching:
        from cache_engine.cache.serving.pack_state import check_packs

        try:
            check_packs(cache.other_toolchains, settings)
        except PackUnusable:
            cache.close()
            raise
    return cache


def store_of(settings: Settings, *, create: bool) -> tuple[DiskStore | None, Settings, str]:
    """The store for a ``Cache``, or ``None``; the settings; and the reason why there is no store.

    If the settings name packs, a directory that cannot be found, created or written is no error, because a read-only
    container has such a directory.

    Args:
        create: whether to create the store if it does not exist.

    Raises:
        StoreUnusable: when the directory cannot serve as a store.
    """
    if settings.log is not None:
        from cache_engine import log_handlers

        log_handlers.configure(settings.log)
    if not settings.uses_directory:
        return None, settings, PACKS_ALONE if settings.enable_caching else SWITCHED_OFF
    try:
        layout = open_store(settings.directory(), trust=settings.trust_store, create=create)
    except StoreUnusable as error:
        if not (create and settings.packs and isinstance(error.__cause__, (OSError, RuntimeError))):
            raise
        _log.warning("packs are served, and kernels are cached in this process alone: %s", error)
        return None, settings, str(error)
    return DiskStore(layout, durable=settings.is_durable), settings, ""


def journal_of(store: DiskStore | None) -> Journal:
    """The journal of a store; without a store, one that counts in memory only."""
    if store is None:
        return NoJournal()
    return Journal(
        store.layout.journal,
        fold=partial(fold_when_long, store.layout),
        log=store.layout,
    )


def packs_of(settings: Settings, journal: Journal) -> tuple[list[Pack], list[str]]:
    """The packs of the settings that could be opened, and the reason for each that could not.

    A reason is also logged as a warning, and the failure is counted. Opens no pack if caching is switched off.
    """
    packs: list[Pack] = []
    refused: list[str] = []
    if not (settings.packs and settings.enable_caching):
        return packs, refused
    from cache_engine.store.pack import Pack, find_packs
    from cache_engine.store.signatures import proof_for
    from cache_engine.upkeep.survey import check_code

    for path in find_packs(settings.packs):
        try:
            packs.append(Pack(path, trust=settings.trust_store, check=check_code, prove=proof_for(settings)))
        except (PackUnusable, UsageError, ExtraMissing) as error:
            journal.failure(Pack.name)
            refused.append(str(error))
            _log.warning("%s", error)
    return packs, refused
