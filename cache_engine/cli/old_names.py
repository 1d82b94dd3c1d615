"""Old names of verbs and options. Each works for one version, is not in any help, and prints its new name on stderr.

To rename a verb or an option, add a row to a table here; no other module knows old names.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from cache_engine.errors import UsageError

VERBS: Mapping[str, tuple[str, str]] = {
    "audit": ("log --audit", ""),
    "caches diff": ("caches show", "A B"),
    "caches doctor": ("caches --check", ""),
    "coverage": ("warm --dry-run --by shape", "MODEL|FILE"),
    "diff": ("show", "KEY KEY"),
    "evaluations clean": ("evaluations --delete", ""),
    "evaluations export": ("evaluations", "FILE"),
    "evaluations import": ("evaluations --import", "FILE"),
    "evaluations ls": ("evaluations", ""),
    "evaluations prune": ("evaluations --delete --yes", ""),
    "evaluations validate": ("calibrate --check all", "FILE"),
    "export": ("pack export", "FILE"),
    "history": ("stats --by time", ""),
    "import": ("pack import", "FILE"),
    "jobs cancel": ("log --jobs --cancel", "ID"),
    "jobs ls": ("log --jobs", ""),
    "jobs show": ("log --jobs", "ID"),
    "migrate": ("store migrate", ""),
    "preflight": ("pack check", "FILE"),
    "promote": ("demand --promote", ""),
    "quarantine delete": ("verify --delete --yes", "NAME"),
    "quarantine ls": ("verify --quarantined", ""),
    "quarantine restore": ("verify --restore", "NAME"),
    "regressions": ("timings", "--from TOOLCHAIN --to TOOLCHAIN"),
    "remote gc": ("remote clean --yes", ""),
    "report": ("show", "[KEY] [KEY] --output FILE"),
    "sample": ("warm --sample", ""),
    "search": ("ls", "TEXT"),
    "store repair": ("verify --repair", ""),
    "sync": ("store sync", ""),
    "timings export": ("timings", "FILE"),
    "timings ls": ("timings", ""),
    "toolchains": ("stats --by toolchain", ""),
    "unpin": ("pin --remove", "KEY"),
}
"""For each old verb: the words that replace it, and the text to print after them.

The words may end with options: ``"unpin": ("pin --remove", "KEY")``. The old verb's arguments are passed on.
"""

OPTIONS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("caches clean", "--delete"): ("--yes", ""),
    ("caches clean", "--irs-only"): ("--part ir", ""),
    ("calibrate", "--kept-out"): ("--check kept-out", ""),
    ("dashboard", "--headless"): ("", ""),
    ("evaluate", "--alternative"): ("--mode", "NAME"),
    ("evaluate", "--csv"): ("--format csv", ""),
    ("evaluate", "--dp"): ("--parallel dp=", "N"),
    ("evaluate", "--ep"): ("--parallel ep=", "N"),
    ("evaluate", "--config"): ("", "FILE"),
    ("evaluate", "--expert-counts"): ("--experts", "FILE"),
    ("evaluate", "--no-partition-search"): ("--no-search partition", ""),
    ("evaluate", "--no-tile-search"): ("--no-search tile", ""),
    ("evaluate", "--phase"): ("--mode", "NAME"),
    ("evaluate", "--skew"): ("--experts", "SKEW"),
    ("evaluate", "--tp"): ("--parallel tp=", "N"),
    ("evaluations", "--unused-days"): ("--days", "DAYS"),
    ("remote clean", "--older-than"): ("--days", "DAYS"),
    ("caches show", "--sass"): ("--part sass", ""),
    ("clean", "--expired"): ("--state expired", ""),
    ("clean", "--foreign-format"): ("--state unknown-format", ""),
    ("clean", "--stale-toolchain"): ("--state stale", ""),
    ("compile", "--debug-dump"): ("--output", "DIR"),
    ("compile", "--groups"): ("--batch", "GROUPS"),
    ("explain", "--groups"): ("--batch", "GROUPS"),
    ("farm compile", "--tune"): ("--top 8", ""),
    ("ls", "--framework"): ("--kind", "FRAMEWORK"),
    ("pack export", "--oci"): ("--format oci", ""),
    ("show", "--cubin"): ("--part cubin --output", "FILE"),
    ("show", "--html"): ("--output", "FILE"),
    ("show", "--log"): ("--part log", ""),
    ("show", "--ptx"): ("--part ptx", ""),
    ("show", "--sass"): ("--part sass", ""),
    ("show", "--source"): ("--part source", ""),
    ("stats", "--by-arch"): ("--by arch", ""),
    ("stats", "--prometheus"): ("--format prometheus", ""),
    ("stats", "--textfile"): ("--format prometheus --output", "FILE"),
    ("time", "--groups"): ("--batch", "GROUPS"),
    ("tune", "--groups"): ("--batch", "GROUPS"),
    ("tune", "--report"): ("--check", ""),
    ("warm", "--by-shape"): ("--by shape", ""),
    ("warm", "--floor"): ("--specialise dynamic", ""),
    ("warm", "--load"): ("--check", ""),
    ("", "--config"): ("--settings-file", "FILE"),
    ("report", "-o"): ("--output", "FILE"),
}
"""For each old option of a verb: the words that replace it, and the text to print after them.

The verb has its present name, or its old name if only the old verb had the option; ``""`` means every verb that has no
option of this name. Where the words are ``""``, the option is dropped and its value becomes an argument. Words that end
with ``=`` are joined with the value.
"""

BENCHMARKS = "what measures or simulates is no longer installed; in a checkout of the source, run: python -m benchmarks"

GONE: Mapping[str, str] = {
    "bench": BENCHMARKS,
    "bench fleet": "bench fleet is gone; docs/scale.md has what it found",
    "replay": f"{BENCHMARKS} replay",
}
"""For each verb that was removed, the sentence that says where to find the verb's successor."""

