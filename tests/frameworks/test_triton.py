"""What is read of Triton's cache, and what of the caches of others that contain it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.registry import load_sources, surroundings
from cache_engine.frameworks.values import Entry, KeyFactors, PartKind, Place, State
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that Triton 3.9.0 made: two kernels in four variants."""
    return Place("triton", unpack("triton", tmp_path), "given")


def _entries(place: Place) -> dict[tuple[str | None, str | None, object], Entry]:
    found = [seen for seen in Triton().scan(place, {}) if isinstance(seen, Entry)]
    return {(entry.name, entry.arch, entry.config.get("num_warps")): entry for entry in found}


def test_the_facts_are_those_of_the_kernel(place: Place) -> None:
    found = _entries(place)
    assert set(found) == {
        ("scale", "sm_80", 4),
        ("scale", "sm_90a", 4),
        ("scale", "sm_90a", 8),
        ("tile", "sm_90a", 4),
    }
    tile = found["tile", "sm_90a", 4]
    assert tile.version == "3.9.0"
    assert tile.compiler is not None
    assert tile.compiler.startswith("ptxas 13.")
    # As cuobjdump -res-usage printed them; the shared memory is that of the launch: two tiles of 64 × 64 in fp16.
    assert (tile.registers, tile.stack_bytes, tile.shared_bytes) == (168, 0, 2 * 64 * 64 * 2)
    assert tile.config == {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
    assert [part.name for part in tile.parts] == ["group", "cubin", "json", "llir", "ptx", "source", "ttgir", "ttir"]


def test_the_factors_that_differ_are_those_that_were_asked_for(place: Place) -> None:
    found, source = _entries(place), Triton()

    def factors(*key: object) -> dict[tuple[str, str], str]:
        known = source.key_factors(place, found[key])  # type: ignore[index]
        assert isinstance(known, KeyFactors)
        assert known.hidden
        return {(factor.group, factor.name): factor.value for factor in known.factors}

    def differ(one: dict[tuple[str, str], str], other: dict[tuple[str, str], str]) -> set[tuple[str, str]]:
        return {name for name in {*one, *other} if one.get(name) != other.get(name)}

    four, eight, old = factors("scale", "sm_90a", 4), factors("scale", "sm_90a", 8), factors("scale", "sm_80", 4)
    assert differ(four, eight) == {("option", "num_warps")}
    assert differ(four, old) == {
        ("target", "arch"),
        ("option", "arch"),
        ("option", "supported_fp8_dtypes"),
        ("option", "deprecated_fp8_dot_operand_dtypes"),
        ("option", "max_num_imprecise_acc_default"),
    }
    assert differ(four, factors("tile", "sm_90a", 4)) == {("kernel", "source")}
    assert four["environment", "TRITON_DEFAULT_FP_FUSION"] == "true"


@pytest.mark.parametrize("suffix", [".cubin", ".ptx", ".json"])
def test_a_group_that_lacks_a_file_is_partial(place: Place, suffix: str) -> None:
    entry = _entries(place)["tile", "sm_90a", 4]
    (place.path / entry.id / f"tile{suffix}").unlink()
    (again,) = [each for each in _entries(place).values() if each.id == entry.id]
    assert (again.state, again.name) == (State.PARTIAL, "tile")


def test_without_its_group_file_an_entry_is_partial(place: Place) -> None:
    entry = _entries(place)["tile", "sm_90a", 4]
    (place.path / entry.id / "__grp__tile.json").unlink()
    (again,) = [each for each in Triton().scan(place, {}) if each.id == entry.id]
    assert isinstance(again, Entry)
    assert (again.state, again.name) == (State.PARTIAL, None)


def test_what_a_writer_left_behind_is_a_temporary_part(place: Place) -> None:
    entry = _entries(place)["tile", "sm_90a", 4]
    left = place.path / entry.id / "tmp.pid_42_00000000-0000-0000-0000-000000000000"
    left.mkdir()
    (left / "tile.cubin").write_bytes(b"half")
    again = _entries(place)["tile", "sm_90a", 4]
    part = again.part(PartKind.TEMPORARY)
    assert part is not None
    assert (part.size_bytes, again.size_bytes, again.state) == (4, entry.size_bytes + 4, State.COMPLETE)


def test_libraries_for_the_host_and_results_of_tuning_are_entries_that_are_no_kernels(place: Place) -> None:
    for digit, file in (("A", "cuda_utils.cpython-311-x86_64-linux-gnu.so"), ("B", "tile.autotune.json")):
        (place.path / (digit * 52)).mkdir()
        (place.path / (digit * 52) / file).write_text("{}")
    found = {entry.name: entry for entry in _entries(place).values()}
    library = found["cuda_utils.cpython-311-x86_64-linux-gnu.so"]
    assert (library.state, library.parts[0].kind, library.registers) == (State.COMPLETE, PartKind.HOST, None)
    assert library.unread["registers"] == "it is no kernel"
    assert found["tile.autotune.json"].state == State.COMPLETE


def test_an_older_version_s_metadata_are_read_as_far_as_they_go(place: Place) -> None:
    """Keys were hexadecimal, and neither the version nor the target was an object."""
    entry = _entries(place)["tile", "sm_90a", 4]
    folder = place.path / ("ab" * 32)
    shutil.move(place.path / entry.id, folder)
    (folder / "tile.cubin").unlink()
    (folder / "tile.json").write_text(json.dumps({"num_warps": 4, "target": ["cuda", 80], "shared": -1}))
    (old,) = [each for each in _entries(place).values() if each.id == "ab" * 32]
    assert (old.name, old.version, old.arch, old.shared_bytes) == ("tile", None, None, None)
    assert old.unread["version"] == "this version of Triton does not store its version"
    assert old.config == {"num_warps": 4}


def test_one_changed_file_is_seen_by_its_stamp(place: Place) -> None:
    """A file that Triton replaces is renamed into the folder, which changes the folder's time."""
    entries = _entries(place).values()
    known = {entry.id: entry.stamp for entry in entries}
    changed = next(iter(entries)).id
    folder = place.path / changed
    (folder / "new").write_text("")
    (folder / "new").rename(next(folder.glob("*.ptx")))
    (again,) = [seen for seen in Triton().scan(place, known) if isinstance(seen, Entry)]
    assert again.id == changed


def test_the_caches_within_those_of_inductor_and_vllm_are_found(tmp_path: Path) -> None:
    made = [
        tmp_path / ".triton" / "cache",
        tmp_path / "inductor" / "triton" / "0",
        tmp_path / "inductor" / "triton" / "1",
        tmp_path / ".cache" / "vllm" / "torch_compile_cache" / "ab12" / "rank_0_0" / "triton_cache",
        tmp_path / ".cache" / "vllm" / "torch_compile_cache" / "ab12" / "rank_1_0" / "inductor_cache" / "triton" / "0",
        tmp_path / "moved",
        tmp_path / "named",
    ]
    for folder in made:
        folder.mkdir(parents=True)
    environment = {
        "HOME": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "moved"),
    }
    where = surroundings([f"triton={tmp_path / 'named'}"], environment)
    places = [place for place in load_sources().places(where) if place.kind == "triton"]
    assert {place.path for place in places if tmp_path in place.path.parents} == set(made)
    origins = {place.path.name: place.origin for place in places}
    assert (origins["named"], origins["moved"], origins["triton_cache"]) == ("given", "TRITON_CACHE_DIR", "vLLM")
