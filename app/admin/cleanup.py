"""Cleanup: a rule, what it would evict and why, a typed confirmation."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app import context, guard, widgets
from app.presenters.shared import Row
from app.presenters.store.admin import (
    RULES,
    arch_figure,
    arch_table,
    asked_keys,
    leftover_table,
    reason_line,
    rules_offered,
    victim_table,
)
from cache_engine.config import parse_bytes
from cache_engine.errors import GemmCacheError, MirrorError
from cache_engine.mirror import queries
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.cleaning import Cleaned, Leftover
from cache_engine.upkeep.plan import EvictionPlan, Limits

SHOWN = 50
_SIZE = st.column_config.NumberColumn(format="%.1f KiB")
_PLANNED, _CLEANED, _ADDRESSED = "planned", "cleaned", "rule in the address"


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan as it was shown, for the limits it was made for."""

    limits: Limits
    plan: EvictionPlan
    by_arch: list[Row]
    leftovers: list[Leftover]


def draw(permitted: bool) -> None:
    """Preview, confirmation, eviction."""
    if _CLEANED in st.session_state:
        st.success(st.session_state.pop(_CLEANED), icon=":material/check_circle:")
    try:
        preview = _preview(_chosen_limits())
    except GemmCacheError as error:
        widgets.problem("The plan cannot be made.", str(error))
        return
    plan = preview.plan
    count = len(plan.victims)
    left = sum(leftover.stored_bytes for leftover in preview.leftovers)
    behind = f" {counted(len(preview.leftovers), 'file')} left behind ({human_bytes(left)}) would go with it."
    st.caption(
        f"Would evict {counted(count, 'kernel')} ({human_bytes(plan.freed_bytes)}), the least recently used first, and "
        f"keep {plan.kept_entries:,} ({human_bytes(plan.kept_bytes)}).{behind if preview.leftovers else ''}"
    )
    if not count:
        st.info("By this rule there is nothing to evict.", icon=":material/check:")
        return
    _draw_plan(preview)
    typed = st.text_input(f"Type {count} to confirm", key="confirm", max_chars=12, disabled=not permitted)
    confirmed = permitted and (typed or "").strip() == str(count)
    label = f"Evict {counted(count, 'kernel')}"
    if st.button(label, type="primary", icon=":material/delete:", disabled=not confirmed):
        _evict(plan)


def _chosen_limits() -> Limits:
    """The rule that the form describes. The rule is part of the address, as is what it asks for.

    Raises:
        UsageError: when the size cannot be read.
    """
    settings = context.cache().settings
    keys, strange = asked_keys(st.query_params.get("keys", ""))
    rule = _chosen_rule(rules_offered(keys), "keys" if keys else "settings")
    if strange:
        st.caption(f"{counted(strange, 'part')} of the address {'is' if strange == 1 else 'are'} no key of a kernel.")
    if rule == "expired":
        days = settings.expire_days
        given = st.number_input("Days", 0.0, 36_500.0, days, format="%g", key="days", bind="query-params")
        return Limits(expire_days=given)
    if rule == "entries":
        return Limits(max_entries=st.number_input("Kernels to keep", 0, 10**9, 1000, key="keep", bind="query-params"))
    if rule == "stale":
        st.caption("Kernels that this compiler and these templates can never hit again.")
        return Limits(stale_toolchain=True)
    if rule == "disk":
        label = "Percent of what is free and what the store holds"
        return Limits(max_disk_share=st.slider(label, 1, 100, 50, key="share", bind="query-params") / 100)
    if rule == "bytes":
        text = st.text_input("Size to keep", "1GiB", key="size", max_chars=40, bind="query-params")
        return Limits(max_bytes=parse_bytes(text or ""))
    if rule == "archs":
        return Limits(archs=frozenset(st.multiselect("Targets", _targets(), key="archs", bind="query-params")))
    if rule == "keys":
        st.caption(f"{counted(len(keys), 'kernel')} named in the address.")
        return Limits(keys=keys)
    return Limits(everything=True) if rule == "all" else context.cache().policy()


