"""Checks other frameworks' kernels that come from a pack or from Triton's own cache.

A row of a pack has two parts. For a kernel of ours, they are its record and its blob. For another framework's kernel,
they are a record file of another format version, and the bundle; programs that do not know bundles skip the row. The
record file names the bundle's digest, so that a signature of the record covers both.

Triton's directory is read without following links or running anything. A folder must have the name of Triton's key, and
the metadata of its kernel must state that key; the CUBIN must be for the stated target and have the stated function.
Files are taken only from that folder, by their names, because the paths in its group file are wrong after the cache was
moved.
"""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

import msgspec

from cache_engine.compilers.elf import machine_of, read_cubin
from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import MAX_BYTES, Group, StoredGroup, UnknownGroup, is_plain, stored_in
from cache_engine.frameworks.facts import is_ptx, json_object, read_object, text_in
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.nvcc.command import TARGETS, ending_of
from cache_engine.frameworks.nvcc.results import ERR, FRAMEWORK, INDEX, OUT, OUTPUT, document_of
from cache_engine.frameworks.readers.programs import program_in, with_last_byte
from cache_engine.frameworks.readers.triton import target_of
from cache_engine.frameworks.snapshots import FRAMEWORK as OF_SNAPSHOTS
from cache_engine.frameworks.snapshots import host_code_in_bundle
from cache_engine.frameworks.values import Fault, id_of
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import enveloped, format_of, signed_part

FORMAT = 1000
"""The format version of a record file that describes a bundle; records of our kernels have lower versions."""

_OF_GPUS = (190, 224)  # the machines of an ELF image: CUDA, and AMD's GPUs
_OF_HOST = (".so", ".autotune.json")
_PROGRAMS = ("cupy", "cuda_core")
HELION, CONFIG = "helion", "best_config.json"
"""The framework name of Helion's tuning results, and the file name of each result."""
_OBJECT = ".o"
_HOW_HOST_CODE_TRAVELS = "it travels only signed by a trusted key, where the setting host_code is on (docs/launcher.md)"
_CONTROLS = {*range(32), 127} - {9, 10, 13}  # what a terminal would obey


class _Described(msgspec.Struct):
    """A bundle's record file: the bundle's key and framework, and the SHA-256 and the size in bytes of its file."""

    group: str
    framework: str
    digest: str
    bytes: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Described).decode


def is_group(record_data: bytes) -> bool:
    """Whether a row of a pack with this record holds a bundle."""
    return format_of(record_data) == FORMAT


def packed_row(stored: StoredGroup, *, host_code: bool = False) -> tuple[bytes, bytes]:
    """A bundle as a row of a pack: its record file and its bytes.

    Args:
        host_code: as for ``check``.

    Raises:
        CorruptEntry: when the kernel must not leave this machine, or is not what it claims to be; the text says why.
    """
    check(stored.group, host_code=host_code)
    digest = hashlib.sha256(stored.data).hexdigest()
    described = _Described(stored.key, stored.group.framework, digest, len(stored.data))
    return enveloped(_encode(described), format=FORMAT), stored.data


def unpacked_row(key: CacheKey, record_data: bytes, data: bytes, *, host_code: bool = False) -> Group:
    """The bundle in a row of a pack, after verifying every byte and as much of its content as can be checked.

    Args:
        host_code: as for ``check``.

    Raises:
        CorruptEntry: when the row is refused; the text says why.
    """
    inner, _ = signed_part(record_data)
    try:
        described = _decode(inner)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"the record of {key[:12]} cannot be read: {error}") from error
    if (described.group, described.bytes, described.digest) != (key, len(data), hashlib.sha256(data).hexdigest()):
        raise CorruptEntry(f"the record of {key[:12]} is of another kernel, or of other bytes")
    try:
        group = stored_in(key, data).group
    except UnknownGroup as error:
        raise CorruptEntry(f"{error}; a newer version wrote it") from error
    check(group, host_code=host_code)
    return group


