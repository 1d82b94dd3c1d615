"""What the browser gets of linked code, and that its program is built of what is here."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from app.components.code_view import component as documents
from app.components.code_view.component import document
from cache_engine.insight.linked.marks import PTX, SASS, SOURCE, Linked, PaneText, Value, linked

VIEW = Path(documents.__file__).parent
OWN = ("/home/a/kernel.cu", 2)
VALUES = [Value("R1", (), (2,)), Value("R2", (1,), (2,))]


def _code(**changed: list[str]) -> Linked:
    lines = {SOURCE: ["#define A", "x = y;"], PTX: ["add;", "mul;"], SASS: [".L_x_1:", "  /*0000*/  STL [R1], R2  ;"]}
    lines |= changed
    return linked(
        [
            PaneText(SOURCE, "cuda", lines[SOURCE]),
            PaneText(PTX, "ptx", lines[PTX], [(), (OWN,)]),
            PaneText(SASS, "sass", lines[SASS], [(), (("/lib/a.h", 9), OWN)], [0, 2], [0, 17], [-1, 5], VALUES),
        ]
    )


def test_lines_are_numbers_of_chains_and_each_chain_is_there_once() -> None:
    shown = document(_code(), "abc")
    assert json.dumps(shown)
    source, ptx, sass = shown["panes"]
    assert [[shown["chains"][number] for number in pane["chain"]] for pane in (source, ptx, sass)] == [
        [[1], [2]],
        [[], [2]],
        [[], [2]],
    ]
    assert len(shown["chains"]) == 3
    assert (sass["ptx"], sass["registers"], sass["kinds"]) == ([0, 2], [0, 17], ["", "local"])
    assert (sass["stalls"], sass["values"]) == ([-1, 5], [["R1", (), (2,)], ["R2", (1,), (2,)]])
    assert [pane["file"] for pane in shown["panes"]] == ["abc.cu", "abc.ptx", "abc.sass"]


def test_text_stays_as_it_is_also_where_it_looks_like_a_page() -> None:
    hostile = "</script><img src=x onerror=alert(1)> \u202e \x1b[31m \ud800"
    (pane, *_) = document(_code(Source=[hostile, "x"]), "abc")["panes"]
    assert pane["text"] == f"{hostile}\nx"


def test_what_no_browser_bears_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 3 * 10)
    source, ptx, sass = document(_code(), "abc")["panes"]
    assert (source["lines"], source["text"]) == (1, "#define A")
    assert (ptx["lines"], sass["lines"]) == (2, 1)
    assert len(sass["chain"]) == len(sass["kinds"]) == len(sass["stalls"]) == 1
    assert sass["values"] == []


def test_the_program_is_built_of_what_is_here() -> None:
    """As ``frontend/build.mjs`` computes it; after a change there: npm ci && npm run build."""
    frontend = VIEW / "frontend"
    named = [path for path in frontend.iterdir() if path.suffix in {".js", ".mjs"} or path.name == "package-lock.json"]
    digest = hashlib.sha256()
    for path in sorted(named, key=lambda path: path.name):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    built = {path.name for path in (VIEW / "built").iterdir()}
    assert built == {f"code-{digest.hexdigest()[:16]}.js", "LICENCES.txt"}


def test_packages_are_pinned_by_version_and_content_and_their_licences_travel_along() -> None:
    frontend = VIEW / "frontend"
    wanted = json.loads((frontend / "package.json").read_text())
    locked = json.loads((frontend / "package-lock.json").read_text())["packages"]
    for name, version in {**wanted["dependencies"], **wanted["devDependencies"]}.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert locked[f"node_modules/{name}"]["version"] == version
    assert all(each["integrity"].startswith("sha512-") for path, each in locked.items() if path)
    licences = (VIEW / "built" / "LICENCES.txt").read_text()
    for name in wanted["dependencies"]:
        assert re.search(rf"^{name} [\d.]+ \(MIT\)$", licences, re.MULTILINE), name


def test_no_text_becomes_part_of_a_page() -> None:
    """The program makes elements and sets their text."""
    for path in (VIEW / "frontend").glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()), path
