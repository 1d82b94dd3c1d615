"""The page Compile: jobs for a single shape, a whole model or tuning; and the list of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import streamlit as st

from app import context, job_view, widgets
from app.components import into_view, tables
from app.presenters import forms
from app.presenters.evaluations import slower_words
from app.presenters.jobs import candidate_columns
from app.presenters.shared import Row
from app.presenters.speed import MODEL, PREDICTIONS
from app.views import job_list, problem_form
from cache_engine.batch.jobs import Job
from cache_engine.batch.results import explained
from cache_engine.batch.tuning import candidates
from cache_engine.batch.warm import stored
from cache_engine.errors import GemmCacheError, InvalidProblem, NotHereError
from cache_engine.evaluator.catalogue import LARGEST_TABLE_BYTES, ModelShape, model_shapes, table_shapes
from cache_engine.evaluator.chips import GPUS
from cache_engine.evaluator.gpu import DTYPES
from cache_engine.gpu.probe import gpu, local_arch
from cache_engine.insight.coverage import coverage, distinct, wanted
from cache_engine.insight.explanation import explain
from cache_engine.insight.passes import predicted
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.shapes import parse_sizes, sizes_text
from cache_engine.units import counted

ONE, TABLE, TUNE = "Single shape", "Whole model", "Tune"
KINDS = {job_view.TABLE: TABLE, job_view.TUNE: TUNE}
STARTED = "job started on this page"
_T = TypeVar("_T")
MOST_CHOICES = 100_000  # that take about a second each time the page is drawn


def start(verb: str, form: Sequence[forms.Field], values: Row, given: bytes = b"") -> None:
    """Starts a job and shows it, or shows why it could not start; the job reads ``given`` from its standard input."""
    if job_id := job_view.start(verb, form, values, given):
        st.session_state["shown_job"] = st.session_state[STARTED] = job_id
        st.rerun()


def answered(ask: Callable[[], _T]) -> _T | None:
    """The result of ``ask``; ``None``, after showing the error, if ``ask`` raised one."""
    try:
        return ask()
    except NotHereError as error:
        widgets.problem("Compiler not installed.", str(error))
    except GemmCacheError as error:
        widgets.problem("Invalid request.", str(error))
    return None


def one_shape(form: Sequence[forms.Field]) -> None:
    """Draws the form of a single shape, its predicted time, and the button that compiles it."""
    st.caption("C (m × n) = A (m × k) · B (k × n). Cached kernels are reused; others are compiled and stored.")
    values = problem_form.fill_in(form)
    asked = st.button("Compile", type="primary", icon=":material/play_arrow:", disabled=not may_store)
    here = is_here(values["arch"])
    selection = answered(lambda: cache.select(forms.problem_of(values), **forms.choice_of(values)))
    if selection is None:
        return
    problem = forms.problem_of(values)
    cached = stored(cache, [selection.key])
    st.text(f"{selection.name}, by {selection.compiler.name}: {'cached' if cached else 'not cached'}")
    if not cached and st.button("Explain the miss", icon=":material/help:"):
        choice = forms.choice_of(values) | {"compiler": selection.compiler.name}
        job_view.draw_miss(explained(explain(cache, problem, **choice)))
    if asked:
        timed = here and not values["force"]
        start("time" if timed else "compile", form, values)
    if not here:
        beforehand(problem, values)


def is_here(arch: str) -> bool:
    """Whether the local GPU runs code of a target."""
    return isinstance(device, DeviceFingerprint) and device.arch.rstrip("af") == arch.rstrip("af")


def beforehand(problem: GemmProblem, values: Row) -> None:
    """Draws, for a target without a local GPU, the predicted time, and what a GPU would add."""
    try:
        points = predicted(problem)
    except InvalidProblem:
        points = []
    with st.expander("Time", expanded=job is None):
        if points:
            tables.draw(points, PREDICTIONS, key="predictions")
            said = f"{MODEL}: a cuBLAS-like kernel without an epilogue, predicted; not this kernel."
            st.caption(f"{said} {slower_words(points)}")
            asked = forms.address_of(every_form[ONE], values) | {"e_chip": points[0].chip.name}
            widgets.page_link("predict", "Predict it on other chips", "insights", **asked)
        else:
            st.caption(f"No prediction: the GPU model covers {' and '.join(DTYPES)} on {', '.join(GPUS)}.")
        st.info(
            f"No GPU for {problem.arch} here ({no_gpu()}), so the kernel is compiled but not run or timed. With a GPU, "
            "its result is verified and its time measured: median, 10th and 90th percentile, compared with cuBLAS.",
            icon=":material/timer_off:",
        )


def no_gpu() -> str:
    """The reason why the target's GPU is not here."""
    return device if isinstance(device, str) else f"the local GPU is {device.name}, {device.arch}"


