"""Kernels: search, filter, page through; take the list away, or what was picked of it."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app import context, widgets
from app.presenters.downloads import LIST_FILES, MOST_ROWS, pack_file
from app.presenters.kernels.listed import FACET_LABELS, facet_choices, kernel_filter, page_number
from cache_engine.mirror import queries
from cache_engine.mirror.queries import SORTS, KernelFilter
from cache_engine.units import counted

PAGE_ROWS = 20
MOST_IN_A_LINK = 100  # keys of 64 digits


def chosen_now(name: str = "") -> None:
    """Puts what was just chosen into the address, from which it is read. Another list starts at its first page."""
    if name != "page":
        st.query_params.pop("page", None)
    if name:
        value = st.session_state[name]
        st.query_params[name] = value if isinstance(value, list) else str(value).lower()


def list_file(kind: str, wanted: KernelFilter, sort: str, descending: bool) -> bytes:
    """The whole list, up to ``MOST_ROWS``, as a file of that kind."""
    with cache.mirror.read() as connection:
        batches = queries.kernel_batches(connection, wanted, sort=sort, descending=descending, limit=MOST_ROWS)
        return LIST_FILES[kind][1](batches)


def exports(wanted: KernelFilter, sort: str, descending: bool, total: int) -> None:
    """The list as a file."""
    with st.popover("Export the list", icon=":material/download:"):
        whole = f"All {total:,}" if total <= MOST_ROWS else f"The first {MOST_ROWS:,} of {total:,}"
        st.caption(f"{whole}, in the order of the list. In CSV an apostrophe stands before what may be a formula.")
        for kind, (mime, _) in LIST_FILES.items():
            data = partial(list_file, kind, wanted, sort, descending)
            st.download_button(kind, data, f"kernels.{kind.lower()}", mime, on_click="ignore")


def actions(picked: tuple[str, ...]) -> None:
    """What can be done with the kernels that were ticked, here or on other pages of the list."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{counted(len(picked), 'kernel')} selected**", width="content")
        if len(picked) == 2:
            widgets.compare_link("Compare", *picked)
        data = partial(pack_file, cache, picked)
        st.download_button("Export pack", data, "kernels.gemmpack", icon=":material/archive:", on_click="ignore")
        if len(picked) <= MOST_IN_A_LINK:
            keys = {"keys": ",".join(picked)}
            st.page_link("../pages/admin.py", label="Delete…", icon=":material/delete:", query_params=keys)
        st.button("Clear selection", icon=":material/close:", on_click=widgets.forget_picked, args=("kernels",))
    if len(picked) != 2:
        st.caption("Select two to compare them.")


st.title("Kernels")
cache = context.cache()
widgets.follow_old_link()
picked = widgets.picked_kernels("kernels")

asked = st.query_params
chosen = {facet: asked.get_all(facet) for facet in FACET_LABELS}
sorted_by = asked["sort"] if asked.get("sort") in SORTS else next(iter(SORTS))
ascending = asked.get("asc") == "true"
st.session_state.update({**chosen, "sort": sorted_by, "asc": ascending})

search, sort, order, again = st.columns([6, 2, 1.2, 1.2], vertical_alignment="bottom")
text = search.text_input(
    "Search",
    asked.get("text", ""),  # of a link from another page
    key="q",
    bind="query-params",
    type="search",
    live="60ms",  # a search takes a few milliseconds; the usual quarter of a second would be most of the wait
    placeholder="Words of a name, key, shape, target, dtype or family, or a model: sm_90 bf16 4096x7168",
    max_chars=200,
    on_change=chosen_now,
)
sort.selectbox("Sort by", list(SORTS), key="sort", on_change=chosen_now, args=("sort",))
order.toggle("Ascending", key="asc", on_change=chosen_now, args=("asc",))
again.button("Refresh", icon=":material/refresh:", shortcut="U", help="Looks at the store as it is now.")

wanted = kernel_filter(text or "", chosen)
counts = context.ask(queries.facet_counts, wanted)
for column, (facet, label) in zip(st.columns(len(chosen)), FACET_LABELS.items(), strict=True):
    called = facet_choices(counts.values[facet], chosen[facet])
    column.multiselect(
        label, list(called), format_func=called.__getitem__, key=facet, on_change=chosen_now, args=(facet,), wrap=True
    )

total = counts.total
pages = max(1, -(-total // PAGE_ROWS))
number = page_number(asked.get("page", ""), pages)
caption, taking, turning = st.columns([3, 1, 2], vertical_alignment="center")
if pages > 1:
    st.session_state["page"] = number
    turning.pagination(pages, key="page", on_change=chosen_now, args=("page",))
offset = (number - 1) * PAGE_ROWS
rows = context.ask(queries.kernels, wanted, sort=sorted_by, descending=not ascending, limit=PAGE_ROWS, offset=offset)

widgets.remember_results()
if rows:
    caption.caption(f"{offset + 1:,}–{offset + len(rows):,} of {total:,}. The digits of a key open its kernel.")
    with taking:
        exports(wanted, sorted_by, not ascending, total)
    if picked:
        actions(picked)
    widgets.kernel_picker(rows, picked, key="kernels")
elif wanted != KernelFilter():
    st.info("No kernel matches. Take a word or a filter away.")
else:
    st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
