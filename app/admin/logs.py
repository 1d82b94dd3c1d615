"""The log: what the cache decided on which kernel and why, and who did what to the store."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import streamlit as st

from app import context, widgets
from app.components import tables
from app.presenters.columns import Column, csv_of
from app.presenters.decisions import ACTED, acted, counts_text, logged_columns, logged_names, matching
from app.presenters.shared import rows_shown
from cache_engine.index import queries
from cache_engine.insight.monitoring import perfetto_trace
from cache_engine.model.decision import DEMOTION, KINDS, PROMOTION, SPECULATION
from cache_engine.model.events import DAY_S, RECENT, RECENT_ACTS

SHOWN = 50


def draw(permitted: bool) -> None:  # noqa: ARG001 (reading needs no permission)
    """Draws one page of decisions and acts, filtered by kind and words."""
    cache = context.cache()
    decided, damaged = cache.admin.recent_decisions()
    acts = context.ask(queries.acts, tuple(ACTED), limit=RECENT_ACTS + RECENT)
    everything = sorted([*decided, *map(acted, acts)], key=lambda one: -one.at)
    if not everything:
        st.info(
            "The log is empty. It has misses, choices of a config, evictions, and who cleaned, repaired or imported.",
            icon=":material/rule:",
        )
        return
    st.text(counts_text(everything, damaged))
    left, right = st.columns(2)
    kinds = left.multiselect(
        "Kinds", (*KINDS, *ACTED.values()), key="kind", bind="query-params", placeholder="All kinds"
    )
    text = right.text_input("Words", key="about", bind="query-params", placeholder="4096x7168 evicted", help=_ABOUT)
    names = logged_names(everything)
    found = matching(everything, names, kinds, text or "")
    if {PROMOTION, SPECULATION, DEMOTION}.intersection(kinds):
        st.caption("Details show the calculation. For what would be compiled ahead now, run this command:")
        widgets.command("demand", "--promote", "--dry-run")
    if not found:
        st.info("Nothing matches.", icon=":material/search_off:")
        return
    offset = widgets.paging(len(found), SHOWN, key="log-page")
    page = found[offset : offset + SHOWN]
    st.caption(f"{rows_shown(offset, len(page), len(found))}, newest first.")
    tables.draw(
        page, logged_columns({**names, **context.titles(one.key for one in page)}), key="entries-of-log", label="Log"
    )

    with st.container(horizontal=True):
        about = "A trace of compiles, waits, hits and evictions by process, to open on ui.perfetto.dev."
        shown: dict[str, Any] = {"mime": "application/json", "icon": "timeline", "help": about}
        label = "Timeline of the last 24 hours"
        widgets.download(label, lambda: perfetto_trace(cache, time.time() - DAY_S), "trace.json", **shown)
        make = partial(csv_of, found, [Column("Key", "key"), *logged_columns(names)], context.timezone())
        widgets.download("Download all as CSV", make, "log.csv", "text/csv")


_ABOUT = "Words of a kernel's name, the start of its key, n x k, a reason, details, or who decided. Each must appear."
