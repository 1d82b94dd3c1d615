"""Kernels of other frameworks in packs: they arrive as they are, signed if asked for, and nothing for the host does."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zstandard

from cache_engine.errors import CorruptEntry
from cache_engine.frameworks.bundle_facts import describe
from cache_engine.frameworks.bundle_packs import FORMAT as ROW_FORMAT
from cache_engine.frameworks.bundle_packs import packed_row
from cache_engine.frameworks.bundles import Group, put_group, read_group, read_stored
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import UnknownFormat, decode_record, enveloped
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.pack import Pack, write_pack
from cache_engine.store.signatures.signers import TrustedSigners
from cache_engine.upkeep.packs import Imported, export_pack, import_pack, look_into
from tests.adapters.made import SCALE_SM_80, TILE, triton_groups
from tests.cli.test_cli import document, run
from tests.frameworks.fixtures import unpack
from tests.helpers import make_cubin, make_store, publish
from tests.trust.keys import Builder, signers_file


@dataclass(frozen=True)
class Two:
    """A store with kernels of Triton, CuPy and cuda.core and one of ours, and an empty one."""

    one: DiskStore
    other: DiskStore
    groups: dict[CacheKey, Group]
    ours: CacheKey

    def imported(self, pack: Pack) -> Imported:
        """What came of importing a pack into the empty one."""
        return import_pack(self.other, Journal(self.other.layout.journal, 3600.0), pack)


@pytest.fixture
def two(store: DiskStore, tmp_path: Path) -> Two:
    groups = [*triton_groups(tmp_path / "made").values()]
    program = next(path for path in unpack("cupy", tmp_path).iterdir() if path.suffix == ".cubin").read_bytes()[40:]
    groups.append(Group("cupy", "a.cubin", "program", {"program": program, "program.source": b"source"}, 5.0))
    cubin = next(path for path in (unpack("cuda_core", tmp_path) / "entries").glob("*/*")).read_bytes()
    groups.append(Group("cuda_core", "ab", "program", {"program": cubin}, 5.0, {"compile": 7.0}))
    for group in groups:
        put_group(store.layout, group, durable=False)
    return Two(store, make_store(tmp_path / "other"), {group.key: group for group in groups}, publish(store, 1))


def test_they_arrive_as_they_were_with_ours(two: Two, tmp_path: Path) -> None:
    pack, one, other = tmp_path / "all.gemmpack", two.one.layout.root, two.other.layout.root
    exported = document("pack", "export", pack, store=one)
    assert (exported["entries"], exported["refused"]) == (len(two.groups) + 1, [])
    planned = document("pack", "import", pack, "--dry-run", store=other)
    assert (planned["taken"], list(two.other.layout.groups.glob("*"))) == (len(two.groups) + 1, [])
    done = document("pack", "import", pack, store=other)
    assert (done["taken"], done["present"], done["refused"]) == (len(two.groups) + 1, 0, [])
    assert {key: read_group(two.other.layout, key) for key in two.groups} == two.groups
    assert two.other.get(two.ours) == two.one.get(two.ours)
    again = document("pack", "import", pack, store=other)
    assert (again["taken"], again["present"]) == (0, len(two.groups) + 1)
    assert run("verify", store=other).returncode == 0


def test_targets_choose_and_a_damaged_one_is_replaced(two: Two, tmp_path: Path) -> None:
    pack, one, other = tmp_path / "old.gemmpack", two.one.layout.root, two.other.layout.root
    old = next(group for group in two.groups.values() if group.name == SCALE_SM_80)
    chosen = {key for key, group in two.groups.items() if describe(group).arch == "sm_80"}
    assert {old.key} <= chosen < set(two.groups)
    document("pack", "export", pack, "--arch", "sm_80", store=one)
    there = {incoming.key: incoming for incoming in look_into(two.other, Pack(pack)) if incoming.adapted is not None}
    assert set(there) == chosen
    assert (there[old.key].name, there[old.key].arch, there[old.key].refused) == ("scale", "sm_80", "")
    document("pack", "import", pack, store=other)
    assert {path.name for path in two.other.layout.groups.iterdir()} == chosen
    Path(two.other.layout.group_path(old.key)).write_bytes(b"damaged")
    assert document("pack", "import", pack, store=other)["taken"] == 1
    assert read_group(two.other.layout, old.key) == old


def test_an_older_program_leaves_such_a_row_alone(two: Two, tmp_path: Path) -> None:
    """It reads a record of another format version there, which is no damage."""
    export_pack(two.one, tmp_path / "all.gemmpack")
    pack = Pack(tmp_path / "all.gemmpack")
    for row in pack.rows():
        if row.key in two.groups:
            with pytest.raises(UnknownFormat):
                decode_record(row.key, pack.record_data(row))
            assert pack.get(row.key) is None
    assert pack.get(two.ours) is not None
    assert [record.key for record in pack.records()] == [two.ours]


def test_a_signature_covers_the_bytes_of_the_group(two: Two, builder: Builder, tmp_path: Path) -> None:
    prove = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}")).require
    path = tmp_path / "signed.gemmpack"
    export_pack(two.one, path)
    refused = two.imported(Pack(path, prove=prove))
    assert (refused.taken, len(refused.refused)) == (0, len(two.groups) + 1)
    export_pack(two.one, path, sign=builder.key.sign, replace=True)
    assert two.imported(Pack(path, prove=prove)).taken == len(two.groups) + 1
    key, group = next(iter(two.groups.items()))
    put_group(two.one.layout, msgspec.structs.replace(group, made_at=1.0), durable=False)
    stored = [read_stored(each.layout, key) for each in (two.one, two.other)]
    assert stored[0]
    assert stored[1]
    record_data = builder.key.sign(packed_row(stored[1])[0])
    write_pack(tmp_path / "forged.gemmpack", [(key, record_data, stored[0].data)])
    forged = two.imported(Pack(tmp_path / "forged.gemmpack", prove=prove))
    assert [each.cause for each in forged.refused] == [
        f"the record of {key[:12]} is of another kernel, or of other bytes"
    ]


def _elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 3, machine) + bytes(100)


def _with(files: dict[str, bytes]) -> Callable[[Group], Group]:
    return lambda tile: msgspec.structs.replace(tile, files=tile.files | files)


_HOST = "is code or tuning for the host: it is kept local, and never in packs"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (_with({"launcher.so": b"anything"}), f"launcher.so {_HOST}"),
        (_with({"tile.autotune.json": b"{}"}), f"tile.autotune.json {_HOST}"),
        (_with({"tile.llir": _elf(62)}), f"tile.llir {_HOST}"),
        (_with({"tile.llir": b"\x7fELF"}), f"tile.llir {_HOST}"),
        (_with({"tile.cubin": b"no code"}), "tile.json: it is not a 64-bit ELF image"),
        (_with({"tile.json": b"{}"}), "tile.json: its metadata are of another key"),
        (lambda tile: msgspec.structs.replace(tile, framework="own"), "own is no framework whose kernels are in packs"),
        (
            lambda _: Group("cuda_core", "a", "program", {"program": gzip.compress(b"x")}),
            "program: it is not a 64-bit ELF image",
        ),
    ],
)
def test_what_stays_local_or_is_no_kernel_is_neither_exported_nor_imported(
    store: DiskStore, tmp_path: Path, change: Callable[[Group], Group], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = change(triton_groups(tmp_path / "made")[TILE])
    put_group(store.layout, group, durable=False)
    path, other = tmp_path / "a.gemmpack", make_store(tmp_path / "other")
    exported = export_pack(store, path)
    assert (exported.entries, [(each.key, each.cause) for each in exported.refused]) == (0, [(group.key, cause)])
    stored = read_stored(store.layout, group.key)
    assert stored is not None
    with pytest.raises(CorruptEntry):
        packed_row(stored)
    with monkeypatch.context() as changed:  # one who forges a pack checks nothing
        changed.setattr("cache_engine.frameworks.bundle_packs.check", lambda _, **__: None)
        write_pack(path, [(group.key, *packed_row(stored))])
    assert [each.refused for each in look_into(other, Pack(path))] == [cause]
    found = import_pack(other, Journal(other.layout.journal, 3600.0), Pack(path))
    assert (found.taken, [each.cause for each in found.refused]) == (0, [cause])
    assert not list(other.layout.groups.glob("*"))


_LARGE = 1 << 20


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (Group("cupy", "a", "p", {"p": b"\x93CUPYNE\0" + struct.pack("<II", 1, _LARGE) + b"\1" * _LARGE
                                  + make_cubin("sm_90", b"")}), ""),
        (Group("cupy", "a", "0", {f"{number:x}": b"" for number in range(_LARGE // 50)}), "length <= 1000"),
        (Group("cupy", "\1" * _LARGE, "p", {"p": b""}), "names"),
        (Group("triton", "A" * 52, "k.json", {"k.json": b'{"hash":[' + b"[]," * (2 * _LARGE) + b"0]}"}), "bytes"),
    ],
    ids=["instances", "files", "key", "lists"],
)  # fmt: skip
def test_a_small_pack_takes_little_memory(store: DiskStore, tmp_path: Path, group: Group, said: str) -> None:
    """A few kilobytes may unpack to megabytes, but each of these is not made into an object of Python."""
    packed = zstandard.compress(msgspec.msgpack.encode(group))
    header = struct.pack("<8sH32s32s", b"GEMMGRUP", 1, bytes.fromhex(group.key), hashlib.sha256(packed).digest())
    stated = {"group": group.key, "framework": group.framework, "bytes": len(header + packed),
              "digest": hashlib.sha256(header + packed).hexdigest()}  # fmt: skip
    row = (group.key, enveloped(msgspec.json.encode(stated), format=ROW_FORMAT), header + packed)
    write_pack(tmp_path / "small.gemmpack", [row])
    tracemalloc.start()
    try:
        (incoming,) = look_into(store, Pack(tmp_path / "small.gemmpack"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said in incoming.refused
    assert bool(incoming.refused) == bool(said)
    assert len(incoming.name) <= 3000
    assert peak < 32 * _LARGE
