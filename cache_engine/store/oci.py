"""A pack as an OCI image layout: a directory that tools such as ``skopeo`` copy to and from container registries.

::

    oci-layout                 the version of the layout
    index.json                 names the manifest by digest, with a tag
    blobs/sha256/<digest>      the manifest; an empty config, {}; and the pack, as its one layer

Source: OCI image specification 1.1, "Image Layout" and "Guidelines for Artifact Usage". A layout that is read may be
hostile. So files are named by their digests only, so that no name leads out of the folder; sizes are bounded; and each
file must match its digest. Digests do not prove who made the kernels: the signatures in the pack do.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from cache_engine.errors import CorruptEntry, PackUnusable, UsageError
from cache_engine.store.files import read_whole
from cache_engine.store.ownership import open_file
from cache_engine.store.pack import SUFFIX
from cache_engine.units import counted, printable

ARTIFACT = "application/vnd.gemm-cache.pack.v1"
"""The media type of the artifact, and of the only layer in it."""
_MANIFEST, _INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
_EMPTY, _EMPTY_DATA = "application/vnd.oci.empty.v1+json", b"{}"
_MARK, _VERSION = "oci-layout", "1.0.0"
_ANNOTATION = "org.opencontainers.image."
_MOST_BYTES, _MOST_MANIFESTS = 4 * 1024**2, 100  # bytes of a manifest: what every registry must accept
_DIGEST = re.compile("sha256:([0-9a-f]{64})")
TAG = "latest"
"""The tag of the manifest in a layout, as in ``skopeo copy oci:FOLDER:latest``."""

_T = TypeVar("_T")
_Read = TypeVar("_Read", bound=msgspec.Struct)


class _Layout(msgspec.Struct):
    imageLayoutVersion: str  # noqa: N815 -- the specification's names, here and below


class Descriptor(msgspec.Struct, omit_defaults=True):
    """A blob of a layout: its media type, digest and size."""

    mediaType: str  # noqa: N815
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    annotations: dict[str, str] = {}
    artifactType: str = ""  # noqa: N815


class _Index(msgspec.Struct):
    schemaVersion: int  # noqa: N815
    manifests: list[Descriptor]
    mediaType: str = _INDEX  # noqa: N815


class Manifest(msgspec.Struct):
    """The manifest of an image or artifact: its config and its layers."""

    schemaVersion: int  # noqa: N815
    config: Descriptor
    layers: list[Descriptor]
    mediaType: str = _MANIFEST  # noqa: N815
    artifactType: str = ""  # noqa: N815
    annotations: dict[str, str] = {}


class NewLayout:
    """A layout that is being written: add blobs, then call ``finish`` with the manifest."""

    def __init__(self, staged: Path) -> None:
        """Creates the directories of the layout."""
        self._staged = staged
        self.blobs = staged / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)

    def put(self, kind: str, data: bytes) -> Descriptor:
        """Adds ``data`` as a blob with the media type ``kind``; returns its descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        return Descriptor(kind, f"sha256:{digest}", len(data))

    def put_file(self, kind: str, path: Path, annotations: dict[str, str] | None = None) -> Descriptor:
        """Adds a file that is already in ``blobs``: renames it to its digest; returns its descriptor."""
        found = Descriptor(kind, f"sha256:{_digest(path)}", path.stat().st_size, annotations or {})
        path.rename(_blob(self._staged, found))
        return found

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest, and the index that names it."""
        named = self.put(_MANIFEST, _encode(manifest))
        named.annotations, named.artifactType = {f"{_ANNOTATION}ref.name": TAG}, manifest.artifactType
        (self._staged / "index.json").write_bytes(_encode(_Index(2, [named])))
        (self._staged / _MARK).write_bytes(_encode(_Layout(_VERSION)))


@contextmanager
def new_layout(folder: Path) -> Iterator[NewLayout]:
    """Creates a layout during the body of a ``with``.

    The folder appears when the body has ended, complete or not at all.

    Raises:
        UsageError: when the folder exists already.
        OSError: when writing fails; then nothing has changed.
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder} exists; give another name")
    staged = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    try:
        yield NewLayout(staged)
        staged.rename(folder)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError) and str(error.filename).startswith(str(staged)):
            error.filename, error.filename2 = str(folder), None  # the path that the user gave
        raise


