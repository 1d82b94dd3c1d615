"""An entry says one thing: a record that contradicts its key, or code for another target, is found and not imported.

Each forgery has every checksum, digest and key repaired, so that nothing else could see it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import CorruptEntry
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.artifact import Artifact, Record, RecordedProblem
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, KeyPrefix, key_of
from cache_engine.store.codec import decode_record, encode_blob, encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.pack import Pack, write_pack
from cache_engine.upkeep.findings import FindingKind
from cache_engine.upkeep.integrity import check, repair
from cache_engine.upkeep.packs import export_pack, import_pack, look_into
from cache_engine.upkeep.quarantine import examine, items
from cache_engine.upkeep.survey import check_record
from tests.conftest import SAMPLE
from tests.helpers import make_cubin, make_entry

EMPTY_COMPONENT = ("flags", "")
_NOT_IN_TRITON = ("warps_n", "split_k")  # it places warps itself, and does not split k


def _entry(artifact: Artifact, record: Record) -> tuple[CacheKey, bytes, bytes]:
    """The bytes of an entry, everything made to fit."""
    key = CacheKey(record.key)
    data, blob = encode_blob(key, artifact, compress=True)
    return key, encode_record(msgspec.structs.replace(record, blob=blob)), data


def _forged(**changes: Any) -> tuple[CacheKey, bytes, bytes]:
    """A sound entry, but for these fields of its record."""
    key, artifact, describe = make_entry(3)
    record = describe(encode_blob(key, artifact, compress=True)[1])
    return _entry(artifact, msgspec.structs.replace(record, **changes))


def _with_code(cubin: bytes) -> tuple[CacheKey, bytes, bytes]:
    """A sound entry, but for its code."""
    key, artifact, describe = make_entry(3)
    return _entry(
        msgspec.structs.replace(artifact, cubin=cubin), describe(encode_blob(key, artifact, compress=True)[1])
    )


def _record() -> Record:
    key, artifact, describe = make_entry(3)
    return describe(encode_blob(key, artifact, compress=True)[1])


RECORD = _record()
PROBLEM = RECORD.problem


def _with_components(*components: tuple[str, str]) -> tuple[CacheKey, bytes, bytes]:
    """A sound entry, but for the components of its key."""
    return _forged(components=components, key=key_of(components))


def _without(label: str) -> tuple[CacheKey, bytes, bytes]:
    return _with_components(*(component for component in RECORD.components if component[0] != label))


_LATER = ("A_VECTOR", "B_VECTOR", "C_VECTOR", "RASTER_ROWS", "SUM_TYPE", "SEED")
"""Constants that a version may have or not, and the tests' own."""
_TILES = tuple(field.name.upper() for field in fields(KernelConfig))
NEEDED = [label for label, _ in RECORD.components if label not in (*_LATER, *_TILES)]
FORGERIES = {
    "empty component": (_forged(components=(*RECORD.components, EMPTY_COMPONENT)), "do not form a key"),
    "family": (_forged(family="simt"), "family is 'simt' in the record"),
    "unknown family": (_forged(family="other"), "family is 'other' in the record"),
    "compiler": (_forged(compiler="nvcc"), "compiler is 'nvcc' in the record"),
    "target": (_forged(arch="sm_75"), "arch is 'sm_75' in the record"),
    "n": (_forged(problem=msgspec.structs.replace(PROBLEM, n=PROBLEM.n + 1)), " N is "),
    "k": (_forged(problem=msgspec.structs.replace(PROBLEM, k=PROBLEM.k + 1)), " K is "),
    "specialisation": (_forged(problem=msgspec.structs.replace(PROBLEM, specialisation="exact")), " M is "),
    "dynamic": (_forged(problem=msgspec.structs.replace(PROBLEM, specialisation="dynamic")), " N is None"),
    "other target's code": (_with_code(make_cubin("sm_75", b"code")), "not for its target"),
    "no components": (_with_components(), "has 0 components 'schema'"),
    "a component twice": (_with_components(*RECORD.components, ("flags", "-O2")), "has 2 components 'flags'"),
    **{f"no {label}": (_without(label), label) for label in NEEDED},
    "no code": (_with_code(b"GIF89a" * 100), "not a 64-bit ELF"),
}


@pytest.mark.parametrize(("entry", "said"), FORGERIES.values(), ids=list(FORGERIES))
def test_an_inconsistent_entry_is_found_quarantined_and_not_imported(
    entry: tuple[CacheKey, bytes, bytes], said: str, store: DiskStore, tmp_path: Path
) -> None:
    write_pack(tmp_path / "forged.gemmpack", [entry])
    pack, journal = Pack(tmp_path / "forged.gemmpack"), Journal(store.layout.journal, 3600.0)
    imported = import_pack(store, journal, pack)
    assert (imported.taken, imported.present) == (0, 0)
    assert said in imported.refused[0].cause
    assert [said in incoming.refused for incoming in look_into(store, pack)] == [True]
    assert list(store.keys()) == []

    key, record_data, blob_data = entry
    store.place(decode_record(key, record_data), record_data, blob_data)
    (finding,) = check(store)
    assert finding.kind in (FindingKind.CORRUPT_RECORD, FindingKind.CORRUPT_BLOB)
    assert (finding.key, said in finding.cause) == (key, True)
    assert [refused.key for refused in export_pack(store, tmp_path / "again.gemmpack").refused] == [key]
    assert repair(store, journal, [finding]) == [finding]
    assert list(check(store)) == []
    (item,) = items(store)
    assert said in examine(store, item).cause


