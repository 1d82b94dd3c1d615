"""Filling a store with all kernels of a model or a table, before they are asked for."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from cache_engine.batch.warm import Warmed, plan_warming, problems_of, warm
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cli.main import commands
from cache_engine.compilers import COMPILERS, disassembly
from cache_engine.errors import CompilerMissing, GpuRequired, InvalidProblem, NotHereError, ToolMissing, UsageError
from cache_engine.evaluator.catalogue import LARGEST_TABLE_BYTES, MOST_SHAPES, ModelShape, model_shapes, table_shapes
from cache_engine.gpu import launch, probe
from cache_engine.insight.coverage import EVERY_M, coverage, distinct, wanted
from cache_engine.model.gemm import DType, Epilogue, GemmProblem, Layout
from cache_engine.model.outcome import Failure
from cache_engine.model.shapes import parse_sizes
from tests.cli.test_cli import document, run

SMALL = "n,k\n64,32\n72,32\n80,32\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(SMALL)
    return path


def test_a_table_is_compiled_then_found(place: Path, table: Path) -> None:
    options = ("warm", table, "--arch", "sm_90", "--arch", "sm_80", "--m", "1,16", "--jobs", "2")
    first, second = (document(*options, store=place) for _ in range(2))
    assert (first["problems"], first["failed"]) == (12, [])
    assert first["compiled"] == first["kernels"] > 0
    assert (second["compiled"], second["found"]) == (0, first["kernels"])
    stats = document("stats", "--by", "arch", store=place)
    assert stats["compiles"] == first["kernels"] == stats["entries"]
    assert {row["arch"] for row in stats["architectures"]} == {"sm_80", "sm_90"}
    assert document("verify", store=place)["findings"] == []


def test_after_a_warm_up_every_m_of_its_range_hits_with_compiling_off(place: Path, tmp_path: Path) -> None:
    """Also of layers that add a bias, and where A lies k × m, so that what divides m is part of the key."""
    table = tmp_path / "layers.csv"
    table.write_text("n,k,epilogue\n96,64,\n48,80,bias\n")
    found = document("warm", table, "--dtype", "fp32", "--layout", "tn", "--arch", "sm_90", "--m", "1-64", store=place)
    assert (found["problems"], found["failed"]) == (128, [])
    with open_cache(place, enable_jit=False) as cache:
        kernels = {
            cache.get_or_compile(
                GemmProblem(m, n, k, dtype=DType.FP32, layout=Layout.TN, arch="sm_90", epilogue=epilogue)
            ).key
            for n, k, epilogue in ((96, 64, Epilogue()), (48, 80, Epilogue(bias=True)))
            for m in range(1, 65)
        }
    assert found["compiled"] == found["kernels"] == len(kernels) > 4


@pytest.mark.soak
@pytest.mark.parametrize("arch", ["sm_90a", "sm_120"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-20b", "Qwen3-30B-A3B"])
def test_after_warming_a_model_every_m_hits_with_compiling_off(place: Path, model: str, arch: str) -> None:
    found = document("warm", model, "--arch", arch, store=place, timeout=1200)
    assert (found["failed"], found["compiled"]) == ([], found["kernels"])
    with open_cache(place, enable_jit=False) as cache:
        shapes = model_shapes(model)
        for shape in shapes:
            for m in itertools.chain(*shape.row_sizes(EVERY_M)):
                cache.get_or_compile(replace(shape.problem(m, DType.BF16), arch=arch, epilogue=shape.epilogue))
        assert found["problems"] == sum(shape.rows(8192) for shape in shapes)


def test_a_dry_run_lists_the_kernels_of_a_run_and_compiles_nothing(place: Path, table: Path) -> None:
    options = ("warm", table, "--arch", "sm_90", "--m", "1-16", "--family", "simt", "--out-dtype", "fp32")
    before = document(*options, "--dry-run", store=place)
    assert not place.exists(), "a dry run makes no store"
    assert (before["compiled"], before["found"], before["missing"]) == (0, 0, before["kernels"])
    assert before["estimated_from"] == 0, "no kernel has been compiled yet"
    assert before["estimated_error"] is None
    assert "published figures of another machine" in before["estimated_by"]
    assert before["missing"] * 0.01 < before["estimated_seconds"] < before["missing"] * 10
    assert {(one["family"], one["stored"]) for one in before["needed"]} == {("simt", False)}
    served = [
        (one["problem"].split(" × ", 1)[1], m)
        for one in before["needed"]
        for ms in one["m"]
        for m in range(ms["first"], ms["last"] + 1, ms["step"])
    ]
    assert sorted(served) == [(f"{n} × 32, bf16, sm_90", m) for n in (64, 72, 80) for m in range(1, 17)]
    done = document(*options, "--jobs", "1", store=place)
    assert done["compiled"] == done["missing"] == before["missing"] > 0
    with open_cache(place, create=False) as cache:
        made = list(cache.records())
    assert {record.key for record in made} == {one["key"] for one in before["needed"]}
    assert {record.problem.out_dtype for record in made} == {"fp32"}
    after = document(*options, "--dry-run", store=place)
    assert ([one["stored"] for one in after["needed"]], after["missing"]) == ([True] * len(made), 0)
    assert (after["estimated_seconds"], after["estimated_by"]) == (0, "")
    # Other shapes of the same family, compiler and target take about as long as these did.
    table.write_text("n,k\n56,32\n")
    other = document(*options, "--jobs", "1", "--dry-run", store=place)
    mean = sum(record.compile_ms for record in made) / len(made) / 1e3
    assert other["estimated_seconds"] == pytest.approx(other["missing"] * mean, rel=0.5)
    assert other["estimated_from"] == len(made)
    known = len(made) >= 10
    assert (other["estimated_error"] is not None) == known
    assert f"predicted from {len(made)} compiles in this store" in other["estimated_by"]
    text = run(*options, "--dry-run", store=place).stdout
    assert "× 56 × 32, bf16, sm_90" in text
    assert f"{other['missing']} to compile; about " in text
    assert other["estimated_by"] in text
    elsewhere = run(*options[:2], "--arch", "sm_80", "--family", "simt", "--dry-run", store=place).stdout
    assert other["estimated_by"] in elsewhere, "what is known of one target counts for another"


def test_sizes_that_one_kernel_serves_compile_it_once(cache: Cache) -> None:
    shapes = [ModelShape("", "", 1, 64, 32, 1), ModelShape("", "", 8, 64, 32, 1), ModelShape("", "", 1, 64, 32, 1)]
    ms = parse_sizes("1,2,3,4")
    plan = plan_warming(cache, coverage(cache, wanted(shapes, DType.FP32, ("sm_90",), ms)))
    assert (plan.problems, plan.refused, plan.stored) == (12, [], set())
    problems = [shape.problem(m, DType.FP32).on("sm_90") for shape in shapes for m in (1, 2, 3, 4)]
    keys = {cache.select(problem).key for problem in problems}
    assert {kernel.key for kernel in plan.missing} == keys
    assert len(plan.kernels) == len(keys) < 12
    done = warm(cache, [kernel.selection.problem for kernel in plan.kernels], jobs=2)
    assert {warmed.kernel.tier for warmed in done if warmed.kernel} == {"compiled"}
    assert cache.stats().totals.compiles == len(keys)


def test_unsupported_shapes_are_listed_and_the_others_compiled(place: Path, table: Path) -> None:
    options = ("warm", table, "--arch", "sm_75", "--arch", "sm_90", "--m", "16")
    found = document(*options, store=place, code=1)
    assert found["compiled"] == found["kernels"] == 3
    assert [failure["problem"] for failure in found["failed"]] == [
        f"16 × {n} × 32, bf16, sm_75" for n in (64, 72, 80)
    ]  # fmt: skip
    done = run(*options, store=place)
    assert done.returncode == 1
    assert "failed: 16 × 64 × 32, bf16, sm_75 and 2 more: bf16 needs the tensor_core family" in done.stderr
    assert "0 kernels compiled, 3 found, 3 failed, for 6 problems" in done.stdout


def test_a_kernel_that_could_not_be_stored_is_a_failure(cache: Cache) -> None:
    kernel = cache.get_or_compile(GemmProblem(8, 8, 8, dtype=DType.FP32, arch="sm_90"))
    assert Warmed(kernel.problem, kernel).trouble is None
    unstored = msgspec.structs.replace(kernel, unpublished=Failure("disk full"))
    assert "not stored: disk full" in str(Warmed(kernel.problem, unstored).trouble)
    assert Warmed(kernel.problem, None, Failure("refused")).trouble == Failure("refused")


def test_columns_may_stand_in_any_order_with_others_between(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(
        "\ufeffk, note, m, n, batch, epilogue\n32, first, 8, 64, 2,\n48, , , 72,, bias+relu\n", encoding="utf-8"
    )
    first, second = table_shapes(path)
    assert (first.n, first.k, first.batch, first.m) == (64, 32, 2, 8)
    assert (second.n, second.k, second.batch, second.m) == (72, 48, 1, None)
    assert (str(first.epilogue), str(second.epilogue)) == ("", "bias+relu")
    asked = wanted([first, second], DType.BF16, ("sm_80",), parse_sizes("1,16"), specialisation="exact", opt_level=1)
    problems = [kernel.selection.problem for kernel in distinct(coverage(cache, asked))]
    assert [(p.m, p.n, p.k, p.batch) for p in problems] == [(8, 64, 32, 2), (1, 72, 48, 1), (16, 72, 48, 1)]
    assert [str(p.epilogue) for p in problems] == ["", "bias+relu", "bias+relu"]
    assert {(p.arch, p.specialisation, p.opt_level) for p in problems} == {("sm_80", "exact", 1)}


def test_the_catalogue_that_ships_is_a_table_too() -> None:
    from cache_engine.assets import shape_catalogue

    sizes = [(shape.n, shape.k, shape.batch) for shape in table_shapes(shape_catalogue())]
    assert sizes == [(shape.n, shape.k, shape.batch) for shape in model_shapes()]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no column n and no column k; its first line must name the columns: n, k"),
        ("n,m\n1,2\n", "has no column k;"),
        ("n,k\n", "holds no shape"),
        ("n,k\n64,32\n64\n", "line 3: k is missing"),
        ("n,k\n64,many\n", "line 2: k is 'many'; it must be a whole number from 1 on"),
        ("n,k\n0,5\n", "line 2: n is '0'"),
        ("n,k\n64,1_000\n", "line 2: k is '1_000'"),
        ("n,k\n64,99999999999\n", "line 2: k is 99,999,999,999; it must be a whole number from 1 to 16,777,216"),
        (f"n,k\n64,{'9' * 5000}\n", "line 2: k is '9999"),
        ("n,k,batch\n64,64,70000\n", "line 2: batch is 70,000"),
    ],
    ids=lambda value: value[:20],
)
def test_a_bad_table_is_refused_naming_the_line(place: Path, tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    done = run("warm", path, "--arch", "sm_90", store=place)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert not place.exists()


def test_a_table_beyond_its_limits_is_refused_before_it_is_worked_on(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("n,k\n" + "64,64\n" * MOST_SHAPES)
    shapes = table_shapes(path)
    assert len(shapes) == MOST_SHAPES
    path.write_text("n,k\n" + "64,64\n" * (MOST_SHAPES + 1))
    with pytest.raises(UsageError, match="has more than 10,000 shapes; split the table"):
        table_shapes(path)
    path.write_bytes(b"n,k\n64,64\n" + b" " * LARGEST_TABLE_BYTES)
    with pytest.raises(UsageError, match=r"is larger than 4\.0 MiB; split the table"):
        table_shapes(path)
    two = parse_sizes("1,17-32")
    assert len(wanted(shapes[:2], DType.BF16, ["sm_90"] * 3, two, most=12)) == 2
    with pytest.raises(UsageError, match="make 12 choices of a config, and the limit is 11 at a time; ask for f"):
        wanted(shapes[:2], DType.BF16, ["sm_90"] * 3, two, most=11)
    with pytest.raises(UsageError, match="make 5,120,000 choices of a config, and the limit is 300,000 at"):
        wanted(shapes, DType.BF16, ["sm_90"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("llama-3.1-8",), "unknown model 'llama-3.1-8'; use one of: Llama-3.1-8B, Llama-3.1-70B,"),
        (("deepseek",), "use one of: DeepSeek-V3,"),
        (("nowhere/table.txt",), "nowhere/table.txt cannot be read: No such file or directory"),
        (("Qwen3-8B", "--m", "16,many"), "'many' is not a whole number or a range; write sizes as 1,16,"),
        (("Qwen3-8B", "--m", "1,64-16"), "the range 64-16 ends before it starts; write it as 16-64"),
        (("Qwen3-8B", "--m", "1-16777217"), "m is 16,777,217; it must be a whole number from 1 to 16,777,216"),
        (("Qwen3-8B", "--specialise", "exact"), "m of 1-8192 needs 8,192 kernels for each shape; name the sizes"),
        (("Qwen3-8B", "--epilogue", "bais"), "unknown epilogue 'bais'"),
        (("Qwen3-8B", "--family", "simd"), "unknown family 'simd'; use one of: tensor_core"),
        (("Qwen3-8B", "--compiler", "gcc"), "unknown compiler 'gcc'; use one of: nvrtc"),
        (("Qwen3-8B", "--out-dtype", "fp64"), "out dtype fp64 cannot be made from bf16"),
        (("Qwen3-8B", "--m", "0"), "m is 0"),
        (("Qwen3-8B", "--arch", "sm_1"), "unknown architecture 'sm_1'"),
        (("Qwen3-8B", "--dtype", "fp5"), "unknown dtype 'fp5'; use one of: fp16"),
        (("Qwen3-8B", "--jobs", "0"), "0 is not in the range"),
    ],
)
def test_invalid_input_is_one_line_that_names_valid_values(place: Path, arguments: tuple[str, ...], named: str) -> None:
    done = run("warm", *arguments, store=place)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert named in done.stderr
    assert not place.exists()


def test_without_a_store_nothing_is_compiled(place: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "0")
    done = run("warm", table, store=place)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "caching is switched off" in done.stderr


def test_a_models_name_may_be_written_in_any_case() -> None:
    assert model_shapes("qwen3-8b") == model_shapes("Qwen3-8B") != []


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.csv").write_bytes(b"\x7fELF\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"code\.csv (cannot be read|has no column)"):
        table_shapes(tmp_path / "code.csv")


def test_a_missing_compiler_is_reported_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the failure of every kernel."""

    def missing() -> None:
        raise CompilerMissing("NVRTC is not installed; run: pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(COMPILERS["nvrtc"], "fingerprint", missing)
    with pytest.raises(NotHereError, match="pip install"):
        coverage(cache, wanted([ModelShape("", "", 1, 8, 8, 1)], DType.BF16, ["sm_90"]))


def test_no_tool_ends_the_whole(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str) -> Path:
        raise ToolMissing(f"{name} is not installed; run: pip install {package}")

    monkeypatch.setattr(disassembly, "find_tool", missing)
    problems = [GemmProblem(8, 8 * n, 8, dtype=DType.FP32, arch="sm_90") for n in range(1, 4)]
    with pytest.raises(ToolMissing):
        warm(cache, problems, jobs=2)
    assert list(cache.records()) == []


def test_ctrl_c_leaves_a_sound_store_that_the_next_run_completes(place: Path, tmp_path: Path) -> None:
    table = tmp_path / "long.csv"
    table.write_text("n,k\n" + "".join(f"{8 * n},64\n" for n in range(8, 308)))
    process = subprocess.Popen(
        [sys.executable, "-m", "cache_engine", "--store", str(place), "warm", str(table), "--m", "16"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and len(list(place.glob("metadata/*/*.json"))) < 3:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert not list(place.glob("temp/*"))
    assert document("verify", store=place)["findings"] == []
    kept = document("stats", store=place)["entries"]
    assert 3 <= kept < 300
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:9]))
    again = document("warm", table, "--m", "16", store=place)
    assert again["compiled"] + again["found"] == again["kernels"] == 8
    assert again["found"] >= 1


