"""The tab Results: prunes the evaluator's stored results, and imports results from a file."""

from __future__ import annotations

import streamlit as st

from app import context, guard, widgets
from app.admin.cleanup import end_with, show_outcome
from app.components import tables
from app.presenters.evaluations import CHIPS
from app.presenters.saved_results import PRUNED
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.results import MAX_ENTRIES, UNUSED_DAYS, Taken
from cache_engine.store.results import LARGEST_IMPORT_BYTES, decompress
from cache_engine.units import counted, human_bytes

SHOWN = 50
BY_NAME = "as the file says"


def draw(permitted: bool) -> None:
    """Draws the forms for pruning and for import of results."""
    show_outcome()
    st.header("Prune")
    _draw_pruning(permitted)
    st.header("Import")
    _draw_import(permitted)


def _draw_pruning(permitted: bool) -> None:
    hours = context.cache().settings.cleanup_interval_h
    automatic = (
        f"Every {hours:g} hours, results are pruned with the defaults." if hours else "Automatic pruning is off."
    )
    st.caption(
        "Deletes results that were not used for so many days, and of a chip with more results than the limit the tenth "
        f"that was unused longest. {automatic}"
    )
    left, right = st.columns(2)
    most = int(left.number_input("Results of a chip, at most", 0, 10**9, MAX_ENTRIES, key="prune-entries"))
    days = float(right.number_input("Unused for, days", 0.0, 1e5, UNUSED_DAYS, format="%g", key="prune-days"))
    plan = context.cache().evaluations.plan_pruning(most, days)
    if not plan:
        st.info("Nothing to prune.", icon=":material/check:")
        return
    offset = widgets.paging(len(plan), SHOWN, key="prune-page")
    tables.draw(plan[offset : offset + SHOWN], PRUNED, key="prune-plan")
    label = f"Delete {counted(len(plan), 'result')}"
    # Of what is shown: a click on what was shown before, maybe of another store at this path, is on no button.
    key = f"prune {hash((context.cache().layout.identities(), *((one.fingerprint, one.key) for one in plan)))}"
    if st.button(label, type="primary", icon=":material/delete:", disabled=not permitted, key=key):
        gone = guard.act("Pruning failed.", lambda by: context.cache().evaluations.prune(plan, by=by))
        if gone is not None:
            end_with(f"Deleted {counted(gone, 'result')}.")


def _draw_import(permitted: bool) -> None:
    st.caption(
        f"An export of results, or a file of the reference evaluator (format 2025.01), up to "
        f"{human_bytes(LARGEST_IMPORT_BYTES)}. Results that are stored already stay; invalid ones are refused."
    )
    if not permitted:
        st.caption("You do not have permission to import; see the top of this page.")
        return
    chips = {name: chip for name, chip in CHIPS.items() if isinstance(chip, Hardware)}
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    uploaded = left.file_uploader(
        "Results", type=["json", "zst"], key="results-file", max_upload_size=LARGEST_IMPORT_BYTES // 2**20
    )
    chip = chips.get(right.selectbox("Chip of a reference file", [BY_NAME, *chips], key="results-chip"))
    if uploaded is None or not st.button("Import", type="primary", icon=":material/upload:"):
        return

    def take(by: str) -> Taken:
        data = decompress(uploaded.getvalue(), LARGEST_IMPORT_BYTES)
        return context.cache().evaluations.import_file(data, chip, by=by)

    taken = guard.act("Import failed.", take)
    if taken is None:
        return
    st.success(
        f"Imported {counted(taken.taken, 'result')}; {taken.present:,} already in the store.",
        icon=":material/check_circle:",
    )
    st.text(f"Chip: {context.cache().evaluations.snapshot(taken.fingerprint).chip} ({taken.fingerprint[:12]})")
    widgets.page_link("predict", "See saved results", "database", e_kind="Saved results", e_q=taken.fingerprint[:12])
    if taken.refused:
        st.warning(f"{counted(len(taken.refused), 'result')} refused.", icon=":material/warning:")
        for name, reason in taken.refused[:SHOWN]:
            st.text(f"{name[:80]}: {reason}")
