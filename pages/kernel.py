"""The page Kernel: everything about one kernel, from its key down to its machine code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import streamlit as st

from app import context, guard, widgets
from app.caches import entry as others
from app.caches.entry import show_adapted
from app.components import tables
from app.components.code_view import component
from app.presenters import kernel
from app.presenters.decisions import DECISIONS
from app.presenters.downloads import dump_file
from app.presenters.evaluations import slower_words
from app.presenters.forms import request_address
from app.presenters.jobs import in_store
from app.presenters.shared import MOST_COMPARED, when
from app.presenters.speed import MODEL, PREDICTIONS, TIMINGS, predictions, speed_figure
from app.views import notes
from cache_engine.cache.reproduction import reproducing_command
from cache_engine.errors import GemmCacheError
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.index import queries, summaries
from cache_engine.insight.explanation import asked_for, quarantined_record
from cache_engine.insight.inspection import Inspection, described, level_table, record_document, titled
from cache_engine.insight.report.drawing import alone, tiles
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.documents import to_json
from cache_engine.model.events import RECENT, TIERS
from cache_engine.model.gemm import MAX_DIMENSION
from cache_engine.model.key import CacheKey, is_key
from cache_engine.upkeep.decisions import Departure
from cache_engine.usage.demand import HALF_LIFE_S

PARTS = ("Summary", "Code", "Performance", "Cache key", "History", "Compiler log")
MOST_DECISIONS, MOST_DISASSEMBLED = 500, 20
LONG_LOG = 25  # lines
TILES = "Tile shapes in elements, to scale"
STEP_S = 60  # answers about demand are cached for as long


def at_a_glance(record: Record, inspection: Inspection, known: Mapping[str, str]) -> set[str]:
    """Draws on one screen the kernel's tiling, resources, speed, demand, and life in the store.

    Returns the labels of all properties that it has shown.
    """
    drawing, left, right = st.columns([4, 3, 3])
    drawing.image(alone(tiles(record), st.context.theme.type or "light"), TILES, alt=TILES)
    points, _ = predictions(record)
    at = time.time() // STEP_S * STEP_S + STEP_S
    ledger = context.ask(summaries.ledger, HALF_LIFE_S, at)
    row, is_pinned = context.ask(queries.kernel, record.key), CacheKey(record.key) in cache.admin.pinned()
    life = kernel.life_words(record, row, is_pinned=is_pinned, zone=context.timezone(), now=time.time())
    said: set[str] = set()
    for place, title, words in (
        (left, "Resources", kernel.resource_words(inspection, known)),
        (left, "Speed", kernel.speed_words(context.ask(summaries.timings, record.key), points)),
        (right, "In the cache", life),
        (right, "Demand", kernel.demand_words(record, ledger, cache.demand.kernel_of)),
    ):
        with place:
            tables.properties(words, head=title, key=f"glance-{title}")
        said |= words.keys()
    for note in (*inspection.notes, *record.warnings):
        st.text(note)
    return said


def summary(record: Record) -> None:
    """Draws the first screen; below it the problem, the config, levels of tiling, instructions and occupancy."""
    inspection = context.inspection(record)
    words = described(record, when(record.created_at, context.timezone()))
    said = at_a_glance(record, inspection, words)
    left, right = st.columns(2)
    with left:
        st.header("Problem and config")
        signature = cache.admin.signature(record.key)
        words = {name: text for name, text in words.items() if name not in said}
        tables.properties({**words, **({"Signature": signature} if signature else {})}, key="facts")
    with right:
        st.header("Tiling")
        tables.show(level_table(record), key="levels")
    counts = kernel.instruction_rows(inspection.instructions) if inspection.instructions is not None else ()
    tables.section("Instructions", counts, kernel.INSTRUCTIONS, key="instructions", place=right)
    chips = kernel.occupancy_by_chip(record) if inspection.occupancy is not None else ()
    tables.section("Theoretical occupancy on each target", chips, kernel.OCCUPANCY, key="chips", place=left)
    reproduction(record)


def reproduction(record: Record) -> None:
    """Draws the command that compiles the kernel again, whether that makes the same key here, and the files."""
    st.header("Reproduce and download")
    st.code(reproducing_command(record, cache.settings, cache.layout.root), language=None, wrap_lines=True)
    problem, config = record.problem, record.config
    asked = {}
    try:
        choice = {"compiler": record.compiler, "family": record.family, "config": str(config)}
        asked = request_address(problem.on(record.arch), **choice)
        found = cache.select(problem.on(record.arch), family=record.family, compiler=record.compiler, config=config)
        dump = {"Debug dump": (f"{record.key[:12]}-dump.zip", partial(dump_file, found))}
        st.caption(
            "Running this here reproduces this exact key."
            if found.key == record.key and found.is_compilable
            else "Running this here gives a different key: compiler or templates have changed since."
        )
    except GemmCacheError as error:
        st.caption("Cannot be rebuilt on this machine:")
        st.text(str(error))
        dump = {}
    name, language = record.key[:12], "py" if record.compiler == "triton" else "cu"
    files: dict[str, tuple[str, Callable[[], str | bytes]]] = {
        "CUBIN": (f"{name}.cubin", partial(cache.section, record, CUBIN)),
        "PTX": (f"{name}.ptx", partial(cache.text, record, "ptx")),
        "SASS": (f"{name}.sass", partial(cache.text, record, "sass")),
        "Source": (f"{name}.{language}", partial(cache.text, record, "source")),
        "Record": (f"{name}.json", lambda: to_json(record_document(record))),
        **dump,
    }
    with st.container(horizontal=True):
        for label, (file, data) in files.items():
            widgets.download(label, data, file)
        if asked:
            widgets.page_link("compile", "Open in Compile", "play_circle", **asked)
            widgets.page_link("predict", "Open in Predict", "insights", **asked)


def performance(record: Record) -> None:
    """Draws the kernel's measured and predicted times."""
    timings = context.ask(summaries.timings, record.key)
    st.header("Measured")
    if timings:
        tables.draw(timings, TIMINGS, key="timings")
    else:
        st.info("Not timed yet. Run this command on a machine with a GPU of this target:")
        command = reproducing_command(record, cache.settings, cache.layout.root, "time")
        st.code(command, language=None, wrap_lines=True)
    st.header("Predicted")
    size = min(max(record.problem.m, 1), MAX_DIMENSION)
    m = st.number_input("m", 1, MAX_DIMENSION, size, key="at", bind="query-params", width=200)
    points, trouble = predictions(record, m)
    if not points:
        st.info("No prediction available.")
        st.text(trouble)
        return
    st.caption(
        f"{MODEL}: a cuBLAS-like kernel of this shape on each GPU, predicted; it does not model this kernel's code. "
        + slower_words(points)
    )
    st.plotly_chart(speed_figure(points, timings, m, record.problem.batch), key="roofline")
    tables.draw(points, PREDICTIONS, key="predictions")


