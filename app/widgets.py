"""Widgets that several pages share. Text from the store goes through ``st.text`` or ``st.code``, never Markdown."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import parse_qs

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import ScriptRunContext, get_script_run_ctx

from app import context
from app.addresses import OLD_TABS, STORAGE, tab_address
from app.presenters.shared import compare_address, page_count, when
from cache_engine.index.queries import FACETS
from cache_engine.units import human_age
from cache_engine.upkeep.decisions import Departure

LIST_PARAMETERS = ("view", "q", "text", "words", "kind", "state", *FACETS, "sort", "asc", "page")
SEARCHED = "search field drawn last, and its text"
"""The session variable with the last drawn search field of the page Kernels and its text, which views share."""
_RESULTS = "results last seen"
_OPENED, _DRAWN = "page opened last", "address drawn last"
_LINK, _USED = "parameters of the link from another page", "a widget was used"
_LONGEST_SHOWN, _MOST_SHOWN = 200, 10
_PREFIX = re.compile(r"[0-9a-fA-F]{8,64}")
_SIGN_S = 0.2
SMALLER_CHIP = "Choose a chip with fewer cores or larger cubes, or run gemm-cache evaluate, which has no limit."
FEWER_ROWS = "Give fewer measurements, or run gemm-cache calibrate --check all, which has no limit."
SHORTER_RANGE = "Choose a shorter time range, or run gemm-cache demand, which has no limit."


def title(text: str) -> None:
    """A page's heading and the title of its tab, from a text of the store, which may look like Markdown."""
    st.set_page_config(page_title=f"{text} · gemm-cache")
    st.title(re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text))  # ASCII punctuation: what Markdown lets be escaped


class PageEnded(Exception):
    """Raised to end a page's script early, because the page has nothing more to show."""


def end_page() -> NoReturn:
    """Ends the page here; ``st.stop`` would also leave out the header, which is drawn after the page."""
    raise PageEnded


def problem(what: str, cause: str) -> None:
    """Draws an error: what happened, in our words, and below it the cause, as plain text."""
    with st.container(border=True):
        st.error(what, icon=":material/error:")
        st.text(cause)


def command(*arguments: str) -> None:
    """A command of ``gemm-cache`` on this store, to copy."""
    st.code(context.command(*arguments), language=None, wrap_lines=True)


def download(
    label: str, data: Any, file: str, mime: str = "application/octet-stream", *, icon: str = "download", **options: Any
) -> None:
    """Draws a button that has the browser save a file, and leaves the page as it is.

    Args:
        data: the content, or a function that makes it once the reader asks for the file.
        icon: the name of one of Material's symbols.
        options: further arguments of Streamlit's button.
    """
    st.download_button(label, data, file, mime, icon=f":material/{icon}:", on_click="ignore", **options)


def confirmed(label: str, count: int, *, key: str, permitted: bool) -> bool:
    """Draws a field; returns whether the reader has typed this count into it, to confirm what cannot be undone."""
    typed = st.text_input(label, key=key, max_chars=12, disabled=not permitted, width=320)
    return permitted and (typed or "").strip() == str(count)


def store_gone() -> None:
    """Draws the error that every page shows after the store was deleted or moved."""
    problem(
        "The store's folder is gone.",
        f"{context.cache().layout.root} was deleted or moved after this dashboard had opened it. Move it back and "
        "reload, or start the dashboard again, which creates an empty store there.",
    )


def may_store() -> bool:
    """Whether kernels can be stored and jobs started; if not, the page says so."""
    if context.cache().settings.dashboard_read_only:
        st.info("Read-only dashboard: nothing can be compiled here. Use the command line.", icon=":material/edit_off:")
        return False
    root = context.cache().layout.root
    if os.access(root, os.W_OK):
        return True
    st.info("Read-only store: no kernel can be compiled into it. Start the dashboard on another store:")
    st.code("gemm-cache --store DIR dashboard", language=None)
    return False


def empty_store() -> None:
    """Draws advice for an empty store."""
    st.info("This store is empty. Compile a kernel, or run this command to add example kernels:")
    command("warm", "--sample")
    page_link("compile", "Compile a kernel", "play_circle")


def choose_one(
    label: str,
    choices: Sequence[str],
    default: str,
    *,
    key: str,
    hidden: bool = False,
    on_change: Callable[[], None] | None = None,
) -> str:
    """Draws several choices; returns the chosen one, which is part of the address; by default ``default``.

    Args:
        hidden: whether the label is for screen readers only.
        on_change: called before the page is drawn with another choice.
    """
    shown: Any = "collapsed" if hidden else "visible"
    if st.session_state.get(key, default) not in choices:  # of another page that has a choice with this name
        st.session_state.pop(key)
    given = st.session_state.get(_LINK, {}).pop(key, [""])[0]
    if given in choices:  # Streamlit drops a link's parameter to which the page that was left had bound a choice
        st.session_state[key] = given
    chosen = st.segmented_control(
        label,
        choices,
        default=default,
        required=True,
        label_visibility=shown,
        key=key,
        bind="query-params",
        on_change=on_change,
    )
    return default if chosen is None else chosen


