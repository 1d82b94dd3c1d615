"""Sources of plug-ins, and the places that a user names."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cache_engine.errors import UsageError
from cache_engine.frameworks import registry
from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.registry import load_sources, surroundings
from cache_engine.frameworks.values import Fault
from cache_engine.settings import parse_place


class Own(Triton):
    """A plug-in of this test."""

    kind = "own"


class _Fails:
    def __init__(self) -> None:
        raise RuntimeError("no luck")


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Adds an entry point, as an installed package would."""

    def add(value: str) -> None:
        found = [EntryPoint("its-name", value, registry.GROUP)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == registry.GROUP else [])

    return add


def test_a_plug_in_is_a_source_as_ours(plug_in: Callable[[str], None], tmp_path: Path) -> None:
    plug_in("tests.frameworks.test_registry:Own")
    sources = load_sources()
    assert sources.findings == ()
    assert sources.by_kind["own"].title == "Triton"
    where = surroundings([f"own={tmp_path}"], {"HOME": str(tmp_path)})
    assert ("own", tmp_path) in [(place.kind, place.path) for place in sources.places(where)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tests.frameworks.test_registry:_Fails", "RuntimeError: no luck"),
        ("no.such.module:Source", "ModuleNotFoundError"),
        ("tests.frameworks.test_registry:Path", "kind"),
        ("cache_engine.frameworks.readers.triton:Triton", "there is a source triton already"),
    ],
)
def test_a_plug_in_that_fails_is_a_finding_and_the_others_stay(
    plug_in: Callable[[str], None], value: str, reason: str
) -> None:
    ours = set(load_sources().by_kind)
    plug_in(value)
    sources = load_sources()
    assert set(sources.by_kind) == ours
    (finding,) = sources.findings
    assert (finding.fault, finding.id) == (Fault.PLUGIN, "its-name")
    assert reason in finding.detail


def test_a_named_place_is_listed_once_and_also_where_it_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    given = [f"triton={tmp_path / name}" for name in ("there", "link", "missing")]
    where = surroundings(given, {"HOME": str(tmp_path)})
    found = [place.path.name for place in load_sources().places(where) if place.origin == "given"]
    assert found == ["there", "missing"]


@pytest.mark.parametrize("given", ["triton", "triton=", "=x", "tri\0ton=/x"])
def test_what_is_no_kind_and_directory_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="KIND=DIR"):
        surroundings([given], {})


def test_a_kind_without_a_source_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tritium=.*there are: .*triton"):
        list(load_sources().places(surroundings([f"tritium={tmp_path}"], {})))


def test_the_docs_say_of_each_framework_what_is_known_what_not_and_how_it_is_deleted() -> None:
    sections = {
        text.partition("\n")[0]: text
        for text in (Path(__file__).parents[2] / "docs" / "framework-caches.md").read_text().split("\n## ")
    }
    for kind, source in load_sources().by_kind.items():
        if source.title in sections:
            for row in ("where", "layout", "known", "not known", "inputs of the key", "deletion"):
                assert f"\n| {row} | " in sections[source.title], (kind, row)
        else:
            assert f"\n| `{kind}` | " in sections["Others, by size and age"], kind


_TEMPORARY = "tmp/torchinductor_me"
_AHEAD = ".cache/vllm/torch_compile_cache/torch_aot_compile/k"