def tuning(form: Sequence[forms.Field]) -> None:
    """Draws the form of tuning, and the configs that would be timed."""
    st.caption("Compiles the configs with the best predictions, verifies and times each, and stores the timings.")
    values = problem_form.fill_in(form)
    here = is_here(values["arch"])
    asked = st.button("Tune", type="primary", icon=":material/play_arrow:", disabled=not (may_store and here))
    if not here:
        st.info(
            f"Tuning needs a GPU for {values['arch']}, and there is none here ({no_gpu()}). These configs would be "
            "timed; run the command of this page (at the top) where the GPU is.",
            icon=":material/timer_off:",
        )
    compiler = forms.made_by({"family": forms.AUTO, **values})["compiler"]
    found = answered(lambda: candidates(cache, forms.problem_of(values), values["families"], compiler, values["top"]))
    if found is None:
        return
    tables.draw(found, candidate_columns(found), key="candidates")
    if asked:
        start(job_view.TUNE, form, values)


def own_table() -> tuple[list[ModelShape], bytes]:
    """Draws the upload of a table; returns its shapes and its bytes, both empty before a table is uploaded."""
    uploaded = st.file_uploader(
        "Shapes, as CSV",
        type=["csv"],
        key="table-file",
        max_upload_size=-(-LARGEST_TABLE_BYTES // 2**20),
        help="Columns n and k, and if wanted batch, m and epilogue, layers, experts and experts_per_token.",
    )
    if uploaded is None:
        st.info("Upload a CSV file whose first line names the columns: n and k at least.")
        return [], b""
    data = uploaded.getvalue()
    return table_shapes(Path(uploaded.name), data), data


def table(form: Sequence[forms.Field]) -> None:
    """Draws the form of a whole model or an uploaded table, and how many of its kernels are cached."""
    st.caption("Every GEMM of the model for each m and target. Cached kernels are skipped.")
    values = problem_form.fill_in(form)
    data = b""
    try:
        if values["model"] == forms.OWN_TABLE:
            shapes, data = own_table()
            if not shapes:
                return
        else:
            shapes = model_shapes(values["model"])
    except GemmCacheError as error:
        widgets.problem("Unreadable table.", str(error))
        return
    asked = st.button("Compile missing kernels", type="primary", icon=":material/play_arrow:", disabled=not may_store)
    if not values["arch"]:
        st.info("Select at least one target.")
        return
    try:
        ms = parse_sizes(values["tokens"])
        with st.spinner("Selecting configs…", show_time=False):
            asked_for = wanted(shapes, archs=values["arch"], ms=ms, most=MOST_CHOICES, **forms.made_of(values))
            cells = coverage(cache, asked_for, **forms.made_by(values))
        needed = [kernel.key for kernel in distinct(cells)]
        cached = len(stored(cache, needed))
    except NotHereError as error:
        widgets.problem("Compiler not installed.", str(error))
        return
    except GemmCacheError as error:
        widgets.problem("Invalid request.", str(error))
        return
    # As text: the one progress bar on this page is the job's.
    st.text(f"{cached:,} of {counted(len(needed), 'kernel')} cached (m = {sizes_text(ms).replace('-', '–')}).")
    refused = [cell.refused for row in cells for cell in row if cell.refused]
    if refused:
        st.warning(
            f"{counted(len(refused), 'unsupported shape')}.",
            icon=":material/warning:",
        )
        st.text(refused[0])
    if asked:
        start(job_view.TABLE, form, {**values, "tokens": sizes_text(ms)}, data)


def shown_job() -> Job | None:
    """The job that the address names; fills in the form once with the job's values. ``None`` if there is none."""
    job = job_view.named()
    if job is not None and st.session_state.get("shown_job") != job.id:
        st.session_state["shown_job"] = job.id
        kind = KINDS.get(job.command[0] if job.command else "", ONE)
        for one in every_form[kind]:
            if one.name in job.asked and one.key not in st.query_params:
                problem_form.put(one, job.asked[one.name])
        if "what" not in st.query_params:
            st.session_state["what"] = kind
    return job


st.title("Compile")
cache, device = context.cache(), gpu()
default_arch = local_arch() or cache.settings.default_arch
every_form = {
    ONE: forms.shape_form(default_arch),
    TABLE: forms.table_form(default_arch),
    TUNE: forms.tune_form(default_arch),
}
problem_form.follow("Compile", *every_form.values())
job = shown_job()
may_store = widgets.may_store()
what = widgets.choose_one("Compile", [ONE, TABLE, TUNE], ONE, key="what", hidden=True)
{ONE: one_shape, TABLE: table, TUNE: tuning}[what](every_form[what])
missing = context.missing_compilers()
if missing:
    with st.expander(f"Unavailable compilers: {', '.join(missing)}"):
        st.text("\n".join(missing.values()))
if job is not None:
    into_view("job", job.id if st.session_state.get(STARTED) == job.id else "")
    st.divider()
    job_view.draw(job)
job_list.draw("" if job is None else job.id)
