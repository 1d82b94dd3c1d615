"""The page Overview: what needs attention, the numbers, hit rates and compile time, causes of misses, and events."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

import streamlit as st

from app import context, guard, widgets
from app.components import figure, listing, tables
from app.components.figure import draw_tiles
from app.presenters import history, overview
from app.presenters.architectures import proof_checks, stale_words
from app.presenters.decisions import CAUSES, cause_table, miss_columns, miss_table
from app.presenters.history import SPANS, Span, named_steps, starts, within
from app.presenters.jobs import job_columns
from app.presenters.shared import total
from app.views import fleet
from cache_engine.batch.jobs import RUNNING, Job
from cache_engine.cache.queue import QueueState
from cache_engine.gpu.memory_pool import device_memory
from cache_engine.gpu.probe import gpu
from cache_engine.index import queries, summaries
from cache_engine.insight.toolchains import STALE, made_by_toolchain
from cache_engine.model.events import DAY_S, HOUR_S, SEEN
from cache_engine.upkeep import decisions

ICONS = {
    overview.FINE: "check_circle",
    overview.LOOK: "visibility",
    overview.TROUBLE: "warning",
    overview.PLAIN: "do_not_disturb_on",
}
MOST_SHOWN = 20
MOST_EVENTS, MOST_BUSY = 500, 10
USUAL_SPAN = "7 days"
MOST_COMPARED = 200  # misses whose nearest kernel is looked for
SEEN_HELP = "Ends this warning of past failures; later ones are shown. For those who may delete."

st.title("Overview")
cache, now, zone = context.cache(), time.time(), context.timezone()
may_see = guard.may().granted and os.access(cache.layout.root, os.W_OK)
span = SPANS.get(st.session_state.get("span") or st.query_params.get("span", ""), SPANS[USUAL_SPAN])
lately_since = (int(now) - overview.LATELY_S) // HOUR_S * HOUR_S
day_since = (int(now) - DAY_S) // HOUR_S * HOUR_S + HOUR_S
before_step_s, before_since, _ = span.before(now)
context.ask_ahead(  # all that the page and its header ask of every store
    context.question(queries.overview),
    context.question(queries.events, limit=MOST_EVENTS),
    context.question(queries.acts, (SEEN,), limit=1),
    context.question(queries.history, HOUR_S, since=lately_since),
    context.question(queries.history, HOUR_S, since=day_since),
    context.question(queries.history, span.step_s, since=span.since(now)),
    *([context.question(queries.history, before_step_s, since=before_since)] if span.back_s else []),
    context.question(summaries.made_over_time, span.step_s),
    context.question(summaries.compile_spread, span.step_s, span.since(now)),
    context.question(queries.made_with),
    context.question(queries.busiest, limit=MOST_BUSY),
    context.question(queries.stock),
)
row = context.ask(queries.overview)
events = context.ask(queries.events, limit=MOST_EVENTS)


def seen() -> dict[str, int]:
    """The number of past failures of each kind that readers have acknowledged."""
    acts = context.ask(queries.acts, (SEEN,), limit=1)
    return decisions.of_words(acts[0]["detail"]) if acts else {}


def checks(in_queue: QueueState) -> list[overview.Check]:
    """All checks of the store's health."""
    lately = context.ask(queries.history, HOUR_S, since=lately_since)
    failures = decisions.since({name: total(lately, name) for name in decisions.FAILURES}, row, seen())
    settings = cache.settings
    return [
        *overview.health(row, failures, events, now),
        overview.limits_check(row, settings.max_entries, settings.max_bytes, settings.cleanup_interval_h),
        *filter(None, [overview.remote_check(row, events, settings, now)]),
        overview.queue_check(in_queue),
        overview.disk_check(shutil.disk_usage(cache.layout.root).free),
        overview.gpu_check(gpu()),
        *proof_checks(cache.layout),
    ]


def checked(found: Sequence[overview.Check]) -> None:
    """Draws one line on the store's health; below it each check that needs attention, with one thing to do."""
    with st.container(horizontal=True, key="health"):
        for check in found:
            st.markdown(f":material/{ICONS[check.state]}: {check.about}", help=check.words, width="content")
    for check in found:
        if check.state in (overview.LOOK, overview.TROUBLE):
            left, right = st.columns([5, 1], vertical_alignment="center")
            left.warning(f"**{check.about}.** {check.words}", icon=f":material/{ICONS[check.state]}:")
            if check.cause:
                left.text(check.cause)
            with right:
                act_on(check)


