"""The kernel page of an entry of another framework's cache: the facts about it, its code, the inputs of its key."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import context, widgets
from app.caches import links, scan
from app.components import tables
from app.components.code_view import component
from app.presenters.framework_kernels import AILMENTS, FACTORS, Address, entry_facts
from app.presenters.framework_kernels import PARTS as FILES
from app.presenters.kernel import INSTRUCTIONS, instruction_rows
from cache_engine.compilers import disassembly as tools
from cache_engine.compilers.disassembly import InstructionMix, instruction_mix
from cache_engine.errors import GemmCacheError, StoreError
from cache_engine.frameworks.values import Entry, PartKind
from cache_engine.index import framework_queries as queries
from cache_engine.insight.linked.kernel import linked_parts
from cache_engine.insight.linked.marks import Linked
from cache_engine.model.outcome import Failure

SUMMARY, CODE, KEY = PARTS = ("Summary", "Code", "Cache key")


def draw(heading: DeltaGenerator) -> None:
    """Draws the page of an entry; its title goes into ``heading``."""
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.results_link()
        beside = st.container(horizontal=True)
    found = links.asked("cache", "entry")
    if found is None:
        heading.title("Kernel")
        return
    address, entry = found
    with heading:
        widgets.title(entry.name or "Unnamed kernel")
    st.code(f"{entry.name or 'unnamed'}\n{entry.id}", language=None, wrap_lines=True)
    with beside:
        links.compare_link("Compare with…", address)
    part = widgets.choose_one("Part", PARTS, SUMMARY, key="part", hidden=True)
    if part == SUMMARY:
        _summary(address, entry)
    elif part == CODE:
        _codes(address, entry)
    else:
        _key(address, entry)


def _summary(address: Address, entry: Entry) -> None:
    source = scan.sources().by_kind[address.place.kind]
    wrong = context.ask(queries.diagnoses, address.place, entry.id)
    if wrong:
        st.header("Findings")
        tables.draw(wrong, AILMENTS, key="wrong")
    left, right = st.columns(2)
    with left:
        st.header("What is known")
        tables.properties(entry_facts(source, address, entry, context.timezone()), key="facts")
    with right:
        st.header("Parts")
        tables.draw(entry.parts, FILES, key="files")
        mix, trouble = instructions(address, entry)
        if mix is not None:
            st.header("Instructions")
            tables.draw(instruction_rows(mix), INSTRUCTIONS, key="instructions")
        elif trouble:
            st.text(f"Instructions were not counted: {trouble}")


def _codes(address: Address, entry: Entry) -> None:
    """The texts and the machine code of an entry, linked line by line where the texts name their sources."""
    code = _linked(str(address), entry.stamp, address, entry)
    if not code.panes:
        st.info("No part of this entry is a text that can be shown.")
    component.show(code, "kernel", key="code-of-entry")


@st.cache_data(show_spinner="Disassembling…", max_entries=32)
def _linked(where: str, stamp: str, _address: Address, _entry: Entry) -> Linked:  # noqa: ARG001 (which entry, and which of its states)
    source = scan.sources().by_kind[_address.place.kind]
    return linked_parts(_entry, lambda part: source.read(_address.place, _entry, part))


def _key(address: Address, entry: Entry) -> None:
    factors = scan.sources().by_kind[address.place.kind].key_factors(address.place, entry)
    if isinstance(factors, Failure):
        st.caption("The inputs of the key are not known.")
        st.text(factors.reason)
        return
    st.caption("The inputs of the key, as far as the cache stores them. Any difference is a miss.")
    tables.draw(factors.factors, FACTORS, key="inputs")
    for hidden in factors.hidden:
        st.text(f"Not stored: {hidden}.")


def instructions(address: Address, entry: Entry) -> tuple[InstructionMix | None, str]:
    """The instructions of an entry's machine code by class, or ``None``; and the reason, empty if there is no code."""
    if entry.part(PartKind.BINARY) is None:
        return None, ""
    try:
        return instruction_mix(sass(address, entry)), ""
    except GemmCacheError as error:
        return None, str(error)


def sass(address: Address, entry: Entry) -> str:
    """The machine code of an entry as text; raises ``GemmCacheError`` if it cannot be disassembled."""
    return _sass(str(address), entry.stamp, address, entry)


@st.cache_data(show_spinner="Disassembling…", max_entries=64)
def _sass(where: str, stamp: str, _address: Address, _entry: Entry) -> str:  # noqa: ARG001 (which entry, and which of its states)
    part = _entry.part(PartKind.BINARY)
    if part is None:
        raise StoreError("the entry has no CUBIN")
    data = scan.sources().by_kind[_address.place.kind].read(_address.place, _entry, part)
    if isinstance(data, Failure):
        raise StoreError(data.reason)
    return tools.sass(data)