# ---- Loading on a GPU ----


class Driver:
    """In the place of a GPU's: refuses the code of one target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: str = "sm_75") -> None:
        self.loaded: list[bytes] = []
        self._refused = refused
        monkeypatch.setattr(probe, "require_gpu", lambda what: None)
        monkeypatch.setattr(launch, "load_function", self._load)

    def _load(self, cubin: bytes, name: str, shared_bytes: int) -> None:
        assert name.encode() in cubin
        if f"-arch {self._refused}".encode() in cubin or self._refused.encode() in cubin:
            raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")
        self.loaded.append(cubin)


def test_warm_loads_what_it_compiled_and_what_it_found(
    place: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch)
    asked = ["warm", str(table), "--m", "16", "--dtype", "fp32", "--arch", "sm_90"]
    options = ["--store", str(place), *asked, "--check", "--json"]
    for compiled, found in ((3, 0), (0, 3)):
        driver.loaded.clear()
        done = CliRunner().invoke(commands, options)
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        assert (printed["compiled"], printed["found"], printed["loaded"], printed["failed"]) == (compiled, found, 3, [])
        assert len(set(driver.loaded)) == 3
    assert json.loads(CliRunner().invoke(commands, [*options[:-2], "--json"]).stdout)["loaded"] is None
    assert "3 found, 3 loaded on the GPU" in CliRunner().invoke(commands, options[:-1]).stdout


def test_a_kernel_that_the_driver_refuses_has_failed_and_the_others_are_loaded(
    place: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch)
    targets = ["--m", "16", "--arch", "sm_90", "--arch", "sm_75", "--dtype", "fp32"]
    done = CliRunner().invoke(commands, ["--store", str(place), "warm", str(table), *targets, "--check", "--json"])
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    assert (printed["compiled"], printed["loaded"], len(printed["failed"]), len(driver.loaded)) == (3, 3, 3, 3)
    assert printed["failed"][0]["error"] == "the GPU does not load it: CUDA_ERROR_NO_BINARY_FOR_GPU"
    assert document("stats", store=place)["entries"] == 6, "they are stored"


def test_python_loads_what_it_warms(cache: Cache, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    problems = problems_of(cache, table, arch=["sm_90", "sm_75"], m=[16], dtype="fp32")
    seen: list[Warmed] = []
    done = warm(cache, problems, 2, seen.append, load=True)
    assert seen == done
    assert [one.problem.arch for one in done if one.trouble] == ["sm_75"] * 3
    assert len(set(driver.loaded)) == 3
    driver.loaded.clear()
    assert not any(one.trouble for one in warm(cache, problems, 2))
    assert driver.loaded == []


@pytest.mark.skipif(not isinstance(probe.gpu(), str), reason="a GPU is here")
def test_without_a_gpu_python_says_so_before_it_compiles_anything(cache: Cache, table: Path) -> None:
    with pytest.raises(GpuRequired, match="loading what is warmed needs an NVIDIA GPU"):
        warm(cache, problems_of(cache, table, arch="sm_90", m=[16]), load=True)
    assert not list(cache.records())


@pytest.mark.skipif(not isinstance(probe.gpu(), str), reason="a GPU is here")
def test_without_a_gpu_warm_load_says_so_before_it_compiles_anything(place: Path, table: Path) -> None:
    done = run("warm", table, "--arch", "sm_90", "--check", store=place)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "warm --check needs an NVIDIA GPU" in done.stderr
    assert not place.exists()
    refused = run("warm", table, "--check", "--dry-run", store=place)
    assert (refused.returncode, "leave one of them out" in refused.stderr) == (2, True)


@pytest.mark.skipif(not isinstance(probe.gpu(), str), reason="a GPU is here")
@pytest.mark.parametrize("verb", ["time 64 48 80", "tune 64 48 80 --dry-run", "warm Llama-3.1-8B"])
def test_without_a_gpu_there_is_none_to_choose(place: Path, verb: str) -> None:
    done = run(*verb.split(), "--device", "1", store=place)
    assert (done.returncode, done.stderr) == (3, "error: there is no GPU 1 to use: no NVIDIA driver is installed\n")
    assert not place.exists()
    assert run(*verb.split(), "--device", "first", store=place).returncode == 2


def test_block_scaled_kernels_of_deepseek_v3_are_those_of_every_layer(cache: Cache) -> None:
    asked: dict[str, Any] = {"arch": "sm_90", "m": "1,4096", "dtype": "fp8_e4m3", "scales": "1x128,128x128"}
    problems = {(one.n, one.k, str(one.scales)) for one in problems_of(cache, "DeepSeek-V3", **asked)}
    assert problems == {(shape.n, shape.k, asked["scales"]) for shape in model_shapes("DeepSeek-V3")}
    with pytest.raises(InvalidProblem, match="k is 2,880, and with scales it must be a multiple of 128"):
        problems_of(cache, "gpt-oss-120b", **asked)
