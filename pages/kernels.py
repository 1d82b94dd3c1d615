"""Kernels: search, filter, page through, and look into one."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from cache_engine.mirror.queries import SORTS, KernelFilter

PAGE_ROWS = 20

st.title("Kernels")
if "key" in st.query_params:
    widgets.open_kernel(st.query_params["key"])  # a link from when both were one page
picked = widgets.picked_kernels("kernels")
facets = context.ask("facets")

search, sort, order = st.columns([6, 2, 1], vertical_alignment="bottom")
text = search.text_input(
    "Search",
    key="q",
    bind="query-params",
    type="search",
    live=True,
    placeholder="Words of a name, key, shape, target, dtype or family: sm_90 bf16 4096x7168",
    max_chars=200,
)
sorted_by = sort.selectbox("Sort by", list(SORTS), key="sort", bind="query-params")
ascending = order.toggle("Ascending", key="asc", bind="query-params")

columns = st.columns(4)
labels = {"arch": "Target", "dtype": "Dtype", "family": "Family", "compiler": "Compiler"}
chosen = [
    tuple(column.multiselect(label, facets[name], key=name, bind="query-params"))
    for column, (name, label) in zip(columns, labels.items(), strict=True)
]
wanted = KernelFilter(text or "", *chosen)

# A page number of another list would show the wrong part of this one, or none.
listed = (wanted, sorted_by, ascending)
if st.session_state.get("listed", listed) != listed:
    st.session_state["page"] = 1
st.session_state["listed"] = listed

total = context.ask("count", wanted)
pages = max(1, -(-total // PAGE_ROWS))
if st.session_state.get("page", 1) > pages:
    st.session_state["page"] = pages
caption, turning = st.columns([3, 2], vertical_alignment="center")
number = turning.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
offset = (number - 1) * PAGE_ROWS
rows = context.ask("kernels", wanted, sort=sorted_by, descending=not ascending, limit=PAGE_ROWS, offset=offset)

widgets.remember_results()
if rows:
    caption.caption(f"{offset + 1:,}–{offset + len(rows):,} of {total:,}. The digits of a key open its kernel.")
    widgets.kernel_picker(rows, picked, key="kernels")
elif total or wanted != KernelFilter():
    st.info("No kernel matches. Take a word or a filter away.")
else:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