def history(record: Record) -> None:
    """Draws the kernel's events, timings and hits."""
    row = context.ask(queries.kernel, record.key)
    events, timings = context.ask(queries.events_of, record.key), context.ask(summaries.timings, record.key)
    left, right = st.columns([3, 1])
    with left:
        tables.draw(kernel.history(record, events, timings), kernel.EVENTS, key="history")
    if row is not None:
        with right:
            tables.show([{"Tier": tier, "Hits": row[f"{tier}_hits"]} for tier in TIERS], key="hits")
    versions(record.key)
    left.caption(f"The store keeps only its last {RECENT:,} events; hit counts are never reset.")
    st.header("Decisions")
    decisions(record.key)


def versions(key: str) -> None:
    """Draws the kernels for the same problem on this target, by toolchain and config, and a link that compares them."""
    st.header("The same problem over time")
    rows = context.ask(queries.versions, key)
    if len(rows) < 2:
        st.caption("The store has no other kernel for this problem and target.")
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        others = [row["key"] for row in rows if row["key"] != key][: MOST_COMPARED - 1]
        widgets.compare_link(f"Compare with the latest {len(others)}", key, *others)
        counts = st.toggle("Instructions", key="instructions", help="Disassembles each kernel: half a second each.")
    mixes = {
        row["key"]: context.inspection(cache.find(CacheKey(row["key"]))).instructions
        for row in (rows[:MOST_DISASSEMBLED] if counts else ())
    }
    totals = {each: mix.total for each, mix in mixes.items() if mix is not None}
    tables.draw(rows, kernel.version_columns(key, totals), key="versions")


def decisions(key: str) -> None:
    """Draws the decisions about a kernel: why lookups missed, which config was chosen, who evicted or pinned it."""
    logged = cache.admin.decisions(key)[-MOST_DECISIONS:]
    if not logged:
        st.info("Nothing is logged about this kernel.")
        return
    tables.draw(reversed(logged), DECISIONS, key="decisions")


