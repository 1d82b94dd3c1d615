"""Notes and tags of one kernel, and saved views of the list of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import streamlit as st

from app import context, guard, widgets
from app.components import listing
from app.presenters.kernel_list import FACET_LABELS
from app.presenters.palette import plain
from cache_engine.errors import GemmCacheError
from cache_engine.model.key import CacheKey
from cache_engine.store.notes import MOST_LETTERS, MOST_NAME, TAG, Note, View

LIST = "kernels"
_DRAWN = "note that was drawn"
PARAMETERS = (*FACET_LABELS, "sort", "asc")
"""The parameters of an address that a view saves, in addition to the words of the search."""


def show(key: CacheKey) -> None:
    """Draws the note and the tags of a kernel; nothing without them."""
    if words := context.cache().admin.note_words(key):
        st.text(words)


def edit(key: CacheKey) -> None:
    """Draws, for readers who may change the store, the form for a kernel's note and tags."""
    if not guard.may().granted:
        return
    with suppress(GemmCacheError, OSError), st.popover("Note…", icon=":material/edit_note:", type="tertiary"):
        note = context.cache().admin.note(key) or Note()
        drawn, now = st.session_state.get(_DRAWN), (key, note.at)
        st.session_state[_DRAWN] = now
        with st.form("note", border=False):
            text = st.text_input("Note", note.text, max_chars=MOST_LETTERS)
            words = st.text_input("Tags", " ".join(note.tags), max_chars=MOST_LETTERS, help=f"{TAG.capitalize()}.")
            if not st.form_submit_button("Save"):
                return
        if drawn != now:  # the fields have its values again, not those that were written into them
            widgets.problem("The note was not saved.", "Another reader changed it meanwhile. Write yours again.")
            return
        tags = set(words.lower().replace(",", " ").split())
        done = guard.act(
            "The note was not saved.",
            lambda by: context.cache().admin.annotate(
                key, text=text, add=tags - set(note.tags), remove=set(note.tags) - tags, by=by
            ),
        )
        if done is not None:
            st.rerun()


def draw_views(address: Mapping[str, Sequence[str]]) -> None:
    """Draws the saved views of the list and, for readers who may change the store, what saves and deletes one.

    Args:
        address: the parameters of the address of the list that is shown now.
    """
    admin = context.cache().admin
    saved, permitted = admin.views(), guard.may().granted
    if not saved and not permitted:
        return
    with st.popover("Views", icon=":material/bookmarks:", type="tertiary"):
        for number, view in enumerate(saved):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.button(plain(view.name), key=f"view-{number}", on_click=_open, args=(view,), width="stretch")
                # By its name: another reader may have saved a view since this list was drawn.
                if permitted and st.button("Delete", key=f"delete-{view.name}", help=plain(f"Delete {view.name}")):
                    _delete(view.name)
        if not permitted:
            return
        with st.form("save-view", border=False, clear_on_submit=True):
            name = st.text_input("Name", max_chars=MOST_NAME, help="Words, filters, order and columns of this list.")
            if not st.form_submit_button("Save this view"):
                return
        view = View(name, {key: list(values) for key, values in address.items()}, listing.columns_of(LIST))
        if guard.act("The view was not saved.", lambda by: admin.save_view(view, by=by)):
            st.rerun()


def _delete(name: str) -> None:
    if guard.act("The view was not deleted.", lambda _: context.cache().admin.delete_view(name)):
        st.rerun()


def _open(view: View) -> None:
    """Shows a saved view: its search, its columns, and those of its parameters that are in ``PARAMETERS``."""
    widgets.renew_address()
    widgets.unbind(*st.query_params)
    st.query_params.clear()
    st.query_params.update({name: view.address[name] for name in PARAMETERS if name in view.address})
    st.session_state["q"] = " ".join(view.address.get("q", ()))
    listing.show_columns(LIST, view.columns)
