"""Addresses of Compile, Predict and Storage with values that nobody types: no page breaks, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.batch.jobs import Jobs
from cache_engine.store.layout import StoreLayout
from tests.helpers import make_store
from tests.pages.opening import Open
from tests.pages.test_all_pages import HOSTILE

ENDLESS = ("1e999", "9" * 500)
"""For fields of Streamlit's alone, ``app.serve`` makes these finite; ``browser/test_gate.py`` opens such a link."""
NUMBERS = ("nan", "-1", "0", "-1e30", "²", "0x10", "", "1_0", " 7 ")
TEXTS = (*HOSTILE, "x" * 5000, "../../etc", "None")


@pytest.mark.parametrize("page", ["compile", "predict"])
@pytest.mark.parametrize("value", [*NUMBERS, *ENDLESS, *TEXTS])
def test_no_value_of_the_form_breaks_a_page(open_page: Open, compiled_store: Path, page: str, value: str) -> None:
    names = ("m", "batch", "dtype", "layout", "arch", "epilogue", "scales", "opt_level", "fast_math", "config", "force")
    app = open_page(compiled_store, page, **{f"s_{name}": value for name in names})
    assert not app.exception
    assert (app.number_input(key="s_m").value, app.selectbox(key="s_dtype").value) == (4096, "bf16")
    assert not Jobs(StoreLayout(compiled_store)).recent()


@pytest.mark.parametrize("value", [*NUMBERS, *HOSTILE])
def test_no_value_of_a_whole_model_breaks_predict(open_page: Open, compiled_store: Path, value: str) -> None:
    names = ("tokens", "phase", "tp", "ep", "dp", "skew", "chip", "other", "q")
    app = open_page(
        compiled_store, "predict", e_kind="Whole model", own=value, **{f"e_{name}": value for name in names}
    )
    assert not app.exception


@pytest.mark.parametrize("what", ["Whole model", "Tune"])
@pytest.mark.parametrize("value", [NUMBERS[0], ENDLESS[1], *HOSTILE])
def test_no_value_of_the_other_forms_breaks_compile(
    open_page: Open, compiled_store: Path, what: str, value: str
) -> None:
    names = ("model", "targets", "tokens", "top", "families", "compiler", "mode")
    app = open_page(compiled_store, "compile", what=what, job=value, **{f"s_{name}": value for name in names})
    assert not app.exception
    assert not Jobs(StoreLayout(compiled_store)).recent()


# Rules that read a value; and one that does not exist.
@pytest.mark.parametrize(("tab", "rule"), [
    *(("This store", rule) for rule in ("expired", "entries", "bytes", "disk", "archs", "keys", "<b>")),
    *(("Other frameworks", rule) for rule in ("expired", "bytes", "versions")),
])  # fmt: skip
@pytest.mark.parametrize("value", [*NUMBERS[:5], *HOSTILE])
def test_no_value_of_a_rule_breaks_storage_or_deletes(
    open_page: Open, compiled_store: Path, home: Path, tab: str, rule: str, value: str
) -> None:
    names = ("days", "keep", "size", "share", "archs", "keys", "versions", "words", "kind", "state", "irs")
    app = open_page(compiled_store, "storage", clean=tab, rule=rule, **dict.fromkeys(names, value))
    assert not app.exception
    assert len(list(make_store(compiled_store).keys())) == 4


@pytest.mark.parametrize("value", HOSTILE)
def test_no_filter_breaks_the_log(open_page: Open, compiled_store: Path, value: str) -> None:
    app = open_page(compiled_store, "storage", tab="Log", kind=value, about=value)
    assert not app.exception
    assert not app.error


def test_a_kind_of_other_frameworks_entries_is_no_filter_of_the_log(open_page: Open, compiled_store: Path) -> None:
    """Both fields have the name ``kind`` in the address."""
    app = open_page(compiled_store, "storage", clean="Other frameworks", kind="triton")
    app.query_params["part"] = "Log"
    app.session_state["part"] = "Log"
    assert not app.run().exception
