"""Snapshots: what is saved, what another root gets of it, and what is never restored."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.frameworks import restore as restoring
from cache_engine.frameworks import snapshots
from cache_engine.frameworks.bundle_packs import packed_row, unpacked_row
from cache_engine.frameworks.bundles import Group, group_keys, put_group, read_group, read_stored
from cache_engine.frameworks.folder import Folder
from cache_engine.frameworks.readers.cutile import CuTile
from cache_engine.frameworks.restore import STAGED, Restored, restore
from cache_engine.frameworks.snapshots import (
    ENTRY,
    FRAMEWORK,
    JAX_CACHES,
    SNAPSHOT,
    SavedEntry,
    SavedFile,
    check_name,
    entry_in,
    read_snapshot,
    save,
    snapshot_key,
)
from cache_engine.frameworks.values import Entry, Place
from cache_engine.frameworks.watch import redirected
from cache_engine.store.codec import enveloped
from cache_engine.store.disk import open_store
from cache_engine.store.layout import StoreLayout
from tests.frameworks.fixtures import unpack

FLASHINFER = "flashinfer/.cache/flashinfer/0.7.2/90a"


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return open_store(tmp_path / "store")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a"


def environment(root: Path, **others: str) -> dict[str, str]:
    root.mkdir(exist_ok=True)
    return {"HOME": str(root.parent / "home"), JAX_CACHES: "none", **redirected(others, root), **others}


def write(root: Path, name: str, data: bytes = b"data", mode: int = 0o644, mtime_ns: int = 10**18 + 123) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    file.chmod(mode)
    os.utime(file, ns=(mtime_ns, mtime_ns))
    return file


def saved(layout: StoreLayout, root: Path, **others: str) -> snapshots.Saved:
    return save(layout, "base", root, environment(root, **others), durable=False)


def restored(layout: StoreLayout, root: Path, untrusted: str = "", **others: str) -> Restored:
    found = read_snapshot(layout, "base")
    assert found is not None
    return restore(layout, found[0], root, environment(root, **others), untrusted=untrusted)


def tree(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """The files below a root, their modes and times; group files without the paths that they name."""
    found = {}
    for file in root.rglob("*"):
        if file.is_file():
            status, data = file.stat(), file.read_bytes()
            if file.name.startswith("__grp__"):
                data = msgspec.json.encode(sorted(msgspec.json.decode(data)["child_paths"]))
            found[str(file.relative_to(root))] = data, status.st_mode & 0o777, status.st_mtime_ns
    return found


def test_each_file_comes_back_with_its_mode_and_its_time_to_the_nanosecond(
    layout: StoreLayout, root: Path, tmp_path: Path
) -> None:
    """Of every framework's recorded cache; FlashInfer builds again where a time is rounded through a float."""
    for kind in ("triton", "tilelang", "cupy", "deepgemm", "jax"):
        unpack(kind, root)
    write(root, "inductor/ab/cabc.py", b"import os", 0o600)
    write(root, f"{FLASHINFER}/cached_ops/silu/silu.so", b"\x7fELF host", 0o755)
    write(root, f"{FLASHINFER}/cached_ops/silu/build.ninja")
    write(root, f"{FLASHINFER}/generated/silu/silu.cu")
    before = tree(root)
    assert before.pop("jax/.lockfile")[0] == b"", "a lock is no entry"
    done = saved(layout, root)
    assert done.left == []
    assert done.size_bytes == sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) - _paths(root)
    shutil.rmtree(root)
    result = restored(layout, root)
    assert (result.there, result.missing, result.left) == (0, 0, {})
    assert len(result.made_at) == done.entries
    assert tree(root) == {name: (data, mode & 0o755, ns) for name, (data, mode, ns) in before.items()}
    assert all(file.stat().st_nlink == 1 for file in root.rglob("*") if file.is_file())
    assert not list(root.glob(f"{STAGED}*"))


def _paths(root: Path) -> int:
    """What group files have more than with names alone."""
    sizes = 0
    for file in root.rglob("__grp__*"):
        document = msgspec.json.decode(file.read_bytes())
        names = {"child_paths": {name: name for name in document["child_paths"]}}
        sizes += file.stat().st_size - len(msgspec.json.encode(names))
    return sizes


