"""The verb ``caches doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cache_engine.cli.caches.places import cache_option, known_places, places_in, print_in_memory, scanned
from cache_engine.cli.support import Verb, emit, json_option
from cache_engine.settings import Settings
from cache_engine.units import counted, printable

if TYPE_CHECKING:
    from cache_engine.cli.documents import caches as documents

_MOST_SHOWN = 5


@click.command(
    "doctor",
    cls=Verb,
    examples=("caches doctor", "caches doctor --cache triton=/scratch/triton", "caches doctor --json"),
    done="Nothing is wrong.",
    failed="Something is wrong; each finding says what to do.",
)
@cache_option
@json_option
@click.pass_obj
def doctor_verb(settings: Settings, /, as_json: bool) -> None:
    """Check the caches of other frameworks.

    Finds entries that the framework would not use, or would use and fail, leftovers of killed processes, directories
    that others may write, and network file systems. Changes nothing.
    """
    from cache_engine.cli.documents import caches as documents
    from cache_engine.frameworks.doctor import code_runs_on, examine, read_mounts
    from cache_engine.frameworks.registry import in_memory_here
    from cache_engine.gpu.probe import local_arch

    sources, known = known_places(settings)
    places = places_in(known, None)
    arch = local_arch()
    found = [
        each
        for place in places
        for each in examine(
            place,
            (seen for _, seen in scanned(settings, sources, [place], afresh=True)),
            runs_here=None if arch is None else code_runs_on(arch),
            mounts=read_mounts(),
        )
    ]
    document = documents.examined(sources.findings, found, gpu=arch, in_memory=in_memory_here())
    emit(document, as_json, lambda: _print(document, len(places)), failed=document.findings)


def _print(d: documents.CachesExamined, directories: int) -> None:
    groups: dict[str, list[documents.CacheDiagnosis]] = {}
    for each in d.findings:
        groups.setdefault(each.ailment, []).append(each)
    for ailment, found in groups.items():
        print(f"{ailment}: {counted(len(found), 'finding')}")
        for each in found[:_MOST_SHOWN]:
            where = "/".join(filter(None, (each.path, each.id)))
            print(printable(f"  {where}: {each.detail}"))
        if len(found) > _MOST_SHOWN:
            print(f"  … and {len(found) - _MOST_SHOWN:,} more; --json has all")
        print(printable(f"  What to do: {found[0].cure}."))
    if not d.findings:
        print(f"Nothing is wrong in {counted(directories, 'directory', 'directories')}.")
    if not d.gpu:
        print("No GPU is here, so code for other GPUs is not looked for.")
    print_in_memory(d.in_memory)
