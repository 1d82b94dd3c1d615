"""Links to entries of other frameworks' caches, which can be shared, and the entries that addresses name."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from app import context, widgets
from app.addresses import OTHERS
from app.caches import scan
from app.presenters.framework_kernels import Address
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import Entry
from cache_engine.index import framework_queries as queries
from cache_engine.units import counted


def asked(cache: str, entry: str) -> tuple[Address, Entry] | None:
    """The entry that the page's address names, from the index. ``None`` after an error was shown."""
    address = Address.of(st.query_params.get(cache, ""), st.query_params.get(entry, ""))
    found = context.ask(queries.entry, address.place, address.id)
    if found is None:  # as where a link is opened before anything was scanned
        scan.look()
        found = context.ask(queries.entry, address.place, address.id)
    if found is None or address.place.kind not in scan.sources().by_kind:
        widgets.problem("No cache that is looked at has this entry.", f"{address.id} in {address.cache}")
        return None
    return address, found


def matching_link(text: str) -> None:
    """Draws a link to the entries of other frameworks that match a search; nothing if no entry matches."""
    count = context.ask(queries.count, EntryFilter(text)) if text else 0
    if count:
        label = f"{counted(count, 'entry', 'entries')} of other frameworks"
        widgets.page_link("kernels", label, "inventory_2", view=OTHERS, words=text)


def entry_address(address: Address) -> str:
    """The address of an entry's page, from any page."""
    return f"kernel?{urlencode(address.parameters)}"


def compare_link(label: str, first: Address, second: Address | None = None) -> None:
    """Draws a link to the comparison of an entry with a second; without ``second``, that page asks for one."""
    widgets.page_link("compare", label, "compare_arrows", **_sides(first, second))


def compare_address(first: Address, second: Address) -> str:
    """The address of the comparison of two entries, from any page."""
    return f"compare?{urlencode(_sides(first, second))}"


def _sides(first: Address, second: Address | None) -> dict[str, str]:
    sides = {"cache_a": first.cache, "entry_a": first.id}
    return sides if second is None else {**sides, "cache_b": second.cache, "entry_b": second.id}
