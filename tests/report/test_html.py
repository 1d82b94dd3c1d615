"""A report is one safe file, whatever it is about."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.insight.report.drawing import Bar, Point, Roof, Series, bars, columns, roofs
from cache_engine.insight.report.kernels import kernel_report
from cache_engine.insight.report.page import (
    MOST_CHARACTERS,
    MOST_ROWS,
    POLICY,
    Command,
    Facts,
    Figure,
    Note,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
    moment,
    written,
)
from tests.pages.opening import a_record

HOSTILE = "<script>alert(1)</script>\"'&<img src=http://example.com/x onerror=alert(1)>\x1b[31m\u202e\x00\ud800"
VOID = {"meta"}


class Elements(HTMLParser):
    """The elements of a document with their attributes; every one must be closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element without content."""
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Checks that the innermost element is closed."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Notes text."""
        self.text.append(data)


def everything(text: str) -> Report:
    """A report that has this text wherever a report has one."""
    table = Table((text, "n"), ((text, "1"), (text, text)))
    bar = bars([Bar(text, 1, text), Bar(text, 0, text, muted=True)])
    column = columns([text], [Series(text, [1.0], [text])], stacked=True)
    roof = roofs([Roof(text, 1.0, 100.0, [Point(text, 10.0, 5.0)])], text, text)
    figures = [Figure(text, svg, table) for svg in (bar, column, roof)]
    parts: tuple[Part, ...] = (Facts({text: text}), table, *figures, Paragraph(text, text), Command(text), Note(text))
    return Report(text, text, text, (Section(text, parts),))


def test_hostile_text_stays_text_everywhere() -> None:
    harmless, hostile = (Elements(written(everything(text), 1e9)) for text in ("x" * len(HOSTILE), HOSTILE))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in harmless.found]
    assert [sorted(attributes) for _, attributes in hostile.found] == [
        sorted(attributes) for _, attributes in harmless.found
    ]
    assert "".join(hostile.text).count("<script>alert(1)</script>") > 20
    assert not set("".join(hostile.text)) & set("\x1b\u202e\x00\ud800")


def test_the_file_forbids_itself_all_that_could_load_or_run() -> None:
    text = written(everything(HOSTILE), 1e9)
    elements = Elements(text).found
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in elements
    assert POLICY.startswith("default-src 'none'")
    assert "script-src" not in POLICY
    tags = {tag for tag, _ in elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "a", "form", "use", "image"}
    named = {name for _, attributes in elements for name in attributes}
    assert not [name for name in named if name.startswith("on") or name in ("href", "src", "style", "srcset")]
    (style,) = re.findall("<style>(.*)</style>", text, re.DOTALL)
    assert not re.search("url|import", style)


def test_a_long_table_and_a_long_text_say_what_they_leave_out() -> None:
    rows = tuple((f"row {number}",) for number in range(MOST_ROWS + 5))
    line = "y" * 99
    text = "\n".join([line] * (MOST_CHARACTERS // 100 + 7))
    text = written(
        Report("t", "s", "c", (Section("h", (Table(("a",), rows, left_out=2), Paragraph("PTX", text))),)), 1e9
    )
    assert "Not shown: 7 more rows." in text
    assert f"row {MOST_ROWS - 1}<" in text
    assert f"row {MOST_ROWS}<" not in text
    assert f"{MOST_CHARACTERS // 100 + 7:,} lines; the first {MOST_CHARACTERS // 100:,} are here" in text
    assert text.count(line) == MOST_CHARACTERS // 100
    assert len(text) < 2 * MOST_CHARACTERS


@pytest.mark.parametrize(
    ("seconds", "words"), [(1e9, "2001-09-09 01:46 UTC"), (0.0, "never"), (-1.0, "never"), (1e18, "at an unknown time")]
)
def test_a_time_is_said_in_words_whatever_a_record_has(seconds: float, words: str) -> None:
    assert moment(seconds) == words


@pytest.mark.parametrize("value", [0.0, 1e18])
def test_figures_of_extreme_numbers_have_finite_sizes(value: float) -> None:
    drawn = bars([Bar("a", value, "a")]) + columns(["a", "b"], [Series("s", [value, 0.0], ["", ""])])
    drawn += bars([]) + columns([], [])
    assert not re.search('"(-|nan|inf)', drawn)


def test_bars_are_as_long_as_their_numbers() -> None:
    widths = [
        float(width) for width in re.findall(r' width="([\d.]+)" height', bars([Bar("a", 30, ""), Bar("b", 10, "")]))
    ]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)


def test_stacked_columns_stand_on_each_other() -> None:
    drawn = columns(["a"], [Series("s", [3.0], [""]), Series("t", [1.0], [""])], stacked=True)
    lower, upper = (
        (float(y), float(height))
        for y, height in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)[2:]
    )
    assert lower[1] == pytest.approx(3 * upper[1], rel=0.01)
    assert upper[0] + upper[1] == pytest.approx(lower[0], abs=0.2)


def test_a_report_predicts_for_the_gpus_of_the_kernels_own_target(tmp_path: Path) -> None:
    """As the page does: an L40S runs code of sm_86 too, and is no GPU of that target."""
    record = msgspec.structs.replace(a_record(), arch="sm_86")
    with open_cache(tmp_path / "store") as cache:
        page = written(kernel_report(cache, record), 0.0)
    assert all(f">{name}<" in page for name in ("A40", "A6000", "A10"))
    assert "L40S" not in page
