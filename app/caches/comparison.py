"""Two entries of one framework side by side, and two directories: the keys and the bytes that differ."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app import context, widgets
from app.caches import scan
from app.caches.entry import instructions, sass
from app.components import comparison, listing, tables
from app.components.figure import draw_tiles
from app.presenters.caches import CAUSES, changed_columns, compare_address, entry_columns, miss_columns
from app.presenters.framework_kernels import Address, Named, address_of, compared, difference_columns
from app.presenters.shared import Row, Tile
from cache_engine.frameworks.comparison import Comparing, DirectoriesCompared, EntriesCompared
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import Entry, PartKind, Place, key_of
from cache_engine.index import framework_queries as queries

SHOWN = 20
_Found = tuple[Address, Entry]


def draw() -> None:
    """Draws the page Compare for two entries, named in the address, of another framework's cache."""
    widgets.results_link()
    left, right = st.columns(2)
    with left:
        first = _side("a")
    if first is None:
        return
    if "entry_b" not in st.query_params:
        _pick(first[0])
        return
    with right:
        second = _side("b")
    if second is None:
        return
    if first[0].place.kind != second[0].place.kind:
        st.info("They are of different frameworks: their keys have nothing in common.")
    else:
        _why(first, second)
    _side_by_side(first, second)


def _side(side: str) -> _Found | None:
    found = scan.asked(f"cache_{side}", f"entry_{side}")
    if found is not None:
        address, entry = found
        title = scan.titles()[address.place.kind]
        words = f"{entry.name or 'unnamed'}\n{entry.id}\n{title} · {address.place.path_text}"
        st.code(words, language=None, wrap_lines=True)
        widgets.page_link("kernel", "Open kernel", "memory", **address.parameters)
    return found


def _pick(first: Address) -> None:
    """Draws a list of entries, from which the reader chooses the second entry of the comparison."""
    row = listing.clicked("other-entries")
    if row is not None:
        second = Address.parse(row)
        st.query_params["cache_b"], st.query_params["entry_b"] = second.cache, second.id
        st.rerun()
    text = st.text_input("Find an entry", key="pick", type="search", live=True, max_chars=200)
    wanted = EntryFilter(text or "", (first.place.kind,))
    found = context.ask(queries.entries, wanted, sort="last used", limit=SHOWN + 1)
    rows = [row for row in found if address_of(row) != first][:SHOWN]
    st.caption("The last used of this framework that match. Click an id to compare with it.")
    to = [(str(second), compare_address(first, second)) for second in map(address_of, rows)]
    listing.linked_list(rows, to, entry_columns(scan.titles()), key="other-entries", label="Entries")


def _why(first: _Found, second: _Found) -> None:
    """Draws the inputs that differ between the keys of two entries, with the meaning of each difference."""
    st.header("Why one misses where the other hits")
    states = [(str(address), entry.stamp) for address, entry in (first, second)]
    found = _compared(states, first, second)
    if found.unknown:
        st.caption("The inputs of the keys are not known.")
        st.text(found.unknown)
    elif not found.differences:
        is_same = first[1].id == second[1].id
        st.caption("They are the same key." if is_same else "None of the inputs that are stored differs.")
    else:
        columns = difference_columns(*_heads(first, second))
        tables.draw(found.differences, columns, key="differences")
    if first[1].id != second[1].id:
        for hidden in found.hidden:
            st.text(f"May differ too, and is not stored: {hidden}.")
    if found.parts:
        st.text(f"Parts with other bytes: {', '.join(found.parts)}.")


@st.cache_data(show_spinner="Reading both…", max_entries=64)
def _compared(states: list[tuple[str, str]], _first: _Found, _second: _Found) -> EntriesCompared:  # noqa: ARG001 (which)
    comparing = Comparing(scan.sources().by_kind[_first[0].place.kind])
    return comparing.entries((_first[0].place, _first[1]), (_second[0].place, _second[1]))


def _side_by_side(first: _Found, second: _Found) -> None:
    """Draws the resources, the config, the instructions and the machine code of two entries side by side."""
    heads = _heads(first, second)
    counted = [instructions(*each) for each in (first, second)]
    found = compared(first[1], second[1], [mix for mix, _ in counted])
    for trouble in dict.fromkeys(filter(None, (each for _, each in counted))):
        st.text(f"Instructions were not counted: {trouble}")
    comparison.side_by_side([found], heads)
    if all(entry.part(PartKind.BINARY) is not None for _, entry in (first, second)):
        comparison.draw_machine_code(*(partial(_code, *each) for each in (first, second)))


def _code(address: Address, entry: Entry) -> tuple[Named, str]:
    return Named(entry.name or "", entry.id), sass(address, entry)


def _heads(first: _Found, second: _Found) -> tuple[str, str]:
    one, other = (key_of(entry.id)[:12] for _, entry in (first, second))
    return f"1: {one}", f"2: {other}"


def draw_directories(places: list[Row]) -> None:
    """Draws the choice of two directories, and the differences between their entries."""
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
    _show(_directories((first, second, states), one, other), one, other)


@st.cache_data(show_spinner="Reading both…", max_entries=8)
def _directories(which: object, _one: Place, _other: Place) -> DirectoriesCompared:  # noqa: ARG001 (and their states)
    first, second = ((place, context.cache().query(queries.entries_of, place)) for place in (_one, _other))
    return Comparing(scan.sources().by_kind[_one.kind]).directories(first, second)


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
        tables.draw(found.causes, CAUSES, key="causes")
    tables.section("The same key with other bytes", found.changed, changed_columns(one, other), key="changed")
    tables.section("Only in the first", found.only_one, miss_columns(one, other), key="only-one")
    tables.section("Only in the second", found.only_other, miss_columns(other, one), key="only-other")
