"""The verb ``show``: one kernel, the differences of two, or a report of them or of the store as a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cache.cache import Cache
from cache_engine.cli.compile import record_fields
from cache_engine.cli.support import Verb, emit, json_option, open_cache, printing, write_file
from cache_engine.cli.support.completion import keys as some_keys
from cache_engine.cli.terminal import LEFT, RIGHT, Align, print_fields, print_table, print_warnings, sentence
from cache_engine.cli.timings import print_timings
from cache_engine.errors import UsageError
from cache_engine.frameworks.bundle_facts import config_text, describe, part_of, text_of
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.values import Entry, PartKind
from cache_engine.insight.comparison import Comparison, change, shown
from cache_engine.insight.inspection import (
    Inspected,
    Inspection,
    inspect_kernel,
    inspect_stored,
    record_document,
    sass_of,
)
from cache_engine.insight.toolchains import timing_row
from cache_engine.kernels.select import TO_PROVE
from cache_engine.model.artifact import CUBIN, LOG, PTX, SOURCE, Record
from cache_engine.model.documents import fields_of, picked
from cache_engine.model.key import CacheKey
from cache_engine.model.measurement import Measurement
from cache_engine.settings import Settings
from cache_engine.units import human_age, human_bytes, human_ms, printable

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.compilers.disassembly import InstructionMix
    from cache_engine.insight.report.page import Report
    from cache_engine.model.architecture import Occupancy

SASS = "sass"
_BAR = 40
_MOST_OTHERS = 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command(
    "show",
    cls=Verb,
    examples=(
        "show 3f2a",
        "show 3f2a --part sass",
        "show 3f2a 91bc",
        "show 3f2a --part cubin --output kernel.cubin",
        "show 3f2a --output kernel.html",
        "show --output store.html",
    ),
    done="The kernel is shown, or the differences of two; or the report is written.",
    failed="No kernel has such a key prefix, several have it, or an entry is damaged.",
    missing="--part sass: the disassembler is not installed.",
    completers={"keys": some_keys},
)
@click.argument("keys", metavar="[KEY] [KEY]", nargs=-1)
@click.option(
    "--part",
    type=click.Choice((SOURCE, PTX, SASS, LOG, CUBIN)),
    help="Print the source, the PTX, the machine code (of two kernels, its differences too) or the compiler log; or "
    "write the compiled code, cubin, to --output.",
)
@click.option(
    "--output",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a report of the kernel, of two, or without KEY of the store, as one HTML file; with --part, write the "
    "part. - prints it.",
)
@click.option("--force", is_flag=True, help="--output: replace an existing report.")
@json_option
@click.pass_obj
def show_verb(
    settings: Settings, /, keys: tuple[str, ...], part: str | None, file: Path | None, force: bool, as_json: bool
) -> None:
    """Show a kernel, or how two differ.

    Of one kernel, shows its properties, occupancy, instructions and timings, and the
    components that its key is hashed from. Of a kernel that another framework keeps in this store, shows what is known,
    and its parts. Of two kernels, compares keys, configs, resources, occupancy and instructions.

    A report (--output) holds all it shows: figures, tables, code and its own command. It has no script and loads
    nothing, so it opens anywhere, also offline, and can be printed.
    """
    report = file if part is None else None
    _check_options(keys, part, file, report, force=force, as_json=as_json)
    with open_cache(settings, create=False) as cache:
        if report is not None:
            _write_report(cache, keys, report, force=force, as_json=as_json)
        elif len(keys) == 1:
            _show_one(cache, keys[0], part, file, as_json=as_json)
        else:
            _show_difference(cache, keys, with_sass=part == SASS, as_json=as_json)


def _check_options(
    keys: tuple[str, ...], part: str | None, file: Path | None, report: Path | None, *, force: bool, as_json: bool
) -> None:
    """Raises ``UsageError`` for options that do not go together."""
    if len(keys) > 2:
        raise UsageError("give one KEY, or two to compare")
    if report is None and not keys:
        raise UsageError("give the KEY of a kernel, or two to compare; gemm-cache ls lists them")
    if report is None and force:
        raise UsageError("--force replaces a report; name its file with --output, and leave --part out")
    if len(keys) == 2 and (part not in {None, SASS} or (part and file)):
        raise UsageError("of two kernels only --part sass is compared, and printed; give one KEY")
    if part == CUBIN and file is None:
        raise UsageError("--part cubin needs --output FILE, as the compiled code is no text; - prints it")
    if str(file) == "-" and as_json:
        raise UsageError("--output - prints the file itself; give it a file name, or leave --json out")


def _show_one(cache: Cache, key: str, part: str | None, file: Path | None, *, as_json: bool) -> None:
    found = cache.admin.find_key(key)
    group = cache.admin.adapted(found)
    if part is not None:
        content = _part(cache, found, group, part)
        if file is not None:
            _write(file, content if isinstance(content, bytes) else content.encode())
        else:
            emit({"key": found, part: content}, as_json, lambda: print(printable(str(content), keep="\n\t")))
        if file is None or not as_json:
            return
    if group is not None:
        adapted = _document(cache, group, describe(group))
        emit(adapted, as_json, lambda: _print(adapted))
        return
    record = cache.find(found)
    inspection, timings = inspect_kernel(cache, record), cache.timings.of_key(record.key)
    signature, note = cache.admin.signature(record.key), cache.admin.note_words(CacheKey(record.key))
    document = {
        **inspection_document(inspection),
        "timings": [timing_row(timing) for timing in timings],
        "signature": signature,
        "note": note,
    }
    proof = proof_words(cache, record)
    emit(document, as_json, lambda: print_inspection(inspection, timings, signature, proof, note))


def _part(cache: Cache, key: CacheKey, group: Group | None, part: str) -> str | bytes:
    """One part of a kernel of ours, or of another framework's, which ``group`` has."""
    if group is not None:
        return part_of(group, PartKind.BINARY) if part == CUBIN else text_of(group, part)
    record = cache.find(key)
    return cache.store.section(record, CUBIN) if part == CUBIN else cache.text(record, part)


