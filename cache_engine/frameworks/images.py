"""Reads and writes OCI images of Triton's and vLLM's caches, in the "compat" format of Model Cache Vault (MCV).

KServe mounts such images.

::

    config       labels: the targets, the size, for vLLM where to mount it
    one layer    io.triton.cache/KEY/FILE, or io.vllm.cache/torch_compile_cache/HASH/…; and io.….manifest/manifest.json

Triton names files by absolute paths in its group files, so a cache is hit only at the path where it was made. Therefore
the group files in an image name paths below the mount.

Source: ``redhat-et/GKM``, mcv/pkg/cache, commit f0e65de.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from cache_engine.errors import PackUnusable, UsageError
from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.facts import json_object
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Unread
from cache_engine.frameworks.readers.reader import files_below
from cache_engine.frameworks.readers.triton import AHEAD, Triton
from cache_engine.frameworks.readers.vllm import is_secret
from cache_engine.frameworks.values import Entry, Place, ScanFinding, State, name_of
from cache_engine.store.oci import Manifest, checked_blob, manifests, new_layout
from cache_engine.units import printable

TRITON, VLLM = "triton", "vllm"
KSERVE_ROOT = "/home/kserve/.cache/vllm"
"""The value of ``VLLM_CACHE_ROOT`` where KServe mounts vLLM's cache."""
_BELOW = "torch_compile_cache"
_CONFIG, _LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
_LAYERS = (_LAYER, "application/vnd.docker.image.rootfs.diff.tar.gzip")
_GROUP, _FACTORS = "__grp__", "cache_key_factors.json"
_RANK = re.compile(r"rank_\d+_\d+")
_ARTIFACT = "artifact_compile_range_"
_MOST_CONFIG_BYTES, _MOST_FILES, _MOST_BYTES = 4 * 1024**2, 1_000_000, 64 * 1024**3
_MOST_HEADER_BYTES = 4 * 1024**2
"""The most bytes between the contents of two files of a layer. It allows thousands of folders, and names longer than
any in use.
"""
HIDDEN = "hidden"
"""The text that replaces the value of a secret."""


@dataclass(slots=True)
class Image:
    """The content of an image.

    Attributes:
        kind: ``triton`` or ``vllm``.
        targets: the targets of the code, such as ``sm_90``.
        entries: the number of Triton's kernels, or of vLLM's graphs.
        left: the entries that were left out, each with the reason.
        hidden: the environment variables whose values are secrets, which are replaced in the image.
        labels: the labels of the image.
        manifest: the content of its manifest.json.
    """

    kind: str
    targets: list[str] = field(default_factory=list)
    entries: int = 0
    files: int = 0
    size_bytes: int = 0
    left: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


def export_image(
    folder: Path, place: Place, mount_path: PurePosixPath, archs: Sequence[str], on_file: Callable[[], None]
) -> Image:
    """Writes a cache as an OCI image layout.

    Args:
        folder: the directory to make.
        place: the cache directory of Triton, or vLLM's ``torch_compile_cache``.
        mount_path: for Triton, the directory that the server's ``TRITON_CACHE_DIR`` will name; for vLLM, its
            ``VLLM_CACHE_ROOT``.
        archs: the targets, used if the cache has no CUBIN to read them from.

    Raises:
        UsageError: when the cache is empty, when its target is not known, or when ``folder`` already exists.
        OSError: when the cache cannot be read, or the image cannot be written.
    """
    image = Image(place.kind)
    prefix = "" if place.kind == TRITON else f"{_BELOW}/"
    with Folder(place.path) as root, new_layout(folder) as layout:
        names = list(_triton_files(place, root, image) if place.kind == TRITON else _vllm_files(place, root, image))
        image.targets = sorted({*image.targets} or {_numbered(arch) for arch in archs})
        if not names:
            raise UsageError(f"{place.path_text} has no complete entry; nothing to export")
        if not image.targets:
            raise UsageError(f"{place.path_text} has no CUBIN to read the target from; name the target with --arch")
        packed = layout.blobs / "layer"
        folders = set[str]()
        with packed.open("wb") as file, _Hashed(file) as layer, _tar(layer, "w|", format=tarfile.PAX_FORMAT) as tar:
            for name in names:
                try:
                    data = _published(f"{prefix}{name}", root.read(name, MOST_BINARY_BYTES), mount_path, image)
                except (FileNotFoundError, Unread) as error:
                    where = f"{place.path_text}/{name}"
                    raise UsageError(f"{where}: {error}; export the cache when it is not in use") from error
                _add(tar, folders, f"io.{place.kind}.cache/{prefix}{name}", data)
                image.files += 1
                image.size_bytes += len(data)
                on_file()
            _describe(image)
            _add(tar, folders, f"io.{place.kind}.manifest/manifest.json", msgspec.json.encode(image.manifest))
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Labels": image.labels},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.hash.hexdigest()}"]},
        }
        described = layout.put(_CONFIG, msgspec.json.encode(config))
        layout.finish(Manifest(2, described, [layout.put_file(_LAYER, packed)]))
    return image