def test_group_files_name_the_files_of_the_new_root(layout: StoreLayout, root: Path, tmp_path: Path) -> None:
    unpack("triton", root)
    in_vllm = "vllm/torch_compile_cache/0123456789/rank_0_0/triton_cache"
    shutil.copytree(root / "triton", root / in_vllm)
    assert saved(layout, root).entries == 8
    restored(layout, tmp_path / "b", "untrusted")
    groups = list((tmp_path / "b").rglob("__grp__*.json"))
    assert len(groups) == 8
    for file in groups:
        children = msgspec.json.decode(file.read_bytes())["child_paths"]
        assert children == {name: str(file.parent / name) for name in children}
        assert all(os.path.exists(path) for path in children.values())


def test_what_two_snapshots_share_is_stored_once(layout: StoreLayout, root: Path, tmp_path: Path) -> None:
    unpack("triton", root)
    assert (saved(layout, root).new, saved(layout, root).new) == (4, 0)
    restored(layout, tmp_path / "b")
    write(tmp_path / "b", "cupy/" + "0" * 40 + ".cubin")
    done = save(layout, "next", tmp_path / "b", environment(tmp_path / "b"), durable=False)
    assert done.new == 0, "a program of CuPy whose digest is wrong is not complete"
    assert len(list(group_keys(layout))) == 6


def test_partial_and_temporary_files_stay_and_are_named(layout: StoreLayout, root: Path) -> None:
    place = unpack("triton", root)
    first, second, *_ = sorted(place.iterdir())
    next(first.glob("__grp__*")).unlink()
    (second / "tmp.pid_1_x").mkdir()
    (second / "tmp.pid_1_x" / "scale.cubin").write_bytes(b"half")
    done = saved(layout, root)
    assert (done.entries, done.left) == (3, [f"triton {first.name}: partial"])
    shutil.rmtree(root)
    restored(layout, root)
    assert not list(root.rglob("tmp.pid*"))


