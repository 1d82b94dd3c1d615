"""The verbs that move kernels between stores: ``export`` and ``import``."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.cli import terminal
from cache_engine.cli.documents import moving
from cache_engine.cli.support import Verb, emit, input_dtype, json_option, named, open_cache
from cache_engine.cli.support.completion import models
from cache_engine.cli.support.targets import only_targets_option
from cache_engine.errors import UsageError
from cache_engine.evaluator.catalogue import TOKENS
from cache_engine.frameworks.groups import Group, describe
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import DType
from cache_engine.model.key import CacheKey
from cache_engine.model.sizes import parse_sizes
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, printable
from cache_engine.upkeep.packs import Exported, Refused

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.store.signatures.signers import SigningKey

_F = TypeVar("_F", bound=Callable[..., Any])


def model_options(verb: _F) -> _F:
    """Gives a verb ``--for``, ``--m`` and ``--dtype``, which say what a model needs; see ``needed``."""
    for decorate in (
        click.option("--dtype", help=f"--for: element type of A and B. Default: {DType.BF16}."),
        click.option("--m", metavar="SIZES", help=f"--for: tokens, such as 1,16,64-512. Default: {TOKENS}."),
        click.option(
            "--for", "model", metavar="MODEL|FILE", shell_complete=models, help="What this model, or table, needs."
        ),
    ):
        verb = decorate(verb)
    return verb


def needed(
    cache: Cache, archs: tuple[str, ...], *, model: str | None, m: str | None, dtype: str | None
) -> list[CacheKey] | None:
    """The keys of the kernels that the options of ``model_options`` ask for; ``None`` without ``--for``."""
    if model is None:
        if m is not None or dtype is not None:
            raise UsageError("--m and --dtype say what a model is asked for with; name the model with --for")
        return None
    from cache_engine.evaluator.catalogue import shapes_of
    from cache_engine.insight.coverage import coverage, distinct, require_served, wanted

    asked = wanted(shapes_of(model), input_dtype(dtype or DType.BF16), archs or (None,), parse_sizes(m or TOKENS))
    cells = coverage(cache, asked)
    require_served(cells)
    return [kernel.key for kernel in distinct(cells)]


@click.command(
    "export",
    cls=Verb,
    examples=(
        "export kernels.gemmpack",
        "export h100.gemmpack --arch sm_90 --arch sm_90a",
        "export kernels.gemmpack --sign ~/.ssh/id_ed25519",
        "export llama.oci --oci --sign ~/.ssh/id_ed25519",
        "export llama.gemmpack --for Llama-3.1-8B --arch sm_90a --sign ~/.ssh/id_ed25519",
    ),
    done="All kernels are in the pack.",
    failed="Some kernels are damaged and left out, or --for: some are not in the store; or the file cannot be written.",
    missing="--sign: the extra team is not installed. --for: the compiler is not installed, so there are no keys.",
)
@click.argument("file", type=click.Path(path_type=Path))
@only_targets_option
@model_options
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign each kernel with this private key of OpenSSH (Ed25519).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--oci", is_flag=True, help="Make FILE a directory, an OCI image layout with the pack, for oras or skopeo."
)
@json_option
@click.pass_obj
def export_verb(
    settings: Settings, /, file: Path, archs: tuple[str, ...], sign: Path | None, force: bool, oci: bool,
    as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Write the kernels of the store to a pack, FILE.

    Another store imports a pack, or uses it as it is (setting packs). Each kernel is verified first. Kernels that other
    frameworks keep in the store are packed too, and used once they are imported; code for the host stays local.
    With --for, the pack has only what serves a model, as warm with the same arguments compiles it.
    With --sign, stores that trust the key (setting trusted_signers) know who made the kernels.
    With --oci, registries of containers carry it, and import takes what comes from there.
    """
    if oci and force:
        raise UsageError("--force replaces a file; an OCI image layout is a directory: delete it, or give another name")
    targets = {architecture(name).name for name in archs}

    def wanted(record: Record) -> bool:
        return not targets or record.arch in targets

    def adapted(group: Group) -> bool:
        return not targets or describe(group).arch in targets

    key = None if sign is None else signing_key(sign)
    with open_cache(settings, create=False) as cache:
        keys, absent = _of_model(cache, archs, asked)
        total = cache.count()[0] if keys is None else len(keys)
        with terminal.progress("Exporting", total) as (bar, task), named(file):
            export = partial(
                cache.admin.export,
                wanted=wanted,
                adapted=adapted,
                keys=keys,
                replace=force,
                sign=key.sign if key else lambda record: record,
                on_entry=lambda: bar.advance(task),
            )
            exported = _as_layout(file, export) if oci else export(file)
    document = moving.exported(file, exported, absent)
    if key is not None:
        document.signed_by = key.fingerprint
    emit(document, as_json, lambda: _print_exported(document), failed=exported.refused or absent)