def act_on(check: overview.Check) -> None:
    """Draws the link or the button that helps with a check's trouble."""
    if check.action == overview.INTEGRITY:
        widgets.page_link("storage", "Open integrity check", "healing", tab="Integrity")
    elif check.action == overview.CLEANUP:
        widgets.page_link("storage", "Review cleanup", "delete_sweep")
    elif check.sums and st.button(
        "Mark as seen", icon=":material/done_all:", help=SEEN_HELP, key=f"seen-{check.about}", disabled=not may_see
    ):
        acknowledge(check)


def acknowledge(check: overview.Check) -> None:
    """Records that the reader has seen as many of a check's past failures as this page shows."""
    before = seen()

    def see(by: str) -> bool:
        sums = {name: row[name] if name in check.sums else before.get(name, 0) for name in decisions.FAILURES}
        cache.admin.acknowledge(sums, by=by)
        return True

    if guard.act("Could not record this.", see):
        st.rerun()


def queue(in_queue: QueueState) -> None:
    """Draws a table of running and waiting compiles. Draws their numbers too, unless a warning above states them."""
    if turns := [*in_queue.compiling, *in_queue.queued, *in_queue.waiting]:
        check = overview.queue_check(in_queue)
        if check.state == overview.FINE:
            st.text(f"{check.about}: {check.words}")
        with st.expander("Compile queue"):
            tables.draw(turns, overview.QUEUE, key="queue", label="Compile queue")


def running() -> None:
    """Draws the jobs that run."""
    found = [job for job in context.jobs().recent() if isinstance(job, Job) and job.state == RUNNING]
    if found:
        st.header("Running jobs")
        tables.draw(found, job_columns(now), key="jobs", label="Running jobs")


def period(name: str, span: Span) -> overview.ShownPeriod:
    """Draws the choice of a part of the time range; returns its sums, and those before if no part is chosen."""
    rows = context.ask(queries.history, span.step_s, since=span.since(now))
    made = context.ask(summaries.made_over_time, span.step_s)
    steps, words, before = starts(rows, span, now), name.lower(), None
    first, last = within(steps, st.query_params.get("from", ""), st.query_params.get("to", ""))
    if len(steps) > 1:
        key = f"part of {name}"
        first, last = st.select_slider(
            "From – to",
            steps,
            (first, last),
            format_func=named_steps(steps, span, zone).__getitem__,
            key=key,
            on_change=keep_part,
            args=(key, steps[0], steps[-1]),
            help="Everything below is of this part of the time range.",
        )
    if (first, last) != (steps[0], steps[-1]):
        rows, words = [one for one in rows if first <= one["start"] <= last], "this part"
        steps = [start for start in steps if first <= start <= last]
    elif span.back_s:
        step_s, start, end = span.before(now)
        before = [one for one in context.ask(queries.history, step_s, since=start) if one["start"] < end]
    since = first if span.back_s or steps[0] != first else 0
    return overview.ShownPeriod(rows, before, made, steps, since, last + span.step_s, words)


def keep_part(key: str, first: int, last: int) -> None:
    """Writes the chosen part of the time range into the address; nothing for all of it."""
    widgets.renew_address()
    ends = first, last
    for name, chosen, end in zip(("from", "to"), st.session_state.get(key, ends), ends, strict=True):
        if chosen != end:
            st.query_params[name] = str(chosen)
        else:
            st.query_params.pop(name, None)


def over_time(shown: overview.ShownPeriod, span: Span) -> None:
    """Draws lookups by tier, compile time, and the durations of lookups and of compiles, for each step."""
    rows, steps = shown.rows, shown.starts
    if not rows:
        st.info("No lookups or compiles in this period.", icon=":material/schedule:")
        return
    lengths = context.ask(summaries.compile_spread, span.step_s, span.since(now))
    left, right = st.columns(2)
    with left:
        figure.draw(history.hit_figure(rows, steps, span, zone), key="hit-figure")
        figure.draw(history.lookup_figure(rows, steps, span, zone), key="lookup-figure")
    with right:
        figure.draw(history.compile_figure(rows, steps, span, zone), key="compile-figure")
        figure.draw(history.length_figure(lengths, steps, span, zone), key="length-figure")
    with st.expander("Show data table"):
        tables.draw(reversed(rows), history.history_columns(span, zone), key="history", label="History")


