"""A job on the page: while it runs, and after it ended. Texts from a job's file are always plain text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from app import context, guard, widgets
from app.components import tables
from app.components.figure import draw_tiles
from app.presenters import jobs
from app.presenters.downloads import dump_file
from app.presenters.forms import Field, choice_of, command_of, problem_of, shape_form, shown_of
from app.presenters.shared import Row
from cache_engine.batch.jobs import CANCELED, DONE, RUNNING, Job
from cache_engine.batch.results import Explained, Timed, Tuning, Warmed
from cache_engine.errors import GemmCacheError
from cache_engine.units import counted

POLL_S = 0.4
ONE_KERNEL = ("compile", "time")
TABLE, TUNE = "warm", "tune"
_TOLD = {"log": "Compiler output", "excerpt": "Source at the errors", "flags": "Compiler flags"}
_LONGEST = 100_000


def start(verb: str, form: Sequence[Field], values: Row, given: bytes = b"") -> str | None:
    """Starts a job, which reads ``given`` from its standard input; returns its name, or shows why it cannot start."""
    try:
        guard.may_write()
        job_id = context.jobs().start(command_of(verb, form, values), values, given)
    except (GemmCacheError, OSError) as error:
        widgets.problem("Could not start the job.", str(error))
        return None
    st.query_params["job"] = job_id
    return job_id


def named() -> Job | None:
    """The job that the address names; ``None`` if it names none or, after showing an error, one that is not stored."""
    job_id = st.query_params.get("job")
    if job_id is None:
        return None
    try:
        return context.jobs().load(job_id)
    except GemmCacheError as error:
        widgets.problem("Job not found.", str(error))
        return None


def draw(job: Job) -> None:
    """Draws a job, with its progress while it runs."""
    if job.state != RUNNING:
        ended(job)
        return
    # Hides Streamlit's "Stop": it would stop only the drawing; "Cancel" stops the job.
    st.html("<style>[data-testid=stStatusWidget] button { display: none }</style>")
    follow(job.id)


@st.fragment(run_every=POLL_S)
def follow(job_id: str) -> None:
    """Draws a running job's progress; the whole page is drawn again when the job ends."""
    try:
        job = context.jobs().load(job_id)
    except GemmCacheError as error:
        widgets.problem("Job not found.", str(error))
        return
    if job.state != RUNNING:
        st.rerun()
    _asked(job)
    st.status("Canceling after the current kernel…" if job.cancel_asked else "Running…")
    if job.command[:1] in ([TABLE], [TUNE]):
        st.progress(jobs.progress_share(job), text=jobs.progress_text(job, time.time()))
        if job.command[:1] == [TABLE] and (done := job.progress) is not None:
            st.text(f"{jobs.made_words(done.compiled, done.found, done.failed)} so far.")
    elif job.stages:
        _stages(job)
    cancel_button(job, partial(context.jobs().cancel, job_id))


def ended(job: Job) -> None:
    """The result of a job that has ended, or its error."""
    _asked(job)
    if job.state != DONE:
        _ended_badly(job)
    else:
        try:
            if job.command[:1] == [TABLE]:
                _table(job)
            elif job.command[:1] == [TUNE]:
                _tuned(job)
            elif job.command[:1] and job.command[0] in ONE_KERNEL:
                _one_kernel(job)
            else:
                st.success("Done.", icon=":material/check_circle:")
                st.code(job.result[:_LONGEST] or "(no output)", language="json", height="content")
        except jobs.NO_RESULT:
            widgets.problem("Unreadable job result.", job.result[:2000])
    if job.stages:
        _stages(job)


def cancel_button(job: jobs.Listed, cancel: Callable[[], None]) -> None:
    """Draws the button that cancels a job, or that kills a job of the store after it was canceled.

    The two buttons have different keys, so that a double click does not kill the job.
    """
    given = guard.may()
    again = isinstance(job, Job) and job.cancel_asked
    finish = "The current kernels are finished; the rest is not compiled."
    pressed = st.button(
        "Kill now" if again else "Cancel",
        icon=":material/cancel:",
        key=f"cancel-{again}-{jobs.id_of(job)}",
        disabled=not given.granted,
        help=(None if again else finish) if given.granted else f"Off: {given.why_not}.",
    )

    def act(_: str) -> bool:
        cancel()
        return True

    if pressed and guard.act("Could not cancel the job.", act):
        st.rerun()


def _asked(job: Job) -> None:
    st.header("Job")
    st.code(context.command(*job.command)[:_LONGEST], language=None, wrap_lines=True)


