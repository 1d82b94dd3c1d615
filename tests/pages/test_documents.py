"""The documents in the dashboard."""

from __future__ import annotations

import re
from pathlib import Path

from cache_engine.assets import documents, readable
from tests.pages.opening import Open, sound


def test_links_lead_from_document_to_document_and_nothing_else_is_a_link() -> None:
    text = (
        "![a](images/a.png) [p](policy.md#value) [up](../key.md) [code](../../LICENSE) [web](https://x.org) [here](#x)"
    )
    names = {"policy", "key", "decisions/0001-a", "decisions/policy"}
    assert readable(text, "decisions/0001-a", names).strip() == (
        "[p](docs?document=decisions/policy#value) [up](docs?document=key) code [web](https://x.org) [here](#x)"
    )


def test_every_link_of_every_document_leads_to_one_that_is_there() -> None:
    found = documents()
    assert next(iter(found)) == "index"
    for name, path in found.items():
        shown = readable(path.read_text(), name, set(found))
        assert set(re.findall(r"\]\(docs\?document=([^)#]*)", shown)) <= set(found)
        assert not re.search(r"\]\([^):]*\.md", shown), name


def test_the_page_shows_the_document_of_its_address_and_no_other_file(open_page: Open, tmp_path: Path) -> None:
    app = sound(open_page(tmp_path / "store", "docs", document="policy"))
    assert any("Log of decisions" in one.value for one in app.markdown)
    app = sound(open_page(tmp_path / "store", "docs", document="../pyproject"))
    assert app.selectbox(key="document").value == "index"
