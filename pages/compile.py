"""Compile: one shape, or a model's table, in a process of its own; and the jobs that do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import context, job_view, widgets
from app.presenters.compiling.forms import (
    LONGEST_TEXT,
    Field,
    Kind,
    asked_of,
    choice_of,
    command_of,
    made_of,
    problem_of,
    shape_form,
    table_form,
    tokens_of,
)
from app.presenters.compiling.result import prediction_tiles
from app.presenters.shared import Row
from cache_engine.batch.jobs import RUNNING, Job
from cache_engine.batch.warm import kept, one_per_key, problems_of
from cache_engine.catalogue import model_shapes
from cache_engine.device.probe import gpu, local_arch
from cache_engine.errors import GemmCacheError, NotHereError
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.units import counted

ONE, TABLE = "One shape", "A model's table"
# In the address, where the table's fields must not be taken for the shape's.
PREFIXES = {ONE: "", TABLE: "t_"}
IN_A_ROW = 4
MOST_PROBLEMS = 10_000  # whose configs are chosen in about a second each time the page is drawn


def draw(one: Field, place: DeltaGenerator, key: str) -> Any:
    """A field's widget; its value is part of the address."""
    bound: Any = {"key": key, "help": one.help, "bind": "query-params", "persist_state": "session"}
    if one.kind is Kind.NUMBER:
        return place.number_input(one.label, 1, one.most, one.default, **bound)
    if one.kind is Kind.TEXT:
        return place.text_input(one.label, one.default, max_chars=LONGEST_TEXT, **bound)
    if one.kind is Kind.SWITCH:
        return place.toggle(one.label, one.default, **bound)
    choices = [str(choice) for choice in one.choices]
    if one.kind is Kind.SEVERAL:
        return place.multiselect(one.label, choices, one.default, **bound)
    return place.selectbox(one.label, choices, choices.index(one.default), **bound)


def fill_in(form: Sequence[Field], prefix: str) -> Row:
    """All fields of a form, the rare ones under "More"; returns their values."""
    values: Row = {}
    often = [one for one in form if not one.rare]
    for start in range(0, len(often), IN_A_ROW):
        columns = st.columns(IN_A_ROW)
        for one, column in zip(often[start : start + IN_A_ROW], columns, strict=False):
            values[one.name] = draw(one, column, prefix + one.name)
    rare = [one for one in form if one.rare]
    if rare:
        told = any(st.session_state.get(prefix + one.name, one.default) != one.default for one in rare)
        linked = any(prefix + one.name in st.query_params for one in rare)
        with st.expander("More", expanded=told or linked):
            columns = st.columns(IN_A_ROW)
            for number, one in enumerate(rare):
                values[one.name] = draw(one, columns[number % IN_A_ROW], prefix + one.name)
    return values


def start(command: list[str]) -> None:
    """Starts a job and shows it, or says why it cannot be started."""
    try:
        job_id = context.jobs().start(command)
    except (GemmCacheError, OSError) as error:
        widgets.problem("This cannot be started just now.", str(error))
        return
    st.session_state["shown_job"] = job_id
    st.query_params["job"] = job_id
    st.rerun()


def one_shape(form: Sequence[Field]) -> None:
    """The form of one shape, and what can be told before it is compiled."""
    st.caption(
        "C (m × n) = A (m × k) · B (k × n). A kernel that is in the store is found; any other is compiled and kept."
    )
    values = fill_in(form, PREFIXES[ONE])
    asked = st.button("Get kernel", type="primary", icon=":material/play_arrow:")
    here = isinstance(device, DeviceFingerprint) and device.arch.rstrip("af") == str(values["arch"]).rstrip("af")
    try:
        problem = problem_of(values)
        choice = choice_of(values)
        selection = cache.select(problem, **choice)
    except NotHereError as error:
        widgets.problem("This compiler is not here.", str(error))
        return
    except GemmCacheError as error:
        widgets.problem("This cannot be compiled.", str(error))
        return
    there = kept(cache, [problem], **choice)
    st.text(f"{selection.name}, by {selection.compiler.name}: {'in the store' if there else 'not in the store yet'}")
    if asked:
        timed = here and not values["force"]
        start(command_of("time" if timed else "compile", form, values))
    if not here:
        beforehand(problem)