def _chosen_rule(rules: list[str], default: str) -> str:
    """The rule chosen, or that of the address where somebody has followed a link."""
    addressed = st.query_params.get("rule", default)
    if addressed in rules and addressed != st.session_state.get(_ADDRESSED):
        st.session_state["rule"] = addressed
    rule = st.radio("What to evict", rules, format_func=lambda name: RULES[name], key="rule", horizontal=True)
    st.session_state[_ADDRESSED] = rule
    if rule == default:
        st.query_params.pop("rule", None)
    else:
        st.query_params["rule"] = rule
    return rule


def _targets() -> list[str]:
    """Targets there are kernels of; all that are known where the mirror cannot tell."""
    try:
        found: list[str] = context.ask(queries.facets)["arch"]
    except MirrorError:
        return list(ARCHITECTURES)
    return found


def _preview(limits: Limits) -> Preview:
    """The plan as it was first shown for these limits: what is confirmed must be what was read."""
    again = st.button("Preview again", icon=":material/refresh:", help="Look at the store as it is now.")
    kept: Preview | None = st.session_state.get(_PLANNED)
    if again or kept is None or kept.limits != limits:
        cache = context.cache()
        plan = cache.plan_cleaning(limits)
        kept = Preview(limits, plan, _by_arch(plan), cache.find_leftovers())
        st.session_state[_PLANNED] = kept
        st.session_state["confirm"] = ""
        st.session_state["victims-page"] = 1
    return kept


def _by_arch(plan: EvictionPlan) -> list[Row]:
    """What would go, by target; nothing where the mirror cannot tell."""
    try:
        return context.cache().query(queries.sums_by_arch, [victim.key for victim in plan.victims])
    except MirrorError:
        return []


def _draw_plan(preview: Preview) -> None:
    victims = preview.plan.victims
    st.caption(f"Why: {reason_line(victims)}.")
    if preview.by_arch:
        st.plotly_chart(
            arch_figure(preview.by_arch, "Would go, by target"), key="victims-by-arch", config={"displayModeBar": False}
        )
        with st.expander("The same as a table"):
            table = arch_table(preview.by_arch)
            st.dataframe(table, hide_index=True, column_config={"On disk": _SIZE}, key="victims-by-arch-table")
    offset = widgets.paging(len(victims), SHOWN, key="victims-page")
    page = victims[offset : offset + SHOWN]
    names = context.ask(queries.names, [victim.key for victim in page])
    st.dataframe(
        victim_table(page, names, context.timezone()),
        hide_index=True,
        column_config={"On disk": _SIZE, "Last used": st.column_config.DatetimeColumn(format="distance")},
        key="victims",
    )
    if len(victims) > SHOWN:
        st.caption(f"{offset + 1:,}–{offset + len(page):,} of {len(victims):,}.")
    if preview.leftovers:
        with st.expander(f"Files left behind: {len(preview.leftovers):,}"):
            table = leftover_table(preview.leftovers[:1000])
            st.dataframe(table, hide_index=True, column_config={"On disk": _SIZE}, key="leftovers")


def _evict(plan: EvictionPlan) -> None:
    """Applies a plan, with progress; says what came of it after the page is drawn anew."""
    cache, bar, count = context.cache(), st.progress(0.0, "Evicting…"), len(plan.victims)

    def evicted(number: int) -> None:
        bar.progress(number / count, "Evicting…")

    def apply(by: str) -> Cleaned:
        # Whatever becomes of it, also if the reader goes elsewhere meanwhile: the plan is no longer what is there.
        del st.session_state[_PLANNED]
        return cache.evict(plan, by=by, on_progress=evicted)

    cleaned = guard.act("Cleaning stopped.", apply)
    bar.empty()
    if cleaned is None:
        return
    skipped = f" {cleaned.skipped:,} were used or replaced meanwhile, and stay." if cleaned.skipped else ""
    freed = f"{counted(cleaned.evicted, 'kernel')}, {human_bytes(cleaned.freed_bytes)}"
    removed = f" Removed {counted(cleaned.leftovers, 'file')} left behind." if cleaned.leftovers else ""
    st.session_state[_CLEANED] = f"Evicted {freed}.{skipped}{removed}"
    st.rerun()
