"""The view of a compile farm. Text from the broker is always plain text; drawing waits at most a second for it."""

from __future__ import annotations

from datetime import tzinfo
from urllib.parse import urlsplit

import streamlit as st

from app import context, guard, widgets
from app.components import figure, tables
from app.components.figure import draw_tiles
from app.presenters.columns import Column
from app.presenters.figure import Bars, Pattern, Series
from app.presenters.history import hour_names
from app.presenters.shared import COLOURS, Row, Tile, moment, when
from cache_engine.errors import ExtraMissing
from cache_engine.team.board import MOST_FAILURES
from cache_engine.team.broker import Broker
from cache_engine.team.progress import MOST_RUNS, MOST_WORKERS, RUNNING, Farm, Hour, SeenRun, Watcher
from cache_engine.units import counted, human_age, human_ms, printable

POLL_S = 3.0
_WAIT_S = 1.0
COMMANDS = (
    "redis-server",
    "gemm-cache farm worker --broker redis://host:6379/0 --remote s3://bucket/kernels --sign builder_key",
    "gemm-cache farm compile Llama-3.1-8B --arch sm_80 --arch sm_90a --broker redis://host:6379/0 "
    "--remote s3://bucket/kernels",
)
"""The commands that start a farm: those of docs/farm.md, which a test compares."""
_STEPS = (
    "A server of Redis is the queue. Only workers and submitters may reach it:",
    "Workers compile, on as many machines as you have. Each kernel is signed and sent to the remote:",
    "One command asks for a model and follows it to the end:",
)


def draw() -> None:
    """Draws the farm that the settings name; without one, an explanation of farms."""
    settings = context.cache().settings
    if settings.broker is None:
        what_a_farm_is()
    else:
        follow(settings.broker, settings.remote)


def what_a_farm_is() -> None:
    """Draws an explanation of compile farms, and the commands that start one."""
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
    widgets.page_link("docs", "A compile farm", "menu_book", document="farm")


@st.fragment(run_every=POLL_S)
def follow(broker: str, remote: str | None) -> None:
    """Draws the farm of a broker and a remote, again every few seconds."""
    url = urlsplit(broker)
    st.text(printable(f"Queue: {url.hostname}:{url.port or 6379}"))
    try:
        farm, age_s, trouble = _watcher(broker, remote).seen(_WAIT_S)
    except ExtraMissing as error:
        widgets.problem("The farm is not installed.", str(error))
        return
    if trouble:
        ago = f"{age_s:.0f} s ago" if age_s < 60 else human_age(age_s)
        old = "" if farm is None else f" Showing what it said {ago}."
        st.warning(f"The queue does not answer.{old}", icon=":material/cloud_off:")
        st.text(trouble)
    if farm is None:
        st.caption("Nothing is known yet. Lookups and compiles of this machine do not need the farm.")
        return
    draw_tiles(_tiles(farm))
    _runs(farm, broker, remote)
    _workers(farm)
    _throughput(farm)
    _failures(farm)


def _runs(farm: Farm, broker: str, remote: str | None) -> None:
    st.header("Runs")
    if not farm.runs:
        st.caption("No run in the last day. gemm-cache farm compile starts one.")
    for seen in farm.runs:
        with st.container(border=True, key=f"run-{seen.job}"):
            # Where there is nothing to cancel, a bar that is full reaches the other side.
            running = seen.state == RUNNING
            left, *right = st.columns([5, 1], vertical_alignment="center") if running else [st.container()]
            archs = ", ".join(filter(None, seen.run.archs)) or "the default target"
            left.text(f"{seen.run.table} for {archs}")
            done = (seen.run.kernels - seen.run.left) / max(1, seen.run.kernels)
            left.progress(min(1.0, max(0.0, done)), text=_run_words(seen))
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
    tables.show(_worker_table(farm), kinds={"For": "ms"}, key="workers")
    if len(farm.workers) == MOST_WORKERS:
        st.caption(f"The {MOST_WORKERS} last heard of.")


def _throughput(farm: Farm) -> None:
    st.header("Throughput")
    if not any(one.compiled or one.found or one.failed for one in farm.hours):
        st.caption("Nothing was compiled in the last 24 hours.")
        return
    figure.draw(_hour_figure(farm.hours, context.timezone()), key="hours")
    with st.expander("Show data table"):
        tables.draw(reversed(farm.hours), _HOURS, key="hours-table")


def _failures(farm: Farm) -> None:
    st.header("Failures")
    if not farm.failures:
        st.caption("No failure.")
        return
    tables.draw(farm.failures, _FAILED, key="failed")
    st.caption(f"The newest first; the last {MOST_FAILURES} are stored.")


@st.cache_resource(show_spinner=False, max_entries=4)
def _watcher(broker: str, remote: str | None) -> Watcher:
    return Watcher(broker, remote)


_OUTCOMES: tuple[tuple[str, str, str, Pattern], ...] = (
    ("compiled", "Compiled", COLOURS[0], ""),
    ("found", "Found", COLOURS[1], "/"),
    ("failed", "Failed", COLOURS[2], "x"),
)


def _tiles(farm: Farm) -> list[Tile]:
    """The numbers of a farm as tiles."""
    day, last = farm.hours, farm.hours[-2:]
    return [
        Tile("Waiting", f"{farm.waiting:,}", "Kernels that no worker has taken."),
        Tile("In work", f"{farm.taken:,}", "Kernels that workers have taken and not finished."),
        Tile(
            "Workers",
            f"{len(farm.here):,}",
            f"Heard of in the last half minute; together they compile {counted(farm.processes, 'kernel')} at a time.",
        ),
        Tile(
            "Compiled",
            f"{sum(one.compiled for one in day):,}",
            f"In the last 24 hours; {sum(one.compiled for one in last):,} since the last full hour began.",
        ),
        Tile("Failed", f"{sum(one.failed for one in day):,}", "In the last 24 hours."),
    ]


def _run_words(seen: SeenRun) -> str:
    """The progress of a run, in a sentence."""
    run = seen.run
    done = f"{run.kernels - run.left:,} of {counted(run.kernels, 'kernel')} are in the remote"
    if seen.state == RUNNING:
        return f"{done}; about {human_ms(run.eta_s * 1e3)} left (predicted)."
    return f"{done}; {seen.state}, last heard of {human_age(seen.heard_s)}."


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


def _hour_figure(hours: tuple[Hour, ...], zone: tzinfo) -> Bars:
    """The number of compiles with each outcome, for each of the last 24 hours."""
    starts = [when(one.start, zone) for one in hours]
    series = []
    for field, name, colour, pattern in _OUTCOMES:
        counts = [getattr(one, field) for one in hours]
        words = [f"{start}\n{name}: {count:,}" for start, count in zip(starts, counts, strict=True)]
        series.append(Series(name, counts, words, colour, pattern))
    names = hour_names([moment(one.start, zone) for one in hours])
    return Bars("Kernels per hour", starts, series, "Kernels", f"1 bar = 1 hour, {zone}", stacked=True, names=names)


_HOURS = (
    Column("From", "start", "when"),
    Column("Compiled", "compiled", "count"),
    Column("Found", "found", "count"),
    Column("Failed", "failed", "count"),
)
"""The columns of a table with the numbers of the figure of the last 24 hours."""


_FAILED = (
    Column("When", "at", "age"),
    Column("Kernel", "kernel"),
    Column("Cause", "error"),
    Column("Worker", "worker"),
    Column("Key", lambda one: one.key[:12]),
)
