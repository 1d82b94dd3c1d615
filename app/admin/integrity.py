"""Integrity: a check in full or of a share, what it found, what repair would do, and repair."""

from __future__ import annotations

from itertools import count as count_from

import streamlit as st

from app import context, guard, widgets
from app.presenters.store.admin import repair_files, repair_line, repair_table
from cache_engine.units import counted
from cache_engine.upkeep.integrity import RepairAct

SHOWN = 50
_SIZE = st.column_config.NumberColumn(format="%.1f KiB")
_ACTS, _REPAIRED, _HOW = "repair plan", "repaired", "how it was checked"


def draw(permitted: bool) -> None:
    """Findings, and their repair."""
    st.caption("Reads records and blobs and compares them with their checksums. Checking changes nothing.")
    if _REPAIRED in st.session_state and _ACTS not in st.session_state:
        _check(1.0)
    percent = st.slider("Percent of the kernels to read, chosen at random", 1, 100, 100, key="check-share")
    if st.button("Check the store", icon=":material/fact_check:"):
        _check(percent / 100)
        st.session_state.pop(_REPAIRED, None)
    acts: list[RepairAct] | None = st.session_state.get(_ACTS)
    if acts is None:
        return
    if _REPAIRED in st.session_state:
        repaired = counted(st.session_state[_REPAIRED], "finding")
        st.success(f"Repaired {repaired}. What was set aside is under Quarantine.", icon=":material/healing:")
    if not acts:
        st.success(f"Nothing is wrong. {st.session_state[_HOW]}", icon=":material/verified:")
        return
    st.warning(f"{counted(len(acts), 'finding')}. {st.session_state[_HOW]}", icon=":material/warning:")
    offset = widgets.paging(len(acts), SHOWN, key="findings-page")
    table = repair_table(acts[offset : offset + SHOWN])
    st.dataframe(table, hide_index=True, column_config={"Size": _SIZE}, key="finding-table")
    _draw_repair(acts, permitted)


def _draw_repair(acts: list[RepairAct], permitted: bool) -> None:
    repairable = sum(act.finding.repairable for act in acts)
    if not repairable:
        st.caption("Repair would do nothing about these.")
        return
    st.text(f"Repair plan: {repair_line(acts)}.")
    with st.expander("Every file of the plan"):
        files = repair_files(acts)
        st.dataframe(files[:1000], hide_index=True, column_config={"Size": _SIZE}, key="repair-files")
        if len(files) > 1000:
            st.caption(f"The first 1,000 of {len(files):,}; gemm-cache verify --json tells all.")
    agreed = st.checkbox("Do what the column “Repair would” says", key="agreed", disabled=not permitted)
    label = f"Repair {counted(repairable, 'finding')}"
    if st.button(label, icon=":material/healing:", disabled=not (permitted and agreed)):
        cache = context.cache()
        findings = [act.finding for act in acts]
        done = guard.act("Repairing stopped.", lambda by: len(cache.repair(findings, by=by)))
        if done is None:
            return
        st.session_state[_REPAIRED] = done
        del st.session_state[_ACTS]
        st.rerun()


def _check(share: float) -> None:
    """Checks the store, with progress, and keeps what it found and what repair would do."""
    cache = context.cache()
    total, numbers, read = max(1, round(cache.count()[0] * share)), count_from(1), 0
    bar = st.progress(0.0, "Checking…")

    def checked() -> None:
        nonlocal read
        read = next(numbers)
        bar.progress(min(1.0, read / total), f"Checking… {read:,} of about {total:,}")

    findings = list(cache.check(share=share, on_entry=checked))
    bar.empty()
    st.session_state[_ACTS] = cache.plan_repair(findings)
    sample = "" if share == 1 else f", a sample of about {share:.0%}"
    st.session_state[_HOW] = f"{counted(read, 'kernel')} read{sample}."
    st.session_state["findings-page"] = 1
    st.session_state["agreed"] = False