def test_a_file_that_is_written_while_it_is_read_is_left(
    layout: StoreLayout, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(root, "inductor/ab/cabc.py")
    write(root, "inductor/cd/other.py")
    read = Folder.read

    def reads(self: Any, name: str, most: int) -> bytes:
        data = read(self, name, most)
        if name.endswith("cabc.py"):
            file.write_bytes(b"longer than before")
        return data

    monkeypatch.setattr(Folder, "read", reads)
    done = saved(layout, root)
    assert (done.entries, done.left) == (1, ["inductor ab/cabc.py: it was written meanwhile"])


def test_a_new_file_without_a_known_layout_is_taken_once_it_is_still(
    layout: StoreLayout, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(time=lambda: 1_000_000_001.0, sleep=slept.append)
    monkeypatch.setattr(snapshots, "time", clock)
    write(root, "jax/old-cache", mtime_ns=900 * 10**15)
    write(root, "jax/new-cache", mtime_ns=10**18)
    assert saved(layout, root).entries == 2
    assert slept == [pytest.approx(1.0)]


@pytest.mark.parametrize(("count", "is_saved"), [(999, True), (1000, False)])
def test_an_entry_of_too_many_files_is_left_and_named(
    layout: StoreLayout, root: Path, tmp_path: Path, count: int, is_saved: bool
) -> None:
    """Also where all have the same content, which is stored once."""
    write(root, "jax/one-cache")
    for number in range(count):
        write(root, f"inductor/ab/cd/ef/{number}")
    done = saved(layout, root)
    assert (done.entries, len(done.left)) == ((2, 0) if is_saved else (1, 1))
    assert len(restored(layout, tmp_path / "b").made_at) == done.entries


def test_cutile_s_database_is_saved_whole_and_never_written_over(
    layout: StoreLayout, root: Path, tmp_path: Path
) -> None:
    unpack("cutile", root)
    rows = _rows(root)
    done = saved(layout, root)
    assert (done.entries, done.left) == (1, [])
    restored(layout, tmp_path / "b", "untrusted")
    assert _rows(tmp_path / "b") == rows != []
    with sqlite3.connect(tmp_path / "b" / "cutile" / "cache.db") as database:
        database.execute("DELETE FROM cache WHERE key = ?", rows[:1])
    again = restored(layout, tmp_path / "b")
    assert again.left == {"cutile: another entry is in its place": 1}
    assert len(_rows(tmp_path / "b")) == len(rows) - 1


def _rows(root: Path) -> list[str]:
    seen = CuTile().scan(Place("cutile", root / "cutile", "given"), {})
    return sorted(each.id for each in seen if isinstance(each, Entry))


# ---- At another root ----


def test_flashinfer_is_refused_at_another_root_by_name_with_the_number_of_operations(
    layout: StoreLayout, root: Path, tmp_path: Path
) -> None:
    for number in range(3):
        write(root, f"{FLASHINFER}/cached_ops/op{number}/op{number}.so", b"\x7fELF")
        write(root, f"{FLASHINFER}/cached_ops/op{number}/build.ninja")
        write(root, f"{FLASHINFER}/generated/op{number}/op.cu")
    assert saved(layout, root).entries == 6
    done = restored(layout, tmp_path / "b")
    assert done.left == {f"flashinfer: bound to {root}, where the snapshot was made; give that as --root": 3}
    assert not (tmp_path / "b" / "flashinfer").exists()
    shutil.rmtree(root)
    assert len(restored(layout, root).made_at) == 6


@pytest.mark.parametrize(
    ("made_with", "used_with", "moves"), [("none", "none", True), ("all", "none", False), ("none", "all", False)]
)
def test_jax_moves_only_where_its_keys_do_not_have_the_path(
    layout: StoreLayout, root: Path, tmp_path: Path, made_with: str, used_with: str, moves: bool
) -> None:
    write(root, "jax/one-cache")
    saved(layout, root, **{JAX_CACHES: made_with})
    done = restored(layout, tmp_path / "b", **{JAX_CACHES: used_with})
    assert (tmp_path / "b" / "jax" / "one-cache").exists() == moves
    assert [*done.left] == ([] if moves else [f"jax: bound to {root}, as {JAX_CACHES} is not none"])
    assert restored(layout, root, **{JAX_CACHES: used_with}).there == 1


def test_nothing_is_restored_for_a_framework_whose_variable_names_another_directory(
    layout: StoreLayout, root: Path, tmp_path: Path
) -> None:
    unpack("triton", root)
    saved(layout, root)
    done = restored(layout, tmp_path / "b", TRITON_CACHE_DIR=str(tmp_path))
    assert done.left == {"triton: TRITON_CACHE_DIR names another directory": 4}
    write(tmp_path / "b", "jax/one-cache")
    there = environment(tmp_path / "b", TRITON_CACHE_DIR=str(root / "triton"))
    own = save(layout, "own", tmp_path / "b", there, durable=False)
    assert (own.entries, own.left) == (1, [f"triton: it is not below {tmp_path / 'b'}"])


# ---- Host code ----


@pytest.mark.parametrize(
    ("name", "data", "is_host"),
    [
        ("inductor/ab/cabc.py", b"import os", True),
        ("inductor/fxgraph/ab/x/y", b"pickle", True),
        ("vllm/torch_compile_cache/0123456789/rank_0_0/backbone/artifact", b"pickle", True),
        (f"{FLASHINFER}/cached_ops/silu/silu.so", b"\x7fELF", True),
        ("tilelang/0.1/ab/params.pkl", b"pickle", True),
        ("jax/one-cache", b"executable", True),
        (f"triton/{'A' * 52}/k.cubin", b"x", False),
        (f"triton/{'A' * 52}/k.so", b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x3e\x00" + bytes(100), True),
        (f"inductor/triton/0/{'A' * 52}/k.json", b"{}", True),
        (f"triton/{'A' * 52}/x/k.py", b"import os", True),
        ("triton/x/k.json", b"{}", True),
        (f"vllm/torch_compile_cache/0123456789/rank_0_0/triton_cache/{'A' * 52}/k.ptx", b"x", False),
        ("deepgemm/cache/kernel.x/kernel.cubin", b"x", False),
        ("compute_cache/0/1/x", b"x", False),
    ],
)  # fmt: skip
def test_what_may_be_run_or_unpickled_needs_a_trusted_signature(
    layout: StoreLayout, root: Path, name: str, data: bytes, is_host: bool
) -> None:
    group = _bundle([(name, data)])
    put_group(layout, group, durable=False)
    _snapshot(layout, root, group)
    done = restored(layout, root, "it is not signed")
    assert (root / name).exists() != is_host
    assert is_host or (root / name).stat().st_mode & 0o7777 == 0o755, "no one else may write it"
    assert [*done.left] == ([f"{name.partition('/')[0]}: host code, and it is not signed"] if is_host else [])
    stored = read_stored(layout, group.key)
    assert stored is not None
    if is_host:
        with pytest.raises(CorruptEntry, match="host code"):
            packed_row(stored)
    row = packed_row(stored, host_code=True)
    assert unpacked_row(group.key, *row, host_code=True) == group


# ---- Hostile and damaged snapshots ----


def _bundle(files: list[tuple[str, bytes]], change: Callable[[dict[str, Any]], None] = lambda _: None) -> Group:
    contents = {sha256(data).hexdigest(): data for _, data in files}
    listed = [SavedFile(name, 0o777, 10**18, sha256(data).hexdigest()) for name, data in files]
    document = msgspec.to_builtins(SavedEntry(1, "x", "x", listed))
    change(document)
    data = msgspec.json.encode(document)
    return Group(FRAMEWORK, sha256(data).hexdigest(), ENTRY, {ENTRY: data, **contents})


def _snapshot(layout: StoreLayout, root: Path, *groups: Group, **others: Any) -> None:
    """Stores a snapshot of any bundles."""
    known = {
        "format": 1, "name": "base", "root": str(root), "made_at": 0.0, "jax_caches": "none",
        "entries": [group.key for group in groups],
    }  # fmt: skip
    data = enveloped(msgspec.json.encode(known | others), format=1)
    put_group(layout, Group(FRAMEWORK, "base", SNAPSHOT, {SNAPSHOT: data}), durable=False)


@pytest.mark.parametrize(
    "name",
    [
        "../x", "triton/../../x", "/etc/x", "triton//x", "triton/./x", "triton", "", "other/x", ".gemm-cache-run.lock",
        "gemm-cache/store.json", "triton/%2e%2e/%2e%2e/x", "deepgemm/%2E%2E/inductor/x.py", "triton/a%00b",
        "triton/a\0b",
        "deepgemm/" + "a/" * 40 + "x", "deepgemm/" + "a" * 300, "triton%2Fx", "deepgemm/x/",
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(layout: StoreLayout, root: Path, name: str) -> None:
    group = _bundle([(name, b"data")])
    put_group(layout, group, durable=False)
    _snapshot(layout, root, group)
    done = restored(layout, root)
    assert (len(done.made_at), sum(done.left.values())) == (0, 1)
    assert [*root.iterdir()] == []
    assert not (root.parent / "x").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [("format", "version 2"), ("mode", "cannot be read"), ("digest", "not those"), ("extra", "not those"),
     ("twice", "one path"), ("none", "cannot be read"), ("time", "cannot be read")],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_refused(layout: StoreLayout, root: Path, what: str, said: str) -> None:
    def change(document: dict[str, Any]) -> None:
        file = document["files"][0]
        if what == "twice":
            document["files"].append(dict(file))
        changed: dict[str, dict[str, Any]] = {
            "mode": {"mode": 0o4755},
            "digest": {"digest": "0" * 64},
            "time": {"mtime_ns": -1},
        }
        file |= changed.get(what, {})
        others: dict[str, dict[str, Any]] = {"format": {"format": 2}, "none": {"files": []}}
        document |= others.get(what, {})

    group = _bundle([("deepgemm/x", b"data")], change)
    if what == "extra":
        group.files["0" * 64] = b"more"
    put_group(layout, group, durable=False)
    with pytest.raises(CorruptEntry, match=said):
        entry_in(group)
    _snapshot(layout, root, group)
    assert sum(restored(layout, root).left.values()) == 1
    assert [*root.iterdir()] == []


def test_bytes_that_were_changed_are_refused(layout: StoreLayout, root: Path) -> None:
    group = _bundle([("deepgemm/x", b"data")])
    for forged in (
        Group(FRAMEWORK, group.name, ENTRY, {**group.files, sha256(b"data").hexdigest(): b"else"}),
        Group(FRAMEWORK, "0" * 64, ENTRY, group.files),
        Group("triton", group.name, ENTRY, group.files),
    ):
        with pytest.raises(CorruptEntry):
            entry_in(forged)


@pytest.mark.parametrize(
    "others", [{"format": 2}, {"name": "other"}, {"entries": "x"}, {"entries": ["../../x"]}, {"made_at": "x"}]
)
def test_a_snapshot_of_another_version_or_name_is_refused(
    layout: StoreLayout, root: Path, others: dict[str, Any]
) -> None:
    _snapshot(layout, root, **others)
    with pytest.raises(CorruptEntry, match=r"version|other|read|key"):
        read_snapshot(layout, "base")


def test_group_files_name_no_file_outside_their_folder(layout: StoreLayout, root: Path) -> None:
    folder = f"triton/{'A' * 52}"
    children = msgspec.json.encode({"child_paths": {"../../../etc/passwd": "x", "k.json": "/etc/passwd"}})
    group = _bundle([(f"{folder}/__grp__k.json", children), (f"{folder}/k.json", b"{}")])
    put_group(layout, group, durable=False)
    _snapshot(layout, root, group)
    restored(layout, root, "untrusted")
    found = msgspec.json.decode((root / folder / "__grp__k.json").read_bytes())
    assert found == {"child_paths": {"k.json": str(root / folder / "k.json")}}


def test_nothing_that_is_there_is_written_over(layout: StoreLayout, root: Path, tmp_path: Path) -> None:
    place = unpack("triton", root)
    saved(layout, root)
    kernels = sorted(place.iterdir())
    changed, linked, partial, whole = kernels
    next(changed.glob("*.ptx")).write_bytes(b"other")
    shutil.rmtree(linked)
    linked.symlink_to(tmp_path)
    next(partial.glob("__grp__*")).unlink()
    done = restored(layout, root)
    assert (len(done.made_at), done.there, sum(done.left.values())) == (1, 1, 2)
    assert done.left["triton: another entry is in its place"] == 1
    assert next(changed.glob("*.ptx")).read_bytes() == b"other"
    assert linked.is_symlink()
    assert len(list(partial.iterdir())) == len(list(whole.iterdir()))


def test_a_group_file_is_put_last(layout: StoreLayout, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that looks meanwhile finds all of a kernel's files, or none."""
    place = unpack("triton", root)
    saved(layout, root)
    for kernel in place.iterdir():
        for file in sorted(kernel.iterdir())[:-1]:  # the group file, and all others but one
            file.unlink()
    put: dict[Path, list[str]] = {}
    link = restoring._link

    def noted(file: Path, target: Path) -> None:
        put.setdefault(target.parent, []).append(target.name)
        link(file, target)

    monkeypatch.setattr(restoring, "_link", noted)
    restored(layout, root)
    assert len(put) == 4
    for names in put.values():
        assert [name.startswith("__grp__") for name in names] == [False] * (len(names) - 1) + [True]


def test_what_a_killed_restore_left_is_deleted_by_the_next_that_is_alone(layout: StoreLayout, root: Path) -> None:
    write(root, "jax/one-cache")
    saved(layout, root)
    write(root, f"{STAGED}0000/x/y")
    found = read_snapshot(layout, "base")
    assert found is not None
    restore(layout, found[0], root, environment(root), is_alone=False)
    assert list(root.glob(f"{STAGED}*"))
    restore(layout, found[0], root, environment(root))
    assert not list(root.glob(f"{STAGED}*"))


def test_a_file_system_without_hard_links_gets_the_same(
    layout: StoreLayout, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, "jax/one-cache", b"one")
    saved(layout, root)

    def link(*_: object) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(os, "link", link)
    restored(layout, tmp_path / "b")
    assert (tmp_path / "b" / "jax" / "one-cache").read_bytes() == b"one"


def test_a_bundle_that_the_store_lost_is_counted(layout: StoreLayout, root: Path, tmp_path: Path) -> None:
    unpack("triton", root)
    saved(layout, root)
    keys = [key for key in group_keys(layout) if key != snapshot_key("base")]
    os.unlink(layout.group_path(keys[0]))
    Path(layout.group_path(keys[1])).write_bytes(b"damaged")
    done = restored(layout, tmp_path / "b")
    assert (len(done.made_at), done.missing, sum(done.left.values())) == (2, 1, 1)
    assert saved(layout, root).new == 2
    assert read_group(layout, keys[0]) is not None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a" * 101, "a\n", "ä"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="snapshot"):
        check_name(name)
