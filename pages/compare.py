"""The page Compare: several kernels side by side, from their keys to their machine code."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

import streamlit as st

from app import context, widgets
from app.caches import comparison as caches_comparison
from app.caches.entry import list_adapted
from app.components import comparison, listing, tables
from app.presenters.columns import Column
from app.presenters.kernel_list import kernel_filter
from app.presenters.shared import MOST_COMPARED, compare_address, kernel_address
from app.presenters.speed import MODEL, speed_rows, time_change, time_text
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.frameworks.bundle_facts import config_text, describe
from cache_engine.frameworks.bundles import Group
from cache_engine.index import queries, summaries
from cache_engine.insight.comparison import compare
from cache_engine.insight.inspection import Stored, titled
from cache_engine.model.artifact import Record

SHOWN = 20
DIGITS = 12


def asked() -> list[str]:
    """The keys, or the first digits of keys, in the address; the first is the baseline."""
    given = [*(st.query_params.get(side, "") for side in ("a", "b")), *st.query_params.get_all("more")]
    return list(filter(None, given))


def put(keys: list[str]) -> None:
    """Writes the keys of the compared kernels into the address."""
    for name in ("a", "b", "more"):
        st.query_params.pop(name, None)
    st.query_params.update(compare_address(keys))


def rechosen() -> None:
    """Writes the kernels in the field into the address. The field is gone where a quick reader has left the page."""
    widgets.renew_address()
    if "compared" in st.session_state:
        put(st.session_state["compared"])


def chosen(keys: list[str]) -> list[Stored]:
    """Draws a field to add and remove compared kernels, and errors for unknown keys; returns the stored kernels."""
    found: dict[str, Stored] = {}
    called: dict[str, str] = {}
    troubles: list[tuple[str, str]] = []
    for key in keys:
        try:
            kernel = context.cache().admin.find_stored(key)
        except GemmCacheError as error:
            troubles.append((key, str(error)))
            continue
        if kernel.key in found:
            st.info(f"Same key: {key[:DIGITS]} is the same kernel twice.")
        found[kernel.key] = kernel
        called[key] = f"{name_of(kernel)} · {kernel.key[:DIGITS]}"
    options = list(dict.fromkeys(keys))
    st.session_state["compared"] = options
    st.multiselect(
        "Kernels",
        options,
        format_func=lambda key: called.get(key, key),
        key="compared",
        on_change=rechosen,
        max_selections=MOST_COMPARED,
        accept_new_options=True,
        placeholder="Type a key (a prefix is enough)",
        label_visibility="collapsed",
    )
    for key, why in troubles:
        gone = widgets.departed(key)
        if gone is None:
            widgets.problem("No kernel with this key.", why)
        else:
            widgets.kernel_link("What is known of it", gone.key)
    return list(found.values())


def name_of(kernel: Stored) -> str:
    """The name of a kernel for titles and headings of columns."""
    return describe(kernel).name or "unnamed" if isinstance(kernel, Group) else titled(kernel)


def config_of(kernel: Stored) -> str:
    """The config of a kernel as text."""
    return config_text(describe(kernel)) if isinstance(kernel, Group) else str(kernel.config)


def picker(keys: list[str], found: list[Stored]) -> None:
    """Draws a list, without the chosen kernels, from which the reader adds one."""
    clicked = listing.clicked("candidates")
    if clicked is not None:
        put([*keys, clicked])
        st.rerun()
    text = st.text_input(
        "Find a kernel", key="pick", type="search", live=True, max_chars=200, placeholder="sm_90 bf16 4096x7168"
    )
    try:
        wanted = kernel_filter(text, {})
    except UsageError as error:
        st.text(str(error))
        return

    def with_key(key: str) -> str:
        return f"compare?{urlencode(compare_address([*keys, key]), doseq=True)}"

    limit = SHOWN + len(found)
    last_used = context.ask(queries.kernels, wanted, sort="last used", descending=True, limit=limit, offset=0)
    there = {kernel.key for kernel in found}
    rows = [row for row in last_used if row["key"] not in there][:SHOWN]
    if rows:
        st.caption("Most recently used matches. Click a key to compare that kernel too.")
        listing.kernel_list(rows, key="candidates", address=with_key)
    others = list_adapted(replace(wanted, frameworks=()), sort="last used", descending=True, address=with_key)
    if rows or others:
        return
    if text:
        st.info("No matching kernels. Shorten the search text.")
    elif last_used:
        st.info("This store has no other kernel.")
    else:
        widgets.empty_store()


def times(records: list[Record], heads: list[str]) -> None:
    """Draws the measured times of kernels, and the predicted ones that differ."""
    measured, predicted = speed_rows(records, [context.ask(summaries.timings, record.key) for record in records])
    st.header("Performance")
    if measured or predicted:
        rows = {**measured, **predicted}
        comparison.draw_rows(rows, heads, key="Speed", show=time_text, differ=time_change)
    if not measured:
        st.caption("None was timed yet. Timing needs an NVIDIA GPU: gemm-cache time.")
    if predicted:
        st.caption(f"Predictions ({MODEL}) are of a cuBLAS-like kernel for each problem, not of these kernels.")


def overview(kernels: list[Stored]) -> None:
    """Draws the compared kernels as a table with links: to each kernel, and to this page with another order."""
    keys = [kernel.key for kernel in kernels]

    def first(key: str, *before: str) -> str | None:
        """The address of this page with ``key`` behind the keys ``before``; ``None`` if the order stays the same."""
        order = list(dict.fromkeys((*before, key, *keys)))
        return None if order == keys else f"compare?{urlencode(compare_address(order), doseq=True)}"

    columns = [
        Column("No.", lambda each: keys.index(each.key) + 1),
        Column("Kernel", lambda each: kernel_address(each.key), "link", name_of),
        Column("Config", config_of),
        Column("Key", lambda each: each.key[:DIGITS]),
        Column("Function", lambda each: describe(each).name if isinstance(each, Group) else each.name),
        Column("Baseline", lambda each: first(each.key), "link", lambda each: "yes" if each.key == keys[0] else "use"),
    ]
    if len(keys) > 2:
        sass = Column("Machine code", lambda each: each.key != keys[0] and first(each.key, keys[0]), "link", "compare")
        columns.append(sass)
    tables.draw(kernels, columns, key="compared-kernels", label="Kernels", saved=False)


def title_of(kernels: list[Stored]) -> str:
    """The title of the page: both names (if equal, with configs), or the first name and the number of the others."""
    first, *others = map(name_of, kernels)
    if others == [first]:
        first, *others = (f"{name_of(kernel)} {config_of(kernel)}" for kernel in kernels)
    return f"{first} and {others[0] if len(others) == 1 else f'{len(others)} more'}"


def side_by_side(kernels: list[Stored]) -> None:
    """Draws everything in which kernels can differ: key, properties, times, instructions and machine code."""
    (baseline, first_sass), *others = map(context.compared_with, kernels)
    found = [compare(baseline, other) for other, _ in others]
    with heading:
        widgets.title(title_of(kernels))
        st.set_page_config(page_title=f"Compare {title_of(kernels)} · gemm-cache")
    overview(kernels)
    heads = [f"{at}: {kernel.key[:DIGITS]}" for at, kernel in enumerate(kernels, 1)]
    for note in dict.fromkeys(note for one in found for note in one.notes):
        st.text(note)
    records = [kernel for kernel in kernels if not isinstance(kernel, Group)]
    if len(records) == len(kernels):
        times(records, heads)
    comparison.side_by_side(found, heads)
    st.header(f"Machine code of {heads[0]} and {heads[1]}")
    other, second_sass = others[0]
    comparison.draw_machine_code(lambda: (baseline, first_sass()), lambda: (other, second_sass()))


heading = st.empty()
heading.title("Compare")
context.cache()
if "entry_a" in st.query_params:  # of another framework
    caches_comparison.draw()
    widgets.end_page()
widgets.results_link()
keys = asked()
if len(keys) > MOST_COMPARED:
    st.warning(f"The link names {len(keys):,} kernels. The first {MOST_COMPARED} are compared.")
keys = keys[:MOST_COMPARED]
found = chosen(keys)
if len(found) < 2:
    st.caption("Choose two to eight kernels, from the list or by key. The link is shareable.")
    picker(keys, found)
else:
    if len(keys) < MOST_COMPARED:
        with (adding := st.expander("Add a kernel", on_change="rerun", key="adding")):
            if adding.open:
                picker(keys, found)
    side_by_side(found)