def _show_difference(cache: Cache, keys: tuple[str, ...], *, with_sass: bool, as_json: bool) -> None:
    from cache_engine.insight.comparison import compare, sass_difference

    found = [cache.admin.find_stored(key) for key in keys]
    disassemble: list[Callable[[], str]] = [partial(sass_of, cache, kernel) for kernel in found]
    if with_sass:
        texts = [each() for each in disassemble]
        disassemble = [partial(str, text) for text in texts]
    one, other = map(inspect_stored, found, disassemble)
    code = sass_difference(one, texts[0], other, texts[1]) if with_sass else None
    comparison = compare(one, other)
    document = {"keys": [one.key, other.key], "names": [one.name, other.name], **fields_of(comparison)}
    if code is not None:
        document["sass"] = code
    emit(document, as_json, lambda: print_difference(one, other, comparison, code))


def _write_report(cache: Cache, keys: tuple[str, ...], file: Path, *, force: bool, as_json: bool) -> None:
    from cache_engine.insight.report.page import written

    now = time.time()
    report = _report(cache, keys, now)
    text = written(report, now).encode()
    if str(file) == "-":
        with printing():
            sys.stdout.buffer.write(text)
        return
    write_file(file, text, force=force)
    document = {"file": str(file), "title": report.title, "bytes": len(text)}
    emit(document, as_json, lambda: print(printable(f"{report.title}: {file}, {human_bytes(len(text))}.")))


def _report(cache: Cache, keys: tuple[str, ...], now: float) -> Report:
    if not keys:
        from cache_engine.insight.report.kernels import store_report

        return store_report(cache, now)
    from cache_engine.insight.report.kernels import comparison_report, kernel_report

    records = [cache.find(key) for key in keys]
    return kernel_report(cache, records[0]) if len(records) == 1 else comparison_report(cache, *records)


def _write(path: Path, data: bytes) -> None:
    if str(path) == "-":
        with printing():
            sys.stdout.buffer.write(data)
    else:
        write_file(path, data, force=True)


def inspection_document(inspection: Inspection) -> dict[str, Any]:
    """A kernel of ours as JSON; an unknown value is ``None``, and the field ``notes`` says why."""
    mix, resident = inspection.instructions, inspection.occupancy
    held = ("blocks_per_sm", "warps_per_sm", "share", "bound_by")
    return {
        **record_document(inspection.record),
        "instructions": None if mix is None else picked(mix, "total", "classes", "opcodes"),
        "occupancy": None if resident is None else {**fields_of(resident), **picked(resident, *held)},
        **picked(inspection, "notes", "fusion_saves_bytes"),
    }


# ---- For people ----


