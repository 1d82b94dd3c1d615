"""Integrity: a check of all kernels or of a sample, its findings, the repair plan, and repair."""

from __future__ import annotations

from itertools import count as count_from

import streamlit as st

from app import context, guard, widgets
from app.components import tables
from app.presenters.admin import REPAIRED_FILES, REPAIRS, repair_files, repair_line
from cache_engine.units import counted
from cache_engine.upkeep.integrity import RepairAct

SHOWN = 50
_ACTS, _REPAIRED, _HOW = "repair plan", "repaired", "how it was checked"


def draw(permitted: bool) -> None:
    """Draws the form of the check, its findings, and their repair."""
    st.caption("Verifies every file against its checksum. Read-only.")
    if _REPAIRED in st.session_state and _ACTS not in st.session_state:
        _check(1.0)
    percent = st.slider("Random sample, %", 1, 100, 100, key="check-share")
    if st.button("Run check", icon=":material/fact_check:"):
        _check(percent / 100)
        st.session_state.pop(_REPAIRED, None)
    acts: list[RepairAct] | None = st.session_state.get(_ACTS)
    if acts is None:
        return
    if _REPAIRED in st.session_state:
        repaired = counted(st.session_state[_REPAIRED], "finding")
        st.success(f"Repaired {repaired}. See Quarantine for the removed files.", icon=":material/healing:")
    if not acts:
        st.success(f"No problems found. {st.session_state[_HOW]}", icon=":material/verified:")
        return
    st.warning(f"{counted(len(acts), 'finding')}. {st.session_state[_HOW]}", icon=":material/warning:")
    offset = widgets.paging(len(acts), SHOWN, key="findings-page")
    tables.draw(acts[offset : offset + SHOWN], REPAIRS, key="finding-table")
    _draw_repair(acts, permitted)


def _draw_repair(acts: list[RepairAct], permitted: bool) -> None:
    repairable = sum(act.finding.repairable for act in acts)
    if not repairable:
        st.caption("None of these can be repaired automatically.")
        return
    st.text(f"Repair plan: {repair_line(acts)}.")
    with st.expander("Affected files"):
        tables.draw(repair_files(acts), REPAIRED_FILES, key="repair-files")
    agreed = st.checkbox("I have reviewed the repair actions", key="agreed", disabled=not permitted)
    label = f"Repair {counted(repairable, 'finding')}"
    if st.button(label, icon=":material/healing:", disabled=not (permitted and agreed)):
        cache = context.cache()
        findings = [act.finding for act in acts]
        done = guard.act("Repair failed.", lambda by: len(cache.admin.repair(findings, by=by)))
        if done is None:
            return
        st.session_state[_REPAIRED] = done
        del st.session_state[_ACTS]
        st.rerun()


def _check(share: float) -> None:
    """Checks the store, with progress, and stores the findings and the repair plan in the session."""
    cache = context.cache()
    total, numbers, read = max(1, round(cache.count()[0] * share)), count_from(1), 0
    bar = st.progress(0.0, "Checking…")

    def checked() -> None:
        nonlocal read
        read = next(numbers)
        bar.progress(min(1.0, read / total), f"Checking… {read:,} of about {total:,}")

    findings = list(cache.admin.check(share=share, on_entry=checked))
    bar.empty()
    st.session_state[_ACTS] = cache.admin.plan_repair(findings)
    sample = "" if share == 1 else f", a random sample of about {share:.0%}"
    st.session_state[_HOW] = f"{counted(read, 'kernel')} checked{sample}."
    st.session_state["findings-page"] = 1
    st.session_state["agreed"] = False
