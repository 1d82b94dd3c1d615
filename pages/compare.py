"""The page Compare: two kernels side by side, from their keys to their machine code."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

import streamlit as st

from app import context, widgets
from app.caches import comparison as caches_comparison
from app.caches import links
from app.components import comparison, listing, tables
from app.presenters.kernel_list import kernel_filter
from app.presenters.speed import MODEL, speed_pairs
from app.views.adapter_kernels import list_adapted
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundles import Group
from cache_engine.index import queries, summaries
from cache_engine.insight.comparison import compare
from cache_engine.insight.inspection import Stored, titled
from cache_engine.model.artifact import Record

SHOWN = 20


def kernel_of(place: str, label: str) -> Stored | None:
    """Draws a field for a kernel's key; returns that kernel, or ``None`` if the store has none."""
    asked = st.text_input(label, key=place, bind="query-params", max_chars=64, placeholder="0123abcd")
    if not asked:
        return None
    try:
        kernel = context.cache().admin.find_stored(asked)
    except GemmCacheError as error:
        gone = widgets.departed(asked)
        if gone is None:
            widgets.problem("No kernel with this key.", str(error))
        else:
            widgets.kernel_link("What is known of it", gone.key)
        return None
    name = describe(kernel).name if isinstance(kernel, Group) else kernel.name
    st.code(f"{name}\n{kernel.key}", language=None, wrap_lines=True)
    widgets.kernel_link("Open kernel", kernel.key)
    return kernel


def called(kernel: Stored) -> str:
    """The name of a kernel for titles and headings of columns."""
    return describe(kernel).name or "unnamed" if isinstance(kernel, Group) else titled(kernel)


def fill_in(place: str) -> None:
    """Fills a field with the kernel clicked in the list."""
    clicked = listing.clicked("candidates")
    if clicked is not None:
        st.session_state[place] = clicked


def with_first(key: str) -> str:
    """The address of this page with the missing kernel filled in."""
    keys = {"a": st.session_state.get("a"), "b": st.session_state.get("b")}
    keys["b" if keys["a"] else "a"] = key
    return f"compare?{urlencode({place: value for place, value in keys.items() if value})}"


def picker(chosen: Stored | None) -> None:
    """Draws a list, without the chosen kernel, from which the reader chooses the missing one."""
    text = st.text_input(
        "Find a kernel", key="pick", type="search", live=True, max_chars=200, placeholder="sm_90 bf16 4096x7168"
    )
    try:
        wanted = kernel_filter(text, {})
    except UsageError as error:
        st.text(str(error))
        return
    found = context.ask(queries.kernels, wanted, sort="last used", descending=True, limit=SHOWN + 1, offset=0)
    rows = [row for row in found if chosen is None or row["key"] != chosen.key][:SHOWN]
    if rows:
        st.caption("Most recently used matches. Click a key to fill the empty field.")
        listing.kernel_list(rows, key="candidates", address=with_first)
    others = list_adapted(replace(wanted, frameworks=()), sort="last used", descending=True, address=with_first)
    if rows or others:
        return
    if text:
        st.info("No matching kernels. Shorten the search text.")
    elif found:
        st.info("This store has no other kernel.")
    else:
        widgets.empty_store()


def times(first: Record, second: Record, heads: tuple[str, str]) -> None:
    """Draws the measured and the predicted times of two kernels."""
    measured = context.ask(summaries.timings, first.key), context.ask(summaries.timings, second.key)
    pairs = speed_pairs(first, second, measured)
    st.header("Performance")
    if not pairs:
        st.caption("No timings, and no prediction for these kernels.")
        return
    tables.show(comparison.pair_table(pairs, *heads), key="Speed")
    st.caption(
        f"Predictions ({MODEL}) depend only on the problem, so two kernels for one problem get the same value. "
        "Measuring needs an NVIDIA GPU."
    )


def side_by_side(first: Stored, second: Stored) -> None:
    """Draws everything in which two kernels can differ: key, properties, times, instructions and machine code."""
    (one, first_sass), (other, second_sass) = map(context.compared_with, (first, second))
    found = compare(one, other)
    with heading:
        widgets.title(f"{called(first)} and {called(second)}")
    heads = f"1: {first.key[:12]}", f"2: {second.key[:12]}"
    for note in dict.fromkeys((*found.notes, *one.notes, *other.notes)):
        st.text(note)
    if first.key == second.key:
        st.info("Same key: this is the same kernel twice.")
    left = comparison.side_by_side(found, heads)
    if not isinstance(first, Group) and not isinstance(second, Group):
        with left:
            times(first, second, heads)
    comparison.draw_machine_code(lambda: (one, first_sass()), lambda: (other, second_sass()))


heading = st.empty()
heading.title("Compare")
context.cache()
if links.asks("entry_a"):  # of another framework
    caches_comparison.draw()
    widgets.end_page()
widgets.results_link()
hint = st.empty()
fill_in("b" if st.session_state.get("a", st.query_params.get("a")) else "a")
columns = st.columns(2)
with columns[0]:
    first = kernel_of("a", "First kernel")
with columns[1]:
    second = kernel_of("b", "Second kernel")
if first is None or second is None:
    hint.caption("Enter two keys (a prefix is enough). The link is shareable.")
    picker(first or second)
else:
    side_by_side(first, second)
