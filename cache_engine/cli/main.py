"""The ``gemm-cache`` command.

Every verb but ``dashboard`` takes ``--json`` and then prints one JSON document on standard output; progress and logs go
to standard error. Exit codes: 0 done · 1 findings or failure · 2 wrong usage · 3 needs a GPU, a compiler, a tool or an
extra that is not here · 130 interrupted.
"""

from __future__ import annotations

from typing import NoReturn

import click

from cache_engine._version import version_and_build
from cache_engine.cli.bench import bench_verb
from cache_engine.cli.dashboard import dashboard_verb
from cache_engine.cli.doctor import doctor_verb
from cache_engine.cli.getting import compile_verb, time_verb
from cache_engine.cli.inspect import diff_verb, explain_verb, show_verb
from cache_engine.cli.listing import ls_verb, search_verb, stats_verb
from cache_engine.cli.packs import export_verb, import_verb
from cache_engine.cli.predicting.evaluator import evaluate_verb, evaluations_verb
from cache_engine.cli.predicting.replay import replay_verb
from cache_engine.cli.support import VerbGroup, run
from cache_engine.cli.timings import timings_verb, tune_verb
from cache_engine.cli.upkeep import clean_verb, migrate_verb, quarantine_verb, sync_verb, verify_verb
from cache_engine.cli.warm import sample_verb, warm_verb


def main() -> NoReturn:
    """Runs the command line and exits with its code."""
    run(commands)


@click.group(
    cls=VerbGroup,
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


for verb in (
    compile_verb, time_verb, warm_verb, sample_verb,
    ls_verb, search_verb, show_verb, diff_verb, explain_verb, stats_verb, doctor_verb,
    tune_verb, timings_verb,
    clean_verb, verify_verb, migrate_verb, quarantine_verb, sync_verb, export_verb, import_verb,
    evaluate_verb, evaluations_verb, replay_verb, bench_verb, dashboard_verb,
):  # fmt: skip
    commands.add_command(verb)
