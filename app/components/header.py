"""The header of every page: the search, the page's command, its export as one file, and a notice of changed kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app import context, widgets
from app.addresses import OTHERS
from app.components import mount
from app.presenters.command import equal
from app.presenters.framework_kernels import address_of
from app.presenters.kernel_list import kernel_filter
from app.presenters.palette import MOST, Place, places, plain
from app.presenters.shared import Row, dtypes
from cache_engine.errors import GemmCacheError, UsageError
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.gpu.probe import local_arch
from cache_engine.index import framework_queries, queries
from cache_engine.insight.report.page import Report, written
from cache_engine.units import counted

SHORTCUT = "Ctrl+K"
_ICONS = {
    "Page": "article", "Setting": "tune", "Model": "hub", "Target": "developer_board", "Kernel": "memory",
    "Entry": "inventory_2",
}  # fmt: skip
POLL_S = 5.0
_DOCUMENTS = {"Predict": "evaluator", "Workload": "policy"}  # of the other pages: dashboard
_REPORTS: Mapping[str, tuple[str, ...]] = {"Overview": (), "Kernel": ("key",), "Compare": ("a", "b")}
"""The pages that can be sent as a report, and the parameters of their addresses that name kernels."""
_FOLLOWED = ("Overview", "Kernels", "Workload")
_DRAWN = "stock when the page was drawn"


def draw(page: str) -> None:
    """Draws the header of a page. Called after the page is drawn, so that the values of its widgets are known.

    Args:
        page: the page's title.
    """
    with st.container(key="in-header", horizontal=True, vertical_alignment="center", gap="xxsmall"):
        pressed = st.button("Search", icon=":material/search:", type="tertiary", shortcut=SHORTCUT, key="search-button")
        _command(page)
        make = _report(page)
        if make is not None:
            with st.container(key="export-page", width="content"):
                export_button(page.lower(), make, key="export", type="tertiary")
        with st.container(key="to-docs", width="content"):
            widgets.page_link("docs", "Docs", "menu_book", document=_DOCUMENTS.get(page, "dashboard"))
        mount("menu", key="menu", data={})
    if pressed:
        _search()
    if page in _FOLLOWED:
        st.session_state[_DRAWN] = _stock()
        _news()


def export_button(name: str, make: Callable[[], Report], *, key: str, type: Any = "secondary") -> None:
    """A button that makes one HTML file of a page and has the browser save it; ``type`` as of Streamlit's buttons."""
    options = {"icon": "ios_share", "help": "One HTML file to send.", "type": type, "key": key}
    widgets.download("Export page", lambda: written(make(), time.time()), f"{name}.html", "text/html", **options)


def as_command(page: str) -> tuple[str, ...] | None:
    """The arguments of the command that prints the same as the page of this title; ``None`` if no command does."""
    return equal(page, _values(), local_arch() or context.cache().settings.default_arch)


def _command(page: str) -> None:
    arguments = as_command(page)
    if arguments is None:
        return
    with st.popover(
        "Command", icon=":material/terminal:", type="tertiary", help="The same on the command line.", key="as-command"
    ):
        st.caption("The same on the command line")
        st.code(context.command(*arguments), language=None, wrap_lines=True)


def _values() -> Mapping[str, Any]:
    """The values of the page's widgets and of its address, by name; for a name that both have, the address is used."""
    address = {name: st.query_params.get_all(name) for name in st.query_params}
    return {
        **{str(key): st.session_state[key] for key in st.session_state},
        **{name: values[0] if len(values) == 1 else values for name, values in address.items()},
    }


def _report(page: str) -> Callable[[], Report] | None:
    """A function that makes the report of a page; ``None`` if the page has no report, or its kernel is gone."""
    cache, keys = context.cache(), [st.query_params.get(name, "") for name in _REPORTS.get(page, ())]
    if page not in _REPORTS or not all(keys):
        return None
    try:
        for key in keys:
            cache.find(key)
    except (GemmCacheError, OSError):  # an address may name a deleted kernel, or nonsense
        return None

    def make() -> Report:
        # Imported only when a reader asks for a report.
        from cache_engine.insight.report.kernels import comparison_report, kernel_report, store_report

        if not keys:
            return store_report(cache, time.time())
        return (kernel_report if len(keys) == 1 else comparison_report)(cache, *map(cache.find, keys))

    return make


