"""Compare: two kernels side by side, in what they were made from and in what came of it."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.presenters.kernels.compare import compared_figure, pair_table
from app.presenters.kernels.listed import kernel_filter
from app.presenters.kernels.speed import MODEL, speed_pairs
from cache_engine.errors import GemmCacheError
from cache_engine.insight.comparison import compare, sass_difference
from cache_engine.mirror import queries
from cache_engine.model.artifact import Record

SHOWN = 20


def record_of(place: str, label: str) -> Record | None:
    """The kernel whose key is asked for in a field, if there is one."""
    asked = st.text_input(label, key=place, bind="query-params", max_chars=64, placeholder="0123abcd")
    if not asked:
        return None
    try:
        record = context.cache().find(asked)
    except GemmCacheError as error:
        widgets.problem("There is no such kernel.", str(error))
        return None
    st.code(f"{record.name}\n{record.key}", language=None, wrap_lines=True)
    widgets.kernel_link("Look into this kernel", record.key)
    return record


def take(place: str) -> None:
    """Puts the kernel that was clicked in the list into a field."""
    clicked = widgets.clicked_kernel("to pick from")
    if clicked is not None:
        st.session_state[place] = clicked


def picker() -> None:
    """A list to pick the missing kernel from."""
    text = st.text_input(
        "Pick it from the list", key="pick", type="search", live=True, max_chars=200, placeholder="sm_90 bf16 4096x7168"
    )
    wanted = kernel_filter(text, {})
    rows = context.ask(queries.kernels, wanted, sort="last used", descending=True, limit=SHOWN, offset=0)
    if rows:
        st.caption(f"The {SHOWN} used last of those that match. The digits of a key put it into the empty field.")
        widgets.kernel_list(rows, key="to pick from", opens=False)
    elif text:
        st.info("No kernel matches. Take a word away.")
    else:
        st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")


def times(first: Record, second: Record, heads: tuple[str, str]) -> None:
    """What was measured of the two, and what is predicted."""
    measured = context.ask(queries.timings, first.key), context.ask(queries.timings, second.key)
    pairs = speed_pairs(first, second, measured)
    st.subheader("Speed")
    if not pairs:
        st.caption("Nothing was measured, and the model of GPUs does not apply to these kernels.")
        return
    st.dataframe(pair_table(pairs, *heads), hide_index=True, height="content", key="Speed")
    st.caption(
        f"Predictions are those of the model {MODEL}, for the problem that each was first asked for: it chooses a tile "
        "of its own, so two kernels for one problem are predicted alike. Measuring takes an NVIDIA GPU."
    )


def side_by_side(first: Record, second: Record) -> None:
    """Everything in which the two may differ."""
    inspections = context.inspection(first), context.inspection(second)
    found = compare(*inspections)
    heads = f"1: {first.key[:12]}", f"2: {second.key[:12]}"
    for note in dict.fromkeys(note for inspection in inspections for note in inspection.notes):
        st.text(note)
    if not found.components:
        st.info("The keys are equal: no component differs.")
    left, right = st.columns(2)
    for heading, pairs in found.sections().items():
        with left if pairs in (found.components, found.config) else right:
            st.subheader(heading)
            st.dataframe(pair_table(pairs, *heads), hide_index=True, height="content", key=heading)
    if found.instructions:
        figure = compared_figure(found.instructions, *heads)
        left.caption("Instructions by class, those of no class left out.")
        left.plotly_chart(figure, key="compared-instructions", config={"displayModeBar": False})
    with left:
        times(first, second, heads)
    if st.toggle("Machine code, line by line", key="sass", bind="query-params"):
        try:
            texts = [context.sass(record.key, record.blob.digest) for record in (first, second)]
            lines = sass_difference(first, texts[0], second, texts[1])
            st.code(lines or "The machine code is the same.", language="diff", height=600)
        except GemmCacheError as error:
            widgets.problem("The machine code cannot be shown.", str(error))


st.title("Compare")
context.cache()
widgets.results_link()
st.caption("Give two kernels by their keys; the first digits will do. Both are part of the address.")
take("b" if st.session_state.get("a", st.query_params.get("a")) else "a")
columns = st.columns(2)
with columns[0]:
    first = record_of("a", "First kernel")
with columns[1]:
    second = record_of("b", "Second kernel")
if first is None or second is None:
    picker()
else:
    side_by_side(first, second)
