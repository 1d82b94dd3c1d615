"""The verbs that move kernels between stores: ``export`` and ``import``."""

from __future__ import annotations

import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cache_engine.cli import terminal
from cache_engine.cli.documents import moving
from cache_engine.cli.support import Verb, emit, json_option, named, open_cache
from cache_engine.config import Settings
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record
from cache_engine.units import counted, human_bytes, printable
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.trust.keys import SigningKey


@click.command(
    "export",
    cls=Verb,
    examples=(
        "export kernels.gemmpack",
        "export h100.gemmpack --arch sm_90 --arch sm_90a",
        "export kernels.gemmpack --sign ~/.ssh/id_ed25519",
    ),
    done="All kernels are in the pack.",
    failed="Damaged kernels are left out of the pack, or the file cannot be written.",
    missing="--sign: the extra trust is not installed.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--arch", multiple=True, help="Only this target (repeatable).")
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign each kernel with this private key of OpenSSH (Ed25519).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@click.pass_obj
def export_verb(
    settings: Settings, /, file: Path, arch: tuple[str, ...], sign: Path | None, force: bool, as_json: bool
) -> None:
    """Write the kernels of the store to a pack, FILE.

    Another store imports a pack, or uses it as it is (setting packs). Each kernel is verified first.
    With --sign, stores that trust the key (setting trusted_signers) know who made the kernels.
    """
    targets = {architecture(name).name for name in arch}

    def wanted(record: Record) -> bool:
        return not targets or record.arch in targets

    key = None if sign is None else signing_key(sign)
    with open_cache(settings, create=False) as cache:
        total, _ = cache.count()
        with terminal.progress("Exporting", total) as (bar, task), named(file):
            exported = cache.export(
                file,
                wanted=wanted,
                replace=force,
                sign=key.sign if key else lambda record: record,
                on_entry=lambda: bar.advance(task),
            )
    document = moving.exported(file, exported)
    if key is not None:
        document.signed_by = key.fingerprint
    emit(document, as_json, lambda: _print_exported(document), failed=exported.refused)


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

    Each kernel is verified; one that the store has stays as it is. A kernel is a program for your GPU: import packs
    and caches only from people whose programs you would run. Of a directory that is a cache of Triton's own, libraries
    for the host, results of tuning and unfinished kernels are left where they are.
    """
    with named(file):
        is_directory = stat.S_ISDIR(file.stat().st_mode)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        if is_directory:
            with named(file), terminal.progress("Importing", None) as (bar, task):
                imported = cache.import_triton(file, dry_run=dry_run, on_entry=lambda: bar.advance(task))
            document = moving.imported(file, imported, dry_run)
            emit(document, as_json, lambda: _print_imported(document), failed=imported.refused)
            return
        pack = cache.open_pack(file)
        with terminal.progress("Importing", len(pack)) as (bar, task):
            imported = cache.import_pack(pack, dry_run=dry_run, on_entry=lambda: bar.advance(task))
    document = moving.imported(file, imported, dry_run)
    emit(document, as_json, lambda: _print_imported(document), failed=imported.refused)


def signing_key(path: Path) -> SigningKey:
    """The key that ``--sign`` names; asks for its passphrase on a terminal. Raises as ``SigningKey.read``."""
    from cache_engine.trust.keys import SigningKey

    def ask() -> str:
        return str(click.prompt(f"Passphrase of {path}", hide_input=True, err=True))

    with named(path):
        return SigningKey.read(path, ask if sys.stdin.isatty() else None)


# ---- For people ----


def _print_exported(d: moving.ExportReport) -> None:
    print_refused(d.refused, "left out")
    signed = f", signed with the key {d.signed_by}" if d.signed_by else ""
    print(printable(f"{counted(d.entries, 'kernel')} in {d.file}, {human_bytes(d.bytes)}{signed}."))


def _print_imported(d: moving.ImportReport) -> None:
    print_refused(d.left, "left")
    print_refused(d.refused, "refused")
    verb = "Would import" if d.dry_run else "Imported"
    print(f"{verb} {counted(d.taken, 'kernel')}, {human_bytes(d.taken_bytes)}; {d.present:,} already in the store.")


def print_refused(refused: Sequence[Refused], fate: str) -> None:
    """Prints the kernels that were left out or refused, a line each, on standard error."""
    for entry in refused:
        print(printable(f"{fate}: {entry.key[:12]}: {entry.cause}"), file=sys.stderr)