@st.fragment(run_every=POLL_S)
def _news() -> None:
    """A button that says that kernels came or went since the page was drawn, and draws the page again when clicked."""
    before, now = st.session_state.get(_DRAWN), _stock()
    context.age_of_answers()  # that is for the page to say
    if before is None or now is None or before == now:
        return
    words = news_words(before, now)
    with st.container(key="news"):
        if st.button(f"{words}. Show", icon=":material/refresh:", key="show-news"):
            st.rerun()


def news_words(before: tuple[int, int], now: tuple[int, int]) -> str:
    """The change from one result of ``queries.stock`` to the next, in words: the number of new or deleted kernels."""
    more = now[0] - before[0]
    if not more:
        return "Kernels were replaced"
    return counted(more, "new kernel") if more > 0 else f"{counted(-more, 'kernel')} deleted"


def _stock() -> tuple[int, int] | None:
    """The number of kernels, and a number that identifies their set; ``None`` if the index is unavailable."""
    try:
        return context.ask(queries.stock)
    except GemmCacheError:
        return None


@st.dialog("Search", width="medium")
def _search() -> None:
    text = st.text_input(
        "Kernels, models, targets, pages, settings",
        key="search-text",
        type="search",
        live=True,
        max_chars=200,
        placeholder="DeepSeek-V3, sm_90 bf16, a key, cleanup, max_bytes",
    )
    text = (text or "").strip()
    ours, others = _stored(text) if text else ([], [])
    found = [*ours, *places(text)]
    for place in found:
        _link(place)
    if others:
        st.subheader("Caches of other frameworks")
    for place in others:
        _link(place)
    found += others
    if not found:
        st.info("Nothing found. Try fewer or shorter words.")
    # Streamlit gives an open dialog's field no focus, and has no arrows from link to link.
    mount("links", key="keys-of-links", data={"text": text, "first": found[0].name if found else ""})


def _stored(text: str) -> tuple[list[Place], list[Place]]:
    """Kernels that match a text, and entries of other frameworks' caches that do. Reads the index; starts no scan."""
    others = EntryFilter(text)
    questions = []
    try:
        ours = kernel_filter(text, {})
        questions = [
            context.question(queries.kernels, ours, sort="last used", descending=True, limit=MOST, offset=0),
            context.question(queries.count, ours),
        ]
    except UsageError as error:  # entries may have the text in their names
        st.text(f"Kernels are not searched: {error}")
    questions += [
        context.question(framework_queries.entries, others, sort="last used", limit=MOST),
        context.question(framework_queries.count, others),
    ]
    context.ask_ahead(*questions)
    try:
        answers = [context.ask(ask, *arguments, **options) for ask, arguments, options in questions]
    except GemmCacheError as error:
        st.text(f"Kernels are not searched: {error}")
        return [], []
    kernels, count, entries, entry_count = answers if len(answers) == 4 else ([], 0, *answers)
    more = Place("Kernel", f"All {counted(count, 'kernel')}", "that match", "kernels", {"text": text})
    all_entries = f"All {counted(entry_count, 'entry', 'entries')}"
    others_more = Place("Entry", all_entries, "that match", "kernels", {"view": OTHERS, "words": text})
    return (
        [*map(_kernel, kernels), *([more] if count > len(kernels) else [])],
        [*map(_entry, entries), *([others_more] if entry_count > len(entries) else [])],
    )


def _kernel(row: Row) -> Place:
    about = f"{row['m']} × {row['n']} × {row['k']} {dtypes(row)} {row['arch']}, {row['family']}"
    return Place("Kernel", row["key"][:12], about, "kernel", {"key": row["key"]})


def _entry(row: Row) -> Place:
    about = ", ".join(filter(None, (row["kind"], row["arch"], row["id"].rpartition("/")[2][:12])))
    return Place("Entry", row["name"] or "unnamed", about, "kernel", address_of(row).parameters)


def _link(place: Place) -> None:
    widgets.page_link(place.page, f"**{plain(place.name)}** {plain(place.about)}", _ICONS[place.kind], **place.address)
