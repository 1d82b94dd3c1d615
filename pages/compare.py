"""Compare: two kernels side by side, in what they were made from and in what came of it."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.presenters.compare import compared_figure, pair_table
from cache_engine.comparison import compare, sass_difference
from cache_engine.errors import GemmCacheError
from cache_engine.mirror.queries import KernelFilter
from cache_engine.model.artifact import Record

SHOWN = 20

st.title("Compare")
st.caption("Give two kernels by their keys; the first digits will do. Both are part of the address.")


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
    st.code(f"{record.name}\n{record.key}", language=None)
    return record


columns = st.columns(2)
with columns[0]:
    first = record_of("a", "First kernel")
with columns[1]:
    second = record_of("b", "Second kernel")

if first is None or second is None:
    rows = context.ask("kernels", KernelFilter(), sort="last used", descending=True, limit=SHOWN, offset=0)
    if rows:
        st.caption("The kernels used last:")
        widgets.kernel_list(rows, key="last-used")
    else:
        st.info("The store is empty. Compile a kernel on the Compile page, or run `gemm-cache sample`.")
else:
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
    if st.toggle("Machine code, line by line", key="sass", bind="query-params"):
        try:
            texts = [context.sass(record.key, record.blob.digest) for record in (first, second)]
            lines = sass_difference(first, texts[0], second, texts[1])
            st.code(lines or "The machine code is the same.", language="diff", height=600)
        except GemmCacheError as error:
            widgets.problem("The machine code cannot be shown.", str(error))