@pytest.mark.parametrize(
    ("kind", "default", "variable", "below"),
    [
        ("triton", ".triton/cache", "TRITON_CACHE_DIR", ""),
        ("triton", ".triton/cache", "TRITON_HOME", ".triton/cache"),
        ("cupy", ".cupy/kernel_cache", "CUPY_CACHE_DIR", ""),
        ("cutile", ".cache/cutile-python", "CUDA_TILE_CACHE_DIR", ""),
        ("cutile", ".cache/cutile-python", "XDG_CACHE_HOME", "cutile-python"),
        ("tilelang", ".tilelang/cache", "TILELANG_CACHE_DIR", ""),
        ("cuda_core", ".cache/cuda-python/program-cache", "XDG_CACHE_HOME", "cuda-python/program-cache"),
        ("vllm", ".cache/vllm/torch_compile_cache", "VLLM_CACHE_ROOT", "torch_compile_cache"),
        ("vllm", ".cache/vllm/torch_compile_cache", "XDG_CACHE_HOME", "vllm/torch_compile_cache"),
        ("flashinfer", ".cache/flashinfer", "FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"),
        ("deepgemm", ".deep_gemm", "DG_JIT_CACHE_DIR", ""),
        ("compute_cache", ".nv/ComputeCache", "CUDA_CACHE_PATH", ""),
        ("inductor", _TEMPORARY, "TORCHINDUCTOR_CACHE_DIR", ""),
        # Inductor and vLLM have Triton's cache in theirs, unless the user says where Triton's is; vLLM says it itself.
        ("triton", f"{_TEMPORARY}/triton/0", "TORCHINDUCTOR_CACHE_DIR", "triton/0"),
        ("triton", f"{_TEMPORARY}/triton/0", "TRITON_CACHE_DIR", ""),
        (
            "triton",
            ".cache/vllm/torch_compile_cache/key/rank_0_0/triton_cache",
            "VLLM_CACHE_ROOT",
            "torch_compile_cache/key/rank_0_0/triton_cache",
        ),
        (
            "inductor",
            f"{_AHEAD}/inductor_cache",
            "VLLM_CACHE_ROOT",
            "torch_compile_cache/torch_aot_compile/k/inductor_cache",
        ),
        # Of graphs compiled ahead of time it says nothing, so the user's word counts.
        ("triton", f"{_AHEAD}/inductor_cache/triton/0", "TRITON_CACHE_DIR", ""),
    ],
)
def test_a_variable_that_is_set_replaces_the_default(
    tmp_path: Path, kind: str, default: str, variable: str, below: str
) -> None:
    """For reading and for deleting: the other directory is in use only where the user names it."""
    usual, moved = tmp_path / default, tmp_path / "moved" / below
    for path in (usual, moved):
        path.mkdir(parents=True, exist_ok=True)

    def places(*given: str, **environment: str) -> dict[Path, str]:
        where = Surroundings(environment, tmp_path, tmp_path / "tmp", "me", tuple(map(parse_place, given)))
        return {place.path: place.replaced_by for place in load_sources().places(where) if place.kind == kind}

    assert places()[usual] == ""
    found = places(**{variable: str(tmp_path / "moved")})
    assert (found[usual], found[moved]) == (variable, "")
    found = places(f"{kind}={usual}", **{variable: str(tmp_path / "moved")})
    assert (found[usual], found[moved]) == ("", "")


def test_vllm_itself_says_where_triton_has_its_cache(tmp_path: Path) -> None:
    inner = tmp_path / ".cache/vllm/torch_compile_cache/key/rank_0_0/triton_cache"
    inner.mkdir(parents=True)
    where = Surroundings({"TRITON_CACHE_DIR": str(tmp_path / "mine")}, tmp_path, tmp_path / "tmp", "me")
    assert [place.replaced_by for place in load_sources().places(where) if place.path == inner] == [""]


@pytest.mark.parametrize("value", ["0", "off", " None ", ""])
def test_cutile_without_a_cache_uses_no_directory(tmp_path: Path, value: str) -> None:
    (tmp_path / ".cache" / "cutile-python").mkdir(parents=True)
    where = Surroundings({"CUDA_TILE_CACHE_DIR": value}, tmp_path, tmp_path / "tmp", "me")
    found = [(place.path, place.replaced_by) for place in load_sources().places(where) if place.kind == "cutile"]
    assert found == [(tmp_path / ".cache" / "cutile-python", "CUDA_TILE_CACHE_DIR")]
