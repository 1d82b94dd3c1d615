"""Kernels to compile before a caller waits for them: those asked for and missing, each with its expected gain.

A kernel is missing when it was evicted, when the compiler was replaced, or when another kernel has served in its place
(``wait_ms``). An exact kernel is missing where timings in this store show that it is faster than the one that serves.
Speculation compiles kernels that are only likely to be asked for: those for the other shapes of the model that the
demand resembles.

A kernel compiled ahead in this way is demoted when it is expected to save less than half of its price: the next
cleaning of the store deletes it first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import msgspec

from cache_engine.cache.demand import MODEL
from cache_engine.cache.demand.times import UNKNOWN, LaunchTime, LaunchTimes
from cache_engine.cache.miss import compile_of
from cache_engine.cache.queue import Priority
from cache_engine.cache.selection import Request, Selection
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.catalogue import model_shapes
from cache_engine.model.decision import DEMOTION, PROMOTION, SPECULATION, Decision, standing
from cache_engine.model.gemm import Specialisation
from cache_engine.model.gemm.fields import Options
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.model.shapes import Shape
from cache_engine.usage.compile_time import CompileTimes, fitted
from cache_engine.usage.demand import Ledger, rate
from cache_engine.usage.payback import Payback, Use, payback, price_s, stays_promoted

if TYPE_CHECKING:
    from cache_engine.cache.demand import Demand
    from cache_engine.cache.other_toolchains import OtherToolchains
    from cache_engine.cache.queue import QueueState
    from cache_engine.cache.selection import ExactKernels
    from cache_engine.cache.serving import CompiledKernel
    from cache_engine.cache.serving.stand_ins import StandIns
    from cache_engine.model.artifact import Record, RecordedProblem
    from cache_engine.model.gemm import GemmProblem
    from cache_engine.store.journal import Journal
    from cache_engine.store.timings import Timings
    from cache_engine.upkeep.admin import Admin

HORIZON_S = 24 * 3600.0
"""Seconds for which a kernel is expected to be asked for as often as now."""

_LEAST_OF_MODEL = 0.5
"""The share of a model's shapes that must have been asked for before its other shapes are compiled too."""


class Promotable(Protocol):
    """The part of ``Cache`` that promotion needs. A protocol, because ``Cache`` imports this package."""

    journal: Journal
    other_toolchains: OtherToolchains
    exact_kernels: ExactKernels

    @property
    def stand_ins(self) -> StandIns:
        """The kernels that serve while another is compiled."""
        ...

    @property
    def demand(self) -> Demand:
        """The demand on the store."""
        ...

    @property
    def timings(self) -> Timings:
        """The measurements of the store's kernels."""
        ...

    def records(self) -> Iterator[Record]:
        """All records of the store."""
        ...

    @property
    def admin(self) -> Admin:
        """The administration of the store, which has the log of decisions."""
        ...

    def queue(self) -> QueueState:
        """The compiles that run or wait now."""
        ...

    def select(self, problem: GemmProblem) -> Selection:
        """The kernel selected for a problem."""
        ...

    def get_or_compile(self, problem: GemmProblem, *, force: bool, priority: Priority) -> CompiledKernel:
        """The kernel for a problem."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A missing kernel that could be compiled ahead.

    Attributes:
        kind: ``PROMOTION`` if there were requests for it; ``SPECULATION`` if there were none, but the demand resembles
            that of a model that needs it.
        selection: the kernel.
        m: the m of most of its requests.
        instead: the name of the kernel that serves this m now; empty if a request would have to wait.
        value: the expected gain, and the price in seconds of compiling.
        time_from: the origin of the times of its launches: ``"measured"``, ``"predicted"`` or ``"unknown"``.
    """

    kind: str
    selection: Selection
    m: int
    instead: str
    value: Payback
    time_from: str

    @property
    def reason(self) -> str:
        """The reason for compiling this kernel, as a short text."""
        return "a request would wait" if self.value.wait_chance else "saves GPU time"

    @property
    def detail(self) -> str:
        """The expected gain and the price of this kernel, as text."""
        v = self.value
        saved = f"{v.saved_s:.3g} GPU s saved ({self.time_from}), " if v.saved_s else ""
        waits = f"{v.wait_chance:.0%} likely to be waited for, " if v.wait_chance else ""
        return f"{v.launches:,.0f} launches expected, {saved}{waits}{v.price_s:.3g} s to compile: {v.net_s:+.3g} s"

    @property
    def pays(self) -> bool:
        """Whether compiling this kernel is expected to save more seconds than it costs."""
        return self.value.net_s > 0


