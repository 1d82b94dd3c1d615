"""Two directories of one framework: what only one has and why, and what is the same key with other bytes."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app import context, tables
from app.caches import links, looking
from app.components.tiles import draw_tiles
from app.presenters.caches import CAUSES, changed_columns, miss_columns
from app.presenters.others import Address
from app.presenters.shared import Row, Tile
from cache_engine.frameworks.comparison import Comparing, DirectoriesCompared
from cache_engine.frameworks.values import Entry, Place
from cache_engine.index import foreign_queries as queries

SHOWN = 200


def draw(places: list[Row]) -> None:
    """The choice of two, and their differences."""
    known = {f"{row['kind']}={row['path']}": row["kind"] for row in places if row["entries"]}
    if len(known) < 2:
        st.info("There are no two directories with entries. The setting caches names further ones.")
        return
    left, right = st.columns(2)
    first = left.selectbox("First directory", list(known), key="a", bind="query-params")
    others = [each for each, kind in known.items() if each != first and kind == known.get(first or "")]
    if not others:
        st.info("No other directory of this framework has entries: keys of two frameworks have nothing in common.")
        return
    second = right.selectbox("Second directory", others, key="b", bind="query-params")
    one, other = (Address.of(str(each), "").place for each in (first, second))
    states = [context.ask(queries.state_of, place) for place in (one, other)]
    _show(_compared((first, second, states), one, other), one, other)


@st.cache_data(show_spinner="Reading both…", max_entries=8)
def _compared(which: object, _one: Place, _other: Place) -> DirectoriesCompared:  # noqa: ARG001 (and their states)
    first, second = ((place, context.cache().query(queries.entries_of, place)) for place in (_one, _other))
    return Comparing(looking.sources().by_kind[_one.kind]).directories(first, second)


def _show(found: DirectoriesCompared, one: Place, other: Place) -> None:
    tiles = [
        Tile("In both, same bytes", f"{found.same:,}", "Entries of one key with equal parts."),
        Tile("In both, other bytes", f"{len(found.changed):,}", "Entries of one key that were built differently."),
        Tile("Only in the first", f"{len(found.only_one):,}", "A process with the second directory compiles these."),
        Tile("Only in the second", f"{len(found.only_other):,}", "A process with the first directory compiles these."),
    ]
    draw_tiles(tiles)
    if found.causes:
        st.header("Why they miss")
        st.caption("In which inputs of the key the entries of the first differ from the nearest of the second.")
        tables.draw(found.causes, CAUSES, height="content", key="causes")
    if found.changed:
        st.header("The same key with other bytes")
        tables.draw(found.changed[:SHOWN], changed_columns(partial(_both, one, other)), key="changed")
    for title, misses, key, places in (
        ("Only in the first", found.only_one, "only-one", (one, other)),
        ("Only in the second", found.only_other, "only-other", (other, one)),
    ):
        if misses:
            st.header(title)
            tables.draw(misses[:SHOWN], miss_columns(partial(_both, *places)), key=key)
            if len(misses) > SHOWN:
                st.caption(f"And {len(misses) - SHOWN:,} more.")


def _both(one: Place, other: Place, first: Entry, second: Entry) -> str:
    """The address of the comparison of an entry with one of the other directory."""
    return links.compare_address(Address(one, first.id), Address(other, second.id))
