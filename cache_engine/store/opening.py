"""Opens a directory as a store: creates it, or checks that it is a store that only you and root can change."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from cache_engine.errors import CorruptEntry, LockTimeout, StoreUnusable, Untrusted
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout
from cache_engine.store.lock import make_lock_file
from cache_engine.store.ownership import check_file, open_folder, open_way
from cache_engine.store.publish import publish_file

_KIND = "gemm-cache store"
_STORE_FORMAT = 1  # of the store's directory; entries have their own format version
_MOST_MARKER_BYTES = 64 * 1024
_ONLY_YOU = (
    "a store is for one user: name a directory that only you and root may write (chmod go-w on what is yours), export "
    "a pack to share kernels, or set GEMM_CACHE_TRUST_STORE=1 to use it without this check"
)


class _Marker(msgspec.Struct):
    kind: str
    format: int


def open_store(directory: Path, *, trust: bool = False, create: bool = True) -> StoreLayout:
    """Checks that a directory is a store; creates the store when the directory does not exist or is empty.

    Args:
        trust: accept a store that users other than you and root can change.
        create: create the store if there is none.

    Raises:
        StoreUnusable: when the directory cannot be a store; the text says why and what to do.
    """
    layout = StoreLayout(directory.absolute(), trust=trust)
    try:
        str(layout.root).encode()
    except UnicodeEncodeError as error:
        raise StoreUnusable(f"the path {os.fsencode(layout.root)!r} is not UTF-8; give another directory") from error
    try:
        if not _has_marker(layout):
            _check_free(layout)
            if not create:
                raise StoreUnusable(
                    f"there is no store in {layout.root}; gemm-cache compile or warm --sample creates one"
                )
            _make(layout)
        _check_folders(layout)
        _check_marker(layout)
    except Untrusted as error:
        raise StoreUnusable(f"{error}; {_ONLY_YOU}") from error
    except OSError as error:
        where = f": {error.filename}" if str(error.filename).startswith(f"{layout.root}/") else ""
        raise StoreUnusable(
            f"cannot use {layout.root} as a store: {error.strerror or error}{where}; name a directory that you may "
            "write with --store or GEMM_CACHE_DIR"
        ) from error
    return layout


def _check_free(layout: StoreLayout) -> None:
    if not layout.root.exists():
        return
    if not layout.root.is_dir():
        raise StoreUnusable(f"{layout.root} is a file; a store is a directory")
    # A store's own files are accepted: its creation may have been interrupted, its marker lost, or another process may
    # be creating it.
    own = {path.name for path in (*layout.folders, *layout.later_folders, *layout.single_files)}
    others = sorted({path.name for path in layout.root.iterdir()} - own)
    if others:
        raise StoreUnusable(f"{layout.root} holds {others[0]!r} and is not a store; give an empty or new directory")


def _has_marker(layout: StoreLayout) -> bool:
    """Whether the directory has the file that marks a store.

    Without it, the owners of the directory are checked first, because a wrong owner is a more exact reason.
    """
    try:
        if layout.marker.exists():
            return True
    except PermissionError:
        os.close(_open_root(layout))
        raise
    if layout.root.is_dir():
        os.close(_open_root(layout))
    return False


def _make(layout: StoreLayout) -> None:
    if layout.trust:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = _open_root(layout, make=True)
    try:
        for folder in layout.folders:
            with suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=root)
    finally:
        os.close(root)
    _check_folders(layout)
    publish_file(layout.temp, str(layout.marker), msgspec.json.encode(_Marker(_KIND, _STORE_FORMAT)), durable=True)


def _open_root(layout: StoreLayout, *, make: bool = False) -> int:
    """An open descriptor of the store's directory, after checking who can change this directory and those above it."""
    if layout.trust:
        return os.open(layout.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = open_way(layout.root, make=make)
    try:
        status = os.fstat(root)
        check_file(layout.root, status)
        if status.st_uid != os.geteuid():
            raise Untrusted(f"{layout.root} belongs to user {status.st_uid}, not to you")
    except BaseException:
        os.close(root)
        raise
    return root


def _check_folders(layout: StoreLayout) -> None:
    """Checks the folders of a store, and creates missing ones, because some copy tools drop empty folders."""
    root = _open_root(layout)
    try:
        for folder in (*layout.folders, *layout.later_folders):
            try:
                os.close(open_folder(folder, within=root, trust=layout.trust))
            except FileNotFoundError:
                if folder not in layout.later_folders:
                    with suppress(OSError):  # a read-only store still serves its entries
                        os.mkdir(folder.name, 0o700, dir_fd=root)
    finally:
        os.close(root)
    for lock in (layout.maintenance_lock, layout.jobs_lock, layout.index_lock):
        # On a full disk, cleaning must not need a new file.
        if not os.path.exists(lock):
            with suppress(OSError, LockTimeout):
                make_lock_file(lock)


def _check_marker(layout: StoreLayout) -> None:
    try:
        data = read_file(layout.marker, _MOST_MARKER_BYTES, trust=layout.trust)
        marker = msgspec.json.decode(data or b"", type=_Marker)
    except Untrusted:
        raise
    except (CorruptEntry, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreUnusable(f"{layout.marker} is not the marker of a store: {error}") from error
    if marker.kind != _KIND:
        raise StoreUnusable(f"{layout.root} is a {marker.kind!r}, not a {_KIND}; give another directory")
    if marker.format != _STORE_FORMAT:
        raise StoreUnusable(
            f"{layout.root} is a store of format {marker.format}; this program knows {_STORE_FORMAT}. "
            "Give another directory, or use the version that made it"
        )