@dataclass(frozen=True, slots=True)
class Change:
    """A stored kernel that is to be demoted (deleted first in a cleaning), or promoted again.

    Attributes:
        kind: ``DEMOTION`` or ``PROMOTION``.
        key, name: the kernel's key and name.
        forecast_s: the seconds that it is expected to save over the horizon: GPU time and waiting.
        price_s: the seconds that compiling it again would take; 0 if there are no more requests for it.
    """

    kind: str
    key: str
    name: str
    forecast_s: float
    price_s: float

    @property
    def reason(self) -> str:
        """The reason for the change, as a short text."""
        return "saves less than half of its price" if self.kind == DEMOTION else "worth its price again"

    @property
    def detail(self) -> str:
        """The expected savings and the price of the kernel, as text."""
        if not self.price_s:
            return "nothing is expected to be saved"
        return f"{self.forecast_s:.3g} s expected to be saved, {self.price_s:.3g} s to compile"


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """The kernels to compile ahead.

    Attributes:
        candidates: every missing kernel; first the one with the most gain for each second of compiling.
        changes: kernels compiled ahead earlier, which are to be demoted, or promoted again.
        horizon_s: the time over which the gain is summed, in seconds.
        asked_kernels: the number of kernels that the demand needs, including those in the store.
        compile_times: predicts how long compiles take.
        model: the model that the demand resembles, if some candidates are speculation.
        unpredicted: the reason why launch times cannot be predicted here; empty when they can.
    """

    candidates: tuple[Candidate, ...]
    changes: tuple[Change, ...]
    horizon_s: float
    asked_kernels: int
    compile_times: CompileTimes
    model: str
    unpredicted: str

    def within(self, budget_s: float = math.inf) -> list[Candidate]:
        """The candidates worth compiling, in order, whose compiles together take at most ``budget_s`` seconds."""
        taken = []
        for one in self.candidates:
            if one.pays and one.value.compile_s <= budget_s:
                taken.append(one)
                budget_s -= one.value.compile_s
        return taken


def plan_promotion(
    cache: Promotable, horizon_s: float = HORIZON_S, on_size: Callable[[], object] = lambda: None
) -> PromotionPlan:
    """The compiles that pay now, given the demand on a cache's store. Compiles nothing, and counts nothing as a use.

    Takes about 0.5 ms for each size of a shape, and 3 ms if another kernel may serve that size.

    Args:
        on_size: a function called for each size of each shape that was asked for.
    """
    ledger, times, served = cache.demand.ledger(), LaunchTimes(cache.timings), _Served()
    records = served.noting(cache.records())
    compile_times = fitted(records)
    deque(chain(records, served.noting(cache.other_toolchains.packed())), maxlen=0)  # reads all of them
    promoted = standing(cache.admin.decisions())
    found = _Missing(cache, times, promoted, served)
    for shape, sketch in ledger.sketches.items():
        for m, weight in sketch.spread():
            found.ask(PROMOTION, shape, m, _per_s(ledger, weight))
            on_size()
    model = _speculate(cache, ledger, found)
    queue = cache.queue()
    candidates, worth = [], dict[str, Payback]()
    for kind, selection, uses, instead, sources in found.each():
        compile_s = compile_times.seconds(compile_of(selection))
        value = payback(uses, compile_s, price_s(compile_s, len(queue.queued), queue.slots), horizon_s)
        if selection.key in promoted and cache.other_toolchains.has(selection.key):
            worth[selection.key] = value
            continue
        most = max(range(len(uses)), key=lambda place: uses[place].per_s)
        candidates.append(Candidate(kind, selection, uses[most].m, instead[most], value, sources))
    candidates.sort(key=lambda one: (one.kind != PROMOTION, -one.value.net_s / one.value.compile_s, one.selection.key))
    there = [one for key, one in promoted.items() if cache.other_toolchains.has(CacheKey(key))]
    changes = tuple(change for one in there if (change := changed(one, worth.get(one.key))) is not None)
    return PromotionPlan(tuple(candidates), changes, horizon_s, found.kernels, compile_times, model, times.missing)