_PROGRAM = "gemm-cache"


def old_verb(ctx: click.Context, name: str, group: Callable[[str], click.Group]) -> click.Command | None:
    """The hidden command for an old verb, in the group that ``ctx`` runs.

    ``group`` makes the command for an old group of verbs.
    """
    path = f"{_path(ctx)} {name}".strip()
    if path in VERBS:
        return _Renamed(path)
    if path in GONE:
        return _Gone(path)
    if olds := [old for old in VERBS if old.startswith(f"{path} ")]:
        found = group(name)
        sentences = (_sentence(old, " ".join(VERBS[old])) for old in olds)
        found.help = "\b\n" + "\n".join(sentences)  # the backspace keeps the lines as they are
        return found
    return None


def with_new_options(command: click.Command, ctx: click.Context, arguments: list[str]) -> list[str]:
    """The arguments of a verb or group, with old option names replaced. Prints each new name on standard error."""
    return list(_new_options(command, ctx, _path(ctx), arguments))


def _new_options(command: click.Command, ctx: click.Context, path: str, arguments: list[str]) -> Iterator[str]:
    own = {name: parameter for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    rest, verbs = iter(arguments), {path}
    may_be_verb = not isinstance(command, click.Group)
    # Of these, the first argument and all after it belong to a verb below, or to another program.
    ends_at_argument = not (may_be_verb and command.context_settings.get("allow_interspersed_args", True))
    for word in rest:
        if may_be_verb and not word.startswith("-"):
            may_be_verb = False
            # An old verb of two words, such as `jobs show`: the first argument is its second word.
            if (old := f"{path} {word}") in VERBS:
                words, more = VERBS[old]
                say_new_name(ctx, old, f"{words} {more}")
                verbs.add(old)
                yield from shlex.split(words)[len(path.split()) :]
                continue
        if word == "--" or (ends_at_argument and not word.startswith("-")):
            more_words = [word, *rest]
            # An old verb whose first word is a verb today: `evaluations validate`.
            words, more = VERBS.get(old := " ".join([*path.split(), *more_words[:2]]), ("", ""))
            if word in getattr(command, "commands", ()) and words.partition(" ")[0] not in ("", word):
                say_new_name(ctx, old, f"{words} {more}")
                more_words[:2] = shlex.split(words)
            yield from more_words
            return
        name, equals, value = word.partition("=")
        if word[:1] == "-" != word[1:2] and len(word) > 2:  # a short option with its value: -oFILE
            name, equals, value = word[:2], "=", word[2:]
        verb = next((verb for verb in (*verbs, "") if (verb, name) in OPTIONS and name not in own), None)
        if verb is not None:
            words, more = OPTIONS[verb, name]
            say_new_name(ctx, f"{verb} {name}", f"{verb} {words} {more}")
            *before, name = shlex.split(words) or [""]
            yield from before
            if name.endswith("="):
                yield name + (value if equals else next(rest, ""))
                continue
            yield from filter(None, [f"{name}{equals}{value}" if name else value])
        else:
            yield word
        option = own.get(name)
        # The value of an option is not the name of a verb, and not an option.
        if isinstance(option, click.Option) and not (equals or option.is_flag or option.count):
            yield from (value for value in [next(rest, None)] if value is not None)
    yield from rest


class _Renamed(click.Command):
    """The command for an old verb: prints the verb's new name, then runs the new verb."""

    def __init__(self, old: str) -> None:
        super().__init__(old.rpartition(" ")[2], hidden=True)
        self._old = old

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Prints the new name, and returns the context of the new verb."""
        group = parent or click.get_current_context()
        words, more = VERBS[self._old]
        say_new_name(group, self._old, f"{words} {more}")
        ctx, rest = group.find_root(), shlex.split(words)
        command = ctx.command
        while isinstance(command, click.Group) and rest:
            at = ctx if command is ctx.command else click.Context(command, info_name=info_name, parent=ctx)
            found = command.get_command(at, rest[0])
            if found is None:
                break
            ctx, command, info_name = at, found, rest.pop(0)
        renamed = list(_new_options(command, group, self._old, list(args)))
        return command.make_context(info_name, [*rest, *renamed], parent=ctx, **extra)


class _Gone(click.Command):
    """The command for a removed verb; with any arguments, also ``--help``, it fails with one sentence."""

    def __init__(self, old: str) -> None:
        super().__init__(old, hidden=True, context_settings={"ignore_unknown_options": True, "help_option_names": []})
        self._old = old
        self.params.append(click.Argument(["words"], nargs=-1, type=click.UNPROCESSED))

    def invoke(self, ctx: click.Context) -> None:
        """Raises an error with the sentence that says where to find the verb's successor."""
        raise UsageError(GONE.get(" ".join([self._old, *ctx.params["words"][:1]]), GONE[self._old]))


def _path(ctx: click.Context) -> str:
    """The name of the verb that ``ctx`` runs, without the program's name."""
    names: list[str] = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.insert(0, at.info_name or "")
        at = at.parent
    return " ".join(names)


def say_new_name(ctx: click.Context, old: str, new: str) -> None:
    """Prints the new name on standard error, but not while a shell completes a line."""
    if not ctx.resilient_parsing:
        print(_sentence(old, new), file=sys.stderr)


def _sentence(old: str, new: str) -> str:
    return f"{_PROGRAM} {old.strip()} is now: {_PROGRAM} {' '.join(new.split()).replace('= ', '=')}"
