"""From one page to another after a choice was made: what a page keeps in the session breaks no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.addresses import moved
from tests.pages.opening import Open, sound

OTHERS = ("overview", "kernels", "compare", "architectures", "coverage", "demand", "evaluations", "admin")
KINDS = ("selectbox", "multiselect", "number_input", "text_input", "toggle", "checkbox")


def _keys(app: AppTest) -> set[str]:
    return {widget.key for kind in KINDS for widget in app.get(kind) if widget.key}


def _go(app: AppTest, page: str) -> None:
    """As a click on a link does: the address of the page that is left goes with it."""
    app.query_params.clear()
    page, asked = moved(page, {})
    for name, value in asked.items():
        app.query_params[name] = value
    app.switch_page(f"../pages/{page}.py")


@pytest.mark.parametrize("what", ["Single shape", "Whole model"])
def test_what_the_compile_form_remembers_has_a_name_on_no_other_page(
    open_page: Open, compiled_store: Path, what: str
) -> None:
    """Its fields outlive the page, so that of another page with the same key would take over their values."""
    kept = _keys(sound(open_page(compiled_store, "compile", what=what)))
    assert {"s_dtype", "t_dtype"} & kept
    for page in OTHERS:
        assert not kept & _keys(sound(open_page(compiled_store, page))), page


@pytest.mark.parametrize("page", ["coverage", "kernels"])
def test_a_dtype_chosen_elsewhere_breaks_no_compile_form(open_page: Open, compiled_store: Path, page: str) -> None:
    app = sound(open_page(compiled_store, page))
    if page == "kernels":
        app.multiselect(key="dtype").set_value(["fp16"])
    else:
        app.selectbox(key="dtype").set_value("fp16")
    sound(app.run())
    _go(app, "compile")
    assert sound(app.run()).selectbox(key="s_dtype").value == "bf16"
    app.selectbox(key="s_dtype").set_value("fp32")
    sound(app.run())
    _go(app, page)
    sound(app.run())
    _go(app, "compile")
    assert sound(app.run()).selectbox(key="s_dtype").value == "fp32"
