"""The documents tell the truth where a machine can check it."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from cache_engine import errors
from cache_engine.cli.main import commands
from cache_engine.config import SETTINGS

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


def test_every_error_of_the_troubleshooting_page_ends_with_that_code() -> None:
    from cache_engine.cli.support import _code_of

    rows = re.findall(r"^\| ([123]) \| (.*?) \|", TROUBLE, re.MULTILINE)
    named = [(int(code), name) for code, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert len(named) > 12
    for code, name in named:
        error = getattr(errors, name)
        made = error("", log="", source="", flags=()) if name == "CompileError" else error("")
        assert _code_of(made) == code, name


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """What ``make docs`` would refuse, without building the site."""
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    elsewhere = {page for page in pages if page.startswith("decisions/0")} | {"package.md"}
    assert pages - elsewhere == set(listed) - {"CHANGELOG.md", "SECURITY.md"}, "mkdocs.yml"
    assert len(listed) == len(set(listed)) > 15


def test_every_public_name_is_in_the_reference() -> None:
    """What ``make docs`` then takes from docstrings."""
    import cache_engine

    listed = re.findall(r"^::: cache_engine\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({*cache_engine.__all__} - {"__version__"}), "docs/api.md"


@pytest.mark.parametrize(("script", "picture"), [("draw_house", "house"), ("draw_groups", "kernel-grouped")])
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