def write_layout(folder: Path, write: Callable[[Path], _T], *, about: Callable[[_T], str]) -> _T:
    """Creates a layout with the pack that ``write`` writes to the path it is given. Returns the result of ``write``.

    Raises the errors of ``new_layout``.

    Args:
        about: a function that makes, from the result of ``write``, a description for people who see the layout in a
            registry.
    """
    with new_layout(folder) as layout:
        pack = layout.blobs / f"written{SUFFIX}"
        done = write(pack)
        layer = layout.put_file(ARTIFACT, pack, {f"{_ANNOTATION}title": folder.name.removesuffix(".oci") + SUFFIX})
        about_it = {f"{_ANNOTATION}description": about(done)}
        config = layout.put(_EMPTY, _EMPTY_DATA)
        layout.finish(Manifest(2, config, [layer], artifactType=ARTIFACT, annotations=about_it))
    return done


def is_layout(path: Path) -> bool:
    """Whether the folder is an OCI image layout."""
    return os.path.lexists(path / _MARK)


def pack_in(folder: Path) -> Path:
    """The path of the only pack in a layout, after checking the pack's digest; its entries are not checked.

    Raises:
        PackUnusable: when the layout is damaged, or has no pack or several.
        OSError: when it cannot be read.
    """
    with _refusing(folder):
        packs = [layer for one in manifests(folder) for layer in one.layers if layer.mediaType == ARTIFACT]
        if len(packs) != 1:
            raise _refusal(folder, f"has {counted(len(packs), 'pack')}, not one; copy one tag into an empty layout")
        return checked_blob(folder, packs[0])


def manifests(folder: Path) -> list[Manifest]:
    """The manifests of a layout, each checked by its digest. Raises ``PackUnusable`` and ``OSError``."""
    with _refusing(folder):
        version = _decoded(folder / _MARK, _Layout).imageLayoutVersion
        if not version.startswith("1."):
            raise _refusal(folder, f"has version {printable(version[:20])!r} of the layout; this program reads 1")
        index = _decoded(folder / "index.json", _Index)
        if len(index.manifests) > _MOST_MANIFESTS:
            raise _refusal(folder, f"lists {len(index.manifests):,} manifests; at most {_MOST_MANIFESTS} are read")
        found = {one.digest: one for one in index.manifests if one.mediaType == _MANIFEST}
        return [_decoded(_blob(folder, one), Manifest, one.digest) for one in found.values()]


def checked_blob(folder: Path, what: Descriptor) -> Path:
    """The path of a blob, after checking its digest. Raises ``PackUnusable`` and ``OSError``."""
    with _refusing(folder):
        path = _blob(folder, what)
        if os.path.getsize(path) != what.size or f"sha256:{_digest(path)}" != what.digest:
            raise _refusal(folder, "has a layer that does not match its digest; copy it again")
        return path


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (CorruptEntry, FileNotFoundError) as error:
        raise _refusal(folder, f"is damaged: {printable(str(error))}") from error


def _decoded(path: Path, kind: type[_Read], digest: str = "") -> _Read:
    data = read_whole(path, _MOST_BYTES)
    if data is None:
        raise CorruptEntry(f"it has no {path.name}")
    if digest and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise CorruptEntry(f"the file {path.name} does not match its digest")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptEntry(f"{path.name} cannot be read: {error}") from error


def _blob(folder: Path, what: Descriptor) -> Path:
    found = _DIGEST.fullmatch(what.digest)
    if found is None:
        raise CorruptEntry(f"{printable(what.digest[:80])!r} is no SHA-256 digest")
    return folder / "blobs" / "sha256" / found[1]


def _digest(path: Path) -> str:
    with os.fdopen(open_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _refusal(folder: Path, why: str) -> PackUnusable:
    return PackUnusable(f"the OCI layout {folder} {why}")
