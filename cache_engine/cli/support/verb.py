"""Verbs: their help with examples and exit codes, and the options that each takes before and after its name."""

from __future__ import annotations

import re
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click

from cache_engine import log_handlers
from cache_engine.cli.old_names import old_verb, with_new_options
from cache_engine.cli.support.completion import COMPLETERS, Completer
from cache_engine.cli.support.global_options import LEVELS, global_options, settings_of
from cache_engine.errors import InvalidProblem

OK, FAILED, WRONG_USAGE, NOT_HERE, INTERRUPTED = 0, 1, 2, 3, 130

DEVICE = "cache_engine.gpu"
UNTARGETED = "cache_engine.untargeted"
"""Keys of a click context's ``meta``: one for the value of ``--device``, one to note a missing ``--arch``."""


ARGUMENTS = {
    "m": "Rows of A and C.",
    "n": "Columns of B and C.",
    "k": "Columns of A, which are the rows of B.",
    "table": "A public model, such as Llama-3.1-8B, or a CSV file with the columns n and k.",
    "text": "Words to search for; every one must match.",
    "key": "Key of a kernel; a prefix is enough.",
    "keys": "Key of a kernel; a prefix is enough.",
    "names": "Item in quarantine, as verify --quarantined prints it; a prefix is enough.",
    "job_id": "A job, as log --jobs prints it.",
    "url": "The remote, such as s3://bucket/folder. Default: the setting remote.",
    "file": "The file; - is standard input or output where a verb takes it.",
}
"""The help of arguments, by name. A verb may replace it with ``argument_texts``."""


class _Takes(click.Command):
    """A command with examples in its help, and with the global options whose names it does not use itself."""

    examples: tuple[str, ...] = ()
    argument_texts: Mapping[str, str] = ARGUMENTS
    program = "gemm-cache"

    def take_global_options(self) -> None:
        """Adds the options that every verb takes, except those whose names the verb uses itself."""
        own = {name for parameter in self.params for name in parameter.opts}
        self.global_options = [option for option in global_options() if not own & set(option.opts)]
        self.params += self.global_options

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replaces old option names with their new ones, then parses as usual."""
        return super().parse_args(ctx, with_new_options(self, ctx, args))

    def argument_rows(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The verb's arguments and their help."""
        arguments = [p for p in self.get_params(ctx) if isinstance(p, click.Argument)]
        return [(p.make_metavar(ctx), self.argument_texts.get(p.name or "", "")) for p in arguments]

    def complete(self, completers: Mapping[str, Completer]) -> None:
        """Gives each parameter named in ``completers`` its completer, by which a shell completes the value."""
        for parameter in self.params:
            if parameter.name in completers:
                completer = partial(completers[parameter.name], parameter=parameter)
                parameter.shell_complete = completer  # type: ignore[method-assign]  # click has no table of them

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the verb's arguments and own options, then the global options."""
        if rows := self.argument_rows(ctx):
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        for title, is_global in (("Options", False), ("Global options", True)):
            options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
            shown = [p for p in options if (p in self.global_options) == is_global]
            rows = [row for p in shown if (row := p.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's signature)
        """Writes the examples."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{self.program} {example}\n")


class LazyVerbs(UserDict[str, Any]):
    """Verbs by name, loaded from module names: each module defines its verb as ``NAME_verb``.

    The module of a verb is imported when the verb is first used, because most verbs need few of the others' imports.
    """

    def __getitem__(self, name: str) -> click.Command:
        """The verb of this name; raises ``KeyError``."""
        if isinstance(self.data[name], str):
            self.data[name] = getattr(import_module(self.data[name]), f"{name}_verb")
        verb: click.Command = self.data[name]
        return verb


class VerbGroup(_Takes, click.Group):
    """Verbs under one name.

    Args:
        examples: commands, without ``program`` in front.
        sections: the sections of the help, and the verbs in each. The other verbs are named on one line of the last
            section.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str],
        sections: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)
        self.sections = sections or {}
        self.take_global_options()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb with this name or old name."""
        old = partial(VerbGroup, examples=(), hidden=True)
        return super().get_command(ctx, cmd_name) or old_verb(ctx, cmd_name, old)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one line for each verb, by section if there are sections."""
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        listed = {name for names in self.sections.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in listed]
        width = max(map(len, listed))
        for title, names in self.sections.items():
            last = title == [*self.sections][-1]
            with formatter.section(title):
                rows = [(name.ljust(width), self.commands[name]) for name in names if name in self.commands]
                room = formatter.width - width - 4
                formatter.write_dl([(name, verb.get_short_help_str(room)) for name, verb in rows])
                if last and others:
                    formatter.write_text(f"Also: {', '.join(others)}")


class Verb(_Takes):
    """A verb whose help ends with examples and its exit codes.

    Args:
        examples: commands, without ``gemm-cache`` in front.
        done: what exit code 0 means.
        failed: what exit code 1 means.
        missing: what is missing at exit code 3; empty for a verb that needs nothing.
        completers: the completers of parameters whose names have another meaning in other verbs.
        argument_texts: the help of arguments, by name, where the text in ``ARGUMENTS`` does not fit.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str],
        done: str = "Done.",
        failed: str = "A failure; the message names it.",
        missing: str = "",
        completers: Mapping[str, Completer] | None = None,
        argument_texts: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = tuple(examples)
        self.take_global_options()
        self.complete({**COMPLETERS, **(completers or {})})
        self.argument_texts = {**ARGUMENTS, **(argument_texts or {})}
        self.exit_codes = {
            OK: done,
            FAILED: failed,
            WRONG_USAGE: "Wrong usage, or a directory that cannot be used as a store.",
            **({NOT_HERE: missing} if missing else {}),
            INTERRUPTED: "Interrupted.",
        }

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb with the settings in force."""
        ctx.obj = settings = settings_of(ctx)
        log_handlers.configure(settings.log or LEVELS[0])
        if ctx.meta.get(DEVICE) is not None:
            from cache_engine.gpu import probe

            probe.choose(ctx.meta[DEVICE])
        done = super().invoke(ctx)
        if ctx.meta.get(UNTARGETED):
            _say_target(settings.default_arch)
        return done

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples and the exit codes."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exit_codes.items()])


def _say_target(default: str) -> None:
    """Prints which target was used by default; called only after the verb succeeded, as an error must be one line."""
    from cache_engine.gpu.probe import local_arch

    if local_arch() is None:
        print(f"No --arch and no GPU here: the target is {default}.", file=sys.stderr)


class SizedVerb(Verb):
    """A verb with sizes as arguments: a negative one is a wrong size, not an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses negative sizes, then parses as usual."""
        for argument in args:
            if re.fullmatch(r"-\d+", argument):
                raise InvalidProblem(
                    f"{argument} is not a size; m, n, k, the batch and the groups are whole numbers of at least 1"
                )
        return super().parse_args(ctx, args)
