"""What is read of FlashInfer's cache, which this test writes as FlashInfer 0.7 does; why one is built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.frameworks.comparison import Comparing
from cache_engine.frameworks.doctor import Ailment, examine_entry
from cache_engine.frameworks.readers.flashinfer import FlashInfer
from cache_engine.frameworks.values import Entry, KeyFactors, Place, State, Unchanged

COMMAND = """\
ninja_required_version = 1.3
name = silu_and_mul
cuda_home = {cuda}
cxx = c++
nvcc = $cuda_home/bin/nvcc

common_cflags = -DPy_LIMITED_API=0x03090000 $
    -isystem /usr/include/python3.12 $
    -isystem $cuda_home/include $
    -I/opt/flashinfer/include
cflags = $common_cflags $
    -fPIC
post_cflags =
cuda_cflags = $common_cflags $
    --compiler-options=-fPIC $
    -gencode=arch=compute_{arch},code=sm_{arch} $
    -O3 $
    -DFLASHINFER_ENABLE_F16{more}
cuda_post_cflags =
ldflags = -shared $
    -L$cuda_home/lib64 $
    -lcuda

rule cuda_compile
  command = $nvcc $cuda_cflags -c $in -o $out
  deps = gcc

build silu_and_mul/x.cuda.o: cuda_compile /home/me/.cache/flashinfer/0.7.0/{arch}/generated/x.cu
build silu_and_mul/silu_and_mul.so: link silu_and_mul/x.cuda.o
default silu_and_mul/silu_and_mul.so
"""


def write_operation(folder: Path, arch: str = "90a", cuda: str = "/usr/local/cuda-13.0", more: str = "") -> Path:
    """An operation in a cache."""
    operation = folder / "0.7.0" / arch / "cached_ops" / "silu_and_mul"
    operation.mkdir(parents=True)
    (operation / "build.ninja").write_text(COMMAND.format(arch=arch, cuda=cuda, more=more))
    (operation / "silu_and_mul.so").write_bytes(b"\x7fELF library")
    (operation / "x.cuda.o").write_bytes(b"object")
    return operation


def _scan(folder: Path) -> dict[str, Entry]:
    seen = FlashInfer().scan(Place("flashinfer", folder, "given"), {})
    return {each.id: each for each in seen if isinstance(each, Entry)}


def _factors(folder: Path) -> KeyFactors:
    (entry,) = _scan(folder).values()
    found = FlashInfer().key_factors(Place("flashinfer", folder, "given"), entry)
    assert isinstance(found, KeyFactors), found
    return found


def test_an_operation_has_the_facts_that_its_path_and_its_files_state(tmp_path: Path) -> None:
    write_operation(tmp_path)
    ((name, entry),) = _scan(tmp_path).items()
    assert name == "0.7.0/90a/cached_ops/silu_and_mul"
    assert (entry.name, entry.version, entry.arch, entry.state) == (
        "silu_and_mul", "0.7.0", "sm_90a", State.COMPLETE,
    )  # fmt: skip
    assert {part.name: part.kind.value for part in entry.parts} == {
        "build.ninja": "metadata", "silu_and_mul.so": "host library", "x.cuda.o": "other",
    }  # fmt: skip
    assert FlashInfer().unknowable["registers"]


def test_one_without_its_library_is_partial_and_one_for_several_targets_has_no_target(tmp_path: Path) -> None:
    (write_operation(tmp_path, "80_90a") / "silu_and_mul.so").unlink()
    (entry,) = _scan(tmp_path).values()
    assert entry.state == State.PARTIAL
    assert entry.arch is None
    assert entry.unread["arch"] == "it is for several targets: 80, 90a"


def test_what_is_unchanged_is_not_read_again(tmp_path: Path) -> None:
    write_operation(tmp_path)
    (tmp_path / "0.7.0" / "90a" / "cached_ops" / "tmp").mkdir()
    place = Place("flashinfer", tmp_path, "given")
    known = {name: entry.stamp for name, entry in _scan(tmp_path).items()}
    assert len(known) == 2
    assert all(isinstance(each, Unchanged) for each in FlashInfer().scan(place, known))


def test_the_compile_command_is_the_key_flag_by_flag(tmp_path: Path) -> None:
    write_operation(tmp_path)
    found = {(each.group, each.name): each.value for each in _factors(tmp_path).factors}
    assert found == {
        ("version", "flashinfer"): "0.7.0",
        ("compiler", "cuda_home"): "/usr/local/cuda-13.0",
        ("compiler", "cxx"): "c++",
        ("compiler", "nvcc"): "$cuda_home/bin/nvcc",
        ("common_cflags", "-DPy_LIMITED_API"): "0x03090000",
        ("common_cflags", "-isystem"): "/usr/include/python3.12",
        ("common_cflags", "-isystem 2"): "$cuda_home/include",
        ("common_cflags", "-I"): "/opt/flashinfer/include",
        ("cflags", "-fPIC"): "given",
        ("cuda_cflags", "--compiler-options"): "-fPIC",
        ("target", "-gencode"): "arch=compute_90a,code=sm_90a",
        ("cuda_cflags", "-O"): "3",
        ("cuda_cflags", "-DFLASHINFER_ENABLE_F16"): "given",
        ("ldflags", "-shared"): "given",
        ("ldflags", "-L"): "$cuda_home/lib64",
        ("ldflags", "-lcuda"): "given",
        ("sources", "source 1"): "/home/me/.cache/flashinfer/0.7.0/90a/generated/x.cu",
    }


def test_why_one_of_two_is_built_again_is_named(tmp_path: Path) -> None:
    """Another toolkit, another GPU, and a flag that only one has."""
    places = []
    for name, given in (("a", {}), ("b", {"arch": "100a", "cuda": "/opt/cuda-12.9", "more": " $\n    -lineinfo"})):
        write_operation(tmp_path / name, **given)
        place = Place("flashinfer", tmp_path / name, "given")
        places.append((place, next(iter(_scan(place.path).values()))))
    found = {each.name: each for each in Comparing(FlashInfer()).entries(*places).differences}
    assert set(found) == {"cuda_home", "-gencode", "-lineinfo", "source 1"}
    assert found["cuda_home"].meaning.startswith("another compiler")
    assert found["-gencode"].meaning.startswith("another GPU")
    assert (found["-lineinfo"].a, found["-lineinfo"].b) == (None, "given")
    assert found["source 1"].meaning.startswith("an absolute path")


@pytest.mark.parametrize("text", ["", "cuda_cflags = -isystem", "cflags = $\n$\n", "\0\xff", "build x: cuda_compile "])
def test_a_build_file_that_is_none_states_little_and_breaks_nothing(tmp_path: Path, text: str) -> None:
    (write_operation(tmp_path) / "build.ninja").write_text(text)
    assert len(_factors(tmp_path).factors) <= 2


def test_of_very_many_flags_the_first_are_read(tmp_path: Path) -> None:
    (write_operation(tmp_path) / "build.ninja").write_text(
        "cflags = " + " ".join(f"-D{number}" for number in range(3000))
    )
    (entry,) = _scan(tmp_path).values()
    found = FlashInfer().key_factors(Place("flashinfer", tmp_path, "given"), entry)
    assert isinstance(found, KeyFactors)
    assert len(found.factors) == 2000
    assert "more than 2,000 inputs" in found.hidden[-1]


def test_a_library_that_others_may_write_is_a_finding(tmp_path: Path) -> None:
    """It is loaded into processes."""
    library = write_operation(tmp_path) / "silu_and_mul.so"
    library.chmod(0o666)
    (entry,) = _scan(tmp_path).values()
    place = Place("flashinfer", tmp_path, "given")
    assert [each.ailment for each in examine_entry(place, entry, None, "")] == [Ailment.UNSAFE]
