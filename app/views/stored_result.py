"""The result of an evaluation on its page: whether it is stored, and the button that stores it."""

from __future__ import annotations

import os

import streamlit as st

from app import context, guard, widgets
from app.patience import Patience
from cache_engine.errors import GemmCacheError
from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem
from cache_engine.evaluator.results import Evaluations

_FAILED = "a result could not be stored"
SAVED = "Saved results"


def storing(problem: EvaluationProblem, chip: Hardware, patience: Patience) -> None:
    """Says that a result is stored, with a link to the list; else offers to store it. Only its button stores."""
    if _is_stored(problem, chip):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("Stored: no program that uses this store searches for it again.")
            link = {"e_kind": SAVED}
            widgets.page_link(
                "../pages/evaluations.py", label="See saved results", icon=":material/database:", query_params=link
            )
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


def _stored(problem: EvaluationProblem, chip: Hardware, patience: Patience) -> bool:
    """Stores a result as the command line does; returns whether that worked, and shows why if not."""
    kept = context.cache().evaluations
    try:
        guard.may_write()
        unkept = kept.evaluate(problem, chip, may_go_on=patience.may_go_on).unkept
        kept.flush()  # also what could not be written before
    except (GemmCacheError, OSError) as error:
        widgets.problem("Could not store the result.", str(error))
        return False
    st.session_state[_FAILED] = st.session_state.get(_FAILED, False) or unkept is not None
    if unkept is None and _is_stored(problem, chip):
        return True
    widgets.problem("Could not store the result.", str(unkept or "It cannot be written; the dashboard's log says why."))
    return False


def _is_stored(problem: EvaluationProblem, chip: Hardware) -> bool:
    cache = context.cache()
    if not st.session_state.get(_FAILED):
        return cache.evaluations.look_up(problem, chip) is not None
    with Evaluations(cache.layout) as on_disk:  # the dashboard's object also has results that it failed to write
        return on_disk.look_up(problem, chip) is not None


def _why_not() -> str:
    """Why nothing can be stored here; empty if something can."""
    cache = context.cache()
    if cache.settings.dashboard_read_only:
        return "Read-only dashboard: use gemm-cache evaluate, which stores it."
    return "" if os.access(cache.layout.root, os.W_OK) else "Read-only store: nothing can be stored here."