def extract_image(folder: Path, target: Path) -> Image:
    """Writes the cache in an image to a new directory, which is complete or does not exist.

    Raises:
        PackUnusable: when ``folder`` is not such an image, is damaged, or contains a path that leads outside.
        UsageError: when ``target`` already exists.
        OSError: when the directory cannot be written.
    """
    image, layer = _opened(folder)
    if target.exists():
        raise UsageError(f"{target} exists; give another name")
    # A random name: another process may import to the same target at the same time.
    staged = target.with_name(f".{target.name}-{secrets.token_hex(8)}")
    staged.mkdir(mode=0o700, parents=True)
    try:
        for name, content in _cached(image, folder, layer):
            file = staged / name
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                written = file.open("xb")
            except OSError as error:
                # Names that exclude each other or are too long are no fault of the disk.
                if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                    raise
                raise _bad_name(folder, name, f"cannot be made: {error.strerror}") from error
            with written:
                shutil.copyfileobj(content, written)
        staged.rename(target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return image


def is_image(folder: Path) -> bool:
    """Whether an OCI image layout has an image of a cache, not a pack."""
    try:
        _opened(folder)
    except (PackUnusable, OSError):
        return False
    return True


# ---- Writing ----


class _Hashed(gzip.GzipFile):
    """Writes a compressed file. Its digest, of the uncompressed bytes, is the same for the same content."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__("", "wb", 6, file, mtime=0)
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return super().write(data)


def _add(tar: tarfile.TarFile, folders: set[str], name: str, data: bytes) -> None:
    """Adds a file, and those folders above it that are new."""
    for above in reversed(PurePosixPath(name).parents[:-1]):
        if str(above) not in folders:
            folders.add(str(above))
            info = tarfile.TarInfo(str(above))
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _triton_files(place: Place, root: Folder, image: Image) -> Iterator[str]:
    """Yields the paths of the files of complete entries in Triton's cache."""
    entries = []
    for seen in Triton().scan(place, {}):
        if isinstance(seen, ScanFinding):
            image.left.append(f"{seen.id}: {seen.detail}")
        elif isinstance(seen, Entry):
            if seen.state == State.COMPLETE:
                entries.append(seen)
            else:
                image.left.append(f"{seen.id}: {seen.state}")
    image.entries = len(entries)
    image.targets = [_numbered(entry.arch) for entry in entries if entry.arch]
    for entry in sorted(entries, key=lambda entry: entry.id):
        name = name_of(entry.id)
        with root.enter(name) as below:
            yield from (f"{name}/{file}" for file in sorted(below.list().files))


def _vllm_files(place: Place, root: Folder, image: Image) -> Iterator[str]:
    """Yields the paths of all files in vLLM's cache, and adds the targets of the CUBINs among them to ``image``."""
    where = Surroundings({}, Path("/nonexistent"), Path("/nonexistent"), "", ((VLLM, place.path),))
    for triton in Triton().discover(where):
        if triton.path.is_relative_to(place.path):
            found = (seen for seen in Triton().scan(triton, {}) if isinstance(seen, Entry) and seen.arch)
            image.targets += [_numbered(entry.arch or "") for entry in found]
    yield from sorted(name for name, _ in files_below(root))


def _published(name: str, data: bytes, mount_path: PurePosixPath, image: Image) -> bytes:
    """The bytes of a file in the image: paths in group files are below the mount, and secrets are hidden."""
    folder, _, file = name.rpartition("/")
    if file.startswith(_GROUP) and file.endswith(".json"):
        document = json_object(data)
        children = document.get("child_paths")
        if isinstance(children, dict):
            document["child_paths"] = {child: str(mount_path / folder / child) for child in children}
            return msgspec.json.encode(document)
    elif file == _FACTORS:
        document = json_object(data)
        _note_graph(name, document, image)
        return msgspec.json.encode(document)
    elif image.kind == TRITON and file.endswith(".json"):
        with suppress(Unread):
            _note_kernel(json_object(data), image)
    elif image.kind == VLLM:
        _note_artifact(name, image)
    return data


def _note_kernel(document: Mapping[str, Any], image: Image) -> None:
    """Adds a row to the manifest, from the metadata of a kernel."""
    target = document.get("target")
    if not document.get("hash") or not isinstance(target, dict):
        return
    row = {"hash": document["hash"]}
    row |= {name: document[name] for name in ("ptx_version", "num_stages", "num_warps", "debug") if document.get(name)}
    row |= {"backend": target.get("backend"), "arch": str(target.get("arch")), "warp_size": target.get("warp_size")}
    image.manifest.setdefault(TRITON, []).append(row)


def _note_graph(name: str, document: dict[str, Any], image: Image) -> None:
    """Adds a row to the manifest, from the factors of a graph's key. Replaces the values of secrets in ``document``."""
    environment = document.get("env")
    environment = environment if isinstance(environment, dict) else {}
    for variable, value in environment.items():
        if value and is_secret(variable, value):
            environment[variable] = HIDDEN
            image.hidden.append(variable)
    row = _graph(name, image)
    if row is not None:
        row |= {each: document[each] for each in ("code_hash", "config_hash", "compiler_hash") if document.get(each)}
        row |= {"target_device": environment.get("VLLM_TARGET_DEVICE", ""), "env": environment}
        image.entries += 1


def _note_artifact(name: str, image: Image) -> None:
    """Counts a compiled part of a graph in the graph's row of the manifest; all files of one folder count once."""
    parts = name.split("/")
    row = _graph(name, image)
    if row is None or len(parts) < 5:
        return
    artifact = parts[4]
    if artifact.startswith(_ARTIFACT) and artifact not in row["artifact_names"]:
        row["artifact_names"].append(artifact)
        row["artifact_count"] += 1
        row["cache_save_format"] = "binary" if len(parts) == 5 else "unpacked"


def _graph(name: str, image: Image) -> dict[str, Any] | None:
    """The manifest's row for the graph that a file belongs to.

    The row of a graph that was compiled ahead of time has only the model.
    """
    parts = name.split("/")[1:]
    ahead = parts[:1] == [AHEAD]
    parts = parts[ahead:]
    if len(parts) < 3 or not _RANK.fullmatch(parts[1]) or (ahead and parts[2:] != ["model"]):
        return None
    key, rank, prefix = parts[:3]
    graphs = image.manifest.setdefault(VLLM, [])
    graph = next((each for each in graphs if each["vllmHash"] == key), None)
    if graph is None:
        graph = {"vllmHash": key, "cacheFormat": "binary", "binary": []}
        graphs.append(graph)
    known = {"rank": rank, "prefix": "" if ahead else prefix}
    row = next((each for each in graph["binary"] if known.items() <= each.items()), None)
    if row is None:
        row = {**known, "artifact_count": 0, "artifact_names": [], "cache_save_format": "binary"}
        if ahead:
            row |= {"artifact_count": 1, "artifact_names": ["model"], "cache_save_format": "mega-aot"}
            image.entries += 1
        graph["binary"].append(row)
    return row


def _describe(image: Image) -> None:
    """Sets the labels, by which readers of the format recognise the image."""
    vllm = image.kind == VLLM
    targets = [
        {"backend": "cuda", "arch": f"sm_{target}" if vllm else target, "warp_size": 32} for target in image.targets
    ]
    prefix = f"cache.{image.kind}.image/"
    image.labels = {
        f"{prefix}entry-count": str(len(image.manifest.get(image.kind, ()))),
        f"{prefix}cache-size-bytes": str(image.size_bytes),
        f"{prefix}summary": msgspec.json.encode({"targets": targets}).decode(),
    }
    if vllm:
        graphs = image.manifest.setdefault(VLLM, [])
        ahead = any(row["cache_save_format"] == "mega-aot" for graph in graphs[:1] for row in graph["binary"])
        image.labels |= {
            f"{prefix}format": "binary",
            "io.kserve.km/framework": VLLM,
            "io.kserve.km/cache-type": "torch-compile",
            "io.kserve.km/cache-hash": ",".join(graph["vllmHash"] for graph in graphs),
            "io.kserve.km/cache-mount-subpath": f"{_BELOW}/{AHEAD}" if ahead else _BELOW,
            "io.kserve.km/cache-root-env": f"VLLM_CACHE_ROOT={KSERVE_ROOT}",
        }


def _numbered(arch: str) -> str:
    """A target as the format writes it: ``sm_90a`` becomes ``90``."""
    return arch.removeprefix("sm_").rstrip("af")


# ---- Reading ----


def _opened(folder: Path) -> tuple[Image, Path]:
    """The image of a layout, described by its labels, and the path of its layer."""
    for manifest in manifests(folder):
        layers = [layer for layer in manifest.layers if layer.mediaType in _LAYERS]
        if not layers or manifest.config.size > _MOST_CONFIG_BYTES:
            continue
        try:
            config = json_object(checked_blob(folder, manifest.config).read_bytes())
        except Unread:
            continue
        labels = config.get("config", {}).get("Labels", {}) if isinstance(config.get("config"), dict) else {}
        for kind in (TRITON, VLLM):
            summary = labels.get(f"cache.{kind}.image/summary") if isinstance(labels, dict) else None
            if isinstance(summary, str):
                image = Image(kind, labels={str(name): str(value) for name, value in labels.items()})
                image.targets = list(_targets(summary))
                count = image.labels.get(f"cache.{kind}.image/entry-count", "")
                image.entries = int(count) if count.isdecimal() and len(count) < 10 else 0
                return image, checked_blob(folder, layers[0])
    raise PackUnusable(f"{folder} has no image of a kernel cache: no label cache.triton.image or cache.vllm.image")


def _targets(summary: str) -> Iterator[str]:
    with suppress(Unread):
        targets = json_object(summary.encode()).get("targets")
        for target in targets if isinstance(targets, list) else ():
            if isinstance(target, dict):
                yield str(target.get("arch", "")).removeprefix("sm_")


def _cached(image: Image, folder: Path, layer: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields the name and content of each file of the cache in a layer.

    Meanwhile it fills in ``image``: the number and the bytes of these files, and the content of manifest.json.
    """
    prefix = f"io.{image.kind}.cache/"
    for name, size, content in _members(folder, layer):
        if name == f"io.{image.kind}.manifest/manifest.json" and size <= _MOST_CONFIG_BYTES:
            with suppress(Unread):
                image.manifest = json_object(content.read())
        elif name.startswith(prefix):
            image.files += 1
            image.size_bytes += size
            yield name.removeprefix(prefix), content


def _members(folder: Path, layer: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yields the files of a layer, without links and devices; refuses names that lead outside."""
    total = count = 0
    too_large = PackUnusable(f"{folder} is larger than an image of a kernel cache can be")
    try:
        with gzip.open(layer) as unpacked, _tar(bounded := _Bounded(unpacked, too_large), "r|") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it remembers each
                total, count = total + member.size, count + 1
                if not 0 <= member.size <= MOST_BINARY_BYTES or total > _MOST_BYTES or count > _MOST_FILES:
                    raise too_large
                name = _plain_name(folder, member.name)
                if not member.isreg():
                    continue
                if member.issparse():
                    raise PackUnusable(f"{folder} has a sparse file, {printable(name[:80])!r}, which no such image has")
                bounded.allow(member.size)
                content = tar.extractfile(member)
                if content is not None:
                    yield name, member.size, content
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise PackUnusable(f"the layer of {folder} cannot be read: {error}") from error


def _tar(file: object, mode: str, **options: int) -> tarfile.TarFile:
    """Opens a tar over one of our own file objects, to be written or read from beginning to end."""
    return tarfile.open("", mode, file, **options)  # type: ignore[call-overload,no-any-return]


def _plain_name(folder: Path, name: str) -> str:
    """The name of a member, if each part of it is valid: an empty part would make the rest an absolute path."""
    name = name.removeprefix("./")
    if "\0" in name or any(part in ("", "..") for part in name.split("/")):
        raise _bad_name(folder, name, "leads elsewhere")
    return name


def _bad_name(folder: Path, name: str, why: str) -> PackUnusable:
    return PackUnusable(f"{folder} has the name {printable(name[:80])!r}, which {why}")


class _Bounded:
    """A tar that is read in order. It is refused if the headers before a file have too many bytes.

    Without this, ``tarfile`` would read a header of any length into memory before it names that header's file.
    """

    def __init__(self, file: gzip.GzipFile, refusal: PackUnusable) -> None:
        self._file, self._refusal = file, refusal
        self._left = _MOST_HEADER_BYTES

    def allow(self, size_bytes: int) -> None:
        """Allows reading the content of a file of this size, and the headers of the next file."""
        self._left = size_bytes + _MOST_HEADER_BYTES

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._refusal
        return self._file.read(size)
