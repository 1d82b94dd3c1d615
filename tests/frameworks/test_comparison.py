"""Why two entries have different keys, what two directories differ in, and what that tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.frameworks.comparison import Comparing, Difference, differences, meaning_of, nearest
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.readers.vllm import VLLM
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, Place
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that Triton 3.9.0 made: two kernels in four variants."""
    return Place("triton", unpack("triton", tmp_path / "a"), "given")


@pytest.fixture
def other(tmp_path: Path) -> Place:
    """The same, in another directory."""
    return Place("triton", unpack("triton", tmp_path / "b"), "given")


def _entries(place: Place) -> list[Entry]:
    return [seen for seen in Triton().scan(place, {}) if isinstance(seen, Entry)]


def _find(place: Place, *wanted: object) -> tuple[Place, Entry]:
    """The entry of this name, target and number of warps."""
    (entry,) = [each for each in _entries(place) if (each.name, each.arch, each.config.get("num_warps")) == wanted]
    return place, entry


def test_the_option_that_was_asked_for_is_the_difference(place: Place) -> None:
    found = Comparing(Triton()).entries(_find(place, "scale", "sm_90a", 4), _find(place, "scale", "sm_90a", 8))
    (each,) = found.differences
    assert (each.group, each.name, each.a, each.b) == ("option", "num_warps", "4", "8")
    assert found.unknown == ""
    assert found.hidden
    assert "scale.cubin" in found.parts


def test_an_entry_and_itself_differ_in_nothing_also_in_another_directory(place: Place, other: Place) -> None:
    """The group file has the directory's path, which decides nothing."""
    one, two = _find(place, "tile", "sm_90a", 4), _find(other, "tile", "sm_90a", 4)
    found = Comparing(Triton()).entries(one, two)
    assert (found.differences, found.parts) == ((), ())


def test_without_metadata_the_reason_is_said(place: Place) -> None:
    one = _find(place, "tile", "sm_90a", 4)
    (place.path / one[1].id / "tile.json").write_text("not JSON")
    found = Comparing(Triton()).entries(one, _find(place, "scale", "sm_90a", 4))
    assert "not JSON" in found.unknown
    assert found.differences == ()


def test_of_two_directories_what_changed_and_what_is_missing_is_said_with_its_cause(place: Place, other: Place) -> None:
    """One entry with other bytes under its key; one that only one of them has, which another version made."""
    changed = _find(other, "tile", "sm_90a", 4)[1]
    (other.path / changed.id / "tile.ptx").write_text("other")
    missing = _find(place, "scale", "sm_80", 4)[1]
    (other.path / missing.id).rename(other.path / ("A" * 52))
    metadata = other.path / ("A" * 52) / "scale.json"
    document = json.loads(metadata.read_text()) | {"triton_version": "3.8.0"}
    metadata.write_text(json.dumps(document))
    steps: list[int] = []
    found = Comparing(Triton()).directories((place, _entries(place)), (other, _entries(other)), lambda: steps.append(1))
    assert found.same == 2
    assert [(entry.id, parts) for entry, parts in found.changed] == [(changed.id, ("tile.ptx",))]
    (here,), (there,) = found.only_one, found.only_other
    assert (here.entry.id, here.nearest and here.nearest.id) == (missing.id, "A" * 52)
    assert there.entry.id == "A" * 52
    assert [(each.name, each.a, each.b) for each in here.differences] == [("triton_version", "3.9.0", "3.8.0")]
    assert "after an upgrade" in here.differences[0].meaning
    assert [(each.name, count) for each, count in found.causes] == [("triton_version", 1)]
    assert len(steps) == 5


def test_an_entry_without_a_namesake_says_so(place: Place, other: Place) -> None:
    tile = _find(place, "tile", "sm_90a", 4)[1]
    found = Comparing(Triton()).directories((place, [tile]), (other, []))
    assert found.only_one[0].nearest is None
    assert found.only_one[0].unknown == "the other directory has no entry of this name"


def _vllm(folder: Path, key: str, **environment: object) -> Place:
    """A graph of vLLM, written by hand as ``vllm/compilation/backends.py`` does."""
    entry = folder / key / "rank_0_0" / "backbone"
    entry.mkdir(parents=True)
    factors = {"code_hash": "91c6", "compiler_hash": "4fc2", "config_hash": "35e0", "env": environment}
    (entry / "cache_key_factors.json").write_text(json.dumps(factors))
    (entry / "vllm_compile_cache.py").write_text("{}")
    (entry / "0.best_config").write_text(f"tuned in {folder.name}")
    return Place("vllm", folder, "given")


