"""Verbs that look into kernels: two side by side, and why one was missed."""

from __future__ import annotations

from typing import Any

import click

from cache_engine.cli import documents, terminal_inspect
from cache_engine.cli.support import (
    SizedVerb,
    asked_choice,
    asked_problem,
    emit,
    json_option,
    open_cache,
    problem_options,
)
from cache_engine.config import Settings
from cache_engine.insight.inspection import inspect, inspect_kernel


@click.command("diff")
@click.argument("first", metavar="KEY")
@click.argument("second", metavar="KEY")
@click.option("--sass", "with_sass", is_flag=True, help="Also how the machine code differs, addresses left out.")
@json_option
@click.pass_obj
def diff_verb(settings: Settings, /, first: str, second: str, with_sass: bool, as_json: bool) -> None:
    """Put two kernels side by side; each KEY may be shortened to its first digits."""
    from cache_engine.insight.comparison import compare, sass_difference

    with open_cache(settings, create=False) as cache:
        one, other = cache.find(first), cache.find(second)
        code = None
        if with_sass:
            texts = cache.text(one, "sass"), cache.text(other, "sass")
            code = sass_difference(one, texts[0], other, texts[1])
            comparison = compare(inspect(one, texts[0]), inspect(other, texts[1]))
        else:
            comparison = compare(inspect_kernel(cache, one), inspect_kernel(cache, other))
    document = documents.difference(one, other, comparison, code)
    emit(document, as_json, lambda: terminal_inspect.print_difference(one, other, comparison, code))


@click.command("explain", cls=SizedVerb)
@problem_options
@json_option
@click.pass_obj
def explain_verb(settings: Settings, /, as_json: bool, **asked: Any) -> None:
    """Tell whether the kernel of a shape is cached, and if not, what keeps it from being the nearest one that is.

    Compiles nothing.
    """
    from cache_engine.insight.explanation import explain

    problem, choice = asked_problem(asked), asked_choice(asked)
    with open_cache(settings, create=False) as cache:
        found = explain(cache, problem, **choice)
    emit(documents.explanation(found), as_json, lambda: terminal_inspect.print_explanation(found))
