"""The page Predict: a shape or a model on one chip or two; under *More*, validation, and saved results."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import context, widgets
from app.components import header, tables
from app.components.figure import draw_tiles
from app.presenters import evaluations as presenters_evaluations
from app.presenters.columns import csv_text
from app.presenters.downloads import MOST_ROWS
from app.presenters.evaluation_report import model_report, shape_report
from app.presenters.saved_results import ACCELERATORS, RESULTS, SORTS, Wanted, saved_results
from app.presenters.shared import Row, rows_shown
from app.presenters.validation import Validation, validation_figure, validation_of, validation_table
from app.search_limit import FEWER_ROWS, SearchLimit
from app.views.evaluations import SAVED, show_model, storing
from cache_engine.errors import GemmCacheError, InvalidHardware, SearchStopped
from cache_engine.evaluator.chips import TARGETS
from cache_engine.evaluator.gpu import DTYPES
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import ITEMSIZE, MAX_DIMENSION, EvaluationProblem
from cache_engine.insight.passes import Priced
from cache_engine.store.results import State, files_state

ONE, MODEL, MORE, MEASURED, KEPT = "Single shape", "Whole model", "More", "Validation", SAVED
FIRST_CHIP = "H100"
ALONE = "none"
LARGEST = min(MAX_DIMENSION, 2**53 - 1)  # what a browser counts exactly
PAGE_ROWS = 20
OWN, FILE = "own", "own chip's file"

Shares = list[list[float | None]]

bound: Any = {"bind": "query-params"}


@st.cache_resource(show_spinner=False, max_entries=64)
def found_shares(problem: EvaluationProblem, chip: presenters_evaluations.Chip) -> list[Shares]:  # noqa: ARG001 (what it is of)
    """A list, cached for all readers, to which the heat map of a problem on a chip is added once it is computed."""
    return []


def shares_of_peak(problem: EvaluationProblem, chip: presenters_evaluations.Chip, patience: SearchLimit) -> Shares:
    """The heat map of a problem on a chip: shares of the peak for each m and n, from a hundred searches."""
    found = found_shares(problem, chip)
    if found:
        return found[0]
    # Not as a cached function: Streamlit records what such a one draws, and the sign of life is drawn.
    shares = presenters_evaluations.heat_map(problem, chip, patience.may_go_on)
    if not presenters_evaluations.unsearched(shares):
        found.append(shares)
    return shares


@st.cache_resource(show_spinner=False, max_entries=4)
def found_validation(data: bytes, name: str, kept_out: bool) -> list[Validation]:  # noqa: ARG001 (what it is of)
    """A list that all readers share: empty until a file of measurements is validated, then with the result of that."""
    return []


def validated(data: bytes, name: str, kept_out: bool, patience: SearchLimit) -> Validation:
    """The errors of predictions for a file of measurements; takes some seconds for a hundred thousand of them."""
    found = found_validation(data, name, kept_out)
    if not found:
        found.append(validation_of(data, name, kept_out=kept_out, may_go_on=patience.may_go_on))
    return found[0]


def own_chip() -> tuple[presenters_evaluations.Chip | None, str]:
    """Draws the form of the reader's own chip; returns the chip, if any, and why its description is refused."""
    number = st.session_state.setdefault(FILE, 0)
    with st.popover("Custom chip", icon=":material/memory_alt:", width="stretch"):
        st.caption(
            "Upload a JSON description of an accelerator or a GPU. It is stored in the URL, so the link is shareable."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        uploaded = left.file_uploader("JSON description", type="json", key=f"{FILE} {number}", max_upload_size=1)
        known = right.selectbox("Template", list(presenters_evaluations.CHIPS), key="e_template")
        right.download_button(
            "Download template",
            presenters_evaluations.chip_text(presenters_evaluations.CHIPS[known]),
            f"{known}.json",
            "application/json",
            on_click="ignore",
        )
        chip, refused = None, ""
        try:
            text = (
                st.query_params.get(OWN, "")
                if uploaded is None
                else uploaded.read(presenters_evaluations.LARGEST_DESCRIPTION + 1)
            )
            chip = presenters_evaluations.described_chip(text) if text else None
        except InvalidHardware as error:
            refused = str(error)
        if chip is not None:
            st.query_params[OWN] = presenters_evaluations.chip_text(chip)
            st.text(f"{chip.name} added to the chip lists.")
        if (refused or chip is not None) and st.button("Remove", icon=":material/close:", key="e_forget"):
            st.query_params.pop(OWN, None)
            st.session_state[FILE] = number + 1
            st.rerun()
    return chip, refused


def evaluate_each(
    label: str, problem: EvaluationProblem, chips: list[presenters_evaluations.Chip], patience: SearchLimit
) -> list[Priced]:
    """The costs of a problem on each chip that has its types; draws the error for each other chip."""
    found = []
    for chip in chips:
        try:
            found.append(presenters_evaluations.evaluate_on(kept, label, problem, chip, patience.may_go_on))
        except SearchStopped as error:
            widgets.problem("Search stopped: it takes too long.", f"{error}. {patience.what_next()}")
        except GemmCacheError as error:
            widgets.problem("Could not evaluate.", f"{chip.name}: {error}")
    return found


def behind(table: list[dict[str, Any]], name: str) -> None:
    """Draws the table of the numbers in a plot, folded."""
    with st.expander("Show data table"):
        tables.show(table, key=f"numbers-{name}", label=name)


def one_shape(chips: list[presenters_evaluations.Chip], patience: SearchLimit) -> None:
    """Draws a shape's costs on each chip: the numbers, the roofline plot, the heat map."""
    sizes = st.columns(6)
    m = sizes[0].number_input("m", 1, LARGEST, 4096, key="e_m", **bound)
    n = sizes[1].number_input("n", 1, LARGEST, 7168, key="e_n", **bound)
    k = sizes[2].number_input("k", 1, LARGEST, 2048, key="e_k", **bound)
    batch = sizes[3].number_input("Batch", 1, LARGEST, 1, key="e_batch", **bound)
    dtype = sizes[4].selectbox("Dtype of A and B", list(ITEMSIZE), index=5, key="e_dtype", **bound)
    out_dtype = sizes[5].selectbox("Dtype of C", list(ITEMSIZE), index=5, key="e_out_dtype", **bound)
    problem = EvaluationProblem(m, n, k, batch, dtype, out_dtype)
    shown = evaluate_each(f"{m} × {n} × {k}", problem, chips, patience)
    for one in shown:
        st.header(one.chip.name)
        draw_tiles(presenters_evaluations.evaluation_tiles(one))
        if isinstance(one.chip, Hardware):  # a GPU's time is predicted at once: there is nothing to store
            storing(problem, one.chip, patience)
    if not shown:
        return
    if len(shown) == 2:
        st.header("Comparison")
        table = presenters_evaluations.comparison_table(shown)
        tables.show(table, key="e_compared")
        st.caption(presenters_evaluations.slower_words(shown))
    every = []
    plots = st.container(key="figures").columns(len(shown) + 1)  # on a phone, one line each
    with plots[0]:
        st.plotly_chart(presenters_evaluations.roofline_figure(shown), key="roofline")
        behind(presenters_evaluations.roofline_table(shown), "roofline")
    for plot, one in zip(plots[1:], shown, strict=True):
        with plot:
            shares = shares_of_peak(problem, one.chip, patience)
            every.append(shares)
            st.plotly_chart(
                presenters_evaluations.heat_map_figure(shares, k, one.chip.name), key=f"heat-{one.chip.name}"
            )
            missing = presenters_evaluations.unsearched(shares)
            if missing:
                st.caption(
                    f"{missing} of {len(presenters_evaluations.HEAT_SIZES) ** 2} cells were not searched. "
                    f"{patience.what_next()}"
                )
            behind(presenters_evaluations.heat_table(shares), f"heat-map-{one.chip.name}")
    compile_link(problem, chips[0].name)
    command = as_command()
    header.export_button("evaluation", lambda: shape_report(shown, every, command), key="export-shape")


def compile_link(problem: EvaluationProblem, chip: str) -> None:
    """Draws a link to Compile with this problem and the chip's target, if a kernel can be made for them."""
    if chip in TARGETS and problem.dtype in DTYPES:
        asked = {f"s_{name}": getattr(problem, name) for name in ("m", "n", "k", "batch", "dtype", "out_dtype")}
        widgets.page_link("compile", "Compile a kernel for it", "play_circle", s_arch=TARGETS[chip], **asked)


def as_command() -> str:
    """The command that prints what this page shows, for the page's report."""
    return context.command(*(header.as_command("Predict") or ()))


def model(chips: list[presenters_evaluations.Chip], patience: SearchLimit) -> None:
    """Draws a model's costs on each chip that has its dtype: operations, totals, and the roofline plot."""
    passes = show_model(chips, kept, patience)
    if not passes:
        return
    points = [row for one in passes for row in one.rows]
    st.plotly_chart(presenters_evaluations.roofline_figure(points), key="model-roofline")
    behind(presenters_evaluations.roofline_table(points), "model-roofline")
    name, command = str(st.session_state.get("e_model", "A model")), as_command()
    header.export_button("evaluation", lambda: model_report(name, passes, command), key="export-model")


def measured_latencies() -> None:
    """Draws the upload of measured latencies, and their comparison with the GPU model and the roofline."""
    st.caption("CSV with the columns arch (such as H100), M, N, K, latency_us; other columns are ignored.")
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    uploaded = left.file_uploader("Measurements", type=["csv", "gz"], key="e_measured", max_upload_size=50)
    kept_out = right.toggle("Held-out (N, K) only", key="e_kept_out", **bound)
    if uploaded is None:
        st.info("Choose a file. It is not stored.")
        return
    patience = SearchLimit("Comparing with predictions…")
    try:
        with patience:
            found = validated(uploaded.getvalue(), uploaded.name, kept_out, patience)
    except SearchStopped as error:
        widgets.problem("This takes too long.", f"{error}. {patience.what_next(FEWER_ROWS)}")
        return
    except GemmCacheError as error:
        widgets.problem("Could not read this file.", str(error))
        return
    if not found.points:
        st.info("Nothing left: every (N, K) here was in the training data.")
        return
    st.text(f"{found.count:,} measurements of {uploaded.name}")
    table = validation_table(found.lines)
    tables.show(table, kinds=dict.fromkeys(list(table[0])[4:], "share"), key="e_errors")
    st.plotly_chart(validation_figure(found.points), key="scatter")
    if len(found.points) < found.count:
        st.caption(f"Showing an even sample of {len(found.points):,} points.")
    behind(found.points, "predictions")


@st.cache_resource(show_spinner=False, max_entries=1)
def read_results(root: str, state: State) -> tuple[list[Row], list[Row]]:  # noqa: ARG001 (what they are of)
    """A row for each accelerator with saved results, and a row for each result, in the present state of the files."""
    return saved_results(kept)


def what_is_kept() -> None:
    """Draws the accelerators with saved results, the export of each one's results, and the results in pages."""
    kept.flush()
    layout = context.cache().layout
    chips, rows = read_results(str(layout.root), files_state(layout.evaluations))
    if not chips:
        st.info("No saved results. Store one at Single shape, or run this command, which searches and stores:")
        widgets.command("evaluate", "4096", "7168", "2048", "--chip", "SG2262")
        return
    tables.draw(chips, ACCELERATORS, key="e_chips")
    export_results(chips)
    list_results(rows, {f"{chip['chip']} {chip['arch_fingerprint'][:8]}": chip["arch_fingerprint"] for chip in chips})


def export_results(chips: list[Row]) -> None:
    """Draws the choice of an accelerator, and the button that downloads its results as a file."""
    choices = {
        f"{chip['chip']} {chip['arch_fingerprint'][:12]}".strip(): chip["arch_fingerprint"]
        for chip in chips
        if "error" not in chip
    }
    if choices:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = choices[st.selectbox("Export results of", list(choices), key="e_export", width=300)]
            name = f"gemm_cache_{chosen}.json"
            st.download_button("Export", lambda: kept.export(chosen), name, "application/json", on_click="ignore")


def list_results(rows: list[Row], chips: dict[str, str]) -> None:
    """Draws the saved results: a search, filters, a sort order, and pages."""
    st.header("Results")
    search, sort, order = st.columns([6, 2, 1], vertical_alignment="bottom")
    text = search.text_input(
        "Sizes",
        key="e_q",
        type="search",
        live=True,
        placeholder="7168, or m×n×k with * for any: 64x*x7168",
        max_chars=100,
        **bound,
    )
    sorted_by = sort.selectbox("Sort by", list(SORTS), key="e_sort", **bound)
    ascending = order.toggle("Ascending", key="e_asc", **bound)
    left, right = st.columns(2)
    of = left.multiselect("Chips", list(chips), key="e_of", **bound)
    dtypes = right.multiselect("Dtypes", sorted({row["dtype"] for row in rows}), key="e_dtypes", **bound)
    wanted = Wanted(text or "", tuple(chips[name] for name in of), tuple(dtypes))

    # A page number of another list would show the wrong part of this one, or none.
    listed = (wanted, sorted_by, ascending)
    if st.session_state.get("e_listed", listed) != listed:
        st.session_state["e_page"] = 1
    st.session_state["e_listed"] = listed
    found = wanted.of(rows, sorted_by, descending=not ascending)
    caption, turning = st.columns([3, 2], vertical_alignment="center")
    with turning:
        offset = widgets.paging(len(found), PAGE_ROWS, key="e_page", **bound)
    shown = found[offset : offset + PAGE_ROWS]
    if not shown:
        st.info("No matching results. Clear the search or a filter.")
        return
    caption.caption(f"{rows_shown(offset, len(shown), len(found))}.")
    tables.draw(shown, RESULTS, key="e_results")

    def file() -> str:
        return csv_text(found[:MOST_ROWS])

    st.download_button("Download all as CSV", file, "evaluations.csv", "text/csv", on_click="ignore")


st.title("Predict")
kept = context.cache().evaluations
st.caption("For GPUs a model calibrated on measurements; for accelerators a model of their grid of cores.")

old_kinds = {"One shape": ONE, "A model's shapes": MODEL, "Measured latencies": MEASURED, "Kept results": KEPT}
widgets.accept_old_link("e_kind", old_kinds)
if st.query_params.get("e_kind") in (MEASURED, KEPT):  # they stood beside the others once
    st.query_params["e_more"] = st.session_state["e_more"] = st.query_params["e_kind"]
    widgets.accept_old_link("e_kind", dict.fromkeys((MEASURED, KEPT), MORE))
kind = widgets.choose_one("Show", [ONE, MODEL, MORE], ONE, key="e_kind", hidden=True)
if kind == MORE:
    kind = widgets.choose_one("More", [MEASURED, KEPT], MEASURED, key="e_more", hidden=True)
if kind == MEASURED:
    measured_latencies()
elif kind == KEPT:
    what_is_kept()
else:
    first, second, third = st.columns([5, 5, 2], vertical_alignment="bottom")
    with third:
        own, refused = own_chip()
    if refused:
        widgets.problem("Invalid chip description.", refused)
    names = {**presenters_evaluations.CHIPS, **({} if own is None else {own.name: own})}
    chip = first.selectbox("Chip", list(names), index=list(names).index(FIRST_CHIP), key="e_chip", **bound)
    other = second.selectbox("Compare with", [ALONE, *names], key="e_other", **bound)
    chosen_chips = [names[name] for name in dict.fromkeys((chip, other)) if name in names]
    with SearchLimit() as patience:
        try:
            (one_shape if kind == ONE else model)(chosen_chips, patience)
        except SearchStopped as error:
            widgets.problem("Search stopped: it takes too long.", f"{error}. {patience.what_next()}")
        except GemmCacheError as error:
            widgets.problem("Could not evaluate.", str(error))
