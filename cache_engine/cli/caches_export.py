"""``gemm-cache caches export``: a cache of Triton or vLLM as an image that KServe mounts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from cache_engine.cli import terminal
from cache_engine.cli.caches import cache_option, known_places
from cache_engine.cli.support import Verb, emit, json_option, named, only_targets_option
from cache_engine.errors import UsageError
from cache_engine.model.documents import fields_of
from cache_engine.settings import Settings
from cache_engine.units import counted, human_bytes, printable

if TYPE_CHECKING:
    from cache_engine.frameworks.images import Image
    from cache_engine.frameworks.values import Place

_MOST_SHOWN = 10


@click.command(
    "export",
    cls=Verb,
    examples=(
        "caches export triton.oci --kind triton --mount-path /root/.triton/cache",
        "caches export vllm.oci --kind vllm --arch sm_90",
    ),
    done="The image is written.",
    failed="The image cannot be written.",
    argument_texts={"folder": "The directory to make: an OCI image layout, for skopeo, oras or podman."},
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@cache_option
@click.option("--kind", type=click.Choice(("triton", "vllm")), required=True, help="The framework.")
@click.option(
    "--in",
    "place",
    type=click.Path(path_type=Path),
    metavar="CACHE",
    help="The directory to export, when several caches are found.",
)
@click.option(
    "--mount-path",
    metavar="PATH",
    help="Path of the cache in the server: its TRITON_CACHE_DIR, or VLLM_CACHE_ROOT. Required for triton. Default for "
    "vllm: the path that KServe uses.",
)
@only_targets_option
@json_option
@click.pass_obj
def export_verb(
    settings: Settings, /, folder: Path, kind: str, place: Path | None, mount_path: str | None, archs: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Write a cache of Triton or vLLM as an image.

    For servers that mount the cache from an OCI image, such as KServe. Triton's files name absolute paths, so name the
    path that the server will see with --mount-path: a cache mounted elsewhere is never hit. The target is read from the
    CUBINs; where there are none, as in vLLM's binary caches, name it with --arch. Values of variables that look like
    secrets are hidden. pack check says whether an image would be hit on a machine.
    """
    from cache_engine.frameworks.images import KSERVE_ROOT, export_image

    if mount_path is None and kind == "triton":
        raise UsageError("name the server's TRITON_CACHE_DIR with --mount-path: at another path nothing is hit")
    at = PurePosixPath(mount_path or KSERVE_ROOT)
    if not at.is_absolute() or ".." in at.parts:
        raise UsageError(f"--mount-path is {str(at)!r}; it must be an absolute path without ..")
    source = _place(settings, kind, place)
    with named(folder), terminal.progress("Exporting", None) as (bar, task):
        image = export_image(folder, source, at, archs, lambda: bar.advance(task))
    document = {
        "directory": str(folder.absolute()),
        "source": str(source.path),
        "mount_path": str(at),
        **fields_of(image),
    }
    emit(document, as_json, lambda: _print(folder, image))


def _place(settings: Settings, kind: str, given: Path | None) -> Place:
    from cache_engine.frameworks.values import Place

    if given is not None:
        return Place(kind, given.absolute(), "given")
    _, places = known_places(settings)
    found = [place for place in places if place.kind == kind and not place.replaced_by]
    if len(found) != 1:
        many = ", ".join(place.path_text for place in found) or "none is here"
        raise UsageError(f"name the cache of {kind} with --in: {many}")
    return found[0]


def _print(folder: Path, image: Image) -> None:
    for text in image.left[:_MOST_SHOWN]:
        print(printable(f"left out: {text}"))
    if len(image.left) > _MOST_SHOWN:
        print(f"left out: {len(image.left) - _MOST_SHOWN:,} more")
    if image.hidden:
        print(printable(f"hidden: {', '.join(sorted(set(image.hidden)))}"))
    what = counted(image.entries, "kernel" if image.kind == "triton" else "graph")
    targets = ", ".join(f"sm_{target}" for target in image.targets)
    print(printable(f"{what} for {targets}, {counted(image.files, 'file')}, {human_bytes(image.size_bytes)}: {folder}"))
