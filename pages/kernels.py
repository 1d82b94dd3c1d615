"""The page Kernels: the list of kernels; sums by target; entries of other frameworks' caches; and SQL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from app import context, widgets
from app.addresses import BY_TARGET, SQL, STORED, VIEWS
from app.caches import directories, entries, scan
from app.caches.entry import list_adapted
from app.components import listing
from app.presenters.downloads import LIST_FILES, MOST_ROWS, pack_file
from app.presenters.kernel_list import FACET_LABELS, facet_choices, first_choices, kernel_filter, page_number
from app.presenters.shared import MOST_COMPARED, page_count, rows_shown
from app.views import architectures, notes, sql
from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import read_search
from cache_engine.evaluator.catalogue.search import advice
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.index import framework_queries, queries
from cache_engine.index.queries import SORTS, KernelFilter
from cache_engine.units import counted

PAGE_ROWS, MOST_PAGES = 50, 10**6
SHARED = ("arch", "kind", "state", "sort", "asc", "page")
"""Parameters of the address that two views have under the same name."""
MOST_IN_A_LINK = 100  # keys of 64 digits


def chosen_now(name: str = "") -> None:
    """Puts a changed filter into the address, from which the page reads it; the new list starts at its first page.

    A widget that a quick reader has left meanwhile has no value any more.
    """
    widgets.renew_address()
    if name != "page":
        st.query_params.pop("page", None)
    widgets.unbind(name)
    if name and name in st.session_state:
        value = st.session_state[name]
        st.query_params[name] = value if isinstance(value, list) else str(value)


def clear() -> None:
    """Shows all kernels again."""
    widgets.renew_address()
    widgets.unbind(*st.query_params)
    st.query_params.clear()
    st.session_state["q"] = ""


def list_file(kind: str, wanted: KernelFilter, sort: str, descending: bool) -> bytes:
    """The whole list, up to ``MOST_ROWS``, as a file of that kind."""
    with cache.index.read() as connection:
        batches = queries.kernel_batches(connection, wanted, sort=sort, descending=descending, limit=MOST_ROWS)
        return LIST_FILES[kind][1](batches)


def exports(wanted: KernelFilter, sort: str, descending: bool, total: int) -> None:
    """Draws buttons that download the list as a file."""
    with st.popover("Export list…", icon=":material/download:", type="tertiary"):
        whole = counted(total, "row") if total <= MOST_ROWS else f"The first {MOST_ROWS:,} of {total:,} rows"
        st.caption(f"{whole}, sorted as shown. CSV cells that look like formulas are prefixed with '.")
        for kind, (mime, _) in LIST_FILES.items():
            data = partial(list_file, kind, wanted, sort, descending)
            widgets.download(kind, data, f"kernels.{kind.lower()}", mime)


def actions(picked: tuple[str, ...]) -> None:
    """Draws the actions on the selected kernels, which may be on several pages of the list.

    They are drawn without a selection too, so that a tick does not move the table.
    """
    count = len(picked)
    st.markdown(f"**{counted(count, 'kernel')} selected**", width="content")
    if 2 <= count <= MOST_COMPARED:
        widgets.compare_link("Compare", *picked)
    else:
        why = f"Select two to {MOST_COMPARED} kernels. The first is the baseline."
        st.button("Compare", icon=":material/compare_arrows:", help=why, disabled=True, type="tertiary")
    pack: dict[str, Any] = {"icon": "archive", "disabled": not count, "type": "tertiary"}
    widgets.download("Export as pack", partial(pack_file, cache, picked), "kernels.gemmpack", **pack)
    if 0 < count <= MOST_IN_A_LINK:
        widgets.page_link("storage", "Delete…", "delete", keys=",".join(picked))
    else:
        why = f"Select up to {MOST_IN_A_LINK} kernels. A preview of the cleanup comes first."
        st.button("Delete…", icon=":material/delete:", help=why, disabled=True, type="tertiary")
    forget: dict[str, Any] = {"on_click": listing.forget_picked, "args": ("kernels",), "disabled": not count}
    st.button("Clear selection", icon=":material/close:", type="tertiary", **forget)


def matches(search: str) -> int:
    """The number of kernels that a search would find without the filters."""
    return context.ask(queries.count, kernel_filter(search, {}))


def change_view() -> None:
    """Forgets the filters of the view shown before, as another has other choices; both searches have the same text."""
    widgets.renew_address()
    widgets.unbind(*SHARED)
    for name in SHARED:
        st.session_state.pop(name, None)
        st.query_params.pop(name, None)
    st.query_params.pop("text", None)
    field, text = st.session_state.get(widgets.SEARCHED, ("", ""))
    text = st.session_state.get(field, text) or ""  # the field is newer where a quick reader typed into it just now
    st.session_state["q"] = st.session_state["words"] = text


cache = context.cache()
st.query_params.pop("key", None)  # which Streamlit adds when the reader goes back from a kernel
with st.container(horizontal=True, vertical_alignment="center"):
    st.title("Kernels", width="content")
    found = entries.frameworks()
    scopes = (STORED, *(title for title in found if title not in VIEWS), *VIEWS[1:])
    view = widgets.choose_one("View", scopes, STORED, key="view", hidden=True, on_change=change_view)
if view == BY_TARGET:
    architectures.draw()
    widgets.end_page()
if view == SQL:
    sql.draw()
    widgets.end_page()
if view != STORED:
    directories.draw_entries(view, found)
    widgets.end_page()
picked = listing.picked_kernels("kernels")

asked = st.query_params
chosen = {facet: asked.get_all(facet) for facet in FACET_LABELS}
sorted_by = asked["sort"] if asked.get("sort") in SORTS else next(iter(SORTS))
ascending = asked.get("asc") == "true"
st.session_state.update(chosen)

with st.container(horizontal=True, vertical_alignment="center", key="list-head"):
    search = st.container(key="list-search")
    again = st.container(horizontal=True, width="content")
entered = search.text_input(
    "Search",
    asked.get("text", ""),  # of a link from another page
    key="q",
    bind="query-params",
    type="search",
    live="20ms",  # a search takes less than the time between two letters; the usual quarter of a second would be a wait
    placeholder="Search shape, dtype, config, key, model, GPU, architecture or field, e.g. bf16 tensor_* h100 hits>0",
    max_chars=200,
    on_change=chosen_now,
    label_visibility="collapsed",
)
with again:
    notes.draw_views(
        {
            **{name: asked.get_all(name) for name in notes.PARAMETERS if name in asked},
            **({"q": [entered]} if entered else {}),
        }
    )
again.button("Reload", icon=":material/refresh:", shortcut="U", help="Rescan the store.")

text = entered or ""
st.session_state[widgets.SEARCHED] = "q", text
refusal = ""
try:
    wanted = kernel_filter(text, chosen)
except UsageError as error:  # then no kernel is listed, and the filters show counts without the search
    text, refusal = "", str(error)
    wanted = kernel_filter(text, chosen)
others = replace(wanted, frameworks=())
shown_at = (page_number(asked.get("page", ""), MOST_PAGES) - 1) * PAGE_ROWS
context.ask_ahead(  # all that each letter in the search field asks
    context.question(queries.facet_counts, wanted),
    context.question(
        queries.kernels, wanted, sort=sorted_by, descending=not ascending, limit=PAGE_ROWS, offset=shown_at
    ),
    context.question(queries.count, others),
    context.question(framework_queries.count, EntryFilter(text)),
)
counts = context.ask(queries.facet_counts, wanted)
with st.container(key="filters"):
    columns = st.columns(len(chosen))
for column, (facet, label) in zip(columns, FACET_LABELS.items(), strict=True):
    called = facet_choices(counts.values[facet], chosen[facet])
    column.multiselect(
        label,
        list(called),
        format_func=called.__getitem__,
        key=facet,
        on_change=chosen_now,
        args=(facet,),
        wrap=False,  # else a field is taller with the focus than without, and a click below it misses
        placeholder=label,
        label_visibility="collapsed",
    )
    column.text(first_choices(called))

if refusal:
    st.info("The search is not complete, or has a mistake.")
    st.text(refusal)
    st.button("Clear search and filters", icon=":material/close:", on_click=clear)
    scan.matching_link(entered or "")  # entries of other frameworks may have the text in their names
    widgets.end_page()

total = counts.total
bar = st.container(horizontal=True, vertical_alignment="center")
st.session_state["page"] = page_number(asked.get("page", ""), page_count(total, PAGE_ROWS))
with st.container(horizontal=True, horizontal_alignment="right"):
    offset = widgets.paging(total, PAGE_ROWS, key="page", on_change=chosen_now, args=("page",))
rows = context.ask(queries.kernels, wanted, sort=sorted_by, descending=not ascending, limit=PAGE_ROWS, offset=offset)

widgets.remember_results()
if rows:
    with bar:
        st.caption(rows_shown(offset, len(rows), total), width="content")
        for meaning in read_search(text).meanings:
            st.caption(meaning, width="content")
        actions(picked)
        exports(wanted, sorted_by, not ascending, total)
        sql.link(queries.as_sql(wanted, sort=sorted_by, descending=not ascending))
    listing.kernel_list(rows, key="kernels", picked=picked, sorted_by=(sorted_by, ascending))
scan.matching_link(text)
if not list_adapted(others, sort=sorted_by, descending=not ascending) and not rows:
    if wanted != KernelFilter():
        st.info("No matching kernels.")
        known = context.ask(queries.facets)
        for hint in advice(text, matches, (value for values in known.values() for value in values)):
            st.text(hint)
        st.button("Clear search and filters", icon=":material/close:", on_click=clear)
    else:
        widgets.empty_store()
