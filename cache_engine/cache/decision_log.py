"""Logs a miss in the log of decisions: its cause, as far as the store shows it now, and the choice of config.

A hit calls nothing here. A miss compiles for 0.1 s or more, and logging takes a thousandth of that. Causes that only
earlier lines of the log show are found when the log is read (``model.decision.Causes``).
"""

from __future__ import annotations

import os
from contextlib import suppress

from cache_engine.cache.selection import Selection, Selector
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CorruptEntry, GemmCacheError
from cache_engine.kernels.select import choose, ranking
from cache_engine.model.decision import (
    CHOICE,
    DAMAGED,
    FORCED,
    MISS,
    OTHER_CONFIG,
    OTHER_FORMAT,
    UNREADABLE,
    request_of,
)
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import COST_MODEL, GIVEN
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal


def log_miss(
    journal: Journal, store: DiskStore, selector: Selector, selection: Selection, fault: Exception | None, forced: bool
) -> None:
    """Logs a miss and the choice of its config.

    Args:
        fault: the error of reading the entry on disk, if there was one.
        forced: whether the caller asked for a compile with ``force``.
    """
    reason, detail = FORCED if forced else "", ""
    if isinstance(fault, CorruptEntry):
        reason, detail = DAMAGED, str(fault)
    elif fault is not None:
        reason, detail = UNREADABLE, str(fault)
    elif not reason and store.has_unknown_format(selection.key):
        reason = OTHER_FORMAT
    elif not reason and (other := _other_config(store, selector, selection)):
        reason, detail = OTHER_CONFIG, other
    request, toolchain = request_of(selection.prefix.with_constants(selection.constants))
    named = {"key": selection.key, "name": selection.name}
    journal.decided(MISS, **named, reason=reason, detail=detail, request=request, toolchain=toolchain)
    runner_up, margin = _runner_up(selector, selection)
    chosen = f"{selection.family.name} {selection.config}"
    journal.decided(CHOICE, **named, reason=selection.config_from, detail=chosen, runner_up=runner_up, margin=margin)


def _other_config(store: DiskStore, selector: Selector, selection: Selection) -> str:
    """A text about a stored kernel for the same problem, whose config was chosen before a timing changed the choice."""
    if selection.config_from in (GIVEN, COST_MODEL):
        return ""
    problem = selection.problem
    for family, compiler in ((None, None), (selection.family.name, selection.compiler.name)):
        with suppress(GemmCacheError):
            chosen, config = choose(problem, family, None, COMPILERS[compiler or "nvrtc"].takes, selector.factors())
            key = selector.select(problem, chosen.name, compiler, config).key
            if key != selection.key and os.path.exists(store.layout.record_path(key)):
                return f"the {COST_MODEL} had chosen {chosen.name} {config}, which {key[:12]} has"
    return ""


def _runner_up(selector: Selector, selection: Selection) -> tuple[str, float | None]:
    """The second best config, and its extra time as a share of the best one's; empty and ``None`` without a choice."""
    chosen = (selection.family.name, selection.config)
    ranked: list[tuple[float, tuple[str, KernelConfig]]] = []
    if selection.config_from == COST_MODEL:
        ranked = [
            (cycles, (chosen[0], config))
            for cycles, config in ranking(selection.problem, chosen[0], selector.factors())
        ]
    elif selection.config_from != GIVEN and selector.history is not None:
        for timings in selector.history.rankings(selection.problem):
            ranked = [(one.median_us, (one.family, one.config)) for one in timings]
            if any(one == chosen for _, one in ranked):
                break
    best = next((cost for cost, one in ranked if one == chosen), 0.0)
    for cost, one in ranked:
        if one != chosen and best > 0:
            return " ".join(map(str, one)), max(0.0, cost / best - 1)
    return "", None