def choose_tab() -> str:
    """Draws the choice of a part and a tab of Storage; returns the tab. An address need name only the tab."""
    asked = st.query_params.get("tab")
    if asked is not None:
        del st.query_params["tab"]
        for name, value in tab_address(OLD_TABS.get(asked, asked)).items():
            st.session_state[name] = st.query_params[name] = value
    part = choose_one("Part", list(STORAGE), next(iter(STORAGE)), key="part", hidden=True)
    tabs = STORAGE[part]
    # Each part has a parameter of its own: a tab of one part is no choice in another.
    return tabs[0] if len(tabs) == 1 else choose_one("Tab", tabs, tabs[0], key=part.lower(), hidden=True)


def address() -> dict[str, list[str]]:
    """The parameters of the address as the reader or a link gave them. Call this before the page is drawn."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def remember_address() -> None:
    """Stores the address that the page has now, for ``renew_address``."""
    run = get_script_run_ctx()
    if run is not None:
        st.session_state[_USED] = False
        with suppress(AttributeError):  # of a later Streamlit: then the browser's address counts
            st.session_state[_DRAWN] = run.page_script_hash, _unbound(run)


def renew_address() -> None:
    """Gives the page the address that it was last drawn with, if the reader has used a widget since; does so once.

    The request of a widget comes with the browser's address, which may be the one before the last that a page wrote: a
    quick reader would lose a choice, or delete by another rule than the one shown. A callback that writes the address
    calls this first; for other widgets ``app.main`` does.
    """
    run = get_script_run_ctx()
    page, drawn = st.session_state.pop(_DRAWN, (None, {}))
    has_left = run is not None and page not in (None, run.page_script_hash)
    st.session_state[_LINK] = parse_qs(run.query_string) if run is not None and has_left else {}
    if run is None or run.page_script_hash != page or run.is_history_navigation:
        return
    try:  # no public function says whether this run follows the use of a widget or a link
        state = run.session_state._state  # noqa: SLF001
        used = any(map(state._widget_changed, state._new_widget_state))  # noqa: SLF001
    except AttributeError:  # of a later Streamlit
        return
    if used:
        st.session_state[_USED] = True
        sent = _unbound(run)
        for name in sent.keys() - drawn.keys():
            del st.query_params[name]
        st.query_params.update({name: values for name, values in drawn.items() if values != sent.get(name)})


def follows_widget() -> bool:
    """Whether the page is drawn because the reader used a widget: then the address brings no choice of a link."""
    return bool(st.session_state.get(_USED))


def _unbound(run: ScriptRunContext) -> dict[str, list[str]]:
    """The parameters of the address that are bound to no widget; a widget's value would be newer."""
    with run.session_state.query_params() as given:
        return {name: values for name, values in address().items() if not given.is_bound(name)}


def unbind(*names: str) -> None:
    """Lets the page write or remove these parameters of the address, although drawn widgets are bound to them.

    Streamlit ends the binding of a widget that is no longer drawn only after the next page is drawn to its end.
    """
    run = get_script_run_ctx()
    if run is not None:
        with run.session_state.query_params() as given:
            for binding in filter(None, map(given.get_binding_for_param, names)):
                given.unbind_widget(binding.widget_id)


def is_just_opened(page: str) -> bool:
    """Whether the page of this title is drawn for the first time since the reader came from another page."""
    return st.session_state.get(_OPENED) != page


def notices(place: DeltaGenerator, page: str, asked: Mapping[str, list[str]]) -> None:
    """Draws notices above a page: that its data is old, if the index is unavailable; and what it cannot show of a link.

    Args:
        asked: the result of ``address`` before the page was drawn.
    """
    old, unknown = context.age_of_answers(), _unknown(page, asked)
    if old is None and not unknown:
        return
    with place.container():
        if old is not None:
            age = human_age(time.time() - old[0])
            st.warning(f"The index is unavailable. Showing data from {age}.", icon=":material/history:")
            st.text(old[1])
        if unknown:
            st.warning(
                "The link asks for what does not exist here. The defaults are shown.", icon=":material/link_off:"
            )
            st.text("\n".join(f"{name} = {value}"[:_LONGEST_SHOWN] for name, value in unknown[:_MOST_SHOWN]))


