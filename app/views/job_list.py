"""The list of jobs: those of this store, and the runs of a compile farm; the farm's state is below.

Text from the broker is always plain text; drawing waits only briefly for the broker.
"""

from __future__ import annotations

import time
from functools import partial
from urllib.parse import urlsplit

import streamlit as st

from app import context, job_view, widgets
from app.components import tables
from app.presenters import jobs
from app.presenters.columns import Column
from cache_engine.batch.jobs import KEPT_DAYS, MOST_AT_ONCE, MOST_KEPT
from cache_engine.errors import ExtraMissing
from cache_engine.team.board import Doing
from cache_engine.team.broker import Broker
from cache_engine.team.progress import MOST_WORKERS, Farm, SeenRun, SeenWorker, Watcher
from cache_engine.units import counted, human_age, printable

_WAIT_S = 0.3
POLL_S = 3.0
_HOURS = (
    Column("From", "start", "when"),
    Column("Compiled", "compiled", "count", bar=True),
    Column("Found", "found", "count"),
    Column("Failed", "failed", "count", bar=True),
)
"""The columns of the outcomes of the last 24 hours, by hour."""
_FAILED = (
    Column("When", "at", "age"),
    Column("Kernel", "kernel"),
    Column("Cause", "error"),
    Column("Worker", "worker"),
    Column("Key", lambda one: one.key[:12]),
)


@st.fragment(run_every=POLL_S)
def draw(followed: str = "") -> None:
    """The jobs of the store, from every dashboard, and the runs of the farm; the farm's state beneath them.

    Args:
        followed: the job that the page follows above the list, with its own button to cancel it.
    """
    st.header("Jobs")
    found = seen()
    listed: list[jobs.Listed] = [*context.jobs().recent(), *(found.runs if found else ())]
    listed.sort(key=lambda job: (jobs.is_running(job), jobs.started_at(job)), reverse=True)
    if listed:
        tables.draw(listed, jobs.job_columns(time.time()), key="jobs")
        _cancel_one([job for job in listed if jobs.is_running(job) and jobs.id_of(job) != followed], found)
        st.caption(
            f"Up to {MOST_AT_ONCE} jobs run at a time on a store, at most one of them for a whole model. The last "
            f"{MOST_KEPT} jobs are stored, for {KEPT_DAYS} days; runs of a farm for a day."
        )
    else:
        st.info("No jobs yet. Jobs from every dashboard on this store appear here.")
    _draw_farm(found)


def _cancel_one(running: list[jobs.Listed], found: Farm | None) -> None:
    """Draws the list of running jobs, and a button that cancels one."""
    by_id = {jobs.id_of(job): job for job in running}
    if not by_id:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = by_id[
            st.selectbox("Running", list(by_id), format_func=lambda one: jobs.called(by_id[one]), key="running")
        ]
        if isinstance(chosen, SeenRun) and found is not None:
            job_view.cancel_button(chosen, partial(cancel, chosen.job, found))
        else:
            job_view.cancel_button(chosen, partial(context.jobs().cancel, jobs.id_of(chosen)))


def seen() -> Farm | None:
    """The last known state of the farm in the settings, or ``None``; shows a warning if its queue does not answer."""
    settings = context.cache().settings
    if settings.broker is None:
        return None
    try:
        farm, age_s, trouble = watcher().seen(_WAIT_S)
    except ExtraMissing as error:
        widgets.problem("The farm is not installed.", str(error))
        return None
    if trouble:
        old = "" if farm is None else f" Showing what it said {_ago(age_s)}."
        st.warning(f"The farm's queue does not answer.{old}", icon=":material/cloud_off:")
        st.text(trouble)
    if farm is None:
        st.caption("Nothing is known of the farm yet. Lookups and compiles of this machine do not need it.")
    return farm


def cancel(job: str, farm: Farm) -> None:
    """Cancels a run: workers finish what they compile, the rest is withdrawn."""
    Broker(str(context.cache().settings.broker), farm.keys, wait_s=_WAIT_S).cancel(job)
    watcher().changed()


def _draw_farm(farm: Farm | None) -> None:
    """Draws the state of a farm's queue and workers; if the settings name no farm, how to start one."""
    broker = context.cache().settings.broker
    if broker is None:
        with st.expander("Compile on a farm"):
            st.text(
                "A farm compiles a model on many machines. Workers take kernels from a queue, compile each once, and "
                "send it to the remote, signed. To see it here, name the queue before you start the dashboard:"
            )
            st.code("export GEMM_CACHE_BROKER=redis://host:6379/0", language=None, wrap_lines=True)
            widgets.page_link("docs", "Start a farm", "menu_book", document="farm")
    if farm is None:
        return
    st.header("Farm")
    url = urlsplit(str(broker))
    st.text(printable(f"Queue: {url.hostname}:{url.port or 6379}"))
    st.caption(_state_words(farm))
    if farm.workers:
        tables.draw(_at_work(farm), _worker_columns(farm.at), key="workers")
    if len(farm.workers) == MOST_WORKERS:
        st.caption(f"The {MOST_WORKERS} last heard of.")
    if any(one.compiled or one.found or one.failed for one in farm.hours):
        with st.expander("Kernels per hour"):
            tables.draw(reversed(farm.hours), _HOURS, key="hours")
    if farm.failures:
        with st.expander(f"Failures: the last {len(farm.failures):,}"):
            tables.draw(farm.failures, _FAILED, key="failed")


def _state_words(farm: Farm) -> str:
    compiled, failed = sum(one.compiled for one in farm.hours), sum(one.failed for one in farm.hours)
    return (
        f"{counted(len(farm.here), 'worker')}, up to {counted(farm.processes, 'kernel')} at a time. {farm.waiting:,} "
        f"waiting, {farm.taken:,} in work. In the last 24 hours: {compiled:,} compiled, {failed:,} failed."
    )


def watcher() -> Watcher:
    """The reader of the state of the farm in the settings, which all visitors share."""
    settings = context.cache().settings
    return _watcher(str(settings.broker), settings.remote)


@st.cache_resource(show_spinner=False, max_entries=4)
def _watcher(broker: str, remote: str | None) -> Watcher:
    return Watcher(broker, remote)


def _at_work(farm: Farm) -> list[tuple[SeenWorker, Doing | None]]:
    """Each process that compiles, and each worker that does not; those last heard of first."""
    return [(worker, one) for worker in farm.workers for one in (worker.doing if worker.is_here else ()) or (None,)]


def _worker_columns(at: float) -> list[Column]:
    return [
        Column("Worker", lambda one: one[0].name),
        Column("Host", lambda one: one[0].present.host),
        Column("Processes", lambda one: one[0].present.processes),
        Column("Last heard", lambda one: _ago(one[0].heard_s)),
        Column("State", lambda one: "here" if one[0].is_here else "gone"),
        Column("Compiles", lambda one: one[1].kernel if one[1] else ""),
        Column("For", lambda one: max(0.0, at - one[1].since) * 1e3 if one[1] else None, "ms"),
    ]


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 60 else human_age(seconds)
