"""Kernels of other frameworks, as the fault suite interrupts their storing: none is torn afterwards."""

from __future__ import annotations

from cache_engine.adapted.groups import Group, put_group
from cache_engine.store.disk import DiskStore
from tests.faults.operations import Action, Operation, Promise, filled

_OLD = Group("triton", "ABC234", "scale.json", {"scale.json": b"{}", "scale.cubin": b"old" * 3000})
_NEW = Group("triton", "ABC234", "scale.json", {"scale.json": b"[]", "scale.cubin": b"new" * 5000})


def _before_replacing(store: DiskStore) -> Promise:
    put_group(store.layout, _OLD, durable=False)
    return filled(store)


def _putting(store: DiskStore) -> Action:
    return lambda: put_group(store.layout, _NEW, durable=True) > 0


GROUPS = {
    "put a group": Operation(filled, _putting),
    "replace a group": Operation(_before_replacing, _putting),
}
