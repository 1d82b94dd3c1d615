"""Admin: clean up, check and repair, rebuild the mirror, and see the settings in force."""

from __future__ import annotations

from dataclasses import fields
from itertools import count as count_from

import streamlit as st

from app import context, widgets
from app.presenters.admin import finding_table, victim_table
from cache_engine import housekeeping, integrity
from cache_engine.config import Settings, parse_bytes
from cache_engine.errors import GemmCacheError
from cache_engine.policy.plan import EvictionPlan, Limits
from cache_engine.units import counted, human_bytes

RULES = {
    "settings": "By the limits in the settings",
    "expired": "Not used for a time",
    "stale": "Made by another toolchain",
    "entries": "Down to a number of kernels",
    "bytes": "Down to a size",
    "disk": "Down to a share of the disk",
    "all": "Everything",
}
SHOWN = 200

st.title("Admin")
cache = context.cache()


def chosen_limits() -> Limits:
    """The rule that the form describes.

    Raises:
        UsageError: when the size cannot be read.
    """
    rule = st.radio("What to evict", list(RULES), format_func=lambda name: RULES[name], key="rule", horizontal=True)
    if rule == "expired":
        days = cache.settings.expire_days
        return Limits(expire_days=st.number_input("Days", 0.0, 36_500.0, days, format="%g", key="days"))
    if rule == "entries":
        return Limits(max_entries=st.number_input("Kernels to keep", 0, 10**9, 1000, key="keep"))
    if rule == "stale":
        st.caption("Kernels that this compiler and these templates can never hit again.")
        return Limits(stale_toolchain=True)
    if rule == "disk":
        share = st.slider("Percent of what is free and what the store holds", 1, 100, 50, key="share")
        return Limits(max_disk_share=share / 100)
    if rule == "bytes":
        return Limits(max_bytes=parse_bytes(st.text_input("Size to keep", "1GiB", key="size") or ""))
    return Limits(everything=True) if rule == "all" else cache.policy()


def previewed_plan(limits: Limits) -> EvictionPlan:
    """The plan as it was first shown for these limits: what is confirmed must be what was read."""
    again = st.button("Preview again", icon=":material/refresh:", help="Look at the store as it is now.")
    if again or st.session_state.get("planned", (None,))[0] != limits:
        st.session_state["planned"] = (limits, cache.plan_cleaning(limits))
        st.session_state["confirm"] = ""
    plan: EvictionPlan = st.session_state["planned"][1]
    return plan


def cleanup() -> None:
    """Preview, confirmation, eviction."""
    if "cleaned" in st.session_state:
        st.success(st.session_state.pop("cleaned"), icon=":material/check_circle:")
    try:
        plan = previewed_plan(chosen_limits())
    except GemmCacheError as error:
        widgets.problem("The plan cannot be made.", str(error))
        return
    count = len(plan.victims)
    st.caption(
        f"Would evict {counted(count, 'kernel')} ({human_bytes(plan.freed_bytes)}), the least recently used first, and "
        f"keep {plan.kept_entries:,} ({human_bytes(plan.kept_bytes)}). What killed writers left behind goes with it."
    )
    if not count:
        return
    names = context.ask("names", [victim.key for victim in plan.victims[:SHOWN]])
    st.dataframe(
        victim_table(plan, names, context.timezone())[:SHOWN],
        hide_index=True,
        column_config={
            "On disk": st.column_config.NumberColumn(format="%.1f KiB"),
            "Last used": st.column_config.DatetimeColumn(format="distance"),
        },
        key="victims",
    )
    if count > SHOWN:
        st.caption(f"The first {SHOWN:,} of {count:,} are shown.")
    typed = st.text_input(f"Type {count} to confirm", key="confirm", max_chars=12)
    confirmed = (typed or "").strip() == str(count)
    label = f"Evict {counted(count, 'kernel')}"
    if st.button(label, type="primary", icon=":material/delete:", disabled=not confirmed):
        evict(plan)