def _one_kernel(job: Job) -> None:
    document = jobs.document_of(job)
    kernel, why = document.kernel if isinstance(document, Timed) else document, document.why
    hit, text = jobs.verdict(kernel, again="--force" in job.command)
    st.success(text, icon=":material/bolt:" if hit else ":material/check_circle:")
    st.code(f"{kernel.name}\n{kernel.key}", language=None)
    if kernel.unpublished:
        widgets.problem("Compiled, but not saved.", kernel.unpublished)
    if why:
        draw_miss(why)
    draw_tiles(jobs.resource_tiles(kernel))
    if kernel.warnings:
        st.warning("Compiler warnings. The kernel is valid.", icon=":material/warning:")
        st.code("\n".join(kernel.warnings)[:_LONGEST], language=None, wrap_lines=True)
    if isinstance(document, Timed):
        _time(document)
    if not kernel.unpublished:
        widgets.kernel_link("Open kernel", kernel.key)


def draw_miss(why: Explained) -> None:
    """Draws the reasons why a lookup missed or would miss, and the nearest kernel."""
    with st.container(border=True):
        st.caption("Why this was a miss")
        st.text("\n".join(jobs.why_lines(why))[:_LONGEST])
        if why.nearest and why.nearest.differences:
            widgets.kernel_link("Open nearest kernel", why.nearest.key)
            with st.expander("Key differences"):
                tables.draw(why.nearest.differences, jobs.DIFFERENCES, key="why")


def _time(document: Timed) -> None:
    st.header("Timing")
    st.text(f"Measured on {document.device}.")
    if document.reference:
        st.text(f"Reference: {document.reference}")
    elif document.no_reference:
        st.text(f"No reference timing: {document.no_reference}")
    draw_tiles(jobs.timing_tiles(document))
    if not document.verified:
        widgets.problem("Wrong result.", f"Max relative error: {document.max_rel_error}")


def _table(job: Job) -> None:
    done = jobs.result_of(job, Warmed)
    place, icon = (st.warning, ":material/rule:") if done.failed else (st.success, ":material/check_circle:")
    place(jobs.warmed_words(done), icon=icon)
    if done.failed:
        st.caption("These failed. Run the job again to retry only these.")
        tables.draw(done.failed, jobs.FAILURES, key="failures")


def _tuned(job: Job) -> None:
    done = jobs.result_of(job, Tuning)
    st.success(jobs.tuned_words(done), icon=":material/check_circle:")
    if done.failed:
        st.warning(f"{counted(done.failed, 'config')} failed.", icon=":material/warning:")
    fastest_first = sorted(done.candidates, key=lambda one: (not one.median_us, one.median_us or 0.0))
    tables.draw(fastest_first, jobs.TUNED, key="tuned")


def _ended_badly(job: Job) -> None:
    what, cause = jobs.ended_badly(job)
    if job.command[:1] == [TABLE] and job.progress is not None:
        st.progress(jobs.progress_share(job), text=jobs.progress_text(job, time.time()))
    if job.state == CANCELED:
        st.warning(what, icon=":material/cancel:")
        st.text(cause)
        return
    widgets.problem(what, cause[:_LONGEST] or "No error message.")
    if jobs.level_words(job):
        st.caption(jobs.level_words(job))
    for name, label in _TOLD.items():
        text = job.told.get(name)
        if text:
            with st.expander(label, expanded=name == "log"):
                st.code(text[:_LONGEST], language="cpp" if name == "excerpt" else None, wrap_lines=True)
    if job.told.get("command"):
        st.caption("Reproduce with:")
        command = jobs.in_store(job.told["command"], str(context.cache().layout.root))
        st.code(command[:_LONGEST], language=None, wrap_lines=True)
    if job.command[:1] and job.command[0] in ONE_KERNEL and job.told:
        _dump(job)


def _dump(job: Job) -> None:
    """Draws a button that downloads the debug dump of the failed compile: its inputs and its outputs."""
    cache = context.cache()
    form = shape_form(cache.settings.default_arch)
    values = {one.name: one.default for one in form} | shown_of(job.asked, form)
    try:
        selection = cache.select(problem_of(values), **choice_of(values))
    except GemmCacheError:
        return  # what the job asked for cannot be asked for any more
    about = "Compiles it again; source, preprocessed source, log, flags and environment as a ZIP file."
    file = f"{selection.key[:12]}-dump.zip"
    widgets.download("Debug dump", partial(dump_file, selection), file, "application/zip", help=about)


def _stages(job: Job) -> None:
    tables.draw(jobs.stage_times(job.stages).items(), jobs.STAGE_COLUMNS, key="stages", saved=False)
