"""The documents tell the truth where a machine can check it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from cache_engine import Cache, errors
from cache_engine.cli.main import commands
from cache_engine.settings import SETTINGS
from tests.helpers import public_names

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text()


@pytest.mark.parametrize("verb", sorted(commands.commands))
def test_every_verb_and_option_is_documented(verb: str) -> None:
    assert f"`{verb}" in COMMAND_LINE
    for parameter in commands.commands[verb].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert any(name in COMMAND_LINE for name in parameter.opts), parameter.opts


def test_the_help_of_every_verb_is_in_the_page_word_for_word() -> None:
    """Synopsis, options with defaults, examples, exit codes; and no verb lacks its part."""
    program = "import sys; sys.path.insert(0, 'docs'); import write_command_line as w; print(w.page(), end='')"
    written = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert written.stdout == COMMAND_LINE, "python docs/write_command_line.py"
    program = program.replace("print(w.page(), end='')", "print(*(name for name, _ in w.verbs()), sep='\\n')")
    verbs = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(verbs.stdout.splitlines()) == sorted(re.findall("<!-- help of (.*) -->", COMMAND_LINE))


def test_every_setting_is_in_its_page_word_for_word() -> None:
    program = "import sys; sys.path.insert(0, 'docs'); import write_command_line as w; print(w.settings_page(), end='')"
    written = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert written.stdout == SETTINGS_PAGE, "python docs/write_command_line.py"
    for setting in SETTINGS:
        assert re.search(
            rf"^\| `{setting.name}` \|.*\| {re.escape(setting.metadata['help'])} \|$", SETTINGS_PAGE, re.MULTILINE
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if not target.startswith("https://"):
            path = page.parent / target if target else page
            assert path.exists(), target
            assert not heading or heading in _anchors(path.read_text()), f"{target}#{heading}"


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


README = (ROOT / "README.md").read_text()
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.mark.parametrize("message", re.findall("^### `(.*)`$", TROUBLE, re.MULTILINE))
def test_every_message_of_the_troubleshooting_page_is_one_that_the_program_prints(message: str) -> None:
    for part in message.split("…"):
        assert part.strip() in _texts(), part


@functools.cache
def _texts() -> str:
    """All texts in the program, in one."""
    files = (path.read_text() for path in (ROOT / "cache_engine").rglob("*.py"))
    nodes = (node for file in files for node in ast.walk(ast.parse(file)))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_error_is_on_the_troubleshooting_page_with_its_exit_code() -> None:
    from cache_engine.cli.support import _code_of

    rows = re.findall(r"^\| ([123]) \| (.*?) \|", TROUBLE, re.MULTILINE)
    named = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    defined = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    raised = {name: value for name, value in defined.items() if issubclass(value, errors.GemmCacheError)}
    made = {
        name: error("", log="", source="", flags=()) if issubclass(error, errors.CompileError) else error("")
        for name, error in raised.items()
    }
    assert named == {name: _code_of(error) for name, error in made.items()}
    assert len(named) > 25


def _rows(page: str, heading: str) -> list[list[str]]:
    """The rows of the table below a line that starts so."""
    table = re.search(rf"^{re.escape(heading)}.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", _page(page), re.MULTILINE)
    assert table is not None, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def _page(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def test_each_verb_that_needs_an_extra_is_in_its_row_and_no_other_verb_is_named() -> None:
    from tests.test_light_install import CORE, VERBS, _every_verb

    named = {
        extra.strip("`"): re.findall("`([^`]+)`", adds) for extra, adds, _ in _rows("installation.md", "| extra |")
    }
    for verb in _every_verb():
        extra = VERBS[verb][1]
        rows = [row for row, names in named.items() if verb in names or verb.split()[0] in names]
        assert rows == ([] if extra == CORE else [extra]), verb
    known = {
        *commands.commands,
        *(name.rpartition(".")[2] for name in public_names()),
        *(setting.name for setting in SETTINGS),
    }
    assert {re.split(r"[ .]", name)[0] for names in named.values() for name in names} <= known


def test_sizes_of_the_installation_are_those_of_the_readme() -> None:
    row = r'^\| `pip install "\$\{wheel\}(?:\[(\w+)\])?"` \|.*\| (.*) \| (.*) \|$'
    of_readme = re.findall(row, README, re.MULTILINE)
    sizes = {row[0].strip("`"): row[1:3] for row in _rows("installation.md", "| | to download |")}
    assert len(of_readme) == 4
    for extra, download, disk in of_readme:
        size = sizes[extra or "core"]
        assert [size[0], size[1].partition(", 142 MB of it")[0]] == [download, disk]


def test_the_glossary_and_the_compilers_are_those_there_are() -> None:
    from cache_engine.compilers import COMPILERS
    from cache_engine.kernels.select import FAMILIES

    words = {word.strip("*"): meaning for word, meaning in _rows("concepts.md", "| word |")}
    assert re.findall(r"`(\w+)`", words["Family"]) == list(FAMILIES)
    assert [row[0].strip("`") for row in _rows("compilers.md", "| `--compiler` |")] == list(COMPILERS)


def test_the_files_that_contributing_names_exist() -> None:
    """As paths of the package, of the checkout, or of the tests."""
    named = set(re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.[a-z]+)?)`", _page("contributing.md") + _page("new-family.md")))
    made = {"site/", "temp/", "static/"}
    assert len(named) > 30
    assert [
        name
        for name in sorted(named - made)
        if not any((ROOT / top / name).exists() for top in ("", "cache_engine", "tests"))
    ] == []


def test_the_first_page_leads_to_every_other() -> None:
    linked = set(re.findall(r"\]\((?:\.\./)?([\w/-]+\.md)", _page("index.md")))
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed - linked == {"index.md"}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """What ``make docs`` would refuse, without building the site."""
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    elsewhere = {page for page in pages if page.startswith(("decisions/0", "records/"))} | {"package.md"}
    assert pages - elsewhere == set(listed) - {"CHANGELOG.md", "SECURITY.md"}, "mkdocs.yml"
    assert len(listed) == len(set(listed)) > 15


def test_every_public_name_is_in_the_reference() -> None:
    """What ``make docs`` then takes from docstrings."""
    listed = re.findall(r"^::: (cache_engine\.[\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(public_names()), "docs/api.md"


def _returned(method: Any) -> set[str]:
    """The names in the return type of a method or property, without those of Python."""
    made = inspect.unwrap(getattr(method, "fget", None) or getattr(method, "func", None) or method)
    words = set(re.findall(r"[A-Z]\w+", str(made.__annotations__.get("return", ""))))
    return words - {"None", "Iterator", "Any", "Path", "Callable"}


def test_what_methods_of_a_cache_return_is_public_or_named_as_what_may_change() -> None:
    page = _page("api.md")
    may_change = set(re.findall(r"`(\w+)`", page.partition("**Parts of a cache**")[2].partition("**Units**")[0]))
    returned = {name: _returned(inspect.getattr_static(Cache, name)) for name in dir(Cache) if not name.startswith("_")}
    public = {name.rpartition(".")[2] for name in public_names()}
    returned = {name: names - public for name, names in returned.items()}
    hidden = {name for name, names in returned.items() if names}
    assert hidden - may_change == set()
    assert may_change - hidden == {"Cache", "journal", "packs", "selector", "query"}, "without types of ours here"


@pytest.mark.parametrize(
    ("script", "picture"),
    [("draw_house", "house"), ("draw_groups", "kernel-grouped"), ("draw_m", "m-and-kernels")],
)
def test_a_picture_is_what_its_script_draws(script: str, picture: str) -> None:
    program = f"import sys; sys.path.insert(0, 'docs'); import {script}; print({script}.draw(), end='')"
    drawn = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = (ROOT / "docs" / "images" / f"{picture}.svg").read_text(encoding="utf-8")
    assert found == drawn, f"python docs/{script}.py"


def test_the_description_of_the_package_has_no_link_that_could_lead_nowhere() -> None:
    """It is shown where neither the documents nor the pictures are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / project["readme"]).read_text()
    assert re.findall(r"\]\(|<a |<img |://", text) == []
    assert "source distribution" in text


def test_the_dockerfile_names_verbs_and_settings_that_exist() -> None:
    text = (ROOT / "docs" / "Dockerfile").read_text()
    verbs = re.findall(r'gemm-cache(?: --store \S+)? ([a-z]+)|"gemm-cache", "([a-z]+)"', text)
    assert len(verbs) == 4
    assert {first or second for first, second in verbs} <= set(commands.commands)
    variables = re.findall(r"GEMM_CACHE_(\w+)=", text)
    assert len(variables) == 3
    assert {name.lower() for name in variables} <= {setting.name for setting in SETTINGS}


def test_the_commands_of_the_readme_exist() -> None:
    """The README's commands exist."""
    verbs = re.findall(r"^gemm-cache (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert verbs
    assert set(verbs) <= set(commands.commands)
