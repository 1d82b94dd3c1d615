"""vLLM's compiled graphs: its layout as its own code and published caches have it; vLLM needs a GPU to make one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cache_engine.frameworks.readers.vllm import VLLM
from cache_engine.frameworks.registry import load_sources, sums, surroundings, survey
from cache_engine.frameworks.values import Entry, KeyFactors, Place, ScanFinding, State
from cache_engine.model.outcome import Failure

SECRET = "sk-0123456789"
FACTORS = {
    "code_hash": "91c6372873785c31",
    "compiler_hash": "4fc2f2ae9e",
    "config_hash": "35e0e92b37",
    "env": {"VLLM_USE_DEEP_GEMM": True, "VLLM_API_KEY": SECRET, "VLLM_CONFIG_ROOT": "/home/a/.config/vllm", "X": None},
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Written by hand: a graph of two ranks, one that was compiled ahead of time, and one of an older version."""
    for rank in ("rank_0_0", "rank_1_0"):
        folder = tmp_path / "4bce7ae4f8" / rank / "backbone"
        folder.mkdir(parents=True)
        factors = FACTORS | {"env": FACTORS["env"] | {"VLLM_DP_RANK": int(rank[5])}}  # type: ignore[operator]
        (folder / "cache_key_factors.json").write_text(json.dumps(factors))
        (folder / "computation_graph.py").write_text("class GraphModule: ...")
        (folder / "vllm_compile_cache.py").write_text("{}")
        (folder / "artifact_compile_range_1_2_subgraph_0").write_bytes(b"pickle, which nothing here reads")
        (folder / "artifact_compile_range_1_2_subgraph_1").mkdir()
        (folder / "artifact_compile_range_1_2_subgraph_1" / "graph").write_bytes(b"1234")
    ahead = tmp_path / "torch_aot_compile" / ("ab" * 32) / "rank_0_0"
    ahead.mkdir(parents=True)
    (ahead / "model").write_bytes(b"model")
    older = tmp_path / "0123456789" / "rank_0_0"
    (older / "triton_cache" / ("A" * 52)).mkdir(parents=True)
    (older / "inductor_cache" / "fxgraph").mkdir(parents=True)
    (older / "vllm_compile_cache.py").write_text("{}")
    (older / "computation_graph.py").write_text("class GraphModule: ...")
    return Place("vllm", tmp_path, "given")


def _entries(place: Place) -> dict[str, Entry]:
    found = list(VLLM().scan(place, {}))
    assert all(isinstance(seen, Entry) for seen in found), found
    return {seen.id: seen for seen in found if isinstance(seen, Entry)}


def test_an_entry_is_a_part_of_a_model_for_one_rank(place: Place) -> None:
    found = _entries(place)
    assert set(found) == {
        "4bce7ae4f8/rank_0_0/backbone",
        "4bce7ae4f8/rank_1_0/backbone",
        f"torch_aot_compile/{'ab' * 32}/rank_0_0",
        "0123456789/rank_0_0",
    }
    entry = found["4bce7ae4f8/rank_0_0/backbone"]
    assert (entry.name, entry.state, entry.config["rank"]) == ("backbone", State.COMPLETE, "rank_0_0")
    assert entry.config["config_hash"] == "35e0e92b37"
    assert len(entry.parts) == 5
    assert found[f"torch_aot_compile/{'ab' * 32}/rank_0_0"].state == State.COMPLETE
    assert [part.name for part in found["0123456789/rank_0_0"].parts] == [
        "computation_graph.py",
        "vllm_compile_cache.py",
    ]


def test_every_raw_input_of_the_key_is_named_and_two_ranks_differ_in_one(place: Place) -> None:
    found = _entries(place)
    stated = []
    for rank in (0, 1):
        factors = VLLM().key_factors(place, found[f"4bce7ae4f8/rank_{rank}_0/backbone"])
        assert isinstance(factors, KeyFactors)
        stated.append({(factor.group, factor.name): factor.value for factor in factors.factors})
    assert {name for name in stated[0] if stated[0][name] != stated[1][name]} == {("environment", "VLLM_DP_RANK")}
    assert stated[0]["environment", "VLLM_CONFIG_ROOT"] == "/home/a/.config/vllm"
    assert stated[0]["environment", "X"] == ""
    assert ("digest", "code_hash") in stated[0]


