"""Explanations of hits and misses, found without compiling anything."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain

from cache_engine.adapters.nvcc import compiler_in
from cache_engine.cache.cache import COMPILED, Cache, CompiledKernel
from cache_engine.cache.selection import Selection
from cache_engine.cache.stages import LOAD, OnStage
from cache_engine.errors import CorruptEntry, GemmCacheError, UsageError
from cache_engine.frameworks.bundles import UnknownGroup, group_keys, read_group
from cache_engine.frameworks.nvcc.command import PassThrough, understood
from cache_engine.frameworks.nvcc.inputs import Digests
from cache_engine.frameworks.nvcc.results import FRAMEWORK, Lookup, Request, differences, document_of
from cache_engine.insight.comparison import Nearest, nearest
from cache_engine.insight.packs import notes_on_packs
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.store.layout import StoreLayout
from cache_engine.upkeep.decisions import Departure


@dataclass(frozen=True, slots=True)
class Explanation:
    """The expected result of a lookup.

    Attributes:
        selection: the family and config chosen for the problem, and the key of that kernel.
        tier: which tier has the entry; ``None`` for a miss.
        compared: after a miss, the number of entries on disk and in packs that were compared with the request.
        nearest: the nearest entry; ``None`` after a hit, or if there are no entries.
        notes: further sentences that explain the result to the user.
    """

    selection: Selection
    tier: str | None
    compared: int = 0
    nearest: Nearest | None = None
    notes: tuple[str, ...] = ()


def explain(
    cache: Cache,
    problem: GemmProblem,
    *,
    family: str | None = None,
    compiler: str = "nvrtc",
    config: KernelConfig | None = None,
) -> Explanation:
    """Looks a problem up as ``Cache.get_or_compile`` would, and explains a miss.

    First looks for an entry with the requested key that has another format version, is damaged, or was evicted or
    quarantined according to the journal. Then compares the request with the nearest other entry. Nothing is counted as
    a use.

    Raises:
        UsageError: when the request is invalid.
        CompilerMissing: when the compiler is not installed, so that no key can be made.
    """
    problem = cache.targeted(problem)
    selection = cache.select(problem, family=family, compiler=compiler, config=config)
    faster = cache.exact_kernels.there((problem, family, compiler, config))
    notes = (
        ()
        if faster is None
        else (f"matmul and operators launch {faster.name} for this m: it was measured to be faster",)
    )
    found = cache.look_up(selection.key)
    if found is not None:
        return Explanation(selection, found.tier, notes=notes)
    fault = _fault_of_entry(cache, selection) if cache.has_store else None
    missed = _missed(cache, selection, fault, config)
    return replace(missed, notes=(*missed.notes, *notes_on_packs(cache, selection), *notes))


def get_and_explain(
    cache: Cache,
    problem: GemmProblem,
    *,
    family: str | None = None,
    compiler: str | None = None,
    config: KernelConfig | None = None,
    on_stage: OnStage = lambda *_: None,
    within_s: float = math.inf,
) -> tuple[CompiledKernel, Explanation | None]:
    """Calls ``Cache.get_or_compile``; returns the kernel and, after a miss, its explanation.

    Args:
        within_s: seconds after which to stop comparing entries; ``Explanation.compared`` says how many were compared.

    Raises:
        as ``Cache.get_or_compile``.
    """
    faults: list[str | None] = []

    def watched(stage: str, ms: float | None) -> None:
        if stage == LOAD and ms is None and not faults and cache.has_store:
            # Before the lookup, which quarantines a damaged entry. By now selecting costs nothing.
            selected = cache.select(cache.targeted(problem), family=family, compiler=compiler, config=config)
            faults.append(_fault_of_entry(cache, selected))
        on_stage(stage, ms)

    kernel = cache.get_or_compile(problem, family=family, compiler=compiler, config=config, on_stage=watched)
    if kernel.tier != COMPILED or not cache.has_store:
        return kernel, None
    selection = cache.select(kernel.problem, family=family, compiler=compiler, config=config)
    return kernel, _missed(cache, selection, faults[0], config, within_s)


def _missed(
    cache: Cache, selection: Selection, fault: str | None, asked: KernelConfig | None, within_s: float = math.inf
) -> Explanation:
    """Explains why no tier has the entry of a selection.

    ``fault`` says why the key's present or former entry cannot be served; ``None`` if there never was one. ``asked`` is
    the config that the request names.
    """
    if fault is not None:
        return Explanation(selection, None, notes=(fault,))
    compared = 0
    until = time.monotonic() + within_s

    def counted() -> Iterator[Record]:
        nonlocal compared
        for record in chain(cache.records() if cache.has_store else (), *(pack.records() for pack in cache.packs)):
            if time.monotonic() > until:
                return
            if record.key != selection.key:  # made since
                compared += 1
                yield record

    closest = nearest(selection.prefix.with_constants(selection.constants), counted())
    hint = None if closest is None else _ask_instead(cache, selection, closest.record, asked)
    return Explanation(selection, None, compared, closest, (hint,) if hint else ())


def _fault_of_entry(cache: Cache, selection: Selection) -> str | None:
    """The reason why the entry of the key cannot be served or is gone; ``None`` if the store never had it."""
    try:
        if cache.store.has_unknown_format(selection.key):
            return "the entry with this key was written by an incompatible version, which this one cannot read"
        stored = cache.store.get(selection.key)
    except CorruptEntry as damage:
        return f"the entry with this key is damaged ({damage}); compiling replaces it"
    except OSError as error:
        return f"the entry with this key cannot be read: {error.strerror or error}"
    gone = None if stored is not None else cache.admin.departure(selection.key)
    return None if gone is None else _in_words(gone)


def _in_words(gone: Departure) -> str:
    if gone.is_evicted:
        return f"the kernel with this key was {gone.words}; compiling stores it again"
    return f"the entry with this key was {gone.words}; compiling replaces it; gemm-cache verify --quarantined lists it"


def _ask_instead(cache: Cache, selection: Selection, present: Record, asked: KernelConfig | None) -> str | None:
    """A sentence with the options that request the stored entry ``present``; ``None`` if it cannot serve at all."""
    wanted = selection.problem
    try:
        problem = replace(
            wanted,
            specialisation=present.problem.specialisation,  # type: ignore[arg-type]  # text is checked and converted
            opt_level=present.problem.opt_level,
        )
        same, chosen = (
            cache.select(problem, family=present.family, compiler=present.compiler, config=config)
            for config in (present.config, asked)
        )
    except GemmCacheError:
        return None
    if same.key != present.key:
        return None
    options = [f"--specialise {problem.specialisation}"] if problem.specialisation is not wanted.specialisation else []
    options += [f"--opt-level {problem.opt_level}"] if problem.opt_level != wanted.opt_level else []
    reason, it = "the kernel that is there would serve this problem too", "it"
    if not options:
        it = "the kernel that is there"
        reason = f"nothing but the config differs{'' if asked is not None else ', which is chosen by m and batch'}"
    if chosen.key != present.key:
        config = ",".join(f"{field.name}={getattr(present.config, field.name)}" for field in fields(KernelConfig))
        options.append(f"--config {config}")
    return f"{reason}; {' '.join(options)} asks for {it}"


# ---- Of an entry that is no longer in the store: its record, and the request that compiles it again ----


def quarantined_record(cache: Cache, key: CacheKey) -> Record | None:
    """The record of an entry in quarantine; ``None`` if the entry is not in quarantine or is unreadable."""
    item = next((item for item in cache.admin.quarantined() if item.key == key), None)
    return None if item is None else cache.admin.examine(item).record


def asked_for(cache: Cache, key: CacheKey, within_s: float = 1.0) -> Selection | None:
    """The most frequent request to this store for which the cache now selects this key; ``None`` if no request does.

    Args:
        within_s: the most seconds to search; the most frequent sizes of each shape are tried first.
    """
    until = time.monotonic() + within_s
    for shape, sketch in cache.demand.ledger().sketches.items():
        for m, _ in sketch.spread():
            if time.monotonic() > until:
                return None
            try:
                selection = cache.select(shape.problem(m))
            except GemmCacheError:
                break  # of a version that knows more, or its compiler is not installed
            if selection.key == key:
                return selection
    return None


# ---- A command of nvcc's launcher: a hit, or a miss and the header, option, variable or file that caused it ----


@dataclass(frozen=True, slots=True)
class LaunchExplained:
    """The result that a command would have if it were run now.

    Attributes:
        result: ``hit``, ``miss`` or ``passes through``.
        key: the key of a stored result: on a hit, of the result served; on a miss, of the nearest to the command.
        reasons: why the command is not a hit, in words.
    """

    result: str
    key: str
    reasons: tuple[str, ...]


def explain_launch(layout: StoreLayout, words: Sequence[str]) -> LaunchExplained:
    """Explains a command of nvcc without running it or counting a use; raises ``UsageError`` if nvcc is missing."""
    compiler, arguments = compiler_in(words, os.environ)
    if not compiler:
        raise UsageError("nvcc is not installed; name it first, set CUDA_HOME or add it to PATH")
    try:
        request = Request(understood(compiler, arguments, os.environ), Digests(layout))
        lookup = Lookup(layout, request)
    except PassThrough as reason:
        return LaunchExplained("passes through", "", (str(reason),))
    if lookup.found is not None:
        return LaunchExplained("hit", lookup.found[0].key, ())
    if lookup.reasons:
        return LaunchExplained("miss", "", tuple(lookup.reasons))
    key, reasons = _nearest(layout, request)
    return LaunchExplained("miss", key, tuple(reasons))


def _nearest(layout: StoreLayout, request: Request) -> tuple[str, list[str]]:
    """The key of the stored result with the fewest differences from the request, and the differences."""
    nearest: tuple[str, list[str]] | None = None
    source = os.path.basename(request.command.source)
    for key in group_keys(layout):
        with suppress(CorruptEntry, UnknownGroup, OSError):
            group = read_group(layout, key, trust=True)
            if group is not None and group.framework == FRAMEWORK:
                document = document_of(group)
                found = differences(document, request)
                if document.source_name != source:
                    found.append(f"the stored one is of {document.source_name}")
                if nearest is None or len(found) < len(nearest[1]):
                    nearest = key, found
    return nearest or ("", ["no result of nvcc is stored"])
