"""Inductor's cache: graphs of torch.compile, read without unpickling. Two versions of torch made the caches."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_engine.frameworks.comparison import Comparing
from cache_engine.frameworks.folder import Folder, Unread
from cache_engine.frameworks.readers import inductor
from cache_engine.frameworks.readers.inductor import MOST_PICKLE_BYTES, plain_values
from cache_engine.frameworks.registry import PACKAGES, is_stale, load_sources, survey
from cache_engine.frameworks.values import Entry, KeyFactors, PartKind, Place, ScanFinding, State, Unchanged
from cache_engine.frameworks.watch import Run, Watch
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack

SOURCES = load_sources()
READER = SOURCES.by_kind["inductor"]
GELU, LAYER, BACK = "fotsad5mkxelu", "fk25hsen3roia", "fwedd3azodg7r"


def place(tmp_path: Path, kind: str = "inductor") -> Place:
    return Place("inductor", unpack(kind, tmp_path), "given")


def entries(at: Place) -> dict[str, Entry]:
    """The entries of a cache by the beginning of their keys."""
    return {seen.id.rpartition("/")[2][:13]: seen for _, seen in survey(SOURCES, [at]) if isinstance(seen, Entry)}


def test_graphs_are_rows_with_name_version_and_what_they_hold(tmp_path: Path) -> None:
    found = entries(place(tmp_path))
    assert {key: (each.name, each.version, each.state) for key, each in found.items()} == {
        GELU: ("gelu in compiled.py", "2.13.0+cpu", State.COMPLETE),
        LAYER: ("forward in compiled.py", "2.13.0+cpu", State.COMPLETE),
        BACK: ("forward in compiled.py", "2.13.0+cpu", State.COMPLETE),
        "a2ibnypcxdi4h": ("gelu in compiled.py", "2.13.0+cpu", State.COMPLETE),
        "ap6pblhfzepli": ("forward in compiled.py", "2.13.0+cpu", State.COMPLETE),
    }
    assert {key: dict(found[key].config) for key in (GELU, LAYER, BACK)} == {
        GELU: {"graph": "inference", "device": "cpu", "kernels": 1},
        LAYER: {"graph": "forward", "device": "cpu", "kernels": 2},
        BACK: {"graph": "backward", "device": "cpu", "kernels": 1},
    }
    graphs = found["ap6pblhfzepli"].config
    assert (str(graphs["forward"])[:13], str(graphs["backward"])[:13]) == (LAYER, BACK)
    assert all(each.compile_ms is not None and each.compile_ms > 100 for each in found.values())
    assert found["ap6pblhfzepli"].compile_ms == pytest.approx(10324.195, abs=0.01)  # of both graphs


def test_another_version_is_stale_and_its_keys_differ_by_it(tmp_path: Path) -> None:
    old, new = place(tmp_path), place(tmp_path, "inductor_newer")
    (later,) = (each for each in entries(new).values() if each.id.startswith("fxgraph/"))
    # Without a trace, torch 2.14 writes no version into an entry; but the digest of its own files is in every key.
    assert (later.name, later.version, later.compiler) == ("gelu in compiled.py", None, "torch 4d5hw3qo6n7n")
    assert {each.compiler for each in entries(old).values()} == {"torch sjldm5hyfytk"}
    assert {each.compiler for each in entries(new).values()} == {later.compiler}
    assert is_stale("2.13.0+cpu", "2.14.1")
    assert PACKAGES["inductor"] == ("torch",)
    compared = Comparing(READER).directories((old, [*entries(old).values()]), (new, [*entries(new).values()]))
    (miss,) = (each for each in compared.only_other if each.entry.id == later.id)
    assert miss.nearest is not None
    assert GELU in miss.nearest.id  # the same graph, and not one with as few other differences
    differing = {(each.group, each.name): each for each in miss.differences}
    assert "another version" in differing["torch", "torch_version"].meaning
    assert not [name for group, name in differing if group == "graph"]
    assert ("config", "nvgemm_max_profiling_configs") in differing


def test_the_inputs_of_a_graphs_key_are_all_that_torch_wrote(tmp_path: Path) -> None:
    at = place(tmp_path)
    found = entries(at)
    known = READER.key_factors(at, found[GELU])
    assert isinstance(known, KeyFactors)
    values = {(each.group, each.name): each.value for each in known.factors}
    assert len(values) == 636
    assert values["config", "epilogue_fusion"] == "True"
    assert "shape=torch.Size([4, 8])" in values["graph", "example_inputs[0]"]
    assert values["graph", "example_inputs[0]"].endswith(")")  # the digest
    assert values["call", "get_decomp_fn"].startswith("<function select_decomp_table> (")  # without its address
    unknown = READER.key_factors(at, found["a2ibnypcxdi4h"])
    assert isinstance(unknown, Failure)
    assert "an entry of AOTAutograd names its graphs" in unknown.reason


def test_autograd_without_its_graph_says_so_and_unchanged_entries_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = place(tmp_path)
    shutil.rmtree(next(at.path.glob(f"fxgraph/*/{GELU}*")))
    found = entries(at)
    assert found["a2ibnypcxdi4h"].version is None
    assert "is gone" in found["a2ibnypcxdi4h"].unread["version"]
    monkeypatch.setattr(Folder, "read", lambda *_: pytest.fail("it was read again"))
    again = list(READER.scan(at, {each.id: each.stamp for each in found.values()}))
    assert {type(each) for each in again} == {Unchanged}


def test_graphs_with_several_guards_and_temporary_files(tmp_path: Path) -> None:
    at = place(tmp_path)
    folder = next(at.path.glob(f"fxgraph/*/{GELU}*"))
    (file,) = folder.iterdir()
    shutil.copy(file, folder / "another")
    (folder / ".123.456.tmp").write_bytes(b"half")
    entry = entries(at)[GELU]
    assert entry.config["variants"] == 2
    assert [part.name for part in entry.parts if part.kind == PartKind.TEMPORARY] == [".123.456.tmp"]
    assert entry.size_bytes == 2 * file.stat().st_size + 4


def test_generated_code_is_listed_by_size_and_age(tmp_path: Path) -> None:
    at = place(tmp_path)
    (at.path / "ab").mkdir()
    (at.path / "ab" / "cabc.py").write_bytes(b"raise SystemExit")
    entry = next(each for each in entries(at).values() if each.id == "ab/cabc.py")
    assert (entry.state, entry.size_bytes, entry.name) == (State.UNREAD, 16, None)
    assert "generated code" in entry.unread["version"]


class Bomb:
    """A pickle that makes a folder when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.made),)


