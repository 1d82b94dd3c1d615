"""Quarantine: a list of its items, the details of a chosen item, and buttons that restore or delete."""

from __future__ import annotations

import streamlit as st

from app import context, guard, widgets
from app.admin.cleanup import end_with, show_outcome
from app.components import tables
from app.presenters.admin import QUARANTINED, quarantine_properties
from cache_engine.units import counted, human_bytes
from cache_engine.upkeep.cleanup import QUARANTINE_S
from cache_engine.upkeep.plan import DAY_S
from cache_engine.upkeep.quarantine import Item

SHOWN = 50
_SEEN = "items seen in quarantine"
ALL = "all"


def draw(permitted: bool) -> None:
    """Draws the list of items, the details of the chosen item, and the buttons."""
    show_outcome()
    st.caption(f"Corrupt entries are stored for {QUARANTINE_S / DAY_S:.0f} days, then deleted by the next cleanup.")
    items = context.cache().admin.quarantined()
    seen = (context.cache().layout.identities(), *((item.name, item.files) for item in items))
    if st.session_state.get(_SEEN) != seen:
        # The reader confirms what the reader saw.
        st.session_state[_SEEN] = seen
        st.session_state["confirm-delete"] = ""
    if not items:
        st.info("Quarantine is empty.", icon=":material/verified:")
        return
    offset = widgets.paging(len(items), SHOWN, key="quarantine-page")
    tables.draw(items[offset : offset + SHOWN], QUARANTINED, key="quarantine")
    chosen = _chosen(items)
    if chosen is not None:
        _draw_item(chosen, permitted)
    _draw_delete(items if chosen is None else [chosen], permitted)


def _chosen(items: list[Item]) -> Item | None:
    """The chosen item; ``None`` where all items are chosen."""
    by_name = {item.name: item for item in items}

    def label(name: str) -> str:
        return f"All {len(items):,}" if name == ALL else f"{name[:40]} ({human_bytes(by_name[name].stored_bytes)})"

    return by_name.get(st.selectbox("Item", [ALL, *by_name], format_func=label, key="item"))


def _draw_item(item: Item, permitted: bool) -> None:
    cache = context.cache()
    examined = cache.admin.examine(item)
    shown = quarantine_properties(item, examined, context.timezone())
    tables.properties(shown, key="quarantine-facts")
    label = "Restore" if item.key else "Cannot restore (not a complete entry)"
    may = permitted and not examined.cause
    if st.button(label, icon=":material/undo:", disabled=not may, help="Re-verified before restoring."):

        def restore(by: str) -> bool:
            cache.admin.restore(item, by=by)
            return True

        if guard.act("Restore failed.", restore):
            end_with(f"Restored {item.name[:12]}.")


def _draw_delete(items: list[Item], permitted: bool) -> None:
    count, size = len(items), sum(item.stored_bytes for item in items)
    label = f"Delete {counted(count, 'item')} permanently"
    question = f"Type {count} to delete {counted(count, 'item')} ({human_bytes(size)}) permanently"
    confirmed = widgets.confirmed(question, count, key="confirm-delete", permitted=permitted)
    if st.button(label, icon=":material/delete_forever:", disabled=not confirmed):
        cache = context.cache()
        done = guard.act("Deletion failed.", lambda by: cache.admin.discard(items, by=by))
        if done is not None:
            end_with(f"Deleted {counted(done.items, 'item')}, {human_bytes(done.stored_bytes)}.")
