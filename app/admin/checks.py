"""The part Check: the check of the files with its findings and their repair, and the quarantine."""

from __future__ import annotations

from itertools import count as count_from

import streamlit as st

from app import context, guard, widgets
from app.admin.cleanup import end_with, show_outcome
from app.components import tables
from app.presenters.admin import QUARANTINED, REPAIRED_FILES, REPAIRS, quarantine_properties, repair_files, repair_line
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.cleanup import QUARANTINE_S
from cache_engine.upkeep.integrity import RepairAct
from cache_engine.upkeep.plan import DAY_S
from cache_engine.upkeep.quarantine import Item

_ACTS, _REPAIRED, _HOW = "repair plan", "repaired", "how it was checked"
_SEEN = "items seen in quarantine"
ALL = "all"


def draw_integrity(permitted: bool) -> None:
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
    tables.draw(acts, REPAIRS, key="finding-table")
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
    st.session_state["agreed"] = False


def draw_quarantine(permitted: bool) -> None:
    """Draws the list of items, the details of the chosen item, and the buttons."""
    show_outcome()
    st.caption(f"Corrupt entries are stored for {QUARANTINE_S / DAY_S:.0f} days, then deleted by the next cleanup.")
    items = context.cache().admin.quarantined()
    seen = (context.cache().layout.identities(), *((item.name, item.files) for item in items))
    if st.session_state.get(_SEEN) != seen:
        # The reader confirms what the reader saw.
        st.session_state[_SEEN] = seen
        st.session_state["confirm-delete"] = ""
    if not items:
        st.info("Quarantine is empty.", icon=":material/verified:")
        return
    tables.draw(items, QUARANTINED, key="quarantine")
    chosen = _chosen(items)
    if chosen is not None:
        _draw_item(chosen, permitted)
    _draw_delete(items if chosen is None else [chosen], permitted)


def _chosen(items: list[Item]) -> Item | None:
    """The chosen item; ``None`` where all items are chosen."""
    by_name = {item.name: item for item in items}

    def label(name: str) -> str:
        return f"All {len(items):,}" if name == ALL else f"{name[:40]} ({human_bytes(by_name[name].stored_bytes)})"

    return by_name.get(st.selectbox("Item", [ALL, *by_name], format_func=label, key="item"))


def _draw_item(item: Item, permitted: bool) -> None:
    cache = context.cache()
    examined = cache.admin.examine(item)
    shown = quarantine_properties(item, examined, context.timezone())
    tables.properties(shown, key="quarantine-facts")
    label = "Restore" if item.key else "Cannot restore (not a complete entry)"
    may = permitted and not examined.cause
    if st.button(label, icon=":material/undo:", disabled=not may, help="Re-verified before restoring."):

        def restore(by: str) -> bool:
            cache.admin.restore(item, by=by)
            return True

        if guard.act("Restore failed.", restore):
            end_with(f"Restored {item.name[:12]}.")


def _draw_delete(items: list[Item], permitted: bool) -> None:
    count, size = len(items), sum(item.stored_bytes for item in items)
    label = f"Delete {counted(count, 'item')} permanently"
    question = f"Type {count} to delete {counted(count, 'item')} ({human_bytes(size)}) permanently"
    confirmed = widgets.confirmed(question, count, key="confirm-delete", permitted=permitted)
    if st.button(label, icon=":material/delete_forever:", disabled=not confirmed):
        cache = context.cache()
        done = guard.act("Deletion failed.", lambda by: cache.admin.discard(items, by=by))
        if done is not None:
            end_with(f"Deleted {counted(done.items, 'item')}, {human_bytes(done.stored_bytes)}.")
