"""Where a store's mirror is, and whether its file is one that DuckDB may open."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from cache_engine.errors import MirrorError, Untrusted
from cache_engine.inputs import others_may_change
from cache_engine.store.layout import StoreLayout
from cache_engine.store.ownership import check_file, open_way


def home_of(store: StoreLayout, *, is_full: bool = False) -> StoreLayout:
    """The store itself; a private folder where it cannot be written, or DuckDB cannot name a file in it.

    Args:
        is_full: whether the store's disk is full.

    Raises:
        MirrorError: when there is no place for such a folder.
    """
    # DuckDB reads what follows a question mark as parameters, and puts its log elsewhere.
    if not is_full and os.access(store.root, os.W_OK) and "?" not in str(store.root):
        return store
    name = hashlib.sha256(os.fsencode(store.root)).hexdigest()[:16]
    home = StoreLayout(Path(tempfile.gettempdir(), f"gemm-cache-{os.geteuid()}") / name)
    try:
        locks = open_way(home.locks, make=True)
        try:
            check_file(home.locks, os.fstat(locks))
        finally:
            os.close(locks)
    except Untrusted as error:
        raise MirrorError(f"there is no place for the mirror: {error}; set TMPDIR to a folder of your own") from error
    return home


def is_own(home: StoreLayout) -> bool:
    """Whether the mirror's files are regular ones that only you and root can change, or are not there.

    DuckDB would wait for a pipe, and show what a planted file says. They are not opened: closing one again would drop
    the lock of a connection in this process.
    """
    for path in (home.mirror, home.mirror_log):
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or (others_may_change(status) and not home.trust):
                return False
    return True
