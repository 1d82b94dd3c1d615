"""The list of jobs: those of this store, and the runs of the farm, whose state is beneath them."""

from __future__ import annotations

import time
from functools import partial

import streamlit as st

from app import context, job_view
from app.components import tables
from app.presenters import jobs
from app.views import farm
from cache_engine.batch.jobs import KEPT_DAYS, MOST_AT_ONCE, MOST_KEPT
from cache_engine.team.progress import Farm, SeenRun

POLL_S = 3.0


@st.fragment(run_every=POLL_S)
def draw(followed: str = "") -> None:
    """The jobs of the store, from every dashboard, and the runs of the farm; the farm's state beneath them.

    Args:
        followed: the job that the page follows above the list, with its own button to cancel it.
    """
    st.header("Jobs")
    seen = farm.seen()
    listed: list[jobs.Listed] = [*context.jobs().recent(), *(seen.runs if seen else ())]
    listed.sort(key=lambda job: (jobs.is_running(job), jobs.started_at(job)), reverse=True)
    if listed:
        tables.draw(listed, jobs.job_columns(time.time()), key="jobs")
        _cancel_one([job for job in listed if jobs.is_running(job) and jobs.id_of(job) != followed], seen)
        st.caption(
            f"Up to {MOST_AT_ONCE} jobs run at a time on a store, at most one of them for a whole model. The last "
            f"{MOST_KEPT} jobs are stored, for {KEPT_DAYS} days; runs of a farm for a day."
        )
    else:
        st.info("No jobs yet. Jobs from every dashboard on this store appear here.")
    farm.draw(seen)


def _cancel_one(running: list[jobs.Listed], seen: Farm | None) -> None:
    """Draws the choice of a running job, and the button that cancels it."""
    by_id = {jobs.id_of(job): job for job in running}
    if not by_id:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = by_id[
            st.selectbox("Running", list(by_id), format_func=lambda one: jobs.called(by_id[one]), key="running")
        ]
        if isinstance(chosen, SeenRun) and seen is not None:
            job_view.cancel_button(chosen, partial(farm.cancel, chosen.job, seen))
        else:
            job_view.cancel_button(chosen, partial(context.jobs().cancel, jobs.id_of(chosen)))
