"""``python -m benchmarks``, in a checkout: what measures or simulates. It is no part of what users install.

Output, errors and exit codes are as those of ``gemm-cache``.
"""

from __future__ import annotations

import click

from cache_engine.cli.support import VerbGroup, run
from cache_engine.cli.support.verb import LazyVerbs

_WHERE = {
    "command": ("all", "compile", "store", "pages", "evaluator", "dashboard", "farm", "torch", "kernels"),
    "replay.command": ("replay", "report"),
    "fit_gpu": ("fit",),
}
"""The verbs of each module of this package, which has each as ``NAME_verb``."""


class _Group(VerbGroup):
    program = "python -m benchmarks"


@click.group(
    cls=_Group,
    commands=LazyVerbs({verb: f"benchmarks.{module}" for module, verbs in _WHERE.items() for verb in verbs}),
    examples=("all", "kernels --seconds 300", "replay azure2023_conv --load 4"),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def commands() -> None:
    """Benchmarks of gemm-cache, replays of requests, and the fit of its GPU model."""


if __name__ == "__main__":
    run(commands)
