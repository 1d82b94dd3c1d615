"""Writes the parts of pages that the program states.

They are of ``command-line.md`` the synopsis, options, examples and exit codes of each verb, and of ``settings.md``
the table.
Run as ``python docs/write_command_line.py``. The text between the comments that name a verb or the settings comes from
the program; all other text is written by hand. A test fails when a page is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from cache_engine.cli.main import commands
from cache_engine.cli.support import FAILED, NOT_HERE, OK, Verb
from cache_engine.settings import SETTINGS

PAGE = Path(__file__).resolve().parent / "command-line.md"
SETTINGS_PAGE = PAGE.with_name("settings.md")
_TABLE = re.compile(r"(<!-- settings -->\n).*?(<!-- end -->)", re.DOTALL)
_PART = re.compile(r"(<!-- help of ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def verbs(group: click.Group = commands, path: str = "") -> Iterator[tuple[str, Verb]]:
    """Every verb that does something, by its whole name."""
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from verbs(verb, f"{path}{name} ")
        elif isinstance(verb, Verb):
            yield f"{path}{name}", verb


def help_of(name: str, verb: Verb) -> str:
    """What the help of a verb says, as Markdown."""
    ctx = click.Context(verb, info_name=name)
    arguments = " ".join(p.make_metavar(ctx) for p in verb.params if isinstance(p, click.Argument))
    rows = [
        _row(p, ctx)
        for p in verb.params
        if isinstance(p, click.Option) and not p.hidden and p not in verb.global_options
    ]
    examples = "\n".join(f"gemm-cache {example}" for example in verb.examples)
    codes = [f"- exit {code}: {text}" for code, text in verb.exit_codes.items() if code in (OK, FAILED, NOT_HERE)]
    described = cleandoc(verb.help or "").replace("\b\n", "```\n", 1)
    if "```" in described:
        first, second, rest = described.partition("```\n")
        table, gap, after = rest.partition("\n\n")
        described = f"{first}{second}{table}\n```{gap}{after}"
    return "\n".join(
        (
            f"`gemm-cache {name}{' ' if arguments else ''}{arguments} [OPTIONS]`",
            "",
            described,
            "",
            *(f"- `{name}`: {text}" for name, text in verb.argument_rows(ctx)),
            *([""] if arguments else []),
            "| option | default | |",
            "|---|---|---|",
            *rows,
            "",
            "```sh",
            examples,
            "```",
            "",
            *codes,
            "",
        )
    )


def page() -> str:
    """The whole page, up to date."""
    known = dict(verbs())
    return _PART.sub(
        lambda part: f"{part[1]}\n{help_of(part[2], known[part[2]])}\n{part[3]}", PAGE.read_text(encoding="utf-8")
    )


def settings_page() -> str:
    """The page of settings, up to date."""
    rows = ["| setting | default | value | what it does |", "|---|---|---|---|"]
    for setting in SETTINGS:
        default = "" if setting.default in (None, ()) else f"`{setting.default}`"
        texts = (f"`{setting.name}`", default, setting.metadata["kind"].allowed, setting.metadata["help"])
        rows.append(f"| {' | '.join(map(_cell, texts))} |")
    table = "\n".join(rows)
    text = SETTINGS_PAGE.read_text(encoding="utf-8")
    return _TABLE.sub(lambda part: f"{part[1]}\n{table}\n\n{part[2]}", text)


def _row(option: click.Option, ctx: click.Context) -> str:
    names, text = option.get_help_record(ctx) or ("", option.help or "")
    text, _, extra = text.partition("  [")
    default = re.search(r"default: ([^;\]]+)", extra)
    shown = f"`{default[1].strip()}`" if default else ""
    return f"| `{_cell(' '.join(names.split()))}` | {_cell(shown)} | {_cell(' '.join(text.split()))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SETTINGS_PAGE.write_text(settings_page(), encoding="utf-8")