def _unknown(page: str, asked: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """The names and values in a link that a page's widgets ignored. Empty unless the page was just opened.

    After that, the widgets themselves write the address.
    """
    if not is_just_opened(page):
        return []
    st.session_state[_OPENED] = page
    return [
        (name, value)
        for name, values in asked.items()
        if name in st.session_state
        for value in values
        if value and not _is_shown(value, st.session_state[name])
    ]


def _is_shown(value: str, shown: Any) -> bool:
    """Whether a widget's value ``shown`` is, or contains, a value of the address."""
    if isinstance(shown, list | tuple):
        return any(_is_shown(value, one) for one in shown)
    if isinstance(shown, bool):
        return value.lower() == str(shown).lower()
    if isinstance(shown, int | float):
        try:
            return float(value) == shown
        except ValueError:
            return False
    return value == str(shown)


def kernel_link(label: str, key: str) -> None:
    """Draws a link, whose text is Markdown, to a kernel's page."""
    page_link("kernel", label, "memory", key=key)


def page_link(page: str, label: str, icon: str, /, **asked: Any) -> None:
    """Draws a link to a page, which then shows the same store. Every link to a page of this dashboard is made here.

    Args:
        page: the file of the page, without its suffix.
        label: the link's text, as Markdown.
        icon: the name of one of Material's symbols.
        asked: the parameters of the address.
    """
    chosen = st.session_state.get(context.STORE)
    if chosen is not None:
        asked.setdefault(context.STORE, chosen)
    asked.update(tab_address(asked.pop("tab", "")))
    st.page_link(f"../pages/{page}.py", label=label, icon=f":material/{icon}:", query_params=asked or None)


def paging(total: int, page_rows: int, *, key: str, **options: Any) -> int:
    """Draws a page selector if a list has several pages; returns the number of rows before the chosen page.

    Args:
        options: further arguments of ``st.pagination``, such as ``bind``.
    """
    pages = page_count(total, page_rows)
    if st.session_state.get(key, 1) > pages:
        st.session_state[key] = pages
    number = st.pagination(pages, key=key, **options) if pages > 1 else 1
    return (number - 1) * page_rows


def go(page: str, asked: Mapping[str, Any]) -> NoReturn:
    """Goes to a page at once; the address then has these parameters.

    Args:
        page: the file of the page, without its suffix.
    """
    unbind(*asked)  # of the page that is left: several have a choice named "part"
    st.switch_page(f"../pages/{page}.py", query_params=asked)


def open_kernel(key: str) -> NoReturn:
    """Goes to a kernel's page at once; the page's address then also has the parameters of the list.

    Streamlit adds the list's page to the browser's history once more, with the parameters of the kernel's address; so
    the browser's "back" shows the list unchanged.
    """
    go("kernel", {"key": key, **_list_address()})


def departed(key: str) -> Departure | None:
    """Shows when and why a kernel left the store; returns ``None`` if the store does not know.

    Args:
        key: the kernel's key, or its first digits, such as the 12 digits that lists show.
    """
    gone = context.cache().admin.departure(key.lower()) if _PREFIX.fullmatch(key) else None
    if gone is not None:
        how = "evicted" if gone.is_evicted else "damaged and quarantined"
        st.warning(f"This kernel was {how} {human_age(time.time() - gone.at)}.", icon=":material/history:")
        st.text(f"{when(gone.at, context.timezone())}: {gone.why}{f', by {gone.by}' if gone.by else ''}.")
    return gone


def compare_link(label: str, *keys: str) -> None:
    """Draws a link to the page that compares kernels. If only one is given, that page asks for another."""
    page_link("compare", label, "compare_arrows", **compare_address(keys))


def remember_results() -> None:
    """Stores the address of a list of kernels or of entries, for ``results_link``."""
    st.session_state[_RESULTS] = _list_address()


def results_link() -> None:
    """Draws a link to the list of kernels or of entries, with the filters and the order that the reader last saw."""
    seen: dict[str, list[str]] = st.session_state.get(_RESULTS, _list_address())
    label = "Back to results" if seen else "All kernels"
    page_link("kernels", label, "arrow_back", **seen)


def _list_address() -> dict[str, list[str]]:
    """The parameters of the list of kernels in the address; the search text ``q`` is renamed to ``text``."""
    names = {name: "text" if name == "q" else name for name in st.query_params if name in LIST_PARAMETERS}
    if "q" in names:
        names.pop("text", None)
    return {new: st.query_params.get_all(name) for name, new in names.items()}


class SearchLimit:
    """The time limit of all searches in one drawing of a page. Creating it reserves the place of "Searching…".

    Streamlit ends a script only when the script sends something to the browser. So a text is sent from time to time: at
    that moment a search ends if its tab was closed, or if its reader asked for something else.
    """

    def __init__(self, sign: str = "Searching…") -> None:
        """Starts the time limit.

        Args:
            sign: the text that the page shows during a search.
        """
        self._sign = sign
        self._place = st.empty()
        self._until = time.monotonic() + context.cache().settings.page_limit_s
        self._next_sign = time.monotonic() + _SIGN_S

    def __enter__(self) -> SearchLimit:
        return self

    def __exit__(self, *_: object) -> None:
        self._place.empty()

    def may_go_on(self) -> bool:
        """Whether there is time left; called often. Does not return when the reader has left."""
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + _SIGN_S
            self._place.caption(self._sign)
        return now < self._until


def advice(how: str) -> str:
    """The advice that a page shows after its work took longer than the setting ``page_limit_s`` allows."""
    return f"A page searches for at most {context.cache().settings.page_limit_s:g} s (setting page_limit_s). {how}"