def test_a_secret_of_the_environment_is_not_shown_but_a_change_of_it_is(place: Place) -> None:
    shown = []
    file = place.path / "4bce7ae4f8" / "rank_0_0" / "backbone" / "cache_key_factors.json"
    for secret in (SECRET, f"{SECRET}x"):
        file.write_text(json.dumps(FACTORS | {"env": {"VLLM_API_KEY": secret}}))
        factors = VLLM().key_factors(place, _entries(place)["4bce7ae4f8/rank_0_0/backbone"])
        assert isinstance(factors, KeyFactors)
        shown.append(next(factor.value for factor in factors.factors if factor.name == "VLLM_API_KEY"))
        assert secret not in str(factors)
    assert shown[0] != shown[1]


def test_without_the_inputs_of_its_key_an_entry_says_so(place: Place) -> None:
    factors = VLLM().key_factors(place, _entries(place)["0123456789/rank_0_0"])
    assert isinstance(factors, Failure)
    assert "has no cache_key_factors.json" in factors.reason


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"env": 1, "code": {"a": [1]}, "config": [1, 2]}', b"\xff"])
def test_damaged_inputs_are_said(place: Place, content: bytes) -> None:
    (place.path / "4bce7ae4f8" / "rank_0_0" / "backbone" / "cache_key_factors.json").write_bytes(content)
    entry = _entries(place)["4bce7ae4f8/rank_0_0/backbone"]
    assert isinstance(VLLM().key_factors(place, entry), KeyFactors | Failure)


def test_its_kernels_of_triton_are_found_as_triton_s(place: Place, tmp_path: Path) -> None:
    sources = load_sources()
    where = surroundings([f"vllm={place.path}"], {"HOME": str(tmp_path / "nobody")})
    seen = {
        (at.kind, each.id) for at, each in survey(sources, sources.places(where)) if not isinstance(each, ScanFinding)
    }
    assert ("triton", "A" * 52) in seen
    assert ("vllm", "4bce7ae4f8/rank_0_0/backbone") in seen


def test_every_byte_is_shown_once_by_its_own_framework(tmp_path: Path) -> None:
    """The layout since PyTorch 2.10, by ``vllm/compilation/decorators.py``: Inductor's cache is beside the ranks."""
    top = tmp_path / "torch_compile_cache"
    ahead = top / "torch_aot_compile" / ("cd" * 32)
    files = {
        "vllm": (
            ahead / "rank_0_0" / "model",
            top / "4bce7ae4f8" / "rank_0_0" / "backbone" / "artifact_0" / "fxgraph" / "ab" / ("f" * 52) / "graph",
        ),
        "inductor": (
            ahead / "inductor_cache" / "fxgraph" / "ab" / ("f" * 52) / "graph",
            ahead / "inductor_cache" / "ab" / "cabc.py",
            top / "4bce7ae4f8" / "rank_0_0" / "inductor_cache" / "ab" / "cabc.py",
        ),
        "triton": (
            ahead / "inductor_cache" / "triton" / "0" / ("A" * 52) / "kernel.ptx",
            top / "4bce7ae4f8" / "rank_0_0" / "inductor_cache" / "triton" / "0" / ("A" * 52) / "kernel.ptx",
        ),
    }
    for number, path in enumerate((path for paths in files.values() for path in paths), start=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 3**number)
    sources = load_sources()
    where = surroundings((), {"HOME": str(tmp_path), "VLLM_CACHE_ROOT": str(tmp_path)})
    found = sums(
        (places := [each for each in sources.places(where) if tmp_path in each.path.parents]), survey(sources, places)
    )
    assert all(not place.replaced_by and not each.findings for place, each in found.items())
    for kind, paths in files.items():
        read = sum(each.size_bytes for place, each in found.items() if place.kind == kind)
        assert read == sum(path.stat().st_size for path in paths), kind


def test_an_unchanged_entry_is_not_read_again(place: Place) -> None:
    known = {name: entry.stamp for name, entry in _entries(place).items() if "backbone" in name}
    again = [seen for seen in VLLM().scan(place, known) if isinstance(seen, Entry)]
    assert {entry.id for entry in again} == {"0123456789/rank_0_0", f"torch_aot_compile/{'ab' * 32}/rank_0_0"}
