"""The verb ``nvcc``: runs nvcc through the launcher, or explains why the launcher does not serve a command."""

from __future__ import annotations

import os
import sys

import click

from cache_engine.cli.support import Verb, emit, json_option, open_cache
from cache_engine.cli.terminal import print_fields
from cache_engine.errors import UsageError
from cache_engine.model.documents import fields_of
from cache_engine.settings import Settings
from cache_engine.units import printable


@click.command(
    "nvcc",
    cls=Verb,
    examples=(
        "nvcc -- /usr/local/cuda/bin/nvcc -cubin -arch=sm_90a kernel.cu -o kernel.cubin",
        "nvcc --dry-run -- nvcc -cubin -arch=sm_90a kernel.cu -o kernel.cubin",
    ),
    argument_texts={"words": "The command, behind --; without an nvcc in front it is this machine's."},
    done="nvcc's own exit code; with --dry-run: the command would be a hit.",
    failed="--dry-run: it would not; the reasons are printed.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--dry-run", is_flag=True, help="Run nothing; say whether it is a hit, and what made a miss.")
@json_option
@click.pass_obj
def nvcc_verb(settings: Settings, /, words: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Run a command of nvcc, or serve its stored result.

    gemm-cache-nvcc does the same and starts faster: name it where a framework takes an nvcc. A command with options
    that are not understood runs as without us; stats counts such commands by reason.
    """
    if not dry_run:
        if as_json:
            raise UsageError("--json goes with --dry-run; without it the output is nvcc's")
        from cache_engine.adapters.nvcc import launch

        sys.exit(launch(words, {**os.environ, "GEMM_CACHE_DIR": str(settings.directory())}))
    from cache_engine.insight.explanation import explain_launch

    with open_cache(settings, create=False) as cache:
        found = explain_launch(cache.layout, words)
    document = fields_of(found)
    emit(document, as_json, lambda: _print(document), failed=found.result != "hit")


def _print(document: dict[str, object]) -> None:
    print_fields({"result": document["result"], "stored result": document["key"] or "–"})
    for reason in document["reasons"]:  # type: ignore[attr-defined]  # a list
        print(printable(f"  {reason}"))