def check(group: Group, *, host_code: bool = False) -> None:
    """Refuses kernels that may never be in a pack: code for the host, and files that are not what they claim to be.

    Args:
        host_code: accept an object file of a launched compiler, and files of a snapshot that a process may run. Set it
            only if the row is signed (on import, by a trusted signer) and the setting ``host_code`` is on. See
            docs/decisions/0028.

    Raises:
        CorruptEntry: the text says why.
    """
    _check_host_code(group, host_code)
    try:
        if group.framework == "triton":
            check_triton(group.name, group.index, group.files)
        elif group.framework == FRAMEWORK:
            _check_launched(group)
        elif group.framework == HELION:
            _check_helion(group.files)
        elif group.framework in _PROGRAMS:
            _check_program(group.files[group.index])
        elif group.framework != OF_SNAPSHOTS:
            raise CorruptEntry(f"{id_of(group.framework)} is no framework whose kernels are in packs")
    except (Unread, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptEntry(f"{id_of(group.index)}: {error}") from error


def _check_host_code(group: Group, host_code: bool) -> None:
    if group.framework == OF_SNAPSHOTS:
        if (code := host_code_in_bundle(group)) is not None and not host_code:
            raise CorruptEntry(f"{code} may be host code: {_HOW_HOST_CODE_TRAVELS}")
        return
    for name, data in group.files.items():
        if group.framework == FRAMEWORK and name.endswith(_OBJECT):
            if not host_code:
                raise CorruptEntry(f"{id_of(name)} is host code: {_HOW_HOST_CODE_TRAVELS}")
        elif name.endswith(_OF_HOST) or machine_of(data) not in (None, *_OF_GPUS):
            raise CorruptEntry(f"{id_of(name)} is code or tuning for the host: it is kept local, and never in packs")


def _check_helion(files: Mapping[str, bytes]) -> None:
    """Raises ``ValueError`` or ``Unread`` if a bundle's files are not a result of Helion's tuning."""
    if [*files] != [CONFIG] or not isinstance(json_object(files[CONFIG]).get("config"), str):
        raise ValueError("it is no result of Helion's tuning")


def _check_launched(group: Group) -> None:
    """Raises ``CorruptEntry`` and others if a bundle is not the result of the nvcc command that its name stands for."""
    options = document_of(group).options
    outputs = [name for name in group.files if name.startswith(OUTPUT)]
    if outputs != [OUTPUT + ending_of(options)] or set(group.files) - {*outputs, INDEX, OUT, ERR}:
        raise ValueError("its files are not those of its command")
    for name in (OUT, ERR):
        if set(group.files.get(name, b"")) & _CONTROLS:
            raise ValueError(f"{name} has control characters")
    code = group.files[outputs[0]]
    if outputs[0].endswith(".ptx") and not is_ptx(code):
        raise ValueError("its output is no PTX")
    if outputs[0].endswith(".cubin"):
        arch = read_cubin(code).arch
        targets = [value for name, value in options if name in TARGETS]
        if targets and not any(arch.removeprefix("sm_") in value for value in targets):
            raise ValueError(f"its CUBIN is for {arch or 'an unknown target'}, which its command does not name")


def _check_program(code: bytes) -> None:
    """Raises ``ValueError`` if the code is not a program for a GPU."""
    image = program_in(code)[1]
    if not is_ptx(image):
        read_cubin(with_last_byte(image))


_GROUP = "__grp__"
_KEY = re.compile(r"[A-Z2-7]{52}")
_NO_KERNELS = {
    ".so": "a library for the host stays where it is",
    ".autotune.json": "results of tuning stay where they are",
}


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A file or folder that is not imported: its name in the directory, and the reason.

    ``is_wrong`` is true if the file or folder has a kernel's name, but is damaged or not what it claims to be.
    """

    name: str
    cause: str
    is_wrong: bool = False


def triton_kernels(directory: Path) -> Iterator[Group | NotTaken]:
    """Yields the checked kernels of Triton's own cache; for any other file or folder, the reason to skip it.

    Raises:
        OSError: when the directory cannot be read.
    """
    with Folder(directory) as root:
        for item in root:
            try:
                yield from _in_folder(root, item.name)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except (Unread, ValueError) as error:
                yield NotTaken(id_of(item.name), str(error), is_wrong=True)


def _in_folder(root: Folder, name: str) -> Iterator[Group | NotTaken]:
    if not (_KEY.fullmatch(name) and stat.S_ISDIR(root.stat(name).st_mode)):
        yield NotTaken(id_of(name), "it is not named as Triton names a key")
        return
    with root.enter(name) as folder:
        files = folder.list().files
        indices = [file for file in files if file.startswith(_GROUP) and file.endswith(".json")]
        for index in indices:
            yield _kernel(folder, name, index, files[index].st_mtime)
        if not indices:
            yield NotTaken(name, _no_kernel(list(files)))


def _no_kernel(files: list[str]) -> str:
    for ending, why in _NO_KERNELS.items():
        if any(file.endswith(ending) for file in files):
            return why
    return "it has no group file: Triton compiles this kernel again"


def _kernel(folder: Folder, key: str, group: str, made_at: float) -> Group | NotTaken:
    """Reads and checks one kernel; raises ``Unread`` or ``ValueError`` if a check fails."""
    index = group.removeprefix(_GROUP)
    children = read_object(folder, group).get("child_paths")
    if not isinstance(children, dict) or index not in children:
        raise Unread(Fault.DAMAGED, "its group file does not name its metadata")
    for name, path in children.items():
        if not is_plain(name) or not isinstance(path, str) or PurePath(path).name != name:
            raise Unread(Fault.DAMAGED, f"its group file names {id_of(name)!r}, which is no file of it")
    if any(name.endswith(".so") for name in children):
        return NotTaken(key, _NO_KERNELS[".so"])
    try:
        files = {name: folder.read(name, MAX_BYTES) for name in children}
    except FileNotFoundError:
        return NotTaken(key, "a file that its group file names is missing: Triton compiles this kernel again")
    check_triton(key, index, files)
    return Group("triton", key, index, files, max(0.0, made_at))


def check_triton(key: str, index: str, files: Mapping[str, bytes]) -> None:
    """Checks that files belong to the kernel that Triton has under a key; raises ``Unread`` or ``ValueError``."""
    document = json_object(files[index])
    digest, stem = text_in(document, "hash") or "", index.removesuffix(".json")
    if not re.fullmatch("[0-9a-f]{64}", digest) or base64.b32encode(bytes.fromhex(digest)) != key.encode() + b"====":
        raise Unread(Fault.DAMAGED, "its metadata are of another key")
    code = files.get(f"{stem}.cubin")
    if code is None:
        raise Unread(Fault.DAMAGED, "it has no CUBIN that could be checked")
    image = read_cubin(code)
    target, name = target_of(document), text_in(document, "name")
    if target is None or image.arch.rstrip("af") != target:
        raise Unread(Fault.DAMAGED, f"its CUBIN is for {image.arch or 'an unknown target'}, its metadata say {target}")
    if name not in {function.name for function in image.functions}:
        raise Unread(Fault.DAMAGED, "its CUBIN has no function of the name that its metadata say")
