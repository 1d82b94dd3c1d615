"""What the tests of pages share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas
import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.index.connection import Attaching
from cache_engine.model.artifact import Record
from cache_engine.store.codec import encode_blob
from cache_engine.units import FORMULA
from cache_engine.upkeep.admission import Request
from tests.helpers import make_entry

Open = Callable[..., AppTest]
HERE = Request("127.0.0.1", "", {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501"})


@dataclass
class Reader:
    """Visitors of the pages: how they connect."""

    request: Request = HERE


def openings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows by each time that the index was opened to be read."""
    opened: list[object] = []
    detach = Attaching._detach

    def noted(*given: Any) -> None:
        opened.append(given)
        detach(*given)

    monkeypatch.setattr(Attaching, "_detach", noted)
    return opened


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app


def code_of(app: AppTest) -> dict[str, str]:
    """The texts of the panes of code on the page, by their names."""
    (view,) = (each for each in components(app) if "chains" in each)
    return {pane["name"]: pane["text"] for pane in view["panes"]}


def as_shown(text: str) -> str:
    """The text of a cell as a table shows it: what its toolbar saves has an apostrophe before a formula."""
    return text[1:] if text.startswith("'") and re.match(FORMULA, text[1:]) else text


def listed(app: AppTest) -> list[dict[str, str]]:
    """The first list of kernels or entries on the page, a row each, as its component gets it."""
    told = next(one for one in components(app) if "rows" in one and "kind" not in one)
    names = [column["name"] for column in told["columns"]]
    return [dict(zip(names, [cell["text"] for cell in row["cells"]], strict=True)) for row in told["rows"]]


def drawn(app: AppTest) -> list[dict[str, Any]]:
    """The figures on the page, as their component gets them."""
    return [one for one in components(app) if "kind" in one]


def tabled(app: AppTest, column: str) -> list[dict[str, str]]:
    """The first plain table on the page that has this column, a row each: what is shown, or where a link leads."""
    told = next(table for table in tables(app) if column in (one["name"] for one in table["columns"]))
    names = [one["name"] for one in told["columns"]]
    return [
        {name: cell.get("href", cell["text"]) for name, cell in zip(names, cells, strict=True)}
        for cells in told["cells"]
    ]


def tables(app: AppTest) -> list[dict[str, Any]]:
    """The plain tables on the page, as their component gets them."""
    return [one for one in components(app) if "cells" in one]


def frames(app: AppTest) -> list[pandas.DataFrame]:
    """The grids on the page, then its plain tables: numbers, else texts. Column ``X →`` has where links of X lead."""
    return [*(grid.value for grid in app.dataframe), *(pandas.DataFrame(_rows(told)) for told in tables(app))]


def _rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for cells in told["cells"]:
        named = dict(zip([one["name"] for one in told["columns"]], cells, strict=True))
        row = {name: cell.get("value", cell["text"]) for name, cell in named.items()}
        rows.append(row | {f"{name} →": cell["href"] for name, cell in named.items() if "href" in cell})
    return rows


def components(app: AppTest) -> list[dict[str, Any]]:
    """What each component gets; those of ``app.components.mount`` as the one item of a list."""
    told = (json.loads(one.proto.json) for one in app.get("bidi_component"))
    return [one[0] if isinstance(one, list) else one for one in told]


def a_record(seed: int = 1) -> Record:
    """A record of bytes made up, for tests of words and figures."""
    key, artifact, describe = make_entry(seed)
    return describe(encode_blob(key, artifact, compress=True)[1])
