"""A compile farm, beneath the jobs. Text from the broker is always plain text; drawing waits little for it."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st

from app import context, widgets
from app.components import tables
from app.presenters.columns import Column
from app.presenters.shared import Row
from cache_engine.errors import ExtraMissing
from cache_engine.team.broker import Broker
from cache_engine.team.progress import MOST_WORKERS, Farm, Watcher
from cache_engine.units import counted, human_age, printable

_WAIT_S = 0.3


def seen() -> Farm | None:
    """The farm that the settings name, as last heard of; says so if its queue does not answer. ``None`` without one."""
    settings = context.cache().settings
    if settings.broker is None:
        return None
    try:
        farm, age_s, trouble = watcher().seen(_WAIT_S)
    except ExtraMissing as error:
        widgets.problem("The farm is not installed.", str(error))
        return None
    if trouble:
        ago = f"{age_s:.0f} s ago" if age_s < 60 else human_age(age_s)
        old = "" if farm is None else f" Showing what it said {ago}."
        st.warning(f"The farm's queue does not answer.{old}", icon=":material/cloud_off:")
        st.text(trouble)
    if farm is None:
        st.caption("Nothing is known of the farm yet. Lookups and compiles of this machine do not need it.")
    return farm


def cancel(job: str, farm: Farm) -> None:
    """Cancels a run: workers finish what they compile, the rest is withdrawn."""
    Broker(str(context.cache().settings.broker), farm.keys, wait_s=_WAIT_S).cancel(job)
    watcher().changed()


def draw(farm: Farm | None) -> None:
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
        tables.show(_worker_table(farm), kinds={"For": "ms"}, key="workers")
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


def _worker_table(farm: Farm) -> list[Row]:
    """A row for each process that compiles, and for each worker that does not; those last heard of first."""
    rows = []
    for worker in farm.workers:
        of_worker = {
            "Worker": worker.name,
            "Host": worker.present.host,
            "Processes": worker.present.processes,
            "Last heard": human_age(worker.heard_s) if worker.heard_s >= 60 else f"{worker.heard_s:.0f} s ago",
            "State": "here" if worker.is_here else "gone",
        }
        doing = worker.doing if worker.is_here else ()
        rows += [
            {**of_worker, "Compiles": one.kernel, "For": max(0.0, farm.at - one.since) * 1e3} for one in doing
        ] or [{**of_worker, "Compiles": "", "For": None}]
    return rows


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