def missed(shown: overview.ShownPeriod) -> None:
    """Draws the misses by cause, by shape and target, and by kernel, each with the compile time that they cost."""
    st.header("Misses")
    misses = [miss for miss in cache.admin.misses() if shown.has(miss.at)]
    if not misses:
        st.caption("No misses in the log of decisions in this time.")
        return
    keys = sorted({miss.key for miss in misses})
    compared = sorted({miss.key for miss in misses[:MOST_COMPARED]})
    context.ask_ahead(
        context.question(summaries.compile_ms_of, keys),
        context.question(summaries.shapes_of, keys),
        context.question(summaries.nearest_of, compared),
    )
    compile_ms = context.ask(summaries.compile_ms_of, keys)
    tables.draw(cause_table(misses, compile_ms), CAUSES, key="causes", label="Causes of misses")
    st.caption("Cost: the time of compiling, as last measured. A cause leads to its misses in the log of decisions.")
    by_shape = overview.miss_rows(misses, compile_ms, context.ask(summaries.shapes_of, keys))
    if by_shape:
        tables.draw(
            by_shape[:MOST_SHOWN],
            overview.miss_columns(by_shape),
            key="miss-shapes",
            label="Misses by shape and target",
        )
    nearest = context.ask(summaries.nearest_of, compared)
    rows = miss_table(misses, compile_ms)[:MOST_SHOWN]
    columns = miss_columns(context.titles(row["latest"].key for row in rows), nearest)
    filled = {column.name for column in columns if any(column.value(row, zone) for row in rows)} - {"Key"}
    with st.expander("The kernels that cost the most"):
        tables.draw(rows, columns, key="misses", label="Misses", only=filled)
        st.caption("*compare*: what differs from the nearest kernel stored before.")


def tiers() -> None:
    """Draws each tier's hit rate, and the distributions of compile and waiting times, over all time."""
    with st.expander("Hit rate by tier, and how long lookups and compiles took"):
        rates = overview.tier_table(row, packs=bool(cache.settings.packs), remote=cache.settings.reads_remote)
        tables.show(rates, kinds={"Hit rate": "share"}, key="tiers", label="Hit rate by tier")
        st.caption("Each tier's hit rate counts the lookups that no tier above it served, over all time.")
        day = context.ask(queries.history, HOUR_S, since=day_since)
        st.caption(overview.rate_words(row, day))
        if found := overview.lengths(row):
            tables.draw(found, overview.LENGTH_COLUMNS, key="lengths", label="Lengths of lookups")
            st.caption("How long lookups and the work of misses took, over all time; at most 9% off.")


def toolchains() -> None:
    """Draws the toolchains that compiled the kernels, and which of them are stale."""
    st.header("Toolchains")
    found = made_by_toolchain(cache, context.ask(queries.made_with))
    st.text(stale_words(found, zone))
    if any(made.state == STALE for made in found):
        widgets.page_link("storage", "Review stale kernels to delete", "delete_sweep", rule="stale")


def memory() -> None:
    """Draws the GPU's memory; nothing without a GPU."""
    found = device_memory()
    if found is not None:
        st.header("Device memory")
        tables.properties(overview.memory_words(found), key="device-memory", head="Of the first GPU")
        st.caption("The pool is the dashboard's own; the setting device_memory_bytes limits what it may take.")


def activity(shown: overview.ShownPeriod) -> None:
    """Draws the last events of the time range."""
    st.header("Recent activity")
    found = [event for event in events if shown.has(event["happened_at"])]
    if found:
        tables.draw(found[:MOST_SHOWN], overview.EVENT_COLUMNS, key="events", label="Recent activity")
    else:
        st.caption("No activity in this time.")


def busiest() -> None:
    """Draws the kernels with the most hits."""
    found = context.ask(queries.busiest, limit=MOST_BUSY)
    st.header("Most-hit kernels")
    if found:
        listing.kernel_list(found, key="busiest")
    else:
        st.caption("No cache hits yet.")


st.text(f"Store: {cache.layout.root}")
fleet.draw()
in_queue = cache.queue()
checked(checks(in_queue))
queue(in_queue)
running()
left, right = st.columns([2, 3], vertical_alignment="bottom")
with left:
    name = widgets.choose_one("Time range", list(SPANS), USUAL_SPAN, key="span")
with right:
    shown = period(name, SPANS[name])
draw_tiles(overview.overview_tiles(row, shown, cache.settings.max_entries, cache.settings.max_bytes))
if not row["entries"]:
    widgets.empty_store()
over_time(shown, SPANS[name])
missed(shown)
activity(shown)
tiers()
busiest()
if row["entries"]:
    toolchains()
memory()