def promote(
    cache: Promotable, candidates: list[Candidate], on_kernel: Callable[[Candidate], object] = lambda _: None
) -> list[tuple[Candidate, Failure]]:
    """Compiles candidates one after the other, with less priority than compiles that callers wait for.

    Returns:
        The candidates that failed, with the reason.
    """
    failed = []
    for one in candidates:
        failure = _compile(cache, one)
        if failure is not None:
            failed.append((one, failure))
        on_kernel(one)
    return failed


def _compile(cache: Promotable, one: Candidate) -> Failure | None:
    """Compiles a candidate and logs the decision; returns the reason if the kernel is not stored, else ``None``."""
    if cache.other_toolchains.has(one.selection.key):  # another process has compiled it already
        return None
    priority = Priority.PROMOTION if one.kind == PROMOTION else Priority.SPECULATION
    try:
        # With ``force``, as this process may still have an evicted kernel in memory.
        kernel = cache.get_or_compile(one.selection.problem, force=True, priority=priority)
    except GemmCacheError as error:
        return Failure(str(error))
    if kernel.unpublished is None:
        cache.exact_kernels.forget()
        cache.journal.decided(one.kind, key=kernel.key, name=one.selection.name, reason=one.reason, detail=one.detail)
    return kernel.unpublished


def changed(last: Decision, value: Payback | None) -> Change | None:
    """The change that is due for a kernel, a demotion or a new promotion; ``None`` if none is due.

    Args:
        last: the last decision about the kernel.
        value: its present gain and price; ``None`` if there are no requests for it.
    """
    forecast_s, price_s = (value.saved_s + value.spared_s, value.price_s) if value is not None else (0.0, 0.0)
    was = last.kind != DEMOTION
    stays = value is not None and stays_promoted(was, forecast_s, price_s)
    if stays == was:
        return None
    return Change(PROMOTION if stays else DEMOTION, last.key, last.name, forecast_s, price_s)


def note(journal: Journal, changes: Iterable[Change]) -> None:
    """Writes changes to the log of decisions, where the next cleaning reads them."""
    for one in changes:
        journal.decided(one.kind, key=one.key, name=one.name, reason=one.reason, detail=one.detail)
    journal.flush()


_Each = tuple[str, Selection, list[Use], list[str], str]


