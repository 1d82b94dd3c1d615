"""The site that ``make docs`` builds: every public name is there, no link is broken, nothing comes from the web."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.helpers import public_names

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make docs`` builds it. Strict: a page outside the navigation or a broken link fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_in_the_reference_and_says_what_it_is(site: Path) -> None:
    page = (site / "api.html").read_text()
    for name in public_names():
        _, found, entry = page.partition(f'<h3 id="{name}"')
        assert found, name
        contents = entry.partition('class="doc doc-contents')[2].partition(">")[2]
        first = re.match(r'\s*(?:<p class="doc doc-class-bases">.*?</p>)?\s*<p>(.*?)</p>', contents, re.DOTALL)
        assert first is not None, name
        assert re.match(r"\S.{9,}", unescape(re.sub("<.*?>", "", first[1]))), name
    assert ":::" not in page


def test_no_page_loads_anything_from_the_web(site: Path) -> None:
    """Links that a reader may follow are of ``<a>``; all else is loaded."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?!a\b)\w+[^>]*\s(?:src|href)=[\"']?(?:https?:)?//[^\"'> ]*", page.read_text())
        assert loaded == [], page.name


def test_no_list_is_run_together_as_text(site: Path) -> None:
    """Markdown here and elsewhere: a list right below a line of text is none in one of them."""
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.DOTALL)
        assert re.findall(r"<(?:p|li)>[^<]*\n(?:[-*] |\d+\. )[^\n]*", text) == [], page.name
        assert not re.search(r"<p>\|.*\|\s*\n\|", text), page.name
