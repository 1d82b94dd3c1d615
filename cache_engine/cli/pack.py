"""The verbs ``pack export``, ``import`` and ``check``: kernels in one file, and whether it would be used here."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.cli import terminal
from cache_engine.cli.support import (
    Verb,
    VerbGroup,
    emit,
    for_targets,
    json_option,
    named,
    only_targets_option,
    only_with,
    open_cache,
    print_refused,
    print_unknown,
    sign_option,
    signing_key,
    targets_option,
    write_file,
)
from cache_engine.cli.support.completion import models
from cache_engine.cli.terminal import LEFT, RIGHT, print_table
from cache_engine.errors import StoreError, UsageError
from cache_engine.evaluator.catalogue import TOKENS
from cache_engine.frameworks.bundles import UnknownGroup
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record
from cache_engine.model.documents import fields_of, picked
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.key import CacheKey
from cache_engine.model.shapes import parse_sizes
from cache_engine.process import processors
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, printable
from cache_engine.upkeep.packs import Exported, Imported

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.insight.packs import Carried, Preflight

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group(
    "pack",
    cls=VerbGroup,
    examples=("pack export kernels.gemmpack", "pack check kernels.gemmpack", "pack import kernels.gemmpack"),
    no_args_is_help=True,
)
def pack_verb() -> None:
    """Write kernels to one file, check it, or import it."""


def _model_options(verb: _F) -> _F:
    """Adds the options ``--for``, ``--m`` and ``--dtype``, which name a model's kernels, to a verb."""
    for decorate in (
        click.option("--dtype", help=f"--for: element type of A and B. Default: {DType.BF16}."),
        click.option("--m", metavar="SIZES", help=f"--for: tokens, such as 1,16,64-512. Default: {TOKENS}."),
        click.option(
            "--for", "model", metavar="MODEL|FILE", shell_complete=models, help="What this model, or table, needs."
        ),
    ):
        verb = decorate(verb)
    return verb