class _Served:
    """The shapes that at least one kernel of the store or of a pack serves.

    For other shapes, no stand-in is searched.
    """

    def __init__(self) -> None:
        self._shapes: set[tuple[object, ...]] = set()

    def noting(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the same records, and notes the shapes that each record's kernel serves."""
        for record in records:
            self._shapes.add(_served_by(record.problem, record.arch, record.problem.specialisation))
            yield record

    def __contains__(self, shape: Shape) -> bool:
        kinds = (shape.specialisation, Specialisation.DYNAMIC)
        return any(_served_by(shape, shape.arch, kind) in self._shapes for kind in kinds)


def _served_by(shape: Shape | RecordedProblem, arch: str, specialisation: str) -> tuple[object, ...]:
    """The properties of a shape that are equal for all shapes which one kernel serves.

    n and k are among them, unless the kernel is dynamic.
    """
    sizes = (0, 0) if specialisation == Specialisation.DYNAMIC else (shape.n, shape.k)
    options = (getattr(shape, name) for name in Options.__struct_fields__ if name != "specialisation")
    return (*sizes, arch, shape.dtype, shape.out_dtype, shape.layout, *options)


class _Missing:
    """Collects the kernels that are missing or were promoted, and the requests that each of them would serve."""

    def __init__(self, cache: Promotable, times: LaunchTimes, promoted: Collection[str], served: _Served) -> None:
        """Starts empty; ``promoted`` has keys of stored kernels whose requests are collected as well."""
        self._cache, self._times, self._promoted, self._served = cache, times, promoted, served
        self._uses: dict[str, list[tuple[Use, str, LaunchTime]]] = {}
        self._selections: dict[str, tuple[str, Selection]] = {}
        self._present: dict[str, bool] = {}

    @property
    def kernels(self) -> int:
        """The number of kernels that the requests need, whether or not the store has them."""
        return len(self._present)

    def ask(self, kind: str, shape: Shape, m: int, per_s: float) -> None:
        """Counts requests for a problem, if a kernel for it is missing.

        Skips a problem that no key can be made for here.
        """
        try:
            asked: Request = (shape.problem(m), None, None, None)
            selection = self._cache.select(asked[0])
        except GemmCacheError:
            return
        exact = self._cache.exact_kernels.measured(asked)
        is_exact = exact is not None and self._is_there(exact)  # then the selected kernel saves nothing here
        if exact is not None and (exact.key in self._promoted if is_exact else self._is_there(selection)):
            instead = selection if self._is_there(selection) else self._stand_in(shape, asked, exact.key)
            self._add(kind, shape, m, per_s, exact, instead)
        if not is_exact and (not self._is_there(selection) or selection.key in self._promoted):
            self._add(kind, shape, m, per_s, selection, self._stand_in(shape, asked))

    def _stand_in(self, shape: Shape, asked: Request, without: str = "") -> Selection | None:
        """The best stored kernel that serves in place of the one asked for, except the one with the key ``without``."""
        if shape not in self._served:
            return None
        return next((one for one in self._cache.stand_ins.look(asked) if one.key != without), None)

    def _is_there(self, selection: Selection) -> bool:
        key = selection.key
        if key not in self._present:
            self._present[key] = not selection.is_compilable or self._cache.other_toolchains.has(key)
        return self._present[key]

    def _add(
        self, kind: str, shape: Shape, m: int, per_s: float, selection: Selection, instead: Selection | None
    ) -> None:
        """Adds the requests that a kernel would serve, and the kernel that serves them now."""
        key = selection.key
        better = self._times.of_kernel(shape, m, selection)
        present = None if instead is None else self._times.of_kernel(shape, m, instead)
        use = Use(m, per_s, *_comparable(present, better))
        self._selections.setdefault(key, (kind, selection))
        self._uses.setdefault(key, []).append((use, "" if instead is None else instead.name, better))

    def each(self) -> Iterator[_Each]:
        """Each missing or promoted kernel, with the requests that it would serve."""
        for key, (kind, selection) in self._selections.items():
            uses = self._uses[key]
            sources = ", ".join(sorted({time.source for _, _, time in uses}))
            yield kind, selection, [use for use, _, _ in uses], [name for _, name, _ in uses], sources


def _comparable(present: LaunchTime | None, better: LaunchTime) -> tuple[float | None, float | None]:
    """The seconds of a launch now, and of a launch of the better kernel.

    If a time is unknown, or one is measured and the other predicted, they cannot be compared; then the result is 0 and
    ``None``, from which no gain is computed. The first is also ``None`` if no kernel serves now.
    """
    if present is None:
        return None, None if better.source == UNKNOWN else better.us / 1e6
    if UNKNOWN in (present.source, better.source) or present.source != better.source:
        return 0.0, None
    return present.us / 1e6, better.us / 1e6


def _speculate(cache: Promotable, ledger: Ledger, found: _Missing) -> str:
    """Counts expected requests for the other shapes of the model that the demand resembles most; returns its name.

    Each shape is expected as often as the model's requested shapes on average, with the same m. This is multiplied by
    the share of the model's shapes that were requested, because the program may run another model.
    """
    models = cache.demand(by=MODEL).shares
    if not models or models[0].asked_shapes < _LEAST_OF_MODEL * models[0].all_shapes:
        return ""
    name, share = models[0].name, models[0].asked_shapes / models[0].all_shapes
    ours = {(one.n, one.k) for one in model_shapes() if one.model == name and one.batch == 1}
    asked = {shape: sketch for shape, sketch in ledger.sketches.items() if (shape.n, shape.k) in ours}
    seen = {(shape.n, shape.k) for shape in asked}
    if not asked or not ours - seen:
        return ""
    heaviest = max(asked, key=lambda shape: asked[shape].total)
    mean = math.fsum(sketch.total for sketch in asked.values()) / len(seen)
    for n, k in sorted(ours - seen):
        for m, weight in asked[heaviest].spread():
            expected = weight / asked[heaviest].total * mean * share
            found.ask(SPECULATION, _with_sizes(heaviest, n, k), m, _per_s(ledger, expected))
    return name


def _per_s(ledger: Ledger, weight: float) -> float:
    """The launches per second that a weight represents; a ledger younger than an hour is treated as an hour old."""
    return rate(ledger, weight, max(ledger.at, ledger.since + 3600))


def _with_sizes(shape: Shape, n: int, k: int) -> Shape:
    changed: Shape = msgspec.structs.replace(shape, n=n, k=k)
    return changed
