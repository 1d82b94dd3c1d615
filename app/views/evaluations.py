"""Parts of Predict: a whole model with the cost of a pass on each chip, and whether a result is stored."""

from __future__ import annotations

import json
import os
from typing import Any

import streamlit as st

from app import context, guard, widgets
from app.addresses import MORE, SAVED
from app.components import tables
from app.components.figure import draw_tiles
from app.presenters import forms
from app.presenters.columns import Kind
from app.presenters.evaluations import Chip, pass_table, pass_tiles, shapes_on_one_chip, slower_operations
from app.views import problem_form
from app.widgets import SearchLimit
from cache_engine.errors import GemmCacheError, InvalidProblem
from cache_engine.evaluator.catalogue.layers import Parallel
from cache_engine.evaluator.catalogue.model_configs import LARGEST_CONFIG_BYTES
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations
from cache_engine.insight.passes import PHASES, ModelPass, Step, asking, model_pass, operations

MOST_TOKENS = 2**24
bound: Any = {"bind": "query-params"}


def show_model(chips: list[Chip], kept: Evaluations, patience: SearchLimit) -> list[ModelPass]:
    """Draws the passes of the chosen model on each chip that has its dtype, and returns them.

    Raises:
        UsageError, SearchStopped: when the model cannot be spread like this, or a search takes too long.
    """
    choices = st.columns([3, 2, 2, 2, 2], vertical_alignment="bottom")
    form = forms.pass_form()
    chosen, dtype = map(problem_form.draw, form, choices)
    problem_form.write_address(form, {"model": chosen, "dtype": dtype})
    tokens = choices[2].number_input("m (tokens)", 1, MOST_TOKENS, 4096, key="e_tokens", **bound)
    phase = choices[3].selectbox("Phase", list(PHASES), key="e_phase", **bound)
    with choices[4]:
        uploaded, parallel, skew = _further()
    config = None if uploaded is None else uploaded.read(LARGEST_CONFIG_BYTES + 1)
    name = chosen if uploaded is None else uploaded.name
    shapes = shapes_on_one_chip(chosen, config, name, parallel)
    step = Step(int(tokens), phase, skew=skew, dtype=dtype.partition("_")[0])  # both types of fp8 are equally fast
    computed, ask = operations(shapes, step, parallel), asking(kept, stores=False, may_go_on=patience.may_go_on)
    passes = []
    for chip in chips:
        try:
            passes.append(model_pass(computed, chip, step.tokens, ask))
        except InvalidProblem as error:  # a type that this chip does not have
            widgets.problem("Could not evaluate.", f"{chip.name}: {error}")
    if not passes:
        return []
    for one in passes:
        st.header(one.chip.name)
        draw_tiles(pass_tiles(one))
    table = pass_table(passes)
    kinds: dict[str, Kind] = {name: "share" for name in table[0] if name.endswith((", share", "% of peak"))}
    tables.show(table, kinds=kinds, key="e_table")
    if parallel.chips > 1:
        st.caption(f"One of {parallel.chips:,} chips; of chips with different experts, the one with the most rows.")
    st.caption(f"Products with weights only: no attention scores, no communication. {slower_operations(passes)}")
    with st.container(horizontal=True):
        file = json.dumps(table, indent=1, ensure_ascii=False)
        widgets.download("Download as JSON", file, f"{chosen}-{tokens}.json", "application/json")
    return passes


def _further() -> tuple[Any, Parallel, float]:
    """Draws further fields; returns an uploaded config.json, if any, the spread over chips, and the experts' skew."""
    with st.popover("More", icon=":material/hub:", help="Several chips, experts, custom model", width="stretch"):
        sizes = st.columns(4)
        parallel = [
            sizes[place].number_input(label, 1, 2**20, 1, key=key, help=text, **bound)
            for place, (label, key, text) in enumerate(
                (
                    ("Tensor parallel", "e_tp", "Chips that share heads and inner features."),
                    ("Expert parallel", "e_ep", "Groups of chips with different experts."),
                    ("Data parallel", "e_dp", "Copies that share the tokens; all tokens meet at the experts."),
                )
            )
        ]
        text = "The r-th most wanted expert gets 1/r^skew of the first's rows. 0: all get as many."
        skew = sizes[3].number_input("Expert skew", 0.0, 10.0, 0.0, 0.1, key="e_skew", help=text, **bound)
        st.caption("A model's published config.json replaces the chosen model. It is not stored.")
        uploaded = st.file_uploader("config.json", type="json", key="e_config", max_upload_size=1)
    return uploaded, Parallel(*map(int, parallel)), float(skew)


def storing(problem: EvaluationProblem, chip: Hardware, patience: SearchLimit) -> None:
    """Says that a result is stored, with a link to saved results; else draws a button that stores the result."""
    if _is_stored(problem, chip):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("Stored: no program that uses this store searches for it again.")
            widgets.page_link("predict", "See saved results", "database", e_kind=MORE, e_more=SAVED)
        return
    why_not = _why_not()
    asked = st.button(
        "Store result",
        icon=":material/save:",
        key=f"e_store {chip.fingerprint()}",
        disabled=bool(why_not),
        help=why_not or "As gemm-cache evaluate does, so that no program that uses this store searches for it again.",
    )
    if asked and _stored(problem, chip, patience):
        st.rerun()


def _stored(problem: EvaluationProblem, chip: Hardware, patience: SearchLimit) -> bool:
    """Stores a result as the command line does; returns whether that worked, and shows why if not."""
    kept = context.cache().evaluations
    try:
        guard.may_write()
        unkept = kept.evaluate(problem, chip, may_go_on=patience.may_go_on).unkept
        kept.flush()  # also what could not be written before
    except (GemmCacheError, OSError) as error:
        widgets.problem("Could not store the result.", str(error))
        return False
    if unkept is None and _is_stored(problem, chip):
        return True
    widgets.problem("Could not store the result.", str(unkept or "It cannot be written; the dashboard's log says why."))
    return False


def _is_stored(problem: EvaluationProblem, chip: Hardware) -> bool:
    return context.cache().evaluations.look_up(problem, chip) is not None


def _why_not() -> str:
    """The reason why results cannot be stored here; empty if they can."""
    cache = context.cache()
    if cache.settings.dashboard_read_only:
        return "Read-only dashboard: use gemm-cache evaluate, which stores it."
    return "" if os.access(cache.layout.root, os.W_OK) else "Read-only store: nothing can be stored here."
