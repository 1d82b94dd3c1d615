"""The page Predict: a shape or a model on one chip or two; under *More*, validation, and saved results."""

from __future__ import annotations

from typing import Any, cast

import streamlit as st

from app import context, widgets
from app.addresses import MORE, SAVED, VALIDATION
from app.components import header, tables
from app.components.figure import draw_tiles
from app.presenters import evaluations, forms
from app.presenters.evaluation_report import model_report, shape_report
from app.presenters.saved_results import ACCELERATORS, RESULTS, matching, saved_results
from app.presenters.shared import Row
from app.presenters.validation import Validation, validation_figure, validation_of, validation_table
from app.views import problem_form
from app.views.evaluations import show_model, storing
from app.widgets import FEWER_ROWS, SMALLER_CHIP, SearchLimit, advice
from cache_engine.errors import GemmCacheError, InvalidHardware, SearchStopped
from cache_engine.evaluator.chips import TARGETS
from cache_engine.evaluator.grouped import Work, work_of
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.insight.passes import Operation, Priced, asking
from cache_engine.store.results import State, files_state
from cache_engine.units import counted

ONE, MODEL = "Single shape", "Whole model"
FIRST_CHIP = "H100"
ALONE = "none"
OWN, FILE = "own", "own chip's file"

Shares = list[list[float | None]]

bound: Any = {"bind": "query-params"}


@st.cache_resource(show_spinner=False, max_entries=64)
def found_before(*of: Any) -> list[Any]:  # noqa: ARG001 (what it is of)
    """A list that is cached for all readers. The caller adds to it a result that took long to find.

    A cached function must not find the result: Streamlit would record the "Searching…" that is drawn meanwhile.
    """
    return []


def shares_of_peak(problem: Work, chip: evaluations.Chip, patience: SearchLimit) -> Shares:
    """The heat map of a problem on a chip: shares of the peak for each m and n, from a hundred searches."""
    found = found_before("heat map", problem, chip)
    if found:
        return cast("Shares", found[0])
    shares = evaluations.heat_map(problem, chip, patience.may_go_on)
    if not evaluations.unsearched(shares):
        found.append(shares)
    return shares


def validated(data: bytes, name: str, kept_out: bool, patience: SearchLimit) -> Validation:
    """The errors of predictions for a file of measurements; takes some seconds for a hundred thousand of them."""
    found = found_before("validation", data, name, kept_out)
    if not found:
        found.append(validation_of(data, name, kept_out=kept_out, may_go_on=patience.may_go_on))
    return cast("Validation", found[0])