BOMBS = {
    "claims 10 GB": b"\x80\x04\x8e" + struct.pack("<Q", 10 << 30) + b"x" * 100,
    "claims more than there is memory": b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"x",
    "a number of 2 GB": b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
    "a number of many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a frame without an end": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "nested": b"\x80\x04" + b"]" * 1_000_000 + b".",
    "a huge memo": b"\x80\x04\x8c\x01a" + b"\x94" * 1_000_000 + b".",
    "a memo at a huge place": b"\x80\x04\x8c\x01ar\xff\xff\xff\xffj\xff\xff\xff\xff" * 200_000 + b".",
    "a long text repeated by two bytes": (
        b"\x80\x04X"
        + struct.pack("<I", 20_061)
        + b"["
        + b"a" * 51
        + b"] graph: "
        + b"x" * 20_000
        + b"\x94"
        + b"h\x00" * 5_000
        + b"."
    ),
    "no end": b"\x80\x04\x8c\x01a",
    "no pickle": b"\x00\xff" * 100,
    "empty": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_pickles_that_bomb_are_bounded_and_listed_by_size(name: str, tmp_path: Path) -> None:
    at = place(tmp_path)
    (file,) = next(at.path.glob(f"fxgraph/*/{GELU}*")).iterdir()
    file.write_bytes(BOMBS[name])
    entry = entries(at)[GELU]
    assert (entry.state, entry.size_bytes) == (State.UNREAD, len(BOMBS[name]))
    assert entry.unread["name"]
    assert isinstance(READER.key_factors(at, entry), Failure)
    assert len(entries(at)) == 5


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    at, made = place(tmp_path), tmp_path / "made"
    (file,) = next(at.path.glob(f"fxgraph/*/{GELU}*")).iterdir()
    text = "# torch version: 9.9\n"
    file.write_bytes(pickle.dumps({"runnable_graph_str": text, "current_callable": Bomb(made)}))
    entry = entries(at)[GELU]
    READER.key_factors(at, entry)
    assert (entry.version, entry.name) == ("9.9", None)
    assert not made.exists()
    pickle.loads(file.read_bytes())  # it would have been seen
    assert made.exists()


@pytest.mark.parametrize("value", ["x" * 1_000_000, -1, 2**60, True, 1.5, None, "\x1b[31m"])
def test_what_is_no_number_is_neither_a_time_nor_a_count(value: object, tmp_path: Path) -> None:
    at = place(tmp_path)
    (file,) = next(at.path.glob(f"fxgraph/*/{GELU}*")).iterdir()
    counts = dict.fromkeys(("generated_kernel_count", "_time_taken_ns"), value)
    file.write_bytes(pickle.dumps({"runnable_graph_str": "# torch version: 9.9\n", **counts}))
    entry = entries(at)[GELU]
    assert (entry.version, entry.config, entry.compile_ms) == ("9.9", {}, None)


def test_values_of_every_protocol_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol in range(6):
        data = pickle.dumps({"a": 12, "b": ["x", "x\ud800", "a"], "c": 2**40}, protocol=protocol)
        values = [value for value in plain_values(data) if value is not None]
        assert [value for value in values if value != 0] == ["a", 12, "b", "x", "x?", "a", "c", 2**40]
    colliding = b"\x80\x04\x8c\x01ap%d\n0g%d\n." % ((2**61 - 1,) * 2)  # each multiple has the hash 0
    assert [value for value in plain_values(colliding) if value is not None] == ["a"]
    monkeypatch.setattr(inductor, "MOST_OPCODES", 5)
    with pytest.raises(Unread, match="more than 5 instructions"):
        list(plain_values(pickle.dumps([1, 2, 3, 4, 5, 6])))


def test_hostile_folders(tmp_path: Path) -> None:
    """Links, devices, a file of a gigabyte, names that are no UTF-8, and a folder that must not be read."""
    at = place(tmp_path)
    folders = {key: next(at.path.glob(f"*/*/{key}*")) for key in (GELU, LAYER, BACK)}
    (file,) = folders[GELU].iterdir()
    os.truncate(file, 1 << 30)
    (other,) = folders[LAYER].iterdir()
    other.unlink()
    other.symlink_to("/etc/passwd")
    os.mkfifo(folders[LAYER] / "pipe")
    os.rename(folders[BACK], os.fsencode(folders[BACK].parent) + b"/f\xff\n" + b"a" * 50)
    os.symlink("/", at.path / "fxgraph" / "zz")
    os.chmod(next(at.path.glob("aotautograd/a2i*")), 0)
    found = entries(at)
    assert f"at most {MOST_PICKLE_BYTES:,}" in found[GELU].unread["name"]
    assert found[LAYER].unread["name"] == "it has no file yet"
    assert [each.state for each in found.values() if each.id.startswith("fxgraph/we/f%FF%0A")] == [State.UNREAD]
    assert all(each.id.isprintable() for each in found.values())
    if os.geteuid():  # root may read everything
        assert [each for _, each in survey(SOURCES, [at]) if isinstance(each, ScanFinding)]


def test_a_cache_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone between listing and reading leaves no entry; the others are read."""
    at, read = place(tmp_path), Folder.read

    def vanishing(folder: Folder, name: str, most: int) -> bytes:
        for path in at.path.glob(f"fxgraph/*/{GELU}*/*"):
            path.unlink()
        return read(folder, name, most)

    monkeypatch.setattr(Folder, "read", vanishing)
    found = entries(at)
    assert {LAYER, BACK} <= found.keys()
    assert GELU not in found or found[GELU].state == State.UNREAD


def test_a_run_counts_each_graph_once(tmp_path: Path) -> None:
    """AOTAutograd's entries are the same compiles as those of their graphs."""
    run = Run(command=[], root="", started_at=0.0, not_watched=[])
    folder = tmp_path / "inductor"
    folder.mkdir()
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "HOME": str(tmp_path / "none")}
    watch = Watch(run, environment, SOURCES)
    unpack("inductor", tmp_path)
    watch.poll()
    assert run.frameworks["inductor"].found == 3
    assert {each.name for each in run.compiled} == {"gelu in compiled.py", "forward in compiled.py"}
