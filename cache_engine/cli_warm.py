"""The verb that fills a store before its kernels are asked for."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from cache_engine import terminal
from cache_engine.catalogue import TOKENS
from cache_engine.cli_support import FAILED, emit, json_option, open_cache, opt_level_option, specialise_option
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem

_TOKENS = ",".join(map(str, TOKENS))


class _Sizes(click.ParamType[tuple[int, ...]]):
    """Whole numbers, separated by commas."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        wrong = next((part for part in parts if not re.fullmatch("[0-9]{1,40}", part)), None)
        if wrong is not None:
            self.fail(f"{wrong!r} is not a whole number; write sizes as {_TOKENS}.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command("warm")
@click.argument("table", metavar="MODEL|FILE")
@click.option("--arch", multiple=True, help="Target; may be given several times. Default: the local GPU, else sm_90.")
@click.option("--m", "ms", type=_Sizes(), default=_TOKENS, show_default=True, help="Numbers of tokens.")
@click.option("--dtype", default=DType.BF16.value, show_default=True, help=f"{', '.join(INPUT_DTYPES)}.")
@specialise_option
@opt_level_option
@click.option("--compiler", default="nvrtc", show_default=True, help="What compiles.")
@click.option("--jobs", type=click.IntRange(1), help="Compiles at a time. Default: one per processor.")
@json_option
@click.pass_obj
def warm_verb(
    settings: Settings,
    /,
    table: str,
    arch: tuple[str, ...],
    ms: tuple[int, ...],
    dtype: str,
    specialisation: str,
    opt_level: int,
    compiler: str,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile all kernels of a model, or of a table, that are not in the store yet.

    FILE is a CSV file with the columns n and k and, if wanted, batch and m. Stopped with Ctrl-C it can be started
    again, and goes on where it was.
    """
    from cache_engine.catalogue import model_shapes, table_shapes
    from cache_engine.engine import COMPILED
    from cache_engine.warm import compile_all, one_per_key, problems_of

    is_file = Path(table).is_file() or "/" in table or table.lower().endswith(".csv")
    shapes = table_shapes(Path(table)) if is_file else model_shapes(table)
    for name in arch:
        architecture(name)
    try:
        element_type = DType(dtype)
    except ValueError:
        raise UsageError(f"unknown dtype {dtype!r}; use one of: {', '.join(INPUT_DTYPES)}") from None
    problems = problems_of(
        shapes, ms, element_type, arch or (None,), specialisation=specialisation, opt_level=opt_level
    )
    started = time.perf_counter()
    with open_cache(settings) as cache:
        root = cache.layout.root  # where caching is switched off, this says so before anything is compiled
        chosen, results = one_per_key(cache, problems, compiler)
        with terminal.progress("Compiling kernels", len(chosen)) as (bar, task):
            results += compile_all(cache, chosen, jobs, lambda _: bar.advance(task), compiler)
    failed = [warmed for warmed in results if warmed.trouble]
    tiers = Counter(warmed.kernel.tier for warmed in results if warmed.kernel is not None and not warmed.trouble)
    document = {
        "store": str(root),
        "problems": len(problems),
        "kernels": len(chosen),
        "compiled": tiers[COMPILED],
        "found": tiers.total() - tiers[COMPILED],
        "failed": [{"problem": _named(warmed.problem), "error": warmed.trouble} for warmed in failed],
        "seconds": time.perf_counter() - started,
    }
    emit(document, as_json, lambda: terminal.print_warmed(document))
    if failed:
        click.get_current_context().exit(FAILED)


def _named(problem: GemmProblem) -> str:
    batch = f", batch {problem.batch}" if problem.batch > 1 else ""
    return f"{problem.m} × {problem.n} × {problem.k}{batch}, {problem.dtype}, {problem.arch}"
