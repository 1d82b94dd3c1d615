"""Figures as the dashboard draws them: marks where the values are, words on the marks, text only ever as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import app.components
from app.presenters.figure import Bars, Figure, Series, Sparkline

pytestmark = pytest.mark.browser
STATIC = Path(app.components.__file__).with_name("static")
HOSTILE = "<img src=x onerror=alert(1)>"
DRAW = """
async ([script, data]) => {
  window.drawing ??= (await import(URL.createObjectURL(new Blob([script], {type: 'text/javascript'})))).default;
  document.querySelector('#place')?.remove();
  document.body.append(Object.assign(document.createElement('div'), {id: 'place'}));
  window.drawing({data: [data], parentElement: document.querySelector('#place')});
}
"""
# Each mark's box in the figure, and whether any label is cut off by its edges.
MARKS = """
() => [...document.querySelectorAll('.mark')].map(mark => {
  const {x, y, width, height} = mark.getBBox();
  return {x, y, width, height, words: mark.dataset.words};
})
"""
CUT = """
() => {
  const place = document.querySelector('svg[role=img]').getBoundingClientRect();
  return [...document.querySelectorAll('svg[role=img] text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < place.left - 1 || box.right > place.right + 1 || box.bottom > place.bottom + 1;
  }).map(text => text.textContent);
}
"""


@pytest.fixture
def draw(page: Page) -> Callable[[Figure], list[dict[str, Any]]]:
    """Draws a figure on an empty page, as wide as that is; returns its marks."""
    page.set_content(f"<style>{(STATIC / 'figure.css').read_text()}</style>")
    script = (STATIC / "figure.js").read_text()

    def drawn(figure: Figure) -> list[dict[str, Any]]:
        page.evaluate(DRAW, [script, {"kind": type(figure).__name__, **asdict(figure)}])
        marks: list[dict[str, Any]] = page.evaluate(MARKS)
        return marks

    return drawn


def bars(**options: Any) -> Bars:
    """Two series in three groups with hostile names; the second group of the first series has no value."""
    groups = [f"{HOSTILE} {name}" for name in "abc"]
    first = Series("first", [1.0, None, 4.0], ["1", "", "4"], "#437a00")
    return Bars(
        "Title", groups, [first, Series(HOSTILE, [2.0, 3.0, 2.0], ["2", "3", "2 "], "#0072b2", "/")], "s", **options
    )


@pytest.mark.parametrize("width", [1000, 300])
def test_every_kind_of_figure_stands_at_its_values_and_fits(
    page: Page, draw: Callable[[Figure], list[dict[str, Any]]], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 600})

    marks = {mark["words"]: mark for mark in draw(bars())}
    assert set(marks) == {"1", "4", "2", "3", "2 "}, "nothing is drawn for what is not known"
    assert marks["4"]["height"] == pytest.approx(4 * marks["1"]["height"])
    assert {round(mark["y"] + mark["height"], 3) for mark in marks.values()} == {
        round(marks["1"]["y"] + marks["1"]["height"], 3)
    }, "bars stand on one line"
    assert marks["1"]["x"] + marks["1"]["width"] == pytest.approx(marks["2"]["x"]), "next to each other"
    assert page.locator("img").count() == 0, "text is no markup"
    assert page.evaluate(CUT) == []

    marks = {mark["words"]: mark for mark in draw(bars(stacked=True))}
    assert marks["2 "]["y"] + marks["2 "]["height"] == pytest.approx(marks["4"]["y"]), "on each other"

    steps = draw(Sparkline(HOSTILE, [1.0, 3.0, 2.0, 1.0], ["one", HOSTILE, "two", "one again"]))
    assert [mark["words"] for mark in steps] == ["one", HOSTILE, "two", "one again"]
    up = [float(point.split()[1]) for point in path(page, ".course")]
    assert up[0] == up[3] == max(up)
    assert up[0] - up[2] == pytest.approx((up[0] - up[1]) / 2), "a line through the values"
    assert (page.get_by_role("img").get_attribute("aria-label"), page.locator("img").count()) == (HOSTILE, 0)
    draw(Sparkline("Even", [5.0, 5.0], ["5", "5"]))
    assert [point.split() for point in path(page, ".course")] == [["0", "28"], [f"{width - 16}", "28"]]


def path(page: Page, mark: str) -> list[str]:
    """The points of a path that is drawn."""
    return (page.locator(mark).get_attribute("d") or "").removeprefix("M").split("L")


def test_names_are_cut_in_their_middle_and_a_unit_of_a_letter_stands_after_the_title(
    page: Page, draw: Callable[[Figure], list[dict[str, Any]]]
) -> None:
    page.set_viewport_size({"width": 300, "height": 600})
    groups = [f"128 × m × 1536 × 2048 × 7168 bf16 {arch}" for arch in ("sm_80", "sm_90")]
    series = [Series("", [1.0, 2.0], ["1", "2"], "#437a00")]
    draw(Bars("Shares", groups, series, "Share"))
    said = page.locator("svg[role=img] text").all_text_contents()
    assert [text.split("…")[1][-5:] for text in said if "…" in text] == ["sm_80", "sm_90"], "they can be told apart"
    draw(
        Bars(
            "Compile time",
            ["a", "b", "c"],
            [Series("", [1.0, 2.0, 3.0], ["1", "2", "3"], "#437a00")],
            "s",
            names=["", "x", ""],
        )
    )
    assert page.locator("figcaption").text_content() == "Compile time, s"
    assert page.locator("svg[role=img] text").all_text_contents()[-1:] == ["x"], "a name that is empty is not drawn"
    assert page.get_by_text("s", exact=True).count() == 0


def test_a_mark_says_its_words_and_a_figure_follows_the_width_of_its_place(
    page: Page, draw: Callable[[Figure], list[dict[str, Any]]]
) -> None:
    page.set_viewport_size({"width": 1000, "height": 600})
    draw(bars())
    page.locator(".mark").first.hover()
    expect(page.locator(".words")).to_have_text("1")
    page.mouse.move(990, 590)
    expect(page.locator(".words")).to_have_count(0)
    page.set_viewport_size({"width": 400, "height": 600})
    expect(page.locator("svg[role=img]")).to_have_attribute("width", "384")
    draw(Bars("Nothing", ["a"], [Series("", [0.0], ["0"], "#437a00")], "Hits"))
    assert page.locator("svg[role=img] text").all_text_contents() == ["0", "Hits", "a"]
