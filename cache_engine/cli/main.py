"""The ``gemm-cache`` command.

Every verb but ``dashboard`` takes ``--json`` and then prints one JSON document on standard output; progress and logs go
to standard error. Exit codes: 0 done · 1 findings or failure · 2 wrong usage · 3 needs a GPU, a compiler, a tool or an
extra that is not here · 130 interrupted.
"""

from __future__ import annotations

from typing import NoReturn

import click

from cache_engine._version import version_and_build
from cache_engine.cli.support import VerbGroup, run
from cache_engine.cli.support.verb import LazyVerbs

_SECTIONS = {
    "Kernels": ("compile", "warm", "ls", "show", "explain", "pin"),
    "Store": ("stats", "log", "clean", "verify", "store"),
    "Team": ("pack", "remote", "farm"),
    "Other frameworks": ("run", "caches"),
    "Models and chips": ("evaluate", "demand"),
    "On a GPU": ("tune", "time"),
    "More": ("dashboard", "doctor"),
}
"""The sections of ``--help``, and the verbs in each. Every verb has a module of its name, which defines ``NAME_verb``.
"""
_RARE = ("calibrate", "evaluations", "nvcc", "sql", "timings")
"""Verbs that ``--help`` lists only by name, on its last line."""


def main() -> NoReturn:
    """Runs the command line and exits with its code."""
    run(commands)


@click.group(
    cls=VerbGroup,
    commands=LazyVerbs({verb: f"{__package__}.{verb}" for verbs in (*_SECTIONS.values(), _RARE) for verb in verbs}),
    sections=_SECTIONS,
    examples=("compile 4096 7168 2048 --arch sm_90a", "warm Llama-3.1-8B --arch sm_90a", "ls", "doctor --settings"),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, asked: _print_version(ctx, asked),
    help="Show the version and the build, and exit.",
)
def commands() -> None:
    """A persistent cache of compiled GPU matrix-multiply kernels."""


def _print_version(ctx: click.Context, asked: bool) -> None:
    if asked:
        print(f"gemm-cache, version {version_and_build()}")
        ctx.exit()