def beforehand(problem: GemmProblem) -> None:
    """What is predicted for a target whose GPU is not here, and what one would add."""
    tiles = prediction_tiles(problem)
    with st.expander("Time", expanded=job is None):
        if tiles:
            widgets.tiles(tiles)
            st.caption(
                "Predicted, not measured, for the kernels of a library and without an epilogue (docs/evaluator.md). "
                + " ".join(f"{tile.label}: {tile.help}" for tile in tiles)
            )
        else:
            st.caption("No time is predicted: the GPU model knows bf16 and fp16 on A100, H100, H200, B200 and L40S.")
        if isinstance(device, DeviceFingerprint):
            lack = f"a GPU of this target, and this one is {device.name} ({device.arch})"
        else:
            lack = f"an NVIDIA GPU, and {device}"
        st.info(
            f"Timing needs {lack}. With one the kernel's result is checked and its time measured, with its spread and "
            "beside cuBLAS. Compiling needs none: any target can be compiled for here.",
            icon=":material/timer_off:",
        )


def table(form: Sequence[Field]) -> None:
    """The form of a model's table, and how much of it is there already."""
    st.caption(
        "All matrix products of a model, for each number of tokens and target. What is in the store is not made again."
    )
    values = fill_in(form, PREFIXES[TABLE])
    asked = st.button("Compile the table", type="primary", icon=":material/play_arrow:")
    if not values["arch"]:
        st.info("Choose a target.")
        return
    try:
        shapes = model_shapes(values["model"])
        tokens = tokens_of(values["tokens"])
        made = made_of(values)
        problems = problems_of(shapes, tokens, DType(values["dtype"]), values["arch"], most=MOST_PROBLEMS, **made)
        with st.spinner("Choosing configs…", show_time=False):
            chosen, refused = one_per_key(cache, problems, values["compiler"])
        there = kept(cache, chosen, compiler=values["compiler"])
    except NotHereError as error:
        widgets.problem("This compiler is not here.", str(error))
        return
    except GemmCacheError as error:
        widgets.problem("This table cannot be compiled.", str(error))
        return
    st.progress(
        there / len(chosen) if chosen else 0.0,
        text=f"{there:,} of {counted(len(chosen), 'kernel')} in the store already; {counted(len(problems), 'problem')}",
    )
    if refused:
        st.warning(f"{counted(len(refused), 'problem')} can be served by no kernel.", icon=":material/warning:")
        st.text(refused[0].trouble)
    if asked:
        start(command_of("warm", form, {**values, "tokens": ",".join(map(str, tokens))}))


def shown_job() -> Job | None:
    """The job that the address names; the form is filled in as it was asked, once."""
    named = st.query_params.get("job")
    if named is None:
        return None
    try:
        job = context.jobs().load(named)
    except GemmCacheError as error:
        widgets.problem("This job cannot be shown.", str(error))
        return None
    if st.session_state.get("shown_job") != job.id:
        st.session_state["shown_job"] = job.id
        kind = TABLE if job.command[:1] == [job_view.TABLE] else ONE
        for name, value in asked_of(job.command, forms[kind]).items():
            if PREFIXES[kind] + name not in st.query_params:
                st.session_state[PREFIXES[kind] + name] = value
        if "what" not in st.query_params:
            st.session_state["what"] = kind
    return job


st.title("Compile")
cache, device = context.cache(), gpu()
default_arch = local_arch() or cache.settings.default_arch
forms = {ONE: shape_form(default_arch), TABLE: table_form(default_arch)}
job = shown_job()
what = st.segmented_control(
    "Compile", [ONE, TABLE], default=ONE, required=True, key="what", bind="query-params", label_visibility="collapsed"
)
(table if what == TABLE else one_shape)(forms[str(what)])
missing = context.missing_compilers()
if missing:
    with st.expander(f"Not installed here: {', '.join(missing)}"):
        st.text("\n".join(missing.values()))
if job is not None:
    st.divider()
    if job.state == RUNNING:
        job_view.follow(job.id)
    else:
        job_view.ended(job)
job_view.job_list()