def proof_words(cache: Cache, record: Record) -> str:
    """The results of the kernel family's test products on each GPU that ran them; empty if the family needs no test."""
    if record.family not in TO_PROVE:
        return ""
    from cache_engine.store.proofs import states

    found = states(cache.layout, record.family, f"{record.compiler} {record.compiler_version}")
    return "; ".join(proof.words for proof in found) or "unproved: no GPU has run its canaries for this store"


def print_inspection(
    inspection: Inspection,
    timings: Sequence[Measurement] = (),
    signature: str = "",
    proof: str = "",
    written: str = "",
) -> None:
    """Prints a kernel: properties, occupancy, instructions, timings, and the components of its key."""
    record = inspection.record
    more = {"fusion saves": inspection.fusion_in_words, "signature": signature, "proof": proof, "note": written}
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


def print_difference(one: Inspected, other: Inspected, comparison: Comparison, sass: str | None) -> None:
    """Prints how two kernels differ; ``sass`` is the difference of their machine code, ``None`` if not asked for."""
    heads = [f"1: {one.key[:12]}", f"2: {other.key[:12]}"]
    print_fields(dict(zip(heads, (one.name, other.name), strict=True)))
    if one.key == other.key:
        print("\nThe keys are equal.")
    for heading, pairs in comparison.sections().items():
        print(f"\n{heading}:\n")
        # Components are texts, some of them long; the rest are numbers, or short.
        side: Align = LEFT if pairs == comparison.components else RIGHT
        rows = [(pair.name, shown(pair.first), shown(pair.second), change(pair)) for pair in pairs]
        print_table({"": LEFT, **dict.fromkeys(heads, side), "change": RIGHT}, rows)
    for note in comparison.notes:
        print(f"\n{printable(sentence(note))}")
    if sass is not None:
        print("\nSASS diff (addresses removed):\n" if sass else "\nThe SASS is the same.")
        print(printable(sass, keep="\n"), end="")


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


# ---- A kernel of another framework that is stored in our store ----

_SIZES = ("shared_bytes", "stack_bytes", "spill_bytes", "code_bytes")


def _document(cache: Cache, group: Group, known: Entry) -> dict[str, Any]:
    """Another framework's kernel as JSON; an unknown value is ``None``, and the field ``unknown`` says why."""
    usage = cache.admin.usage_of(group.key, group.made_at)
    return {
        **picked(group, "key", "framework"),
        "name": known.name or "",
        **picked(known, "version", "compiler", "arch", "registers", *_SIZES, "size_bytes"),
        "stored_bytes": os.stat(cache.layout.group_path(group.key)).st_size,
        "compile_ms": known.compile_ms,
        "created_at": group.made_at,
        "config": config_text(known),
        "hits": sum(usage.hits.values()) if usage else 0,
        "last_used_at": max(group.made_at, usage.last_used_at if usage else 0.0),
        "stages_ms": group.stages_ms,
        "pinned": group.key in cache.admin.pinned(),
        "parts": [picked(part, "name", "kind", "size_bytes") for part in known.parts],
        "unknown": known.unread,
    }


def _print(d: dict[str, Any]) -> None:
    facts: dict[str, object] = {"key": d["key"], "name": d["name"], "framework": d["framework"]}
    for name in ("version", "arch", "compiler", "registers", *_SIZES, "compile_ms"):
        value = d[name]
        label = "target" if name == "arch" else name.removesuffix("_bytes").replace("_ms", " time").replace("_", " ")
        if value is None:
            facts[label] = f"unknown: {d['unknown'].get(name, 'it is not stored')}"
        else:
            facts[label] = human_bytes(value) if name in _SIZES else human_ms(value) if name == "compile_ms" else value
    facts |= {
        "config": d["config"] or "–",
        "on disk": human_bytes(d["stored_bytes"]),
        "hits": d["hits"],
        "last used": human_age(time.time() - d["last_used_at"]),
        "pinned": "yes" if d["pinned"] else "no",
    }
    print_fields(facts)
    if stages := d["stages_ms"]:
        print()
        print_table({"stage of the compile": LEFT, "time": RIGHT}, [(n, human_ms(ms)) for n, ms in stages.items()])
    print()
    print_table(
        {"part": LEFT, "kind": LEFT, "size": RIGHT},
        [(part["name"], part["kind"], human_bytes(part["size_bytes"])) for part in d["parts"]],
    )
