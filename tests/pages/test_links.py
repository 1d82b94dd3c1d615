"""Links that ask for what does not exist here: it is named, and the page is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.widgets import _is_shown
from tests.pages.opening import Open, sound
from tests.pages.test_all_pages import HOSTILE

SAID = "The link asks for what does not exist here. The defaults are shown."


def _named(app: AppTest) -> list[str]:
    """The lines below the warning, if there is one."""
    said = [warning.value for warning in sound(app).warning]
    return app.text[0].value.splitlines() if SAID in said else []


@pytest.mark.parametrize(
    ("page", "given", "named"),
    [
        ("overview", {"span": "3 weeks"}, ["span = 3 weeks"]),
        ("coverage", {"model": "GPT-9", "dtype": "bf16"}, ["model = GPT-9"]),
        ("compile", {"s_m": "-5", "s_n": "64", "s_dtype": "fp3"}, ["s_m = -5", "s_dtype = fp3"]),
        ("compile", {"what": "Both"}, ["what = Both"]),
        ("evaluations", {"e_chip": "H9000", "e_m": "1e99"}, ["e_chip = H9000", "s_m = 1e99"]),
        ("demand", {"span": "1 hour"}, ["span = 1 hour"]),
        ("admin", {"rule": "some"}, ["rule = some"]),
    ],
    ids=str,
)
def test_values_that_do_not_exist_are_named(
    open_page: Open, compiled_store: Path, page: str, given: dict[str, str], named: list[str]
) -> None:
    app = open_page(compiled_store, page, **given)
    assert sorted(_named(app)) == sorted(named)
    assert _named(app.run()) == [], "once the page was opened, its widgets say what it shows"


@pytest.mark.parametrize(
    ("page", "given"),
    [
        ("overview", {"span": "90 days"}),
        ("overview", {"span": "7 days"}),
        ("overview", {"span": ""}),
        ("coverage", {"model": "Qwen3-0.6B", "dtype": "fp16", "archs": "sm_90", "missing": "true"}),
        ("compile", {"t_m": "64", "t_arch": "sm_80"}),
        ("evaluations", {"e_kind": "Saved results"}),
        ("evaluations", {"e_m": "64", "e_chip": "H100"}),
        ("admin", {"tab": "Decisions"}),
        ("admin", {"rule": "entries", "keep": "7"}),
        ("kernels", {"arch": "sm_90", "sort": "hits", "asc": "true"}),
        ("demand", {"span": "24 hours", "by": "Kernel"}),  # which an older version had
    ],
    ids=str,
)
def test_what_exists_is_shown_without_a_word(
    open_page: Open, compiled_store: Path, page: str, given: dict[str, str]
) -> None:
    assert _named(open_page(compiled_store, page, **given)) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_value_is_only_ever_text(open_page: Open, compiled_store: Path, text: str) -> None:
    app = open_page(compiled_store, "overview", span=text)
    assert _named(app) == [f"span = {text}"]
    assert all(text not in one.value for one in (*app.markdown, *app.warning))


@pytest.mark.parametrize(
    ("value", "shown", "is_shown"),
    [("3", 3, True), ("3", 3.0, True), ("x", 3, False), ("true", True, True), ("true", False, False),
     ("a", ["b", "a"], True), ("a", [], False), ("a", "a", True), ("a", None, False)],
)  # fmt: skip
def test_a_widget_shows_what_the_address_says(value: str, shown: Any, is_shown: bool) -> None:
    assert _is_shown(value, shown) is is_shown
