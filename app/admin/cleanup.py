"""The tab Cleanup: the choice of a rule, the kernels that the rule deletes and why, and a typed confirmation."""

from __future__ import annotations

import time
from dataclasses import dataclass

import streamlit as st

from app import context, guard, widgets
from app.components import tables
from app.presenters.admin import (
    LEFTOVERS,
    RULES,
    asked_keys,
    reason_line,
    rules_offered,
    victim_columns,
)
from app.presenters.shared import Row, rows_shown
from cache_engine.errors import GemmCacheError, IndexUnavailable
from cache_engine.index import queries
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.settings import parse_bytes
from cache_engine.units import counted, human_age, human_bytes, human_ms
from cache_engine.upkeep.cleanup import Cleaned, Leftover
from cache_engine.upkeep.plan import EvictionPlan, Limits
from cache_engine.upkeep.survey import Survey

SHOWN = 50
_SEEN, _PLANNED, _CLEANED, _ADDRESSED = "entries seen", "planned", "cleaned", "rule in the address"
FEW = 2_000
"""The most kernels in a store for which the preview is made at once, in a fraction of a second; else a button asks."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The store's kernels and leftover files when a preview was made; every rule is applied to this state."""

    entries: Survey
    leftovers: list[Leftover]


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan of a cleanup as it was shown to the reader, and the limits that it was made for."""

    limits: Limits
    plan: EvictionPlan
    by_arch: list[Row]
    seen: Seen


def draw(permitted: bool) -> None:
    """Draws the tab: the form of the rule, the preview of the deletion, and its confirmation."""
    if _CLEANED in st.session_state:
        st.success(st.session_state.pop(_CLEANED), icon=":material/check_circle:")
    try:
        preview = _preview(_chosen_limits())
    except GemmCacheError as error:
        widgets.problem("Could not build the preview.", str(error))
        return
    if preview is None:
        return
    plan = preview.plan
    count = len(plan.victims)
    st.caption(f"The store as of {human_age(time.time() - preview.seen.entries.made_at)}.")
    left = sum(leftover.stored_bytes for leftover in preview.seen.leftovers)
    leftovers = f" and {counted(len(preview.seen.leftovers), 'leftover file')} ({human_bytes(left)})"
    st.caption(
        f"Will delete {counted(count, 'kernel')} ({human_bytes(plan.freed_bytes)}, "
        f"{human_ms(plan.compile_s * 1e3)} of compiling)"
        f"{leftovers if preview.seen.leftovers else ''}. "
        f"Will keep {counted(plan.kept_entries, 'kernel')} ({human_bytes(plan.kept_bytes)})"
        f"{f', {plan.foreign:,} of them of another format' if plan.foreign else ''}"
        f"{f', {plan.pinned:,} of them pinned' if plan.pinned else ''}."
    )
    if not count:
        st.info("Nothing to delete.", icon=":material/check:")
        return
    _draw_plan(preview)
    confirmed = widgets.confirmed(f"Type {count} to enable deletion", count, key="confirm", permitted=permitted)
    label = f"Delete {counted(count, 'kernel')}"
    if st.button(label, type="primary", icon=":material/delete:", disabled=not confirmed):
        _delete(plan)


def _chosen_limits() -> Limits:
    """Draws the form of the rule; returns the limits that it describes. The form's values are part of the address.

    Raises:
        UsageError: when the size is invalid.
    """
    settings = context.cache().settings
    keys, invalid = asked_keys(st.query_params.get("keys", ""))
    rule = _chosen_rule(rules_offered(keys), "keys" if keys else "settings")
    if invalid:
        st.caption(f"{counted(invalid, 'invalid key')} in the link.")
    if rule == "expired":
        days = settings.expire_days
        given = st.number_input("Days", 0.0, 36_500.0, days, format="%g", key="days", bind="query-params")
        return Limits(expire_days=given)
    if rule == "entries":
        return Limits(max_entries=st.number_input("Kernels to keep", 0, 10**9, 1000, key="keep", bind="query-params"))
    if rule == "stale":
        st.caption("Kernels built by a compiler or a template that is no longer in use.")
        return Limits(stale_toolchain=True)
    if rule == "disk":
        label = "Store size limit, % of (free space + store)"
        return Limits(max_disk_share=st.slider(label, 1, 100, 50, key="share", bind="query-params") / 100)
    if rule == "bytes":
        text = st.text_input("Size to keep", "1GiB", key="size", max_chars=40, bind="query-params")
        return Limits(max_bytes=parse_bytes(text or ""))
    if rule == "archs":
        return Limits(archs=frozenset(st.multiselect("Targets", _targets(), key="archs", bind="query-params")))
    if rule == "keys":
        st.caption(f"{counted(len(keys), 'kernel')} from the link.")
        return Limits(keys=keys)
    if rule == "foreign":
        st.caption("Kernels in a format that only another version of this program reads. No other rule deletes them.")
        return Limits(foreign_format=True)
    return Limits(everything=True) if rule == "all" else context.cache().admin.policy()


def _chosen_rule(rules: list[str], default: str) -> str:
    """The chosen rule, or that of the address after a click on a link."""
    addressed = st.query_params.get("rule", default)
    if addressed in rules and addressed != st.session_state.get(_ADDRESSED):
        st.session_state["rule"] = addressed
    rule = st.radio("Delete kernels", rules, format_func=lambda name: RULES[name], key="rule", horizontal=True)
    st.session_state[_ADDRESSED] = rule
    if rule == default:
        st.query_params.pop("rule", None)
    else:
        st.query_params["rule"] = rule
    return rule


def _targets() -> list[str]:
    """The targets of the stored kernels; all known targets while the index is unavailable."""
    try:
        return context.ask(queries.facets)["arch"]
    except IndexUnavailable:
        return list(ARCHITECTURES)


def _preview(limits: Limits) -> Preview | None:
    """The plan as it was first shown for these limits, so that the reader confirms that plan; ``None`` without one.

    A store with more than ``FEW`` kernels is read only when the reader asks for a preview, and not again for another
    rule; a smaller store is read without being asked.
    """
    kept: Preview | None = st.session_state.get(_PLANNED)
    seen: Seen | None = st.session_state.get(_SEEN)
    count = _expected()
    few = count is not None and count <= FEW
    if seen is None and not few:
        many = "its kernels" if count is None else counted(count, "kernel")
        st.text(f"The preview looks at the files of {many}, which may take seconds. Nothing is deleted.")
        asked = st.button("Preview", icon=":material/preview:")
    else:
        asked = st.button("Refresh preview", icon=":material/refresh:", help="Rescan the store.")
    if not asked:
        if kept is not None and kept.limits == limits:
            return kept
        if seen is None and not few:
            return None
    if asked or seen is None or few:
        with st.spinner("Looking at the files…", show_time=True):
            seen = st.session_state[_SEEN] = Seen(
                context.cache().admin.survey(), context.cache().admin.find_leftovers()
            )
    plan = _plan(limits, seen.entries)
    kept = st.session_state[_PLANNED] = Preview(limits, plan, _by_arch(plan), seen)
    st.session_state["confirm"] = ""
    st.session_state["victims-page"] = 1
    return kept


def _expected() -> int | None:
    """The number of kernels in the store, by the index; ``None`` while the index is unavailable."""
    try:
        return int(context.ask(queries.overview)["entries"])
    except IndexUnavailable:
        return None


def _plan(limits: Limits, entries: Survey) -> EvictionPlan:
    """Makes the plan of a cleanup within these limits; shows the progress while records are read."""
    bar = st.empty()

    def read(number: int) -> None:
        if number % 500 == 0:
            bar.progress(min(1.0, number / len(entries)), f"Reading records… {number:,} of up to {len(entries):,}")

    plan = context.cache().admin.plan_cleaning(limits, entries, read)
    bar.empty()
    return plan


def _by_arch(plan: EvictionPlan) -> list[Row]:
    """Kernels to delete, by target; empty while the index is unavailable."""
    try:
        return context.cache().query(queries.sums_by_arch, [victim.key for victim in plan.victims])
    except IndexUnavailable:
        return []


def _draw_plan(preview: Preview) -> None:
    victims = preview.plan.victims
    st.caption(f"Reasons: {reason_line(victims)}.")
    tables.arch_sums(preview.by_arch, "To be deleted, by target", key="victims-by-arch")
    offset = widgets.paging(len(victims), SHOWN, key="victims-page")
    page = victims[offset : offset + SHOWN]
    tables.draw(page, victim_columns(context.titles(victim.key for victim in page)), key="victims")
    if len(victims) > SHOWN:
        st.caption(f"{rows_shown(offset, len(page), len(victims))}.")
    if preview.seen.leftovers:
        with st.expander(f"Leftover files: {len(preview.seen.leftovers):,}"):
            tables.draw(preview.seen.leftovers, LEFTOVERS, key="leftovers")


def _delete(plan: EvictionPlan) -> None:
    """Applies a plan, with progress; the page shows the outcome when it is drawn again."""
    cache, bar, count = context.cache(), st.progress(0.0, "Deleting…"), len(plan.victims)

    def deleted(number: int) -> None:
        bar.progress(number / count, "Deleting…")

    def apply(by: str) -> Cleaned:
        # In any case, even if the reader leaves the page: the plan no longer describes the store.
        del st.session_state[_PLANNED], st.session_state[_SEEN]
        return cache.admin.evict(plan, by=by, on_progress=deleted)

    cleaned = guard.act("Deletion stopped.", apply)
    bar.empty()
    if cleaned is None:
        return
    skipped = f" {cleaned.skipped:,} skipped: used, replaced or deleted since the preview." if cleaned.skipped else ""
    freed = f"{counted(cleaned.evicted, 'kernel')}, {human_bytes(cleaned.freed_bytes)}"
    removed = f" Deleted {counted(cleaned.leftovers, 'leftover file')}." if cleaned.leftovers else ""
    st.session_state[_CLEANED] = f"Deleted {freed}.{skipped}{removed}"
    st.rerun()