@click.command(
    "import",
    cls=Verb,
    examples=("import kernels.gemmpack --dry-run", "import kernels.gemmpack", "import ~/.triton/cache"),
    done="All kernels of the pack, or of the cache, are in the store.",
    failed="The pack or the directory is unusable, or some of its kernels are refused.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Verify the pack and list what would be imported.")
@json_option
@click.pass_obj
def import_verb(settings: Settings, /, file: Path, dry_run: bool, as_json: bool) -> None:
    """Import the kernels of a pack, or of Triton's cache, FILE.

    A pack may be in an OCI image layout, as export --oci writes it. Each kernel is verified; one that the store has
    stays as it is. A kernel is a program for your GPU: import packs and caches only from people whose programs you
    would run. Of a directory that is a cache of Triton's own, libraries for the host, results of tuning and unfinished
    kernels are left where they are.
    """
    with named(file):
        given, file = file, pack_named(file)
        is_directory = stat.S_ISDIR(file.stat().st_mode)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        if is_directory:
            with named(file), terminal.progress("Importing", None) as (bar, task):
                imported = cache.admin.import_triton(file, dry_run=dry_run, on_entry=lambda: bar.advance(task))
            document = moving.imported(file, imported, dry_run)
            emit(document, as_json, lambda: _print_imported(document), failed=imported.refused)
            return
        pack = cache.admin.open_pack(file)
        with terminal.progress("Importing", len(pack)) as (bar, task):
            imported = cache.admin.import_pack(pack, dry_run=dry_run, on_entry=lambda: bar.advance(task))
    document = moving.imported(given, imported, dry_run)
    emit(document, as_json, lambda: _print_imported(document), failed=imported.refused)


def _as_layout(folder: Path, export: Callable[[Path], Exported]) -> Exported:
    from cache_engine.cache.remote.oci import write_layout

    return write_layout(folder, export, about=lambda done: f"{counted(done.entries, 'compiled GEMM kernel')}")


def pack_named(path: Path) -> Path:
    """The pack that an argument names, be it in an OCI image layout; raises ``PackUnusable`` and ``OSError``."""
    from cache_engine.cache.remote.oci import is_layout, pack_in

    return pack_in(path) if is_layout(path) else path


def _of_model(
    cache: Cache, archs: tuple[str, ...], asked: dict[str, Any]
) -> tuple[list[CacheKey] | None, list[CacheKey]]:
    """Which kernels to export, ``None`` for all, and which of a model's the store lacks."""
    keys = needed(cache, archs, **asked)
    if keys is None:
        return None, []
    from cache_engine.batch.warm import stored

    found = stored(cache, keys)
    if not found:
        of = f"the {counted(len(keys), 'kernel')} of {asked['model']}"
        raise UsageError(f"the store has none of {of}; gemm-cache warm compiles them")
    return sorted(found), [key for key in keys if key not in found]


def signing_key(path: Path) -> SigningKey:
    """The key that ``--sign`` names; asks for its passphrase on a terminal. Raises as ``SigningKey.read``."""
    from cache_engine.store.signatures.signers import SigningKey

    def ask() -> str:
        return str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True))

    with named(path):
        return SigningKey.read(path, ask if sys.stdin.isatty() else None)


# ---- For people ----


def _print_exported(d: moving.ExportReport) -> None:
    print_refused(d.refused, "left out")
    signed = f", signed with the key {d.signed_by}" if d.signed_by else ""
    print(printable(f"{counted(d.entries, 'kernel')} in {d.file}, {human_bytes(d.bytes)}{signed}."))
    if d.missing:
        print(f"{counted(len(d.missing), 'kernel')} of the model are not in the store; gemm-cache warm compiles them.")


def _print_imported(d: moving.ImportReport) -> None:
    print_refused(d.left, "left")
    print_refused(d.refused, "refused")
    verb = "Would import" if d.dry_run else "Imported"
    print(f"{verb} {counted(d.taken, 'kernel')}, {human_bytes(d.taken_bytes)}; {d.present:,} already in the store.")


def print_refused(refused: Sequence[Refused], fate: str) -> None:
    """Prints the kernels that were left out or refused, a line each, on standard error."""
    for entry in refused:
        print(printable(f"{fate}: {entry.key[:12]}: {entry.cause}"), file=sys.stderr)
