"""The verb ``preflight``: whether a pack would be used here, before a job starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine.cli.documents import moving
from cache_engine.cli.keeping.packs import model_options, needed, pack_named
from cache_engine.cli.support import Verb, emit, json_option, named, open_cache
from cache_engine.cli.support.targets import targets_option
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.model.architecture import architecture
from cache_engine.model.gemm import GemmProblem
from cache_engine.units import counted, printable

if TYPE_CHECKING:
    from cache_engine.settings import Settings


@click.command(
    "preflight",
    cls=Verb,
    examples=("preflight kernels.gemmpack", "preflight llama.gemmpack --for Llama-3.1-8B --arch sm_90a"),
    done="The pack would be used.",
    failed="It would not; the reasons are printed, such as the part of the toolchain that differs.",
    missing="The extra team is not installed. --for: the compiler is not installed, so there are no keys.",
)
@click.argument("file", metavar="PACK", type=click.Path(path_type=Path))
@targets_option
@model_options
@json_option
@click.pass_obj
def preflight_verb(settings: Settings, /, file: Path, archs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Say whether a pack would be used here, and if not, why.

    Compares targets, templates, flags and toolchains, checks who signed it (setting trusted_signers), and with --for
    looks for each kernel that a model needs. Changes nothing, and needs no store. import --dry-run checks every byte.
    """
    from cache_engine.insight.packs import preflight

    for name in archs:
        architecture(name)
    with named(file):
        file = pack_named(file)
        file.stat()
    alone = settings.with_overrides({"packs": (file,)})
    with open_cache(alone, packs_suffice=True, create=False) as cache:
        pack = cache.admin.open_pack(file)
        targets = [cache.targeted(GemmProblem(1, 1, 1), arch).arch or "" for arch in archs or (None,)]
        document = moving.preflight(pack, preflight(pack, settings, targets), targets, needed(cache, archs, **asked))
    emit(document, as_json, lambda: _print(document), failed=not document.used)


def _print(d: moving.PreflightReport) -> None:
    print_table(
        {"target": LEFT, "kernels": RIGHT, "family": LEFT, "made by": LEFT, "differs here": LEFT},
        [
            (
                printable(row.arch), f"{row.kernels:,}", printable(row.family),
                printable(f"{row.compiler} {row.compiler_version}"),
                printable(", ".join(one.factor.replace("_", " ") for one in row.differs)) or "–",
            )
            for row in d.carried
        ],
    )  # fmt: skip
    targets = ", ".join(d.targets)
    first = f"the first {sum(row.kernels for row in d.carried):,} of " if d.sampled else ""
    print(f"\n{first}{counted(d.kernels, 'kernel')}; asked for here: {targets}.")
    if d.signed:
        print(printable(f"Signatures: {d.signed}."))
    if d.needed is not None:
        print(f"Of the model's {counted(d.needed, 'kernel')} the pack has {d.found:,}.")
    for reason in d.reasons:
        print(printable(f"Not used: {reason}."))
    if d.used:
        print("The pack would be used.")
