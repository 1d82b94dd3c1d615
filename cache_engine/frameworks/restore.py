"""Restores a snapshot below a root directory: the entries that their frameworks can use at that path.

Every file is checked, written beside the caches and then renamed into them, as a whole folder if that is new. No
existing file is replaced. If the process is killed, the caches have complete entries and at most one incomplete entry
of Triton, which Triton compiles again; the next restore deletes the folder of files that were not renamed yet.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundles import MAX_BYTES, UnknownGroup, read_group
from cache_engine.frameworks.facts import json_object
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.snapshots import (
    GROUP_FILE,
    JAX_CACHES,
    SavedEntry,
    Snapshot,
    entry_in,
    host_code_in,
    with_children,
)
from cache_engine.frameworks.values import Fault, id_of, name_of
from cache_engine.frameworks.watch import CACHES
from cache_engine.model.key import CacheKey
from cache_engine.store.layout import StoreLayout

STAGED = ".gemm-cache-restore-"
"""The prefix of the folder in the root where files are written first."""
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass
class Restored:
    """The result of restoring a snapshot.

    Attributes:
        made_at: the time when each restored entry was made, in seconds since 1970, by its bundle's key.
        there: the number of entries whose files all existed already.
        missing: the number of entries that the store does not have.
        left: for each reason to leave out entries, their number.
    """

    made_at: dict[CacheKey, float] = field(default_factory=dict)
    size_bytes: int = 0
    there: int = 0
    missing: int = 0
    left: Counter[str] = field(default_factory=Counter)


def restore(
    layout: StoreLayout, snapshot: Snapshot, root: Path, environment: Mapping[str, str], *,
    untrusted: str = "", is_alone: bool = True,
) -> Restored:  # fmt: skip
    """Restores the entries of a snapshot that the store has.

    Args:
        environment: the environment of the command that will use the caches.
        untrusted: why code for the host must not be restored from this snapshot; empty if it may be.
        is_alone: whether no other process restores below this root, so that files of a killed restore can be deleted.

    Raises:
        OSError: when the root cannot be written; what was restored until then is complete.
    """
    done = Restored()
    with _staging(root, is_alone) as staging:
        for key in snapshot.entries:
            try:
                group = read_group(layout, key, trust=layout.trust)
                if group is None:
                    done.missing += 1
                    continue
                saved = entry_in(group)
                if refusal := _refusal(saved, group.files, snapshot, root, environment, untrusted):
                    done.left[refusal] += _counts(saved)
                elif _place(root, staging, files := _files(root, saved, group.files)):
                    done.made_at[group.key] = group.made_at
                    done.size_bytes += sum(len(data) for data, _, _ in files.values())
                else:
                    done.there += 1
            except (CorruptEntry, UnknownGroup, Unread) as error:
                done.left[str(error)] += 1
    return done


def _refusal(
    saved: SavedEntry, contents: Mapping[str, bytes], snapshot: Snapshot, root: Path, environment: Mapping[str, str],
    untrusted: str,
) -> str | None:  # fmt: skip
    """The reason not to restore an entry: its framework would not use it here, or it is untrusted; ``None`` if none."""
    folder = saved.files[0].path.partition("/")[0]
    variable = CACHES[folder]
    if environment.get(variable) != str(root / folder):
        return f"{folder}: {variable} names another directory"
    if any(file.path.partition("/")[0] != folder for file in saved.files):
        return f"{folder}: an entry has files of another framework"
    if untrusted and host_code_in(saved, contents) is not None:
        return f"{folder}: host code, and {untrusted}"
    if snapshot.root in (str(root), id_of(str(root))):
        return None
    if folder == "flashinfer":
        return f"{folder}: bound to {snapshot.root}, where the snapshot was made; give that as --root"
    if folder == "jax" and not snapshot.jax_caches == environment.get(JAX_CACHES) == "none":
        return f"jax: bound to {snapshot.root}, as {JAX_CACHES} is not none"
    return None


def _counts(saved: SavedEntry) -> int:
    """The number that an entry adds to a count: 1, but 0 for the sources of an operation of FlashInfer."""
    return int(not saved.files[0].path.startswith("flashinfer/") or "/cached_ops/" in saved.files[0].path)


def _files(root: Path, saved: SavedEntry, contents: Mapping[str, bytes]) -> dict[str, tuple[bytes, int, int]]:
    """The content, mode and time in ns of each file, by its path below the root; Triton's group file is last."""
    found = {}
    for file in sorted(saved.files, key=lambda file: file.path.rpartition("/")[2].startswith(GROUP_FILE)):
        name = name_of(file.path)
        data = with_children(name, contents[file.digest], str((root / name).parent))
        found[name] = data, file.mode & 0o755 | 0o600, file.mtime_ns
    return found


def _place(root: Path, staging: Path, files: Mapping[str, tuple[bytes, int, int]]) -> bool:
    """Writes the files of an entry into the caches, except those that exist; returns whether any was new.

    Raises ``Unread`` if a file exists with other content.
    """
    new = {name: each for name, each in files.items() if not _is_there(root, name, each[0])}
    if not new:
        return False
    above = os.path.commonpath([os.path.dirname(name) for name in files])
    whole = staging / secrets.token_hex(8)
    try:
        for name, (data, mode, mtime_ns) in new.items():
            file = whole / os.path.relpath(name, above)
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, data, mode, mtime_ns)
        if "/" in above and len(new) == len(files) and _is_renamed(whole, root / above):
            return True
        for name in new:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            _link(whole / os.path.relpath(name, above), root / name)
        return True
    except (FileExistsError, NotADirectoryError) as error:
        raise Unread(Fault.LOCKED, "another process wrote the same entry, or a file is in its way") from error
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def _is_there(root: Path, name: str, data: bytes) -> bool:
    """Whether a file exists with this content; raises ``Unread`` if it exists with other content."""
    if not os.path.lexists(root / name):
        return False
    with suppress(Unread, FileNotFoundError), Folder(root) as top:
        found = top.read(name, MAX_BYTES)
        is_group = name.rpartition("/")[2].startswith(GROUP_FILE)
        if found == data or (is_group and json_object(found) == json_object(data)):  # Triton writes spaces
            return True
    folder = name.partition("/")[0]
    raise Unread(Fault.LOCKED, f"{folder}: another entry is in its place")


def _is_renamed(folder: Path, target: Path) -> bool:
    """Renames a folder to ``target``, unless that is a folder with files; returns whether it was renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _link(file: Path, target: Path) -> None:
    """Moves a file to the path ``target``; raises ``FileExistsError`` if that exists."""
    try:
        os.link(file, target)  # the one way that replaces nothing; the first name is deleted in the end
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        os.rename(file, target)


def _write(file: Path, data: bytes, mode: int, mtime_ns: int) -> None:
    with file.open("xb") as opened:
        opened.write(data)
        opened.flush()
        os.fchmod(opened.fileno(), mode)
        os.utime(opened.fileno(), ns=(mtime_ns, mtime_ns))  # as whole nanoseconds: ninja compares them


@contextmanager
def _staging(root: Path, is_alone: bool) -> Iterator[Path]:
    if is_alone:
        for old in root.glob(f"{STAGED}*"):
            shutil.rmtree(old, ignore_errors=True)
    staging = root / f"{STAGED}{secrets.token_hex(8)}"
    staging.mkdir(mode=0o700)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
