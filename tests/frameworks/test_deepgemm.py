"""Reading DeepGEMM's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.frameworks.comparison import differences
from cache_engine.frameworks.readers.deepgemm import DeepGemm
from cache_engine.frameworks.values import Entry, KeyFactors, PartKind, Place, State
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack

NORMAL, GROUPED = "sm90_fp8_gemm_1d2d", "sm90_m_grouped_fp8_gemm_contiguous_1d2d"
TEXT = """
static void __instantiate_kernel() {
    auto ptr = reinterpret_cast<void*>(&%s<
        %s
    >);
};
"""
K = "cute::UMMA::Major::K"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two kernels in DeepGEMM's folders and texts; NVRTC made the code."""
    return Place("deepgemm", unpack("deepgemm", tmp_path), "given")


def _entries(place: Place) -> dict[str, Entry]:
    found = [seen for seen in DeepGemm().scan(place, {}) if isinstance(seen, Entry)]
    return {seen.name or seen.id: seen for seen in found}


def _folder(place: Place, name: str) -> Path:
    (folder,) = (place.path / "cache").glob(f"kernel.{name}.*")
    return folder


def test_name_target_resources_sizes_and_tiles_are_known(place: Place) -> None:
    found = _entries(place)
    assert set(found) == {NORMAL, GROUPED}
    kernel = found[NORMAL]
    assert (kernel.state, kernel.arch, kernel.registers, kernel.shared_bytes) == (State.COMPLETE, "sm_90a", 8, 1280)
    assert kernel.compiler == "ptxas 13.5.37"
    assert kernel.config == {
        "n": 4096, "k": 7168, "groups": 1, "block_m": 64, "block_n": 80, "block_k": 128, "type": "Normal",
        "function": "sm90_fp8_gemm_1d2d_impl",
    }  # fmt: skip
    assert {part.name: part.kind for part in kernel.parts} == {
        "kernel.cu": PartKind.SOURCE,
        "kernel.cubin": PartKind.BINARY,
    }


def test_a_size_that_each_launch_gives_is_no_size_of_the_kernel(place: Place) -> None:
    config = _entries(place)[GROUPED].config
    assert (config["groups"], config["type"]) == (8, "MGroupedContiguous")
    assert not {"m", "n", "k"} & config.keys()


@pytest.mark.parametrize(
    ("template", "arguments", "found"),
    [
        ("sm90_fp8_gemm_1d2d_impl", "0, 2112, 7168, 1, 128, 96, 128, 64, 6, 2, 128, 256, 2, false, GemmType::Normal",
         {"n": 2112, "k": 7168, "groups": 1, "block_m": 128, "block_n": 96, "block_k": 128, "type": "Normal"}),
        ("sm100_bf16_gemm_impl", f"{K}, {K}, 0, 96, 7168, 128, 192, 64, 4, 128, 128, 64, 5, 128, 128, 1, false, 148, "
         "GemmType::Normal, false, cutlass::bfloat16_t, epilogue::Heads<128, 64>",
         {"n": 96, "k": 7168, "block_m": 128, "block_n": 192, "block_k": 64, "groups": 4, "type": "Normal"}),
        # One number more, as where the granularity of scales goes first; unknown templates; no template at all.
        ("sm100_fp8_gemm_1d1d_impl", f"{K}, {K}, 128, 128, 0, 96, 7168, 128, 192, 64, 4, 128, 128, 64, 5, 128, 128, 1, "
         "false", {}),
        ("sm90_other_impl", "0, 2112, 7168, 1, 128, 96, 128, 64, 6, 2, 128, 256, 2, false", {}),
        ("sm90_bf16_gemm_impl", f"{K}", {}),
        ("sm90_bf16_gemm_impl", ",,,", {}),
    ],
)  # fmt: skip
def test_sizes_are_named_only_where_the_form_is_a_published_one(
    place: Place, template: str, arguments: str, found: dict[str, object]
) -> None:
    (_folder(place, NORMAL) / "kernel.cu").write_text(TEXT % (template, arguments))
    config = dict(_entries(place)[NORMAL].config)
    del config["function"]
    assert config == found


def test_why_one_missed_is_said_by_argument(place: Place) -> None:
    """Also of those that have no name; and what the cache does not state."""
    found = _entries(place)
    one, other = (DeepGemm().key_factors(place, found[name]) for name in (NORMAL, GROUPED))
    assert isinstance(one, KeyFactors)
    assert isinstance(other, KeyFactors)
    differing = {each.name: (each.a, each.b) for each in differences(one, other)}
    assert differing["n"] == ("4096", "0")
    assert differing["argument 12"] == ("11", "7")
    assert "headers" not in differing
    assert one.hidden == ("the compiler, its version and its flags",)


def test_changed_headers_are_an_input(place: Place) -> None:
    path = _folder(place, NORMAL) / "kernel.cu"
    path.write_text(path.read_text().replace("// Includes' hash value: ", "// Includes' hash value: 0"))
    found = [DeepGemm().key_factors(place, entry) for entry in _entries(place).values()]
    stated = [each.factors for each in found if isinstance(each, KeyFactors)]
    headers = [factor.value for factors in stated for factor in factors if factor.name == "headers"]
    assert len(headers) == len(set(headers)) == 2


@pytest.mark.parametrize("file", ["kernel.cu", "kernel.cubin"])
def test_a_kernel_that_lacks_a_file_is_partial(place: Place, file: str) -> None:
    (_folder(place, NORMAL) / file).unlink()
    found = _entries(place)
    assert (found[NORMAL].state, found[GROUPED].state) == (State.PARTIAL, State.COMPLETE)
    if file == "kernel.cubin":
        assert found[NORMAL].unread["registers"] == "it has no kernel.cubin"
    else:
        assert isinstance(DeepGemm().key_factors(place, found[NORMAL]), Failure)


def test_what_the_first_version_and_killed_writers_left_is_listed_unread(place: Place) -> None:
    for name in ("cache/kernel.gemm.0123456789ab/kernel.so", "tmp/0123-4567/kernel.cu", "cache/other"):
        path = place.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    found = {seen.id: seen for seen in _entries(place).values() if seen.state == State.UNREAD}
    assert set(found) == {"cache/kernel.gemm.0123456789ab", "tmp/0123-4567", "cache/other"}
    assert "DeepGEMM 1" in found["cache/kernel.gemm.0123456789ab"].unread["registers"]


@pytest.mark.parametrize("start", [b"reinterpret_cast<void*>(&a<", b"reinterpret_cast<void*>(&a<b", b"<", b"1,"])
def test_a_hostile_text_takes_no_longer_than_its_length(place: Place, start: bytes) -> None:
    """If each start were read to the end of the text, this would take hours."""
    (_folder(place, NORMAL) / "kernel.cu").write_bytes(start * ((4 << 20) // len(start)))
    assert _entries(place)[NORMAL].config == {"function": "sm90_fp8_gemm_1d2d_impl"}