def evict(plan: EvictionPlan) -> None:
    """Applies a plan, with progress; says what came of it after the page is drawn anew."""
    bar, count = st.progress(0.0, "Evicting…"), len(plan.victims)

    def evicted(number: int) -> None:
        bar.progress(number / count, "Evicting…")

    try:
        cleaned = housekeeping.apply(cache.store, cache.journal, plan, evicted)
    except (GemmCacheError, OSError) as error:
        widgets.problem("Cleaning stopped.", str(error))
        return
    skipped = f" {cleaned.skipped:,} were used or replaced meanwhile, and stay." if cleaned.skipped else ""
    freed = f"{counted(cleaned.evicted, 'kernel')}, {human_bytes(cleaned.freed_bytes)}"
    st.session_state["cleaned"] = f"Evicted {freed}.{skipped}"
    del st.session_state["planned"]
    st.rerun()


def check() -> None:
    """Findings, and their repair."""
    st.caption("Reads every record and blob and compares them with their checksums. Checking changes nothing.")
    if st.button("Check the store", icon=":material/fact_check:"):
        st.session_state["findings"] = checked_findings()
        st.session_state.pop("repaired", None)
    findings: list[integrity.Finding] | None = st.session_state.get("findings")
    if findings is None:
        return
    if "repaired" in st.session_state:
        repaired = counted(st.session_state["repaired"], "finding")
        st.success(f"Repaired {repaired}. What was set aside is in the store's quarantine folder; it may be deleted.")
    if not findings:
        st.success("Nothing is wrong.", icon=":material/verified:")
        return
    st.warning(f"{counted(len(findings), 'finding')}.", icon=":material/warning:")
    st.dataframe(finding_table(findings), hide_index=True, key="finding-table")
    repairable = sum(finding.repairable for finding in findings)
    if not repairable:
        return
    agreed = st.checkbox("Do what the column “Repair would” says", key="agreed")
    if st.button(f"Repair {counted(repairable, 'finding')}", icon=":material/healing:", disabled=not agreed):
        try:
            st.session_state["repaired"] = len(integrity.repair(cache.store, cache.journal, findings))
        except (GemmCacheError, OSError) as error:
            widgets.problem("Repairing stopped.", str(error))
            return
        st.session_state["findings"] = checked_findings()
        st.rerun()


def checked_findings() -> list[integrity.Finding]:
    """Checks the store, with progress."""
    total, done = max(1, housekeeping.count(cache.layout)[0]), count_from(1)
    bar = st.progress(0.0, "Checking…")

    def checked() -> None:
        bar.progress(min(1.0, next(done) / total), "Checking…")

    findings = list(integrity.check(cache.store, checked, trust=cache.settings.trust_store))
    bar.empty()
    return findings


def mirror() -> None:
    """Rebuilding."""
    st.caption(
        "The pages read a DuckDB copy of the store's records and journal. It can be built anew at any time: "
        "nothing is lost."
    )
    if st.button("Rebuild the mirror", icon=":material/refresh:"):
        try:
            synced = cache.mirror.sync(rebuild=True)
        except GemmCacheError as error:
            widgets.problem("The mirror could not be rebuilt.", str(error))
            return
        unreadable = counted(synced.unreadable, "unreadable record")
        st.success(f"Built anew: {counted(synced.added, 'kernel')}, {unreadable}.")


def settings() -> None:
    """What is in force."""
    st.caption("In force in this process. Each can be set in the environment.")
    st.dataframe(
        [
            {
                "Setting": setting.name,
                "Value": str(cache.layout.root if setting.name == "dir" else getattr(cache.settings, setting.name)),
                "Environment": f"GEMM_CACHE_{setting.name.upper()}",
                "What it does": setting.metadata["help"],
            }
            for setting in fields(Settings)
        ],
        hide_index=True,
        height="content",
        key="settings-table",
    )


for tab, room in zip(
    st.tabs(["Cleanup", "Integrity", "Mirror", "Settings"]), (cleanup, check, mirror, settings), strict=True
):
    with tab:
        room()
