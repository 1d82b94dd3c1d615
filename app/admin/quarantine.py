"""Quarantine: what was set aside, a look into it, putting it back or deleting it."""

from __future__ import annotations

import streamlit as st

from app import context, guard, widgets
from app.presenters.store.admin import quarantine_facts, quarantine_table
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.quarantine import Discarded, Item

SHOWN = 50
_SMALL = st.column_config.TextColumn(width="small")
_COLUMNS = {
    "Size": st.column_config.NumberColumn(format="%.1f KiB"),
    "Set aside": st.column_config.DatetimeColumn(format="distance"),
}
_DONE, _SEEN = "what became of the quarantine", "items seen in quarantine"
ALL = "all"


def draw(permitted: bool) -> None:
    """What is there, and what may be done with it."""
    if _DONE in st.session_state:
        st.success(st.session_state.pop(_DONE), icon=":material/check_circle:")
    st.caption("What was found damaged is kept here for 30 days, then goes with any cleaning.")
    items = context.cache().quarantined()
    seen = tuple((item.name, item.files) for item in items)
    if st.session_state.get(_SEEN) != seen:
        # What is confirmed must be what was read.
        st.session_state[_SEEN] = seen
        st.session_state["confirm-delete"] = ""
    if not items:
        st.info("Nothing is in quarantine.", icon=":material/verified:")
        return
    offset = widgets.paging(len(items), SHOWN, key="quarantine-page")
    table = quarantine_table(items[offset : offset + SHOWN], context.timezone())
    st.dataframe(table, hide_index=True, column_config=_COLUMNS, key="quarantine")
    chosen = _chosen(items)
    if chosen is not None:
        _draw_item(chosen, permitted)
    _draw_delete(items if chosen is None else [chosen], permitted)


def _chosen(items: list[Item]) -> Item | None:
    """The item to look into; none stands for all of them."""
    by_name = {item.name: item for item in items}

    def label(name: str) -> str:
        return f"All {len(items):,}" if name == ALL else f"{name[:40]} ({human_bytes(by_name[name].stored_bytes)})"

    return by_name.get(st.selectbox("Look into", [ALL, *by_name], format_func=label, key="item"))


def _draw_item(item: Item, permitted: bool) -> None:
    cache = context.cache()
    examined = cache.examine(item)
    facts = quarantine_facts(item, examined, context.timezone())
    st.dataframe(facts, hide_index=True, height="content", column_config={"Fact": _SMALL}, key="quarantine-facts")
    label = "Put it back" if item.key else "Put it back: only entries can be"
    may = permitted and not examined.cause
    if st.button(label, icon=":material/undo:", disabled=not may, help="Every byte is checked once more."):

        def put_back(by: str) -> bool:
            cache.restore(item, by=by)
            return True

        if guard.act("It was not put back.", put_back):
            st.session_state[_DONE] = f"Put back {item.name[:12]}."
            st.rerun()


def _draw_delete(items: list[Item], permitted: bool) -> None:
    count, size = len(items), sum(item.stored_bytes for item in items)
    label = f"Delete {counted(count, 'item')} for good"
    typed = st.text_input(
        f"Type {count} to delete {counted(count, 'item')} ({human_bytes(size)}) for good",
        key="confirm-delete",
        max_chars=12,
        disabled=not permitted,
    )
    confirmed = permitted and (typed or "").strip() == str(count)
    if st.button(label, icon=":material/delete_forever:", disabled=not confirmed):
        cache = context.cache()

        def delete(by: str) -> Discarded:
            return cache.discard(items, by=by)

        done = guard.act("Deleting stopped.", delete)
        if done is not None:
            st.session_state[_DONE] = f"Deleted {counted(done.items, 'item')}, {human_bytes(done.stored_bytes)}."
            st.rerun()
