"""From one page to another after a choice was made: what a page keeps in the session breaks no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from app.addresses import moved
from app.presenters.forms import address_of, prediction_form, present_names, problem_of, values_of
from cache_engine.model.gemm import GemmProblem
from tests.helpers import make_store
from tests.pages.opening import Open, sound

OTHERS = ("overview", "kernels", "compare", "architectures", "coverage", "demand", "admin")  # Predict has the form too
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
    assert "s_dtype" in kept
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


FORM = prediction_form("sm_90")
TYPED: dict[str, tuple[str, object, str]] = {
    "s_m": ("number_input", 33, "33"),
    "s_batch": ("number_input", 3, "3"),
    "s_dtype": ("selectbox", "fp16", "fp16"),
    "s_layout": ("selectbox", "tn", "tn"),
    "s_arch": ("selectbox", "sm_80", "sm_80"),
    "s_epilogue": ("multiselect", ["relu"], "relu"),
    "s_opt_level": ("selectbox", "2", "2"),
    "s_config": ("text_input", "64x64x32_w2x2_s3", "64x64x32_w2x2_s3"),
}
"""For each of these fields: the kind of its widget, a value that is not its default, and that value in an address."""


def _field(app: AppTest, name: str) -> Any:
    return next(one for one in app.get(TYPED[name][0]) if one.key == name)


def test_the_values_of_the_form_follow_the_reader_to_predict_and_back(open_page: Open, compiled_store: Path) -> None:
    """``browser/test_compile.py`` reloads both pages from the address."""
    app = sound(open_page(compiled_store, "compile"))
    for name, (_, value, _) in TYPED.items():
        _field(app, name).set_value(value)
    app.run()
    for page in ("predict", "compile"):
        _go(app, page)
        sound(app.run())
        assert {name: _field(app, name).value for name in TYPED} == {name: each[1] for name, each in TYPED.items()}
        assert {name: app.query_params[name] for name in TYPED} == {name: each[2] for name, each in TYPED.items()}


@pytest.mark.parametrize("page", ["compile", "predict"])
def test_an_address_alone_fills_in_the_form_of_either_page(open_page: Open, compiled_store: Path, page: str) -> None:
    app = sound(open_page(compiled_store, page, **{name: each[2] for name, each in TYPED.items()}))
    assert {name: _field(app, name).value for name in TYPED} == {name: each[1] for name, each in TYPED.items()}
    assert not app.warning


def test_a_link_has_all_values_so_that_those_typed_before_do_not_remain(open_page: Open, compiled_store: Path) -> None:
    problem = GemmProblem(16, 64, 32, arch="sm_90", epilogue="alpha+relu", fast_math=False, opt_level=1)
    values = values_of(problem)
    assert problem_of(values) == problem
    assert {one.key for one in FORM} - set(address_of(FORM, values)) == {
        "s_compiler", "s_family", "s_config",
    }  # fmt: skip
    app = sound(open_page(compiled_store, "compile", s_epilogue="bias", s_dtype="fp16"))
    _go(app, "kernels")
    sound(app.run())
    app.query_params.update(address_of(FORM, values_of(GemmProblem(16, 64, 32, arch="sm_90"))))
    app.switch_page("../pages/compile.py")
    sound(app.run())
    assert (app.multiselect(key="s_epilogue").value, app.selectbox(key="s_dtype").value) == ([], "bf16")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"t_model": ["X"], "t_arch": ["a", "b"]}, {"s_model": ["X"], "s_targets": ["a", "b"]}),
        ({"u_top": ["3"], "u_families": ["simt"]}, {"s_top": ["3"], "s_families": ["simt"]}),
        ({"e_m": ["1"], "e_dtype": ["fp8"]}, {"s_m": ["1"], "s_dtype": ["fp8_e4m3"]}),
        ({"e_model_dtype": ["fp32"], "e_chip": ["H100"]}, {"s_dtype": ["fp32"], "e_chip": ["H100"]}),
        ({"what": ["Tune"], "s_m": ["9"], "e_tokens": ["9"]}, {"what": ["Tune"], "s_m": ["9"], "e_tokens": ["9"]}),
    ],
)  # fmt: skip
def test_fields_of_earlier_addresses_have_their_present_names(
    old: dict[str, list[str]], new: dict[str, list[str]]
) -> None:
    assert present_names(old) == new


@pytest.mark.parametrize("label", ["Open in Compile", "Open in Predict"])
def test_a_kernels_page_leads_to_the_form_with_all_its_values(
    open_page: Open, compiled_store: Path, label: str
) -> None:
    record = next(one for one in make_store(compiled_store).records() if one.arch == "sm_80")
    app = sound(open_page(compiled_store, "kernel", key=record.key))
    (link,) = (one.proto for one in app.get("page_link") if one.proto.label == label)
    app.query_params.clear()
    app.query_params.update(parse_qs(link.query_string, keep_blank_values=True))
    app.switch_page(f"../pages/{link.page}.py")
    sound(app.run())
    shown = tuple(app.number_input(key=f"s_{name}").value for name in "mnk")
    assert shown == (record.problem.m, record.problem.n, record.problem.k)
    assert app.selectbox(key="s_arch").value == "sm_80"
    assert app.text_input(key="s_config").value == str(record.config)
    if label == "Open in Compile":
        assert f"{record.name}, by {record.compiler}: cached" in [text.value for text in app.text]


def test_a_quick_reader_loses_no_value_typed_before(open_page: Open, compiled_store: Path) -> None:
    """The browser sends each change with its address, which may not have the values of the change before yet."""
    app = sound(open_page(compiled_store, "compile"))
    app.number_input(key="s_n").set_value(96)
    sound(app.run())
    app.query_params.clear()
    app.number_input(key="s_k").set_value(64)
    sound(app.run())
    app.query_params.clear()
    next(one for one in app.button if one.label == "Explain the miss").click()
    sound(app.run())
    assert [app.number_input(key=key).value for key in ("s_n", "s_k")] == [96, 64]
    assert app.query_params["s_n"] == "96"
    app.query_params.clear()  # the reader went back
    sound(app.run())
    assert app.number_input(key="s_n").value != 96


def test_a_quick_reader_loses_no_filter_and_no_search(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.multiselect(key="arch").set_value(["sm_90"])
    sound(app.run())
    app.query_params.clear()
    app.text_input(key="q").set_value("fp16")
    sound(app.run())
    assert app.multiselect(key="arch").value == ["sm_90"]
    app.text_input(key="q").set_value("hopper")
    app.segmented_control(key="view").set_value("Other frameworks")
    assert sound(app.run()).session_state["words"] == "hopper"


def test_a_quick_reader_deletes_by_the_rule_that_is_shown(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin"))
    app.radio(key="rule").set_value("all")
    sound(app.run())
    app.query_params.clear()
    app.text_input(key="confirm").set_value("4")
    assert sound(app.run()).radio(key="rule").value == "all"
    app.query_params.clear()
    next(one for one in app.button if one.label == "Delete 4 kernels").click()
    assert sound(app.run()).success[0].value.startswith("Deleted 4 kernels")
    app.query_params.clear()  # the reader went back
    assert sound(app.run()).radio(key="rule").value != "all"


def test_a_quick_reader_keeps_the_part_of_the_time_range(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    first, last = app.select_slider[0].value
    part = (first + 6 * 3600, last)
    app.select_slider[0].set_value(part)
    sound(app.run())
    app.query_params.clear()
    next(one for one in app.button if one.label == "Search").click()
    assert sound(app.run()).select_slider[0].value == part
    assert app.query_params["from"] == str(part[0])


@pytest.mark.parametrize(("part", "shown"), [("Of a model", "Of a model"), ("", "Asked for")])
def test_a_choice_of_one_page_is_none_of_another_that_has_the_same_name_for_its_own(
    open_page: Open, compiled_store: Path, part: str, shown: str
) -> None:
    """As a link of the search leads from Storage to Workload."""
    app = sound(open_page(compiled_store, "admin", part="Check"))
    app.query_params.clear()
    if part:
        app.query_params["part"] = part
    app.switch_page("../pages/workload.py")
    assert sound(app.run()).segmented_control(key="part").value == shown