def pinning(key: CacheKey) -> None:
    """Draws whether the kernel is pinned and, for readers who may delete, the button that pins or unpins it."""
    is_pinned = key in cache.admin.pinned()
    given = guard.may()
    label, icon = ("Unpin", ":material/keep_off:") if is_pinned else ("Pin", ":material/keep:")
    why = "Pinned kernels are not evicted." if given.granted else "Read-only access: Admin says how to get permission."
    if st.button(label, icon=icon, help=why, disabled=not given.granted):
        done = guard.act(
            f"{label} failed.", lambda by: (cache.admin.unpin if is_pinned else cache.admin.pin)(key, by=by)
        )
        if done is not None:
            st.rerun()


def not_found(key: str, cause: str) -> None:
    """Draws, for a key without a kernel, when and why its kernel left the store, and how to compile it again."""
    gone = widgets.departed(key)
    if gone is None:
        widgets.problem("Kernel not found.", cause)
    else:
        key = gone.key
        recompiling(CacheKey(key), gone)
    events = context.ask(queries.events_of, key)
    if events:
        tables.draw(events, kernel.EVENTS, key="past")
    if is_key(key):
        notes.show(CacheKey(key))
        decisions(key)
    widgets.page_link("compile", "Compile a kernel", "play_circle")


def recompiling(key: CacheKey, gone: Departure) -> None:
    """Draws the command that compiles a kernel which left, if the store still knows what it was compiled for."""
    record = None if gone.is_evicted else quarantined_record(cache, key)
    selection = None if record else asked_for(cache, key)
    root = cache.layout.root
    if record is not None:
        st.caption("This command compiles it again:")
        st.code(reproducing_command(record, cache.settings, root), language=None, wrap_lines=True)
    elif selection is not None:
        st.caption("This command compiles it again:")
        st.code(in_store(selection.command, str(root)), language=None, wrap_lines=True)
        widgets.page_link("compile", "Open in Compile", "play_circle", **request_address(selection.problem))
    else:
        st.caption("The store no longer knows what it was compiled for. A program that needs it compiles it by itself.")
    if not gone.is_evicted:
        widgets.page_link("storage", "Open Quarantine", "healing", tab="Quarantine")


def begin(title: str, name: str, key: CacheKey) -> None:
    """Draws what the page of every stored kernel begins with: its names and key, links, actions, and its note."""
    with heading:
        widgets.title(title)
    st.code(f"{name}\n{key}", language=None, wrap_lines=True)
    with links:
        widgets.compare_link("Compare with…", key)
        pinning(key)
        notes.edit(key)
    notes.show(key)


def show(record: Record, part: str) -> None:
    """Draws the part of the page with this name for a kernel of ours."""
    if part == "Summary":
        summary(record)
    elif part == "Code":
        component.show(context.linked(record.key, record.blob.digest), record.key[:12], key=f"code-{record.key}")
    elif part == "Performance":
        performance(record)
    elif part == "History":
        history(record)
    elif part == "Cache key":
        st.caption("Key = SHA-256 of these components. Any difference is a miss.")
        tables.properties(dict(record.components), head="Component", key="components")
    else:
        lines, how_many = kernel.first_lines(cache.text(record, "log"))
        st.caption(how_many)
        st.code(lines or "(empty)", language=None, height=600 if lines.count("\n") >= LONG_LOG else "content")


top = st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")
heading = top.container(width="content")
cache = context.cache()
if "entry" in st.query_params:  # of another framework
    others.draw(heading)
    widgets.end_page()
links = top.container(horizontal=True, vertical_alignment="center", width="content", key="kernel-links")
with links:
    widgets.results_link()
asked = st.query_params.get("key")
if not asked:
    heading.title("Kernel")
    st.info("No kernel selected. Choose one on the Kernels page.")
    widgets.end_page()
try:
    key = cache.admin.find_key(asked)
    group = cache.admin.adapted(key)
    if group is not None:
        name = describe(group).name or "Unnamed kernel"
        begin(name, name, key)
        show_adapted(group)
        widgets.end_page()
    record = cache.find(key)
except GemmCacheError as error:
    heading.title("Kernel")
    not_found(asked, str(error))
    widgets.end_page()
begin(titled(record), record.name, key)
part = widgets.choose_one("Part", PARTS, "Summary", key="part", hidden=True)
try:
    show(record, part)
except GemmCacheError as error:
    widgets.problem(f"Could not load the {part.lower()}.", str(error))
