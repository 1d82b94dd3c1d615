"""Kernels, SQL: a query of the address or the field, its answer, and the query of a list."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.index.sql import EXAMPLES
from tests.pages.opening import Open, listed, sound, tables


def _rows(app: AppTest) -> list[list[str]]:
    (answer,) = (table for table in tables(app) if table["label"] == "Answer")
    return [[cell["text"] for cell in row] for row in answer["cells"]]


def test_the_query_of_a_link_is_shown_with_its_answer(open_page: Open, compiled_store: Path) -> None:
    query = "SELECT count(*) AS ms, 'x' AS s, '=1' AS s FROM ours"
    app = sound(open_page(compiled_store, "kernels", view="SQL", sql=query))
    assert app.text_area(key="sql").value == query
    assert _rows(app) == [["4", "x", "=1"]], "text, which only a file defuses"
    assert {"1 row"} <= {caption.value for caption in app.caption}
    assert any(query in code.value.replace("'\"'\"'", "'") for code in app.code), "the command"


def test_without_a_query_the_first_example_is_shown(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels", view="SQL"))
    assert app.text_area(key="sql").value == next(iter(EXAMPLES.values())).strip()
    assert _rows(app)
    title = "Size by shape of the weights"
    next(button for button in app.button if button.label == title).click().run()
    assert sound(app).text_area(key="sql").value == EXAMPLES[title].strip()
    assert _rows(app)


@pytest.mark.parametrize(
    "query", ["COPY kernels TO '/tmp/out.csv'", "SELECT", "", "SELECT * FROM read_csv('/etc/passwd')"]
)
def test_a_query_that_is_refused_is_a_sentence(open_page: Open, compiled_store: Path, query: str) -> None:
    app = open_page(compiled_store, "kernels", view="SQL", sql="SELECT 1")
    app.text_area(key="sql").set_value(query).run()
    assert not app.exception
    assert [error.value for error in app.error] == ["The query has no answer."]
    assert not [table for table in tables(app) if table["label"] == "Answer"]


def test_a_list_leads_to_its_query(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.text_input(key="q").set_value("sm_90").run()
    keys = [row["Key"] for row in listed(sound(app))]
    next(button for button in app.button if button.label == "as SQL").click().run()
    assert "contains(search_text, 'sm_90')" in (sound(app).text_area(key="sql").value or "")
    assert [row[0][:12] for row in _rows(app)] == keys