PROBLEMS = [
    ("tensor_core", GemmProblem(100, 256, 192, arch="sm_90a", epilogue=Epilogue.parse("alpha+bias+relu"))),
    ("tensor_core", GemmProblem(100, 256, 192, dtype=DType.TF32, layout=Layout.TN, arch="sm_80")),
    ("simt", GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_75")),
    ("triton", GemmProblem(100, 256, 192, dtype=DType.FP16, arch="sm_90")),
    ("triton", GemmProblem(100, 256, 192, dtype=DType.TF32, arch="sm_90")),
]


def _honest(family: str, problem: GemmProblem) -> Record:
    """A record as the engine makes it, without the compile."""
    config = KernelConfig(64, 64, 32, 4, 1, 3)
    constants = FAMILIES[family].constants(problem, config)
    compiler = "triton" if family == "triton" else "nvrtc"
    start = (("family", family), ("template", "t"), ("compiler", compiler), ("compiler_version", "13.5"))
    prefix = KeyPrefix((*start, ("compiler_build", "b"), ("flags", "-O3"), ("arch", problem.arch or "")))
    return msgspec.structs.replace(
        RECORD, key=prefix.key(constants), components=prefix.with_constants(constants), name=constants["KERNEL_NAME"],
        family=family, compiler=compiler, compiler_version="13.5", arch=problem.arch, config=config,
        problem=RecordedProblem.of(problem),
    )  # fmt: skip


@pytest.mark.parametrize("specialisation", list(Specialisation))
@pytest.mark.parametrize(("family", "problem"), PROBLEMS, ids=lambda value: str(value))
def test_every_field_that_the_key_names_is_compared(
    family: str, problem: GemmProblem, specialisation: Specialisation
) -> None:
    record = _honest(family, replace(problem, specialisation=specialisation))
    check_record(record)
    sizes = {"nk": "nk", "exact": "mnk", "bucketed": "mnk", "dynamic": ""}[specialisation]
    problems: list[dict[str, Any]] = [{size: 4 * getattr(problem, size)} for size in sizes]
    problems += [{"layout": "nn"}, {"dtype": "bf16" if problem.dtype is DType.FP16 else "fp16", "out_dtype": "fp16"}]
    problems += [{"specialisation": other.value} for other in Specialisation if other is not specialisation]
    problems += [] if family == "triton" else [{"epilogue": "beta"}]
    changes: list[dict[str, Any]] = [
        {"problem": msgspec.structs.replace(record.problem, **change)} for change in problems
    ]
    tiles = [field.name for field in fields(KernelConfig) if family != "triton" or field.name not in _NOT_IN_TRITON]
    changes += [{"config": replace(record.config, **{tile: 7})} for tile in tiles]
    changes += [{"name": "other"}, {"compiler_version": "13.4"}, {"arch": "sm_86"}, {"family": "other"}]
    for change in changes:
        with pytest.raises(CorruptEntry, match="contradicts its key"):
            check_record(msgspec.structs.replace(record, **change))


def test_the_mode_of_a_record_is_compared() -> None:
    record = _honest("grouped", GemmProblem(100, 256, 192, 3, arch="sm_90", mode="masked"))
    check_record(record)
    with pytest.raises(CorruptEntry, match="MASKED is '0' in the record, '1' in the key"):
        check_record(msgspec.structs.replace(record, problem=msgspec.structs.replace(record.problem, mode="grouped")))


def test_unknown_values_contradict_nothing() -> None:
    """Of a version with another family, another type, another schema; a family is known where the key names one."""
    components = (("schema", "1"), ("family", "new"), ("compiler", "nvrtc"), ("arch", RECORD.arch), ("N", "1"))
    later: tuple[dict[str, Any], ...] = (
        {"components": components, "family": "new"},
        {"components": RECORD.components, "problem": msgspec.structs.replace(PROBLEM, dtype="fp4")},
        {"components": (("schema", "2"), ("family", "another meaning"))},
    )
    for changes in later:
        check_record(msgspec.structs.replace(RECORD, **changes, key=key_of(changes["components"])))
    with pytest.raises(CorruptEntry, match="contradicts its key"):
        check_record(msgspec.structs.replace(RECORD, family="new"))


def test_a_kernel_compiled_here_is_consistent(compiled_store: Path) -> None:
    with open_cache(compiled_store) as cache:
        assert len(list(cache.records())) == len(SAMPLE)
        assert cache.admin.verify() == []


def test_a_pack_serves_no_code_for_another_target(tmp_path: Path) -> None:
    """The checks that every hit in a pack passes: those that cost next to nothing."""
    entry, _ = FORGERIES["other target's code"]
    write_pack(tmp_path / "forged.gemmpack", [entry])
    with open_cache(tmp_path / "store", packs=(tmp_path / "forged.gemmpack",)) as cache:
        assert cache.get(entry[0]) is None
        assert cache.stats().totals.failures == {"pack": 1}
