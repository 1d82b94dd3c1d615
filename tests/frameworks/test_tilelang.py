"""What is read of tilelang's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cache_engine.frameworks.deletion import Deleted, delete
from cache_engine.frameworks.readers.tilelang import TileLang
from cache_engine.frameworks.values import DeletePlan, Entry, KeyFactors, PartKind, Place, State
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A cache that tilelang 0.1.15 made: one kernel."""
    return Place("tilelang", unpack("tilelang", tmp_path), "given")


def _entries(place: Place) -> dict[str, Entry]:
    found = list(TileLang().scan(place, {}))
    assert all(isinstance(seen, Entry) for seen in found), found
    return {seen.id.split("/")[-2]: seen for seen in found if isinstance(seen, Entry)}


def test_the_sources_and_the_code_are_two_entries(place: Place) -> None:
    found = _entries(place)
    assert set(found) == {"kernels", "cuda-binaries"}
    kernel, binary = found["kernels"], found["cuda-binaries"]
    assert (kernel.name, kernel.version, kernel.state) == ("main_kernel", "0.1.15", State.COMPLETE)
    assert (binary.name, binary.arch, binary.version) == ("main_kernel", "sm_90a", "0.1.15")
    assert binary.registers is not None
    assert kernel.part(PartKind.HOST) is not None
    assert "an entry of its own" in kernel.unread["registers"]


@pytest.mark.parametrize("file", ["executable.so", "params.json", "manifest.json", "kernel.cubin", "metadata.json"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_an_entry_that_lacks_what_its_manifest_names_is_partial(place: Place, file: str, is_cut: bool) -> None:
    (path,) = place.path.rglob(file)
    if is_cut:
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()
    states = {name: entry.state for name, entry in _entries(place).items()}
    assert states[path.parent.parent.name] == State.PARTIAL
    assert list(states.values()).count(State.COMPLETE) == 1


def test_what_a_killed_writer_left_is_listed(place: Place) -> None:
    left = place.path / "0.1.15" / ".staging" / "cuda-binaries" / "0123.42.abcd"
    left.mkdir()
    (left / "kernel.cubin").write_bytes(b"half")
    found = [seen for seen in TileLang().scan(place, {}) if isinstance(seen, Entry) and ".staging" in seen.id]
    assert [(entry.state, entry.size_bytes) for entry in found] == [(State.UNREAD, 4)]


def test_a_cubin_goes_with_its_folder_and_a_kernel_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _entries(place)
    kernel, binary = found["kernels"], found["cuda-binaries"]
    seen = []
    rename = os.rename

    def noted(source: str, target: str, **where: int) -> None:
        seen.append(sorted(path.name for path in (place.path / binary.id).iterdir()))
        rename(source, target, **where)

    monkeypatch.setattr(os, "rename", noted)
    plan = TileLang().plan_delete(place, list(found.values()))
    assert isinstance(plan, DeletePlan)
    done = delete(place, plan, Deleted())
    assert (done.ids, done.size_bytes, list(done.left)) == ([binary.id], binary.size_bytes, [kernel.id])
    assert "--offline" in done.left[kernel.id]
    assert seen == [["kernel.cubin", "metadata.json"]]  # whole until it is gone
    assert list(_entries(place)) == ["kernels"]
    assert list((place.path / binary.id).parent.iterdir()) == []


def test_on_a_network_file_system_nothing_is_deleted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"server:/export {place.path} nfs4 rw 0 0\n"
    monkeypatch.setattr("cache_engine.frameworks.readers.reader.read_mounts", lambda: mounts)
    plan = TileLang().plan_delete(place, list(_entries(place).values()))
    assert isinstance(plan, Failure)
    assert "nfs4" in plan.reason


def test_the_parameters_of_a_kernel_are_inputs_by_type_and_shape(place: Place) -> None:
    kernel = _entries(place)["kernels"]
    found = TileLang().key_factors(place, kernel)
    assert isinstance(found, KeyFactors)
    assert {factor.name: factor.value for factor in found.factors if factor.group == "parameters"} == {
        "parameter 1": "float32[1024]",
        "parameter 2": "float32[1024]",
    }


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "no JSON",
        '{"root_index": 0, "nodes": [{"type": "ffi.Array", "data": [0, 0]}]}',
        '{"root_index": -1, "nodes": [{"type": "int", "data": 1}]}',
        '{"root_index": 0, "nodes": [{"type": "ffi.Map", "data": [1]}, {"type": "int", "data": 1}]}',
        '{"root_index": 1e99, "nodes": {}}',
    ],
)
def test_parameters_of_another_form_are_one_input(place: Place, text: str) -> None:
    """Also such as lead in a circle."""
    kernel = _entries(place)["kernels"]
    (place.path / kernel.id / "params.json").write_text(text)
    found = TileLang().key_factors(place, kernel)
    assert isinstance(found, KeyFactors)
    assert {factor.name: factor.value for factor in found.factors if factor.group == "parameters"} == {
        "params.json": text
    }
