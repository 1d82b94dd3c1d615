"""Admin: clean up, check and repair, rebuild the mirror, and see the settings in force."""

from __future__ import annotations

from dataclasses import fields
from itertools import count as count_from

import streamlit as st

from app import context, presenters, widgets
from cache_engine import housekeeping, integrity
from cache_engine.config import Settings, parse_bytes
from cache_engine.errors import GemmCacheError
from cache_engine.policy.plan import Limits
from cache_engine.units import human_bytes

RULES = {
    "settings": "By the limits in the settings",
    "expired": "Not used for a time",
    "entries": "Down to a number of kernels",
    "bytes": "Down to a size",
    "all": "Everything",
}

st.title("Admin")
cache = context.cache()
cleanup, check, mirror, settings = st.tabs(["Cleanup", "Integrity", "Mirror", "Settings"])


def chosen_limits() -> Limits:
    """The rule that the form describes.

    Raises:
        UsageError: when the size cannot be read.
    """
    rule = st.radio("What to evict", list(RULES), format_func=lambda name: RULES[name], key="rule", horizontal=True)
    if rule == "expired":
        return Limits(expire_days=st.number_input("Days", 0.0, 3650.0, cache.settings.expire_days, key="days"))
    if rule == "entries":
        return Limits(max_entries=st.number_input("Kernels to keep", 0, 10**9, 1000, key="keep"))
    if rule == "bytes":
        return Limits(max_bytes=parse_bytes(st.text_input("Size to keep", "1GiB", key="size") or ""))
    return Limits(everything=True) if rule == "all" else cache.policy()


with cleanup:
    if "cleaned" in st.session_state:
        st.success(st.session_state.pop("cleaned"), icon=":material/check_circle:")
    try:
        plan = cache.plan_cleaning(chosen_limits())
    except GemmCacheError as error:
        widgets.problem("The plan cannot be made.", str(error))
        st.stop()
    count = len(plan.victims)
    st.caption(
        f"Would evict {count:,} kernels ({human_bytes(plan.freed_bytes)}), the least recently used first, and keep "
        f"{plan.kept_entries:,} ({human_bytes(plan.kept_bytes)})."
    )
    if count:
        shown = [victim.key for victim in plan.victims[:200]]
        st.dataframe(
            presenters.victim_table(plan, context.ask("names", shown), context.timezone())[:200],
            hide_index=True,
            column_config={
                "On disk": st.column_config.NumberColumn(format="%.1f KiB"),
                "Last used": st.column_config.DatetimeColumn(format="distance"),
            },
            key="victims",
        )
        if count > len(shown):
            st.caption(f"The first {len(shown):,} of {count:,} are shown.")
        typed = st.text_input(f"Type {count} to confirm", key="confirm", max_chars=12)
        confirmed = (typed or "").strip() == str(count)
        if st.button(f"Evict {count:,} kernels", type="primary", icon=":material/delete:", disabled=not confirmed):
            bar = st.progress(0.0, "Evicting…")

            def evicted(number: int) -> None:
                """Moves the bar on."""
                bar.progress(number / count, "Evicting…")

            try:
                cleaned = housekeeping.apply(cache.store, cache.journal, plan, evicted)
                skipped = f" {cleaned.skipped:,} were in use and stay." if cleaned.skipped else ""
                st.session_state["cleaned"] = (
                    f"Evicted {cleaned.evicted:,} kernels, {human_bytes(cleaned.freed_bytes)}.{skipped}"
                )
                st.rerun()
            except (GemmCacheError, OSError) as error:
                widgets.problem("Cleaning stopped.", str(error))

with check:
    st.caption("Reads every file of the store and compares it with its checksums. Nothing is changed by checking.")
    if st.button("Check the store", icon=":material/fact_check:"):
        total, done = max(1, housekeeping.count(cache.layout)[0]), count_from(1)
        bar = st.progress(0.0, "Checking…")

        def checked() -> None:
            """Moves the bar on."""
            bar.progress(min(1.0, next(done) / total), "Checking…")

        st.session_state["findings"] = list(integrity.check(cache.store, checked))
        st.session_state["repaired"] = None
        bar.empty()
    findings = st.session_state.get("findings")
    if findings is not None:
        if st.session_state.get("repaired") is not None:
            st.success(f"Repaired {st.session_state['repaired']:,} findings.", icon=":material/check_circle:")
        if findings:
            st.warning(f"{len(findings):,} findings.", icon=":material/warning:")
            st.dataframe(presenters.finding_table(findings), hide_index=True, key="finding-table")
            if any(finding.repairable for finding in findings) and st.button("Repair", icon=":material/healing:"):
                try:
                    repaired = integrity.repair(cache.store, cache.journal, findings)
                    st.session_state["repaired"] = len(repaired)
                    st.session_state["findings"] = list(integrity.check(cache.store))
                    st.rerun()
                except (GemmCacheError, OSError) as error:
                    widgets.problem("Repairing stopped.", str(error))
        else:
            st.success("Nothing is wrong.", icon=":material/verified:")

with mirror:
    st.caption(
        "The pages read a DuckDB copy of the store's records and journal. It can be built anew at any time: "
        "nothing is lost."
    )
    if st.button("Rebuild the mirror", icon=":material/refresh:"):
        try:
            synced = cache.mirror.sync(rebuild=True)
            st.success(f"Built anew: {synced.added:,} kernels, {synced.unreadable:,} unreadable records.")
        except GemmCacheError as error:
            widgets.problem("The mirror could not be rebuilt.", str(error))

with settings:
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
        key="settings-table",
    )
