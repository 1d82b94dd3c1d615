"""Checks that an entry is consistent: its record with the components of its key, its code with its target.

Checksums prove that bytes are unchanged. This proves that they belong together, no matter which program wrote them.
``verify``, export, import and ``quarantine restore`` do both checks. A hit in a pack does only the second, which takes
1 µs; the first takes as long as the hit (30 µs). A hit on disk does neither: a stored entry was compiled here or passed
both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from cache_engine.compilers.elf import cubin_fault
from cache_engine.errors import CorruptEntry, GemmCacheError
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.artifact import Record
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import SCHEMA
from cache_engine.store.codec import check_key

# The specialisation decides which sizes are constants, so a record and its key must also agree on the set of sizes.
_SIZES = ("M", "N", "K", "M_MOST")
# Constants that every version with this schema derives from a problem in the same way. Others, such as the widths of
# reads, follow from rules that may change.
_OF_THE_PROBLEM = frozenset(
    {*_SIZES, "IN_TYPE", "OUT_TYPE", "INPUT_PRECISION", "A_TRANSPOSED", "B_TRANSPOSED", "WARPS"}
    | {"WITH_ALPHA", "WITH_BETA", "WITH_BIAS", "ACTIVATION", "SCALED", "B_SCALE_COLUMNS", "SCALE_TYPE"}
    | {"MASKED"}
)
_TILES = tuple((field.name, field.name.upper()) for field in fields(KernelConfig))
# Components that every key with this schema has, with the constants of its problem.
_ALWAYS = frozenset({"template", "compiler_version", "compiler_build", "flags", "KERNEL_NAME"})


def check_record(record: Record) -> None:
    """Checks that the record's components hash to its key and are complete, and that its fields agree with them.

    Raises:
        CorruptEntry: naming the field that does not agree.
    """
    check_key(record)
    count = Counter(label for label, _ in record.components)
    for label, times in {"schema": count["schema"], **count}.items():
        if times != 1:
            raise CorruptEntry(f"the key of {record.key[:12]} has {times} components {label!r}, not one")
    components = {"CLUSTER": "1", **dict(record.components)}  # which keys leave out where it is 1
    if components["schema"] != SCHEMA:
        return  # the labels of another scheme may mean something else
    for label, value in (("family", record.family), ("compiler", record.compiler), ("arch", record.arch)):
        _compare(record, label, value, components.get(label))
    constants = _constants(record)
    tiles = {label: str(getattr(record.config, name)) for name, label in _TILES}
    expected = {"compiler_version": record.compiler_version, "KERNEL_NAME": record.name, **tiles, **(constants or {})}
    for label, value in expected.items():
        if label in components:
            _compare(record, label, value, components[label])
    if constants is not None:
        for label in (*_SIZES, *constants):
            _compare(record, label, constants.get(label), components.get(label))
        missing = sorted(_ALWAYS - components.keys())
        if missing:
            raise CorruptEntry(f"the key of {record.key[:12]} has no component {missing[0]!r}")


def check_code(record: Record, cubin: bytes) -> None:
    """Checks that the compiled code is for the record's target.

    Raises:
        CorruptEntry: with the reason.
    """
    fault = cubin_fault(cubin, record.arch)
    if fault:
        raise CorruptEntry(f"the code of {record.key[:12]} is not for its target: {fault}")


def check_entry(record: Record, cubin: bytes) -> None:
    """Both checks.

    Raises:
        CorruptEntry: as they do.
    """
    check_record(record)
    check_code(record, cubin)


def _constants(record: Record) -> dict[str, str] | None:
    """The constants that the key must have for the record's problem; ``None`` if this program cannot derive them."""
    try:
        family = FAMILIES[record.family]
        constants = family.constants(record.problem.on(record.arch), record.config)
    except (KeyError, GemmCacheError):
        return None
    return {label: str(value) for label, value in constants.items() if label in _OF_THE_PROBLEM}


def _compare(record: Record, label: str, said: str | None, hashed: str | None) -> None:
    if said != hashed:
        raise CorruptEntry(
            f"record of {record.key[:12]} contradicts its key: {label} is {said!r} in the record, {hashed!r} in the key"
        )
