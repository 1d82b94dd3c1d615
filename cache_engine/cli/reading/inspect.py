"""The verbs that look inside kernels: ``show``, ``diff`` and ``explain``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from cache_engine.cli.adapted import show_adapted
from cache_engine.cli.documents import comparing, kernels
from cache_engine.cli.getting import record_fields
from cache_engine.cli.support import (
    SizedVerb,
    Verb,
    asked_choice,
    asked_problem,
    emit,
    json_option,
    open_cache,
    printing,
    problem_options,
)
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_fields, print_table, print_warnings, sentence
from cache_engine.cli.timings import print_timings
from cache_engine.errors import UsageError
from cache_engine.insight.comparison import Comparison, Nearest, change, in_words, shown
from cache_engine.insight.inspection import Inspection, inspect_kernel, inspect_stored, sass_of
from cache_engine.model.artifact import CUBIN, LOG, PTX, SOURCE
from cache_engine.model.measurement import Measurement
from cache_engine.settings import Settings
from cache_engine.units import printable

if TYPE_CHECKING:
    from cache_engine.compilers.disassembly import InstructionMix
    from cache_engine.insight.explanation import Explanation
    from cache_engine.model.occupancy import Occupancy

_BAR = 40
_MOST_OTHERS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command(
    "show",
    cls=Verb,
    examples=("show 3f2a", "show 3f2a --sass", "show 3f2a --cubin kernel.cubin"),
    done="The kernel is shown.",
    failed="No kernel has this key prefix, several have it, or the entry is damaged.",
    missing="--sass: the disassembler is not installed.",
)
@click.argument("key")
@click.option("--source", "part", flag_value=SOURCE, help="Print the source.")
@click.option("--ptx", "part", flag_value=PTX, help="Print the PTX.")
@click.option("--sass", "part", flag_value="sass", help="Print the disassembled machine code.")
@click.option("--log", "part", flag_value=LOG, help="Print the compiler log.")
@click.option(
    "--cubin",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the compiled code to a file; - prints it.",
)
@json_option
@click.pass_obj
def show_verb(settings: Settings, /, key: str, part: str | None, cubin: Path | None, as_json: bool) -> None:
    """Show one kernel: properties, occupancy, instructions.

    KEY: a prefix is enough. Also shows the timings of the kernel and the components that its key is hashed from.
    Of a kernel that another framework keeps in this store, shows what is known, and its parts.
    """
    if str(cubin) == "-" and (part is not None or as_json):
        raise UsageError("--cubin - prints the code itself; give it a file name, or leave the other option out")
    with open_cache(settings, create=False) as cache:
        found = cache.admin.find_key(key)
        group = cache.admin.adapted(found)
        if group is not None:
            show_adapted(cache, group, part, None if cubin is None else partial(_write, cubin), as_json=as_json)
            return
        record = cache.find(found)
        if cubin is not None:
            _write(cubin, cache.store.section(record, CUBIN))
        if part is not None:
            text = cache.text(record, part)
            document = kernels.Text(key=record.key, **{part: text})
            emit(document, as_json, lambda: print(printable(text, keep="\n\t")))
        elif cubin is None or as_json:
            inspection, timings = inspect_kernel(cache, record), cache.timings.of_key(record.key)
            whole = kernels.shown(record, inspection, timings)
            whole.signature = signature = cache.admin.signature(record.key)
            emit(whole, as_json, lambda: print_inspection(inspection, timings, signature))


@click.command(
    "diff",
    cls=Verb,
    examples=("diff 3f2a 91bc", "diff 3f2a 91bc --sass"),
    done="The differences are printed, if any.",
    failed="No kernel has such a key prefix, several have it, or an entry is damaged.",
    missing="--sass: the disassembler is not installed.",
)
@click.argument("first", metavar="KEY")
@click.argument("second", metavar="KEY")
@click.option("--sass", "with_sass", is_flag=True, help="Include a SASS diff.")
@json_option
@click.pass_obj
def diff_verb(settings: Settings, /, first: str, second: str, with_sass: bool, as_json: bool) -> None:
    """Compare two kernels: keys, configs, resources.

    KEY: a prefix is enough. Also compares occupancy and the static instruction mix. Kernels that another framework
    keeps in this store are compared too, with each other and with ours.
    """
    from cache_engine.insight.comparison import compare, sass_difference

    with open_cache(settings, create=False) as cache:
        kernels_found = [cache.admin.find_stored(key) for key in (first, second)]
        disassemble: list[Callable[[], str]] = [partial(sass_of, cache, kernel) for kernel in kernels_found]
        if with_sass:
            texts = [each() for each in disassemble]
            disassemble = [partial(str, text) for text in texts]
        one, other = map(inspect_stored, kernels_found, disassemble)
    code = sass_difference(one, texts[0], other, texts[1]) if with_sass else None
    comparison = compare(one, other)
    document = comparing.compared(one, other, comparison, code)
    emit(document, as_json, lambda: print_difference(document, comparison))


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
    emit(comparing.explained(found), as_json, lambda: _print_explanation(found))


def _write(path: Path, data: bytes) -> None:
    if str(path) == "-":
        with printing():
            sys.stdout.buffer.write(data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


# ---- For people ----


def print_inspection(inspection: Inspection, timings: Sequence[Measurement] = (), signature: str = "") -> None:
    """Prints a kernel: properties, occupancy, instructions, timings, and the components of its key."""
    record = inspection.record
    more = {"fusion saves": inspection.fusion_in_words, "signature": signature}
    print_fields(record_fields(record) | {name: words for name, words in more.items() if words})
    if inspection.occupancy is not None:
        _print_occupancy(inspection.occupancy)
    if inspection.instructions is not None:
        _print_instructions(inspection.instructions)
    for note in inspection.notes:
        print(f"\n{printable(sentence(note))}")
    if timings:
        print("\nTimings, newest first:\n")
        print_timings(timings)
    print("\nThe key is the SHA-256 of these components:\n")
    print_fields(dict(record.components))
    print_warnings(record.warnings)


def print_difference(d: comparing.Compared, comparison: Comparison) -> None:
    """Prints how two kernels differ."""
    heads = [f"{number}: {key[:12]}" for number, key in enumerate(d.keys, start=1)]
    print_fields(dict(zip(heads, d.names, strict=True)))
    if d.keys[0] == d.keys[1]:
        print("\nThe keys are equal.")
    for heading, pairs in comparison.sections().items():
        print(f"\n{heading}:\n")
        # Components are texts, some of them long; the rest are numbers, or short.
        side: Align = LEFT if pairs == comparison.components else RIGHT
        rows = [(pair.name, shown(pair.first), shown(pair.second), change(pair)) for pair in pairs]
        print_table({"": LEFT, **dict.fromkeys(heads, side), "change": RIGHT}, rows)
    for note in d.notes:
        print(f"\n{printable(sentence(note))}")
    if d.sass is not UNSET:
        print("\nSASS diff (addresses removed):\n" if d.sass else "\nThe SASS is the same.")
        print(printable(d.sass, keep="\n"), end="")


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


def _print_occupancy(resident: Occupancy) -> None:
    print(f"\nTheoretical occupancy on {resident.arch}: {resident}.\n")
    rows = [(name, blocks, "◀" if name in resident.bound_by else "") for name, blocks in resident.block_limits.items()]
    print_table({"limit": LEFT, "max blocks/SM": RIGHT, "": LEFT}, rows)


def _print_instructions(mix: InstructionMix) -> None:
    print(f"\n{mix.total:,} static instructions:\n")
    print_table({"class": LEFT, "count": RIGHT, "share": RIGHT, "": LEFT}, _instruction_rows(mix.classes))
    if mix.others:
        most = ", ".join(f"{name} {count:,}" for name, count in list(mix.others.items())[:_MOST_OTHERS])
        print(f"\nMost frequent others: {most}.")


def _instruction_rows(classes: Mapping[str, int]) -> list[tuple[str, str, str, str]]:
    total = max(1, sum(classes.values()))
    longest = max(1, *classes.values())
    return [(name, f"{count:,}", f"{count / total:.1%}", _bar(count / longest)) for name, count in classes.items()]


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