@pack_verb.command(
    "export",
    cls=Verb,
    examples=(
        "pack export kernels.gemmpack",
        "pack export h100.gemmpack --arch sm_90 --arch sm_90a",
        "pack export kernels.gemmpack --sign ~/.ssh/id_ed25519",
        "pack export llama.oci --format oci --sign ~/.ssh/id_ed25519",
        "pack export llama.gemmpack --for Llama-3.1-8B --arch sm_90a --sign ~/.ssh/id_ed25519",
        "pack export flashinfer-trace --format flashinfer --for Llama-3.1-8B --arch sm_90a",
        "pack export artifacts.bin --name llama-1",
    ),
    done="All kernels are in the pack.",
    failed="Some kernels are damaged and left out, or --for: some are not in the store; or the file cannot be written.",
    argument_texts={"file": "The pack to write."},
    missing="--sign: the extra team is not installed. --for: the compiler is not installed, so there are no keys.",
)
@click.argument("file", type=click.Path(path_type=Path))
@only_targets_option
@_model_options
@sign_option()
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("file", "oci", "flashinfer")),
    default="file",
    help="oci: make FILE a directory, an OCI image layout with the pack, for oras or skopeo. flashinfer: FILE is a "
    "FlashInfer Trace dataset; write solutions into it.",
)
@click.option("--name", help="Write the artifacts of torch.compile that pack import --name stored.")
@json_option
@click.pass_obj
def export_verb(
    settings: Settings, /, file: Path, archs: tuple[str, ...], sign: Path | None, force: bool, form: str,
    name: str | None, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Write the kernels of the store to a pack.

    Another store imports a pack, or uses it as it is (setting packs). Each kernel is verified first. Kernels that other
    frameworks keep in the store are packed too, but serve only after pack import; compiled CPU code is left out, unless
    it is signed and the setting host_code is on. With --for, the pack has only the kernels of a model: those that the
    verb warm compiles with the same arguments. With --sign, stores that trust the key (setting trusted_signers) know
    who made the kernels. A pack also names kernel families that this store's GPUs proved; the same GPUs elsewhere prove
    them faster.

    With --format oci, the pack can be pushed to a container registry; pack import reads it back. With --format
    flashinfer, FlashInfer-Bench's apply can choose our kernels for its GEMM definitions; the solutions contain no
    kernel's code, so they need the store, or packs, where they run. With --name, writes no pack, but the file for
    torch.compiler.load_cache_artifacts, if the setting host_code is on and a trusted signer signed it.
    """
    if name is not None:
        only_with("", False, ("archs", "model", "m", "dtype", "sign", "form"), instead="--name")
        _export_artifacts(settings, name, file, force, as_json)
        return
    if form == "oci" and force:
        raise UsageError("--force replaces a file; an OCI image layout is a directory: delete it, or give another name")
    if form == "flashinfer" and (force or sign is not None):
        raise UsageError("--format flashinfer writes Python source, not kernels: leave --force and --sign out")
    wanted, adapted = for_targets(archs)
    key = None if sign is None else signing_key(sign)
    with open_cache(settings, create=False) as cache:
        keys, absent = _of_model(cache, archs, asked)
        if form == "flashinfer":
            chosen = (one for one in cache.records() if wanted(one) and (keys is None or one.key in keys))
            _write_solutions(file, chosen, absent, as_json)
            return
        total = cache.count()[0] if keys is None else len(keys)
        with terminal.progress("Exporting", total) as (bar, task), named(file):
            export = partial(
                cache.admin.export,
                wanted=wanted,
                adapted=adapted,
                keys=keys,
                replace=force,
                sign=key.sign if key else None,
                on_entry=lambda: bar.advance(task),
                processes=processors(),
            )
            exported = _as_layout(file, export) if form == "oci" else export(file)
    files = [file] if file.is_file() else [path for path in file.rglob("*") if path.is_file()]
    document = {
        "file": str(file.absolute()),
        "bytes": sum(path.stat().st_size for path in files),
        **picked(exported, "entries", "refused", "unknown_format"),
        "signed_by": "" if key is None else key.fingerprint,
        "missing": absent,
    }
    emit(document, as_json, lambda: _print_exported(document), failed=exported.refused or absent)


@pack_verb.command(
    "import",
    cls=Verb,
    examples=(
        "pack import kernels.gemmpack --dry-run",
        "pack import kernels.gemmpack",
        "pack import ~/.triton/cache",
        "pack import artifacts.bin --name llama-1",
    ),
    done="All kernels of the pack, or of the cache, are in the store.",
    argument_texts={
        "file": "A pack, an OCI image layout with one, a cache directory of Triton; with --name, artifacts of torch."
    },
    failed="The pack or the directory is unusable, or some of its kernels are refused.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Verify the pack and list what would be imported.")
@click.option(
    "--name",
    help="Store a file with the bytes of torch.compiler.save_cache_artifacts as the snapshot of this name.",
)
@json_option
@click.pass_obj
def import_verb(settings: Settings, /, file: Path, dry_run: bool, name: str | None, as_json: bool) -> None:
    """Import the kernels of a pack or of Triton's cache.

    FILE may be in an OCI image layout, as pack export --format oci makes it. Each kernel is verified; kernels already
    in the store stay as they are. A kernel is a program for your GPU: import packs and caches only from people whose
    programs you would run. From a directory that is Triton's own cache, only finished kernels are imported: no host
    libraries and no tuning results. With --name, FILE is what torch.compiler.save_cache_artifacts returned: it is
    signed with the setting signing_key, packs and remotes treat it as host code, and pack export --name writes
    it again.
    """
    if name is not None:
        only_with("", False, ("dry_run",), instead="--name")
        _import_artifacts(settings, name, file, as_json)
        return
    with named(file):
        given, file = file, _pack_named(file)
        is_directory = stat.S_ISDIR(file.stat().st_mode)
    settings = settings.with_overrides({"enable_caching": True})
    with open_cache(settings) as cache:
        if is_directory:
            with named(file), terminal.progress("Importing", None) as (bar, task):
                imported = cache.admin.import_triton(file, dry_run=dry_run, on_entry=lambda: bar.advance(task))
            _emit_imported(file, imported, dry_run=dry_run, as_json=as_json)
            return
        pack = cache.admin.open_pack(file)
        with terminal.progress("Importing", len(pack)) as (bar, task):
            imported = cache.admin.import_pack(pack, dry_run=dry_run, on_entry=lambda: bar.advance(task))
    _emit_imported(given, imported, dry_run=dry_run, as_json=as_json)


def _import_artifacts(settings: Settings, name: str, file: Path, as_json: bool) -> None:
    from cache_engine.frameworks.bundles import MAX_BYTES
    from cache_engine.frameworks.torch_compile import put_artifacts
    from cache_engine.store.signatures.signers import SigningKey

    with named(file), file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)  # of a pipe too, whose size is not known
    sign = SigningKey.read(settings.signing_key).sign if settings.signing_key else bytes
    with open_cache(settings.with_overrides({"enable_caching": True})) as cache:
        version = put_artifacts(cache.layout, name, data, sign=sign, durable=settings.is_durable)
    _emit_artifacts(f"Stored as {name}", file, name, data, version, as_json)


def _export_artifacts(settings: Settings, name: str, file: Path, force: bool, as_json: bool) -> None:
    from cache_engine.cli.run import fetched_snapshot, untrusted
    from cache_engine.frameworks.snapshots import check_name
    from cache_engine.frameworks.torch_compile import artifacts_of

    with open_cache(settings, create=False) as cache:
        try:
            snapshot, signed = fetched_snapshot(settings, cache, check_name(name))
            data, version = artifacts_of(cache.layout, snapshot)
        except UnknownGroup as error:
            raise StoreError(f"{name} is not read, because a newer version wrote it: {error}") from error
    if reason := untrusted(settings, signed):
        raise StoreError(f"{name} is host code, and {reason}; see pack import --help")
    write_file(file, data, force=force)
    _emit_artifacts(f"Wrote {name}", file, name, data, version, as_json)


def _emit_artifacts(done: str, file: Path, name: str, data: bytes, version: str, as_json: bool) -> None:
    document = {"file": str(file.absolute()), "name": name, "bytes": len(data), "torch_version": version}
    said = f"{done}: {human_bytes(len(data))}, made by torch {version or 'of an unknown version'}."
    emit(document, as_json, lambda: print(printable(said)))


def _emit_imported(file: Path, imported: Imported, *, dry_run: bool, as_json: bool) -> None:
    document = {"file": str(file.absolute()), "dry_run": dry_run, **fields_of(imported)}
    emit(document, as_json, lambda: _print_imported(imported, dry_run=dry_run), failed=imported.refused)


@pack_verb.command(
    "check",
    cls=Verb,
    examples=("pack check kernels.gemmpack", "pack check llama.gemmpack --for Llama-3.1-8B --arch sm_90a"),
    argument_texts={"file": "The pack to check."},
    done="The pack would be used.",
    failed="It would not; the reasons are printed, such as the part of the toolchain that differs.",
    missing="The extra team is not installed. --for: the compiler is not installed, so there are no keys.",
)
@click.argument("file", metavar="PACK", type=click.Path(path_type=Path))
@targets_option
@_model_options
@json_option
@click.pass_obj
def check_verb(settings: Settings, /, file: Path, archs: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Say whether a pack would be used here, or why not.

    Compares targets, templates, flags and toolchains, checks who signed it (setting trusted_signers), and with --for
    looks for each kernel that a model needs. Changes nothing, and needs no store. To check every byte, use pack import
    --dry-run. PACK may also be an image of Triton's or vLLM's cache (caches export, or MCV's).
    """
    from cache_engine.insight.packs import preflight

    for name in archs:
        architecture(name)
    with named(file):
        if is_cache_image(file):
            _check_image(file, archs, as_json=as_json)
            return
        file = _pack_named(file)
        file.stat()
    alone = settings.with_overrides({"packs": (file,)})
    with open_cache(alone, packs_suffice=True, create=False) as cache:
        pack = cache.admin.open_pack(file)
        targets = [cache.targeted(GemmProblem(1, 1, 1), arch).arch or "" for arch in archs or (None,)]
        found, keys = preflight(pack, settings, targets), _needed(cache, archs, **asked)
    has = None if keys is None else sum(map(pack.has, keys))
    reasons = list(found.reasons)
    if keys is not None and has != len(keys):
        lacks = f"{len(keys) - (has or 0):,} of the {counted(len(keys), 'kernel')}"
        reasons.append(f"it lacks {lacks} that the model needs")
    document = {
        "file": str(pack.path.absolute()),
        "kernels": len(pack),
        "used": not reasons,
        "reasons": reasons,
        "targets": targets,
        "carried": [_carried_document(one) for one in found.carried],
        "sampled": sum(one.entries for one in found.carried) < len(pack),
        "signed": found.signed,
        "needed": None if keys is None else len(keys),
        "found": has,
    }
    emit(document, as_json, lambda: _print_checked(document, found), failed=reasons)


def _check_image(folder: Path, archs: tuple[str, ...], *, as_json: bool) -> None:
    from cache_engine.frameworks.image_check import check_image
    from cache_engine.gpu.probe import local_arch

    # Without a GPU, as in an init container, only a target that is named can be compared.
    targets = [architecture(name).name for name in archs] or [each for each in [local_arch()] if each]
    image, reasons = check_image(folder, targets, os.environ)
    document = {
        "file": str(folder.absolute()), "kind": image.kind, "entries": image.entries, "files": image.files,
        "size_bytes": image.size_bytes, "targets": [f"sm_{target}" for target in image.targets],
        "used": not reasons, "reasons": reasons,
    }  # fmt: skip

    def show() -> None:
        size = f"{counted(image.files, 'file')}, {human_bytes(image.size_bytes)}"
        print(printable(f"{image.kind}: {image.entries:,} entries, {size}"))
        for reason in reasons:
            print(printable(f"would miss: {reason}"))
        if not reasons:
            print("Nothing is known that would keep it from being hit here.")

    emit(document, as_json, show, failed=reasons)


def is_cache_image(path: Path) -> bool:
    """Whether a path on the command line is an image of another framework's cache."""
    from cache_engine.frameworks.images import is_image
    from cache_engine.store.oci import is_layout

    return is_layout(path) and is_image(path)


def _carried_document(one: Carried) -> dict[str, Any]:
    """Kernels of a pack made in the same way, as JSON: target, toolchain, and why lookups here would not find them."""
    return {
        "arch": one.arch,
        **picked(one.made, "family", "compiler", "compiler_version", "compiler_build"),
        "kernels": one.entries,
        "differs": [{"factor": factor.name, **picked(factor, "in_pack", "here")} for factor in one.differs],
    }


def _needed(
    cache: Cache, archs: tuple[str, ...], *, model: str | None, m: str | None, dtype: str | None
) -> list[CacheKey] | None:
    """The keys of the kernels that ``--for``, ``--m`` and ``--dtype`` ask for; ``None`` without ``--for``."""
    if model is None:
        if m is not None or dtype is not None:
            raise UsageError("--m and --dtype say what a model is asked for with; name the model with --for")
        return None
    from cache_engine.evaluator.catalogue import shapes_of
    from cache_engine.insight.coverage import coverage, distinct, require_served, wanted

    asked = wanted(shapes_of(model), dtype or DType.BF16, archs or (None,), parse_sizes(m or TOKENS))
    cells = coverage(cache, asked)
    require_served(cells)
    return [kernel.key for kernel in distinct(cells)]


def _of_model(
    cache: Cache, archs: tuple[str, ...], asked: dict[str, Any]
) -> tuple[list[CacheKey] | None, list[CacheKey]]:
    """Two lists of keys: the kernels to export (``None`` for all), and the model's kernels that the store lacks."""
    keys = _needed(cache, archs, **asked)
    if keys is None:
        return None, []
    from cache_engine.batch.warm import stored

    found = stored(cache, keys)
    if not found:
        of = f"the {counted(len(keys), 'kernel')} of {asked['model']}"
        raise UsageError(f"the store has none of {of}; gemm-cache warm compiles them")
    return sorted(found), [key for key in keys if key not in found]


def _as_layout(folder: Path, export: Callable[[Path], Exported]) -> Exported:
    from cache_engine.store.oci import write_layout

    return write_layout(folder, export, about=lambda done: f"{counted(done.entries, 'compiled GEMM kernel')}")


def _write_solutions(dataset: Path, records: Iterable[Record], absent: list[CacheKey], as_json: bool) -> None:
    from cache_engine.insight.packs import write_solutions

    with named(dataset):
        files = write_solutions(dataset, records)
    if not files:
        raise UsageError("no kernel is for C = A · Bᵀ of fp16 or bf16 alone; gemm-cache warm MODEL compiles some")
    document = {"directory": str(dataset.absolute()), "solutions": [str(path.absolute()) for path in files],
                "missing": absent}  # fmt: skip
    texts = [f"{counted(len(files), 'solution')} in {document['directory']}.", *_lacking(absent)]
    emit(document, as_json, lambda: print(printable("\n".join(texts))), failed=absent)


def _pack_named(path: Path) -> Path:
    """The pack at a path, which may be an OCI image layout. Raises ``PackUnusable`` and ``OSError``."""
    from cache_engine.store.oci import is_layout, pack_in

    return pack_in(path) if is_layout(path) else path


# ---- For people ----


def _print_exported(d: dict[str, Any]) -> None:
    print_refused(d["refused"], "left out")
    print_unknown(d["unknown_format"])
    signed = f", signed with the key {d['signed_by']}" if d["signed_by"] else ""
    print(printable(f"{counted(d['entries'], 'kernel')} in {d['file']}, {human_bytes(d['bytes'])}{signed}."))
    for line in _lacking(d["missing"]):
        print(line)


def _lacking(missing: list[CacheKey]) -> list[str]:
    lacks = f"{counted(len(missing), 'kernel')} of the model are not in the store; gemm-cache warm compiles them."
    return [lacks] if missing else []


def _print_imported(imported: Imported, *, dry_run: bool) -> None:
    print_refused(imported.left, "left")
    print_refused(imported.refused, "refused")
    verb = "Would import" if dry_run else "Imported"
    taken = f"{counted(imported.taken, 'kernel')}, {human_bytes(imported.taken_bytes)}"
    print(f"{verb} {taken}; {imported.present:,} already in the store.")


def _print_checked(d: dict[str, Any], found: Preflight) -> None:
    print_table(
        {"target": LEFT, "kernels": RIGHT, "family": LEFT, "made by": LEFT, "differs here": LEFT},
        [
            (
                one.arch, f"{one.entries:,}", one.made.family, f"{one.made.compiler} {one.made.compiler_version}",
                ", ".join(factor.name.replace("_", " ") for factor in one.differs) or "–",
            )
            for one in found.carried
        ],
    )  # fmt: skip
    first = f"the first {sum(one.entries for one in found.carried):,} of " if d["sampled"] else ""
    print(f"\n{first}{counted(d['kernels'], 'kernel')}; asked for here: {', '.join(d['targets'])}.")
    if d["signed"]:
        print(printable(f"Signatures: {d['signed']}."))
    if d["needed"] is not None:
        print(f"Of the model's {counted(d['needed'], 'kernel')} the pack has {d['found']:,}.")
    for reason in d["reasons"]:
        print(printable(f"Not used: {reason}."))
    if d["used"]:
        print("The pack would be used.")
