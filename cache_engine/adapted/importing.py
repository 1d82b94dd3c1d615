"""Reads the kernels of Triton's own cache, to import them; checks all that can be checked of each.

Its directory is read as ``foreign`` reads one: following no link, running nothing. A folder is named by Triton's key,
and the metadata of its kernel state that key; the CUBIN must be one, for the stated target, with the stated function.
Files are taken by name from that folder alone, whichever paths the group file has: it keeps those of before a move.
"""

from __future__ import annotations

import base64
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from cache_engine.adapted.groups import MAX_BYTES, Group, is_plain
from cache_engine.compilers.elf import read_cubin
from cache_engine.foreign.facts import json_object, read_object, text_in
from cache_engine.foreign.folder import Folder, Unread
from cache_engine.foreign.frameworks.triton import target_of
from cache_engine.foreign.values import Fault, id_of

_GROUP = "__grp__"
_KEY = re.compile(r"[A-Z2-7]{52}")
_NO_KERNELS = {
    ".so": "a library for the host stays where it is",
    ".autotune.json": "results of tuning stay where they are",
}


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Something that is not imported: its name in the directory, and why.

    ``is_wrong`` says whether it should have been a kernel: it is damaged, or not what it claims to be.
    """

    name: str
    cause: str
    is_wrong: bool = False


def triton_kernels(directory: Path) -> Iterator[Group | NotTaken]:
    """The kernels of a cache of Triton's, checked, and what else is there, with the reason why it is not taken.

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
    """One kernel, checked; raises ``Unread`` or ``ValueError`` where it is not what it should be."""
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
    """Checks that files are those of the kernel that Triton has under a key; raises ``Unread`` or ``ValueError``."""
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