def test_two_caches_of_vllm_say_which_variables_made_one_miss(tmp_path: Path) -> None:
    """The port and the directory, and nothing of what is the same."""
    one = _vllm(tmp_path / "a", "4bce7ae4f8", VLLM_PORT=5001, VLLM_CONFIG_ROOT="/home/a/.config", VLLM_USE_V1=True)
    other = _vllm(tmp_path / "b", "0123456789", VLLM_PORT=5002, VLLM_CONFIG_ROOT="/root/.config", VLLM_USE_V1=True)
    entries = [(place, [seen for seen in VLLM().scan(place, {}) if isinstance(seen, Entry)]) for place in (one, other)]
    found = Comparing(VLLM()).directories(entries[0], entries[1])
    causes = {each.name: (each.a, each.b, each.meaning, count) for each, count in found.causes}
    assert causes.keys() == {"VLLM_PORT", "VLLM_CONFIG_ROOT"}
    assert causes["VLLM_PORT"][:2] == ("5001", "5002")
    assert "a port of the network" in causes["VLLM_PORT"][2]
    assert "an absolute path" in causes["VLLM_CONFIG_ROOT"][2]
    assert [count for *_, count in causes.values()] == [1, 1]


def test_one_key_that_was_tuned_differently_is_a_change_of_bytes(tmp_path: Path) -> None:
    places = [_vllm(tmp_path / name, "4bce7ae4f8", VLLM_PORT=5001) for name in "ab"]
    entries = [(place, [seen for seen in VLLM().scan(place, {}) if isinstance(seen, Entry)]) for place in places]
    found = Comparing(VLLM()).directories(entries[0], entries[1])
    assert (found.same, found.only_one, found.only_other) == (0, (), ())
    assert [parts for _, parts in found.changed] == [("0.best_config",)]


def test_differences_have_both_values_and_none_for_what_one_does_not_state() -> None:
    one = KeyFactors((Factor("A", "1", "environment"), Factor("B", "2"), Factor("C", "")))
    two = KeyFactors((Factor("A", "9", "environment"), Factor("B", "2"), Factor("D", "3")))
    found = [(each.group, each.name, each.a, each.b) for each in differences(one, two)]
    assert found == [("environment", "A", "1", "9"), ("", "C", "", None), ("", "D", None, "3")]
    assert all(isinstance(each, Difference) for each in differences(one, two))


@pytest.mark.parametrize(
    ("group", "name", "values", "said"),
    [
        ("environment", "VLLM_PORT", ("5001", "5002"), "a port"),
        ("environment", "VLLM_DP_MASTER_PORT", ("1", "2"), "a port"),
        ("environment", "VLLM_DP_RANK", ("0", "1"), "number of this process"),
        ("environment", "LOCAL_RANK", ("0", "1"), "number of this process"),
        ("environment", "VLLM_HOST_IP", ("10.0.0.1", "10.0.0.2"), "address or name of a machine"),
        ("environment", "HOME", ("/root", "/home/a"), "from user to user"),
        ("environment", "VLLM_RPC_BASE_PATH", ("/tmp/a", "/tmp/b"), "an absolute path"),
        ("config", "model", ("/models/x/llama", "/data/y/llama"), "an absolute path"),
        ("command", "flags", ("-I/usr/a/include -O3", "-I/opt/b/include -O3"), "an absolute path"),
        ("environment", "VLLM_USE_DEEP_GEMM", ("0", "1"), "a variable of the environment"),
        ("version", "triton_version", ("3.8.0", "3.9.0"), "after an upgrade"),
        ("compiler", "compiler_hash", ("a", "b"), "another compiler"),
        ("target", "arch", ("80", "90"), "another GPU"),
        ("kernel", "source", ("a", "b"), "code of the kernel"),
        ("code", "code_hash", ("a", "b"), "code of model or framework"),
        ("file", "mtime", ("1", "2"), "time of modification"),
        ("option", "num_warps", ("4", "8"), ""),
        ("environment", "SUPPORT", ("a", "b"), "a variable of the environment"),
    ],
)
def test_known_culprits_are_recognised(group: str, name: str, values: tuple[str, str], said: str) -> None:
    meaning = meaning_of(group, name, *values)
    assert said in meaning
    assert bool(said) == bool(meaning)


def test_the_same_graph_is_nearer_than_one_with_fewer_other_inputs() -> None:
    """Of torch.compile: after an upgrade many settings differ, and yet it is the same graph that missed."""

    def graph(code: str, **config: str) -> KeyFactors:
        settings = (Factor(name, value, "config") for name, value in config.items())
        return KeyFactors((Factor("gm", code, "graph"), *settings))

    asked = graph("f", a="1", b="1", c="1")
    candidates = [("another", graph("g", a="1", b="1", c="1")), ("same", graph("f", a="2", b="2", c="2"))]
    found = nearest(asked, [*candidates, ("unknown", Failure("it is not read"))])
    assert found is not None
    assert (found[0], [each.name for each in found[1]]) == ("same", ["a", "b", "c"])
    assert nearest(asked, [("unknown", Failure("it is not read"))]) is None
