"""A compile farm on its page. What the broker says is always plain text, and no drawing waits for it over a second."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st

from app import context, guard, tables, widgets
from app.components import figure
from app.components.tiles import draw_tiles
from app.presenters.store.farm import (
    COMMANDS,
    failure_table,
    farm_tiles,
    hour_figure,
    hour_table,
    run_name,
    run_share,
    run_words,
    worker_table,
)
from cache_engine.errors import ExtraMissing
from cache_engine.team.board import MOST_FAILURES
from cache_engine.team.broker import Broker
from cache_engine.team.watching import MOST_RUNS, MOST_WORKERS, RUNNING, Farm, SeenRun, Watcher
from cache_engine.units import human_age, printable

POLL_S = 3.0
_WAIT_S = 1.0
_STEPS = (
    "A server of Redis is the queue. Only workers and submitters may reach it:",
    "Workers compile, on as many machines as you have. Each kernel is signed and sent to the remote:",
    "One command asks for a model and follows it to the end:",
)


def what_a_farm_is() -> None:
    """What to read where no broker is set."""
    st.text(
        "A farm compiles a model on many machines. Workers take kernels from a queue, compile each once, and send it "
        "to the remote, signed. Every other machine gets it from there."
    )
    with st.container(key="farm-steps"):
        for step, command in zip(_STEPS, COMMANDS, strict=True):
            st.text(step)
            st.code(command, language=None, wrap_lines=True)
        st.text("To see it on this page, name the queue before you start the dashboard:")
        st.code("export GEMM_CACHE_BROKER=redis://host:6379/0", language=None, wrap_lines=True)
    widgets.page_link("../pages/docs.py", label="Team", icon=":material/menu_book:", query_params={"document": "team"})


@st.fragment(run_every=POLL_S)
def follow(broker: str, remote: str | None) -> None:
    """What the farm of a broker and a remote does, drawn again every few seconds."""
    url = urlsplit(broker)
    st.text(printable(f"Queue: {url.hostname}:{url.port or 6379}"))
    try:
        farm, age_s, trouble = _watcher(broker, remote).seen(_WAIT_S)
    except ExtraMissing as error:
        widgets.problem("The farm is not installed.", str(error))
        return
    if trouble:
        old = "" if farm is None else f" Showing what it said {_ago(age_s)}."
        st.warning(f"The queue does not answer.{old}", icon=":material/cloud_off:")
        st.text(trouble)
    if farm is None:
        st.caption("Nothing is known yet. Lookups and compiles of this machine do not need the farm.")
        return
    draw_tiles(farm_tiles(farm))
    _runs(farm, broker, remote)
    _workers(farm)
    _throughput(farm)
    _failures(farm)


def _ago(age_s: float) -> str:
    return f"{age_s:.0f} s ago" if age_s < 60 else human_age(age_s)


def _runs(farm: Farm, broker: str, remote: str | None) -> None:
    st.header("Runs")
    if not farm.runs:
        st.caption("No run in the last day. gemm-cache farm compile starts one.")
    for seen in farm.runs:
        with st.container(border=True, key=f"run-{seen.job}"):
            # Where there is nothing to cancel, a bar that is full reaches the other side.
            running = seen.state == RUNNING
            left, *right = st.columns([5, 1], vertical_alignment="center") if running else [st.container()]
            left.text(run_name(seen))
            left.progress(run_share(seen), text=run_words(seen))
            for place in right:
                with place:
                    _cancel(seen, Broker(broker, farm.keys, wait_s=_WAIT_S), _watcher(broker, remote))
    if len(farm.runs) == MOST_RUNS:
        st.caption(f"The last {MOST_RUNS}.")


def _cancel(seen: SeenRun, broker: Broker, watcher: Watcher) -> None:
    given = guard.may()
    pressed = st.button(
        "Cancel",
        icon=":material/cancel:",
        key=f"cancel-{seen.job}",
        disabled=not given.granted,
        help="Workers finish what they compile; the rest is withdrawn." if given.granted else f"Off: {given.why_not}.",
    )
    if pressed and guard.act("Could not cancel the run.", lambda _: _canceled(seen.job, broker, watcher)):
        st.toast("Canceled. Workers finish what they compile.")
        st.rerun(scope="fragment")


def _canceled(job: str, broker: Broker, watcher: Watcher) -> bool:
    broker.cancel(job)
    watcher.changed()
    return True


def _workers(farm: Farm) -> None:
    st.header("Workers")
    if not farm.workers:
        st.caption("No worker was heard of in the last day. gemm-cache farm worker starts one.")
        return
    tables.show(
        worker_table(farm),
        times=["For"],
        column_config={"Processes": tables.COUNT, "Compiles": st.column_config.TextColumn(width="large")},
        height="content",
        key="workers",
    )
    if len(farm.workers) == MOST_WORKERS:
        st.caption(f"The {MOST_WORKERS} last heard of.")


def _throughput(farm: Farm) -> None:
    st.header("Throughput")
    if not any(one.compiled or one.found or one.failed for one in farm.hours):
        st.caption("Nothing was compiled in the last 24 hours.")
        return
    zone = context.timezone()
    figure.draw(hour_figure(farm.hours, zone), key="hours")
    with st.expander("Show data table"):
        columns = dict.fromkeys(("Compiled", "Found", "Failed"), tables.COUNT)
        tables.show(hour_table(farm.hours, zone), column_config=columns, key="hours-table")


def _failures(farm: Farm) -> None:
    st.header("Failures")
    if not farm.failures:
        st.caption("No failure.")
        return
    tables.show(
        failure_table(farm, context.timezone()),
        column_config={"When": tables.AGE, "Cause": st.column_config.TextColumn(width="large")},
        key="failed",
    )
    st.caption(f"The newest first; the last {MOST_FAILURES} are stored.")


@st.cache_resource(show_spinner=False, max_entries=4)
def _watcher(broker: str, remote: str | None) -> Watcher:
    return Watcher(broker, remote)
