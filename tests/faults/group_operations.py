"""Kernels of other frameworks, as the fault suite interrupts their storing: none is torn afterwards."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.upkeep.packs import import_triton
from tests.faults.operations import Action, Operation, Promise, filled
from tests.frameworks.fixtures import unpack

_OLD = Group("triton", "ABC234", "scale.json", {"scale.json": b"{}", "scale.cubin": b"old" * 3000})
_NEW = Group("triton", "ABC234", "scale.json", {"scale.json": b"[]", "scale.cubin": b"new" * 5000})


def _before_replacing(store: DiskStore) -> Promise:
    put_group(store.layout, _OLD, durable=False)
    return filled(store)


def _putting(store: DiskStore) -> Action:
    return lambda: put_group(store.layout, _NEW, durable=True) > 0


@cache
def _theirs() -> Path:
    """A cache that Triton made, outside of the stores, which are copied."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return unpack("triton", folder)


def _importing(store: DiskStore) -> Action:
    journal, theirs = Journal(store.layout.journal, 3600.0), _theirs()

    def act() -> object:
        imported = import_triton(store, journal, theirs, durable=True)
        journal.close()
        if imported.refused:
            raise OSError(imported.refused[0].cause)
        return imported.taken

    return act


GROUPS = {
    "import Triton's cache": Operation(filled, _importing),
    "put a group": Operation(filled, _putting),
    "replace a group": Operation(_before_replacing, _putting),
}
