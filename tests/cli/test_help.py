"""Help reads like that of restic: a summary that fits its line, what the verb does, examples that run, exit codes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.core import ParameterSource
from click.testing import CliRunner

from cache_engine.cli.main import commands
from cache_engine.cli.support import Verb, VerbGroup
from cache_engine.model.gemm import Specialisation


def _verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, verb in group.commands.items():
        if verb.hidden:
            continue
        yield (*path, name), verb
        if isinstance(verb, click.Group):
            yield from _verbs(verb, (*path, name))


ALL = list(_verbs(commands))
LEAVES = [(path, verb) for path, verb in ALL if not isinstance(verb, click.Group)]


def _help(*path: str, columns: int = 78) -> str:
    """The help on a terminal with two more columns: click leaves them free."""
    done = CliRunner().invoke(commands, [*path, "--help"], terminal_width=columns, prog_name="gemm-cache")
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", [(), *(path for path, verb in ALL if isinstance(verb, click.Group))], ids=" ".join)
def test_every_summary_fits_its_line_at_80_columns(path: tuple[str, ...]) -> None:
    listed = _help(*path).partition("Commands:" if path else "Kernels:")[2]
    assert listed
    assert "..." not in listed


def test_the_help_has_sections_of_few_lines_with_every_verb_once() -> None:
    listed = _help().partition("Kernels:")[2].partition("Examples:")[0]
    assert [line for line in listed.splitlines() if line.endswith(":")] == [
        "Store:", "Team:", "Other frameworks:", "Models and chips:", "On a GPU:", "More:",
    ]  # fmt: skip
    assert len(["Kernels:", *filter(None, listed.splitlines())]) <= 30
    assert len(listed.partition("Store:")[0].split("\n  ")) <= 12
    named = re.findall(r"^  ([a-z]+)(?=  )|([a-z]+)(?:, |,?\n)", listed, re.MULTILINE)
    assert {*commands.list_commands(click.Context(commands))} <= {first or second for first, second in named}


@pytest.mark.parametrize(
    ("path", "verb"), LEAVES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_verb_says_what_it_does_with_examples_and_exit_codes(path: tuple[str, ...], verb: click.Command) -> None:
    assert isinstance(verb, Verb)
    described, _, rest = _help(*path).partition("Options:")
    texts = [text for _, text in verb.argument_rows(click.Context(verb, info_name=path[-1]))]
    assert not re.search(r"^Options:\n  [A-Z]", _help(*path), re.MULTILINE), "an argument is no option"
    assert all(text and " ".join(text.split()) in " ".join(described.split()) for text in texts)
    examples, _, codes = rest.partition("Examples:")[2].partition("Exit codes:")
    assert verb.get_short_help_str(80).rstrip(".") in " ".join(described.split())
    assert verb.examples
    for example in verb.examples:
        assert f"  gemm-cache {example}\n" in examples
    for code, meaning in verb.exit_codes.items():
        assert f"{code} {meaning}" in " ".join(codes.split())


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=" ".join)
def test_tables_in_help_keep_their_lines(path: tuple[str, ...]) -> None:
    """Click joins lines unless a backspace stands before them. A backslash and a b, as in a raw docstring, are text."""
    assert "\\b" not in _help(*path)


def test_the_documents_name_each_verb_without_json() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    named = re.findall("`([^`]+)`", page.partition("Every verb but ")[2].partition("takes `--json`")[0])
    without = [" ".join(path) for path, verb in LEAVES if "as_json" not in {option.name for option in verb.params}]
    assert sorted(named) == sorted(without)


@pytest.mark.parametrize("path", [(), *(path for path, verb in ALL if isinstance(verb, click.Group))], ids=" ".join)
def test_every_group_has_examples(path: tuple[str, ...]) -> None:
    examples = _help(*path).partition("Examples:")[2]
    assert f"  gemm-cache {' '.join(path)}" in examples


@pytest.mark.parametrize(
    "example",
    [
        f"{example}"
        for _, verb in [((), commands), *ALL]
        if isinstance(verb, Verb | VerbGroup)
        for example in verb.examples
    ],
)
def test_every_example_parses(example: str) -> None:
    """It names a verb that exists, options that it has, and every argument that it needs."""
    words = shlex.split(example)
    if words[0] == "--store":
        words = words[2:]
    command: click.Command = commands
    # A group may also do something itself.
    while isinstance(command, click.Group) and not (
        command.invoke_without_command and (not words or words[0].startswith("-"))
    ):
        command = command.commands[words.pop(0)]
    context = command.make_context(command.name, words)
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    assert bool(given) == bool(words)


def test_each_specialisation_is_named_with_its_meaning() -> None:
    text = " ".join(_help("compile").split())
    for value in Specialisation:
        assert f"{value}: " in text.partition("--specialise")[2].partition("--opt-level")[0]


def test_a_verb_imports_no_other_verb() -> None:
    code = (
        "import sys; from cache_engine.cli.main import commands; assert len(commands.commands) > 15\n"
        "print(*(name for name in sys.modules if name.startswith('cache_engine.cli')))\n"
        "commands.commands['verify']; print(*(name for name in sys.modules if name.startswith('cache_engine.cli')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    before, after = (set(line.split()) for line in printed.splitlines())
    of_verbs = {commands.commands[verb].callback.__module__ for verb in commands.commands}
    assert not before & of_verbs
    assert after & of_verbs == {"cache_engine.cli.verify"}
