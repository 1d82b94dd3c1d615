"""Two entries of one framework side by side: why one missed, and what their code differs in."""

from __future__ import annotations

import time

import streamlit as st

from app import context, tables, widgets
from app.caches import links, looking
from app.caches.entry import instructions, sass
from app.components import listing
from app.components.machine_code import draw_difference
from app.presenters.kernels.compare import compared_figure, pair_table
from app.presenters.kernels.others import Address, Named, address_of, compared, difference_table
from app.presenters.store.caches import ENTRY_COLUMNS, entry_lines
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.comparison import Comparing, EntriesCompared
from cache_engine.frameworks.registry import EntryFilter
from cache_engine.frameworks.values import Entry, PartKind, key_of
from cache_engine.index import foreign_queries as queries

SHOWN = 20
_WIDE = st.column_config.TextColumn(width="large")
_Found = tuple[Address, Entry]


def draw() -> None:
    """The page, where its address names an entry of another framework."""
    links.results_link()
    left, right = st.columns(2)
    with left:
        first = _side("a")
    if first is None:
        return
    if not links.asks("entry_b"):
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
    found = links.asked(f"cache_{side}", f"entry_{side}")
    if found is not None:
        address, entry = found
        title = looking.titles()[address.place.kind]
        words = f"{entry.name or 'unnamed'}\n{entry.id}\n{title} · {address.place.path_text}"
        st.code(words, language=None, wrap_lines=True)
        links.entry_link("Open kernel", address)
    return found


def _pick(first: Address) -> None:
    """A list to choose the second from."""
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
    lines = entry_lines(rows, looking.titles(), context.timezone(), time.time())
    to = [(str(second), links.compare_address(first, second)) for second in map(address_of, rows)]
    listing.linked_list(lines, to, ENTRY_COLUMNS, key="other-entries", label="Entries")


def _why(first: _Found, second: _Found) -> None:
    """Which inputs of the keys differ."""
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
        table = difference_table(found.differences, *_heads(first, second))
        tables.show(table, height="content", column_config={"Meaning": _WIDE}, key="differences")
    if first[1].id != second[1].id:
        for hidden in found.hidden:
            st.text(f"May differ too, and is not stored: {hidden}.")
    if found.parts:
        st.text(f"Parts with other bytes: {', '.join(found.parts)}.")


@st.cache_data(show_spinner="Reading both…", max_entries=64)
def _compared(states: list[tuple[str, str]], _first: _Found, _second: _Found) -> EntriesCompared:  # noqa: ARG001 (which)
    comparing = Comparing(looking.sources().by_kind[_first[0].place.kind])
    return comparing.entries((_first[0].place, _first[1]), (_second[0].place, _second[1]))


def _side_by_side(first: _Found, second: _Found) -> None:
    """Resources, config, instructions and machine code."""
    heads = _heads(first, second)
    counted = [instructions(*each) for each in (first, second)]
    found = compared(first[1], second[1], [mix for mix, _ in counted])
    for trouble in dict.fromkeys(filter(None, (each for _, each in counted))):
        st.text(f"Instructions were not counted: {trouble}")
    left, right = st.columns(2)
    for heading, pairs in found.sections().items():
        with left if pairs is found.config else right:
            st.header(heading)
            tables.show(pair_table(pairs, *heads), height="content", key=heading)
    if all(mix is not None for mix, _ in counted):
        left.caption("Static instruction counts (GEMM-specific opcodes only).")
        figure = compared_figure(found.instructions, *heads)
        left.plotly_chart(figure, key="compared-instructions", config={"displayModeBar": False})
    has_code = all(entry.part(PartKind.BINARY) is not None for _, entry in (first, second))
    if has_code and st.toggle("SASS diff", key="sass", bind="query-params"):
        try:
            one, other = (
                (Named(entry.name or "", entry.id), sass(address, entry)) for address, entry in (first, second)
            )
            draw_difference(*one, *other)
        except GemmCacheError as error:
            widgets.problem("Could not disassemble.", str(error))


def _heads(first: _Found, second: _Found) -> tuple[str, str]:
    one, other = (key_of(entry.id)[:12] for _, entry in (first, second))
    return f"1: {one}", f"2: {other}"
