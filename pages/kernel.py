"""Kernel: everything about one."""

from __future__ import annotations

import streamlit as st

from app import context, widgets
from app.presenters.kernel import component_table, instruction_figure, occupancy_table, record_facts
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Record

PARTS = ("Summary", "Key", "Source", "PTX", "SASS", "Log")
LANGUAGES = {"Source": "cpp", "PTX": "asm", "SASS": "asm", "Log": None}
SMALL = st.column_config.TextColumn(width="small")


def summary(record: Record) -> None:
    """Facts, and what code and resources mean for running it."""
    row = context.ask("kernel", record.key)
    facts = record_facts(record, row, context.timezone())
    st.dataframe(facts, hide_index=True, height="content", column_config={"Fact": SMALL}, key="facts")
    inspection = context.inspection(record)
    left, right = st.columns(2)
    if inspection.instructions is not None:
        left.subheader("Instructions")
        left.caption(
            f"{inspection.instructions.total:,} in the code, however often each is run. Grey: in no class of its own."
        )
        left.plotly_chart(
            instruction_figure(inspection.instructions), key="instructions", config={"displayModeBar": False}
        )
    if inspection.occupancy is not None:
        right.subheader("Theoretical occupancy")
        right.caption(f"{inspection.occupancy}.")
        right.dataframe(occupancy_table(inspection.occupancy), hide_index=True, key="occupancy")
    for note in inspection.notes:
        st.text(note)


def show(record: Record, part: str) -> None:
    """One part of what there is to see."""
    if part == "Summary":
        summary(record)
    elif part == "Key":
        st.caption("The key is the SHA-256 of these components. A kernel is found only if every one of them is equal.")
        st.dataframe(component_table(record), hide_index=True, height="content", key="components")
    else:
        name = part.lower()
        sass = part == "SASS"
        text = context.sass(record.key, record.blob.digest) if sass else context.cache().text(record, name)
        language = "python" if part == "Source" and record.compiler == "triton" else LANGUAGES[part]
        st.code(text or "(empty)", language=language, line_numbers=True, height=600)
        st.download_button("Download", text, file_name=f"{record.name}.{name}", icon=":material/download:")


st.title("Kernel")
cache = context.cache()
widgets.results_link()
asked = st.query_params.get("key")
if not asked:
    st.info("No kernel was asked for. Pick one on the Kernels page.")
    st.stop()
try:
    record = cache.find(asked)
except GemmCacheError as error:
    widgets.problem("This kernel cannot be shown.", str(error))
    st.stop()
st.code(f"{record.name}\n{record.key}", language=None)
widgets.compare_link("Compare with another", record.key)
part = str(st.segmented_control("Show", PARTS, default="Summary", required=True, key="part", bind="query-params"))
try:
    show(record, part)
except GemmCacheError as error:
    widgets.problem(f"The {part} cannot be shown.", str(error))