def own_chip() -> tuple[evaluations.Chip | None, str]:
    """Draws the form of the reader's own chip; returns the chip, if any, and why its description is refused."""
    number = st.session_state.setdefault(FILE, 0)
    with st.popover("Custom chip", icon=":material/memory_alt:", width="stretch"):
        st.caption(
            "Upload a JSON description of an accelerator or a GPU. It is stored in the URL, so the link is shareable."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        uploaded = left.file_uploader("JSON description", type="json", key=f"{FILE} {number}", max_upload_size=1)
        known = right.selectbox("Template", list(evaluations.CHIPS), key="e_template")
        with right:
            template = evaluations.chip_text(evaluations.CHIPS[known])
            widgets.download("Download template", template, f"{known}.json", "application/json")
        chip, refused = None, ""
        try:
            text = (
                st.query_params.get(OWN, "") if uploaded is None else uploaded.read(evaluations.LARGEST_DESCRIPTION + 1)
            )
            chip = evaluations.described_chip(text) if text else None
        except InvalidHardware as error:
            refused = str(error)
        if chip is not None:
            st.query_params[OWN] = evaluations.chip_text(chip)
            st.text(f"{chip.name} added to the chip lists.")
        if (refused or chip is not None) and st.button("Remove", icon=":material/close:", key="e_forget"):
            st.query_params.pop(OWN, None)
            st.session_state[FILE] = number + 1
            st.rerun()
    return chip, refused


def evaluate_each(label: str, problem: Work, chips: list[evaluations.Chip], patience: SearchLimit) -> list[Priced]:
    """The costs of a problem on each chip that has its types; draws the error for each other chip."""
    found, ask = [], asking(kept, stores=False, may_go_on=patience.may_go_on)
    for chip in chips:
        try:
            found.append(Priced(Operation(label, problem, 1), chip, ask(problem, chip)))
        except SearchStopped as error:
            widgets.problem("Search stopped: it takes too long.", f"{error}. {advice(SMALLER_CHIP)}")
        except GemmCacheError as error:
            widgets.problem("Could not evaluate.", f"{chip.name}: {error}")
    return found


def behind(table: list[dict[str, Any]], name: str) -> None:
    """Draws the table of a plot's numbers, closed at first."""
    with st.expander("Show data table"):
        tables.show(table, key=f"numbers-{name}", label=name)


def one_shape(chips: list[evaluations.Chip], patience: SearchLimit) -> None:
    """Draws a shape's costs on each chip: the numbers, the roofline plot, the heat map."""
    values = problem_form.fill_in(form)
    problem = work_of(forms.problem_of(values | {"arch": None}))  # a chip stands in for the target
    shown = evaluate_each(f"{values['m']} × {values['n']} × {values['k']}", problem, chips, patience)
    for one in shown:
        st.header(one.chip.name)
        draw_tiles(evaluations.evaluation_tiles(one))
        # A GPU's time is predicted at once, and a launch of unequal groups is searched each time.
        if isinstance(one.chip, Hardware) and isinstance(problem, EvaluationProblem):
            storing(problem, one.chip, patience)
    if not shown:
        return
    if len(shown) == 2:
        st.header("Comparison")
        table = evaluations.comparison_table(shown)
        tables.show(table, key="e_compared")
        st.caption(evaluations.slower_words(shown))
    every = []
    plots = st.container(key="figures").columns(len(shown) + 1)  # on a phone, one line each
    with plots[0]:
        st.plotly_chart(evaluations.roofline_figure(shown), key="roofline")
        behind(evaluations.roofline_table(shown), "roofline")
    for plot, one in zip(plots[1:], shown, strict=True):
        with plot:
            shares = shares_of_peak(problem, one.chip, patience)
            every.append(shares)
            st.plotly_chart(evaluations.heat_map_figure(shares, problem.k, one.chip.name), key=f"heat-{one.chip.name}")
            missing = evaluations.unsearched(shares)
            if missing:
                st.caption(
                    f"{missing} of {len(evaluations.HEAT_SIZES) ** 2} cells were not searched. {advice(SMALLER_CHIP)}"
                )
            behind(evaluations.heat_table(shares), f"heat-map-{one.chip.name}")
    compile_link(values, chips[0].name)
    command = as_command()
    header.export_button("evaluation", lambda: shape_report(shown, every, command), key="export-shape")


def compile_link(values: Row, chip: str) -> None:
    """Draws a link to Compile with these values of the form and the chip's target, if a kernel can run there."""
    if chip in TARGETS:
        asked = forms.address_of(form, values | {"arch": TARGETS[chip]})
        widgets.page_link("compile", "Compile a kernel for it", "play_circle", **asked)


def as_command() -> str:
    """The command that prints what this page shows, for the page's report."""
    return context.command(*(header.as_command("Predict") or ()))


def model(chips: list[evaluations.Chip], patience: SearchLimit) -> None:
    """Draws a model's costs on each chip that has its dtype: operations, totals, and the roofline plot."""
    passes = show_model(chips, kept, patience)
    if not passes:
        return
    points = [row for one in passes for row in one.rows]
    st.plotly_chart(evaluations.roofline_figure(points), key="model-roofline")
    behind(evaluations.roofline_table(points), "model-roofline")
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
        widgets.problem("This takes too long.", f"{error}. {advice(FEWER_ROWS)}")
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
    """Draws the accelerators with saved results, the export of each one's results, and the results."""
    kept.flush()
    layout = context.cache().layout
    chips, rows = read_results(str(layout.root), files_state(layout.evaluations))
    if not chips:
        st.info("No saved results. Store one at Single shape, or run this command, which searches and stores:")
        widgets.command("evaluate", "4096", "7168", "2048", "--chip", "SG2262")
        return
    tables.draw(chips, ACCELERATORS, key="e_chips")
    export_results(chips)
    list_results(rows)


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
            widgets.download("Export", lambda: kept.export(chosen), name, "application/json")


def list_results(rows: list[Row]) -> None:
    """Draws the saved results that a search finds, the newest first."""
    st.header("Results")
    text = st.text_input(
        "Search",
        key="e_q",
        type="search",
        live=True,
        placeholder="7168, m×n×k with * for any such as 64x*x7168, a chip, a dtype",
        max_chars=100,
        **bound,
    )
    found = matching(rows, text or "")
    if not found:
        st.info("No matching results. Clear the search.")
        return
    st.caption(f"{counted(len(found), 'result')}, newest first.")
    tables.draw(found, RESULTS, key="e_results", label="Results")


st.title("Predict")
kept = context.cache().evaluations
form = forms.prediction_form(context.cache().settings.default_arch)
problem_form.follow("Predict", form, forms.pass_form())
st.caption(
    "For GPUs a model calibrated on measurements of cuBLAS: layout, epilogue and compiler change nothing. "
    "For accelerators a model of their grid of cores."
)

kind = widgets.choose_one("Show", [ONE, MODEL, MORE], ONE, key="e_kind", hidden=True)
if kind == MORE:
    kind = widgets.choose_one("More", [VALIDATION, SAVED], VALIDATION, key="e_more", hidden=True)
if kind == VALIDATION:
    measured_latencies()
elif kind == SAVED:
    what_is_kept()
else:
    first, second, third = st.columns([5, 5, 2], vertical_alignment="bottom")
    with third:
        own, refused = own_chip()
    if refused:
        widgets.problem("Invalid chip description.", refused)
    names = {**evaluations.CHIPS, **({} if own is None else {own.name: own})}
    chip = first.selectbox("Chip", list(names), index=list(names).index(FIRST_CHIP), key="e_chip", **bound)
    other = second.selectbox("Compare with", [ALONE, *names], key="e_other", **bound)
    chosen_chips = [names[name] for name in dict.fromkeys((chip, other)) if name in names]
    with SearchLimit() as patience:
        try:
            (one_shape if kind == ONE else model)(chosen_chips, patience)
        except SearchStopped as error:
            widgets.problem("Search stopped: it takes too long.", f"{error}. {advice(SMALLER_CHIP)}")
        except GemmCacheError as error:
            widgets.problem("Could not evaluate.", str(error))
