"""The page Kernel for another framework's kernel: an entry of the framework's cache, or a kernel in our store."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import context, widgets
from app.caches import scan
from app.components import tables
from app.components.code_view import component
from app.presenters.framework_kernels import AILMENTS, FACTORS, Address, adapted_columns, adapted_facts, entry_facts
from app.presenters.framework_kernels import PARTS as FILES
from app.presenters.jobs import STAGE_COLUMNS
from app.presenters.kernel import EVENTS, INSTRUCTIONS, instruction_rows
from app.presenters.shared import kernel_address, rows_shown
from cache_engine.compilers import disassembly as tools
from cache_engine.compilers.disassembly import InstructionMix, instruction_mix
from cache_engine.errors import GemmCacheError, StoreError
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.values import Entry, Part, PartKind
from cache_engine.index import framework_queries, queries
from cache_engine.index.queries import KernelFilter
from cache_engine.insight.linked.kernel import linked_parts
from cache_engine.insight.linked.marks import Linked
from cache_engine.model.outcome import Failure

SUMMARY, CODE, KEY = PARTS = ("Summary", "Code", "Cache key")
_ROWS = 20


def draw(heading: DeltaGenerator) -> None:
    """Draws the page of an entry; its title goes into ``heading``."""
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.results_link()
        beside = st.container(horizontal=True)
    found = scan.asked("cache", "entry")
    if found is None:
        heading.title("Kernel")
        return
    address, entry = found
    with heading:
        widgets.title(entry.name or "Unnamed kernel")
    st.code(f"{entry.name or 'unnamed'}\n{entry.id}", language=None, wrap_lines=True)
    with beside:
        widgets.page_link("compare", "Compare with…", "compare_arrows", **address.compared_with())
    part = widgets.choose_one("Part", PARTS, SUMMARY, key="part", hidden=True)
    if part == SUMMARY:
        _summary(address, entry)
    elif part == CODE:
        _codes(address, entry)
    else:
        _key(address, entry)


def _summary(address: Address, entry: Entry) -> None:
    source = scan.sources().by_kind[address.place.kind]
    wrong = context.ask(framework_queries.diagnoses, address.place, entry.id)
    tables.section("Findings", wrong, AILMENTS, key="wrong")
    left, right = st.columns(2)
    with left:
        st.header("What is known")
        tables.properties(entry_facts(source, address, entry, context.timezone()), key="facts")
    with right:
        st.header("Parts")
        tables.draw(entry.parts, FILES, key="files")
        mix, trouble = instructions(address, entry)
        tables.section("Instructions", instruction_rows(mix) if mix else (), INSTRUCTIONS, key="instructions")
        if trouble:
            st.text(f"Instructions were not counted: {trouble}")


def _codes(address: Address, entry: Entry) -> None:
    """The texts and the machine code of an entry, linked line by line where the texts name their sources."""
    source = scan.sources().by_kind[address.place.kind]
    code = _linked(str(address), entry.stamp, entry, lambda part: source.read(address.place, entry, part))
    if not code.panes:
        st.info("No part of this entry is a text that can be shown.")
    component.show(code, "kernel", key="code-of-entry")


@st.cache_data(show_spinner="Disassembling…", max_entries=32)
def _linked(which: str, state: str, _entry: Entry, _read: Callable[[Part], bytes | Failure]) -> Linked:  # noqa: ARG001 (of what)
    return linked_parts(_entry, _read)


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
    """The instructions of an entry's machine code by class; or ``None`` and the reason, empty if there is no code."""
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


def list_adapted(
    wanted: KernelFilter,
    *,
    sort: str,
    descending: bool,
    address: Callable[[str], str] = kernel_address,
) -> int:
    """Draws one page of other frameworks' kernels that match; returns how many match. Without a match, draws nothing.

    ``address`` returns the address that a kernel's link opens.
    """
    total = context.ask(queries.count, wanted)
    if not total:
        return 0
    st.header("Kernels of other frameworks")
    offset = widgets.paging(total, _ROWS, key="others")
    rows = context.ask(queries.kernels, wanted, sort=sort, descending=descending, limit=_ROWS, offset=offset)
    st.caption(f"{rows_shown(offset, len(rows), total)}. They keep these in this store.")
    tables.draw(rows, adapted_columns(address), key="adapted")
    return total


def show_adapted(group: Group) -> None:
    """Draws all that is known of a kernel that another framework keeps in the store."""
    known = describe(group)
    row = context.ask(queries.adapted_kernel, group.key)
    left, right = st.columns(2)
    with left:
        st.header("Properties")
        tables.properties(adapted_facts(group.framework, known, row, context.timezone()), key="facts")
    with right:
        st.header("Parts")
        tables.draw(known.parts, FILES[:3], key="parts")
        tables.section("Stages of the compile", group.stages_ms.items(), STAGE_COLUMNS, key="stages")
    st.header("Code")
    code = _linked(group.key, str(group.made_at), known, lambda part: group.files[part.file])
    component.show(code, group.key[:12], key="code-of-adapted")
    tables.section("History", context.ask(queries.events_of, group.key), EVENTS, key="history")
