"""The verb ``explain``: whether a lookup hits, and why it misses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cache_engine.batch import results
from cache_engine.cli.support import (
    SizedVerb,
    asked_choice,
    asked_problem,
    emit,
    json_option,
    open_cache,
    problem_options,
)
from cache_engine.cli.terminal import print_fields, sentence
from cache_engine.insight.comparison import Nearest, in_words
from cache_engine.settings import Settings
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.insight.explanation import Explanation


@click.command(
    "explain",
    cls=SizedVerb,
    examples=("explain 4096 7168 2048 --arch sm_90a", "explain 16 7168 2048 --dtype fp16 --json"),
    done="The lookup is explained, hit or miss.",
    missing="The compiler is not installed, so there is no key.",
)
@problem_options
@json_option
@click.pass_obj
def explain_verb(settings: Settings, /, as_json: bool, **asked: Any) -> None:
    """Explain whether a lookup hits, and why it misses.

    On a miss: whether the kernel was evicted, quarantined or compiled by another toolchain, and in which key
    components the nearest stored kernel differs. Compiles nothing and counts no use.
    """
    from cache_engine.insight.explanation import explain

    problem, choice = asked_problem(asked), asked_choice(asked)
    with open_cache(settings, create=False, packs_suffice=True) as cache:
        found = explain(cache, problem, **choice)
    emit(results.explained(found), as_json, lambda: _print_explanation(found))


# ---- For people ----


def _print_explanation(found: Explanation) -> None:
    chosen = found.selection
    print_fields(
        {
            "result": "miss" if found.tier is None else f"hit ({found.tier})",
            "key": chosen.key,
            "name": chosen.name,
            "target": chosen.problem.arch,
            "compiler": chosen.compiler.name,
            "config": chosen.config,
            "config source": chosen.config_from,
            "toolchain from": chosen.toolchain_from,
            "compile-time sizes": chosen.problem.specialisation,
        }
    )
    if found.nearest is not None:
        _print_nearest(found.nearest, found.compared)
    elif found.tier is None and not found.notes:
        print("\nThe store is empty; there is nothing to compare with.")
    for note in found.notes:
        print(f"\n{printable(sentence(note))}")


def _print_nearest(closest: Nearest, compared: int) -> None:
    entries = "The only stored kernel" if compared == 1 else f"The nearest of {compared:,} stored kernels"
    print(f"\n{entries} is {closest.record.key[:12]}, {printable(closest.record.name)}:\n")
    for pair in closest.causes:
        print(printable(f"  {in_words(pair)}"))
    if closest.consequences:
        names = ", ".join(pair.name for pair in closest.consequences)
        print(f"\nFollow-on differences: {printable(names)}.")
