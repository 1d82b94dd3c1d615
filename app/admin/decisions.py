"""Log of decisions: what the cache decided, on which kernel, and why."""

from __future__ import annotations

import streamlit as st

from app import context, tables, widgets
from app.presenters.shared import rows_shown
from app.presenters.store.decisions import counts_text, logged_file, logged_names, logged_rows, matching, name_of
from app.presenters.table import csv_text
from cache_engine.index import queries
from cache_engine.model.decision import DEMOTION, KINDS, PROMOTION, SPECULATION

SHOWN = 50
_COLUMNS = {"Open": tables.LINK, "Margin": tables.PERCENT}


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """One page of the log."""
    everything, damaged = context.cache().admin.recent_decisions()
    if not everything:
        st.info("The log is empty. Misses, choices of a config and evictions are logged.", icon=":material/rule:")
        return
    st.text(counts_text(everything, damaged))
    left, right = st.columns(2)
    kinds = left.multiselect("Kinds", KINDS, key="kind", bind="query-params", placeholder="All kinds")
    text = right.text_input("Words", key="about", bind="query-params", placeholder="4096x7168 evicted", help=_ABOUT)
    names = logged_names(everything)
    found = matching(everything, names, kinds, text or "")
    if {PROMOTION, SPECULATION, DEMOTION}.intersection(kinds):
        st.caption("Details show the calculation. For what would be compiled ahead now, run this command:")
        widgets.command("demand", "--promote", "--dry-run")
    if not found:
        st.info("No matching decisions.", icon=":material/search_off:")
        return
    offset = widgets.paging(len(found), SHOWN, key="decisions-page")
    page = found[offset : offset + SHOWN]
    zone = context.timezone()
    unnamed = sorted({one.key for one in page if one.key and not name_of(one, names)})
    stored = context.ask(queries.names, unnamed) if unnamed else {}
    st.caption(f"{rows_shown(offset, len(page), len(found))}, newest first.")
    tables.show(logged_rows(page, {**stored, **names}, zone), height="content", column_config=_COLUMNS, key="decisions")

    def file() -> str:
        return csv_text(logged_file(found, names, zone))

    st.download_button("Download all as CSV", file, "decisions.csv", "text/csv", on_click="ignore")


_ABOUT = "Words of a kernel's name, the start of its key, n x k, a reason, details, or who decided. Each must appear."
