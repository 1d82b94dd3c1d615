"""Triton: real code for every target, on a machine without a GPU, in any environment."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.compilers import COMPILERS, triton
from cache_engine.compilers.base import Compiled
from cache_engine.compilers.disassembly import resources, sass
from cache_engine.errors import CompileError, CompilerMissing, InfeasibleConfig, InvalidProblem
from cache_engine.kernels.family import check_config
from cache_engine.kernels.select import FAMILIES, choose
from cache_engine.kernels.source import render
from cache_engine.model.architecture import ARCHITECTURES, architecture
from cache_engine.model.gemm import INPUT_DTYPES, DType, GemmProblem, Layout, Specialisation
from cache_engine.model.kernel import KernelConfig
from cache_engine.upkeep.plan import Limits
from tests.helpers import missing_bytes, require_triton
from tests.remote.waiting import until

TRITON = triton.Triton()
SMALL = KernelConfig(64, 64, 32, 4, 1, 3)
# The machine-code instruction that multiplies on each target: mma.sync, wgmma, tcgen05.
MULTIPLIES = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "sm_120": "HMMA"}


@pytest.fixture(autouse=True)
def _needs_triton() -> None:
    require_triton()


def _source(problem: GemmProblem, config: KernelConfig = SMALL) -> str:
    family = FAMILIES["triton"]
    return render(family.template, family.constants(problem, config))


def _compiled(arch: str = "sm_90", config: KernelConfig = SMALL, **fields: object) -> Compiled:
    return TRITON.compile(_source(GemmProblem(64, 128, 96, **fields), config), arch)  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", MULTIPLIES)
def test_a_kernel_is_a_loadable_cubin_that_multiplies_on_tensor_cores(cache: Cache, arch: str) -> None:
    problem = GemmProblem(256, 1024, 512, arch=arch)
    kernel = cache.get_or_compile(problem, compiler="triton", config=KernelConfig(128, 128, 64, 8, 1, 3))
    record = kernel.record
    assert missing_bytes(kernel.cubin) == 0
    text = sass(kernel.cubin)
    # Triton has two ptxas; the older one marks a target in its own way.
    assert re.search("EF_CUDA_SM80 " if arch == "sm_80" else rf"\.target\s+{arch}a\n", text)
    assert f".text.{record.name}:" in text
    assert re.search(rf"\b{MULTIPLIES[arch]}\b", text)
    assert record.resources.registers > 0
    # What a launch asks for is what Triton decided, within what the family reckoned with.
    family = FAMILIES["triton"]
    assert kernel.launch.shared_bytes == record.resources.shared_bytes
    reckoned = family.shared_bytes(kernel.problem, record.config)
    assert reckoned / 2 < record.resources.shared_bytes <= reckoned + 64
    assert kernel.launch.threads == record.config.threads == 32 * int(dict(record.components)["WARPS"])
    assert kernel.launch.parameters == ("global_scratch", "profile_scratch")
    found = re.search(rf"\.entry {record.name}\(([^)]*)\)", cache.text(record, "ptx"))
    assert found is not None
    assert found[1].count(".param") == 6
    assert cache.get_or_compile(problem, family="triton", config=record.config).tier == "memory"


@pytest.mark.parametrize(("dtype", "layout"), [*zip(FAMILIES["triton"].flops_per_clock, Layout, strict=False)])
def test_every_dtype_compiles(dtype: DType, layout: Layout) -> None:
    """To instructions for that type: sm_80 has one for each."""
    instructions = {DType.FP16: "F32", DType.BF16: "F32.BF16", DType.TF32: "F32.TF32"}
    found = set(re.findall(r"HMMA\.\d+\.(\S+)", sass(_compiled("sm_80", dtype=dtype, layout=layout).cubin)))
    assert found == {instructions[dtype]}


# Its LLVM does not know 8.8, of which no chip is public.
TARGETS = [name for name, at in ARCHITECTURES.items() if at.major >= 8 and not name.endswith("f") and name != "sm_88"]


@pytest.mark.soak
@pytest.mark.parametrize("arch", TARGETS)
def test_every_kind_of_kernel_compiles_for_every_target(arch: str) -> None:
    multiplies = MULTIPLIES.get(re.sub("a$", "", arch), r"(HG|UTCH|H)MMA")
    for dtype, layout in itertools.product(FAMILIES["triton"].flops_per_clock, Layout):
        code = sass(_compiled(arch, dtype=dtype, layout=layout).cubin)
        assert re.search(rf"\b{multiplies}\b", code), (dtype, layout)


@pytest.mark.soak
@pytest.mark.parametrize("arch", MULTIPLIES)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.TF32])
def test_every_config_offered_stays_within_its_target(arch: str, dtype: DType) -> None:
    """The family's estimate of shared memory holds; what is feasible compiles, with few spills if any."""
    family, layouts = FAMILIES["triton"], itertools.cycle(itertools.product(Layout, {None, DType.FP32}))
    for config in family.configs(GemmProblem(1, 1, 1, dtype=dtype)):
        layout, out_dtype = next(layouts)
        problem = GemmProblem(512, 512, 512, dtype=dtype, out_dtype=out_dtype, layout=layout, arch=arch)
        try:
            check_config(family, problem, config, architecture(arch))
        except InfeasibleConfig:
            continue
        compiled = TRITON.compile(_source(problem, config), arch)
        assert compiled.shared_bytes is not None
        # Blackwell's barriers come on top.
        assert compiled.shared_bytes <= family.shared_bytes(problem, config) + 64, config
        assert resources(compiled.cubin, compiled.log, compiled.shared_bytes).spill_bytes < 512, config


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(tuple(zip(Layout, Specialisation, strict=True)), id="each once"),
        pytest.param(tuple(itertools.product(Layout, Specialisation)), id="all pairs", marks=pytest.mark.soak),
    ],
)
def test_copies_are_16_bytes_wide_where_rows_allow(kinds: tuple[tuple[Layout, Specialisation], ...]) -> None:
    """Triton uses the hints of the template about pointers and size arguments."""
    widths = re.compile(rb"cp\.async\.c[ga]\S*\s*\[[^\]]*\],\s*\[[^\]]*\],\s*0x(\w+)")
    for layout, specialisation in kinds:
        ptx = _compiled("sm_80", layout=layout, specialisation=specialisation).ptx
        assert set(widths.findall(ptx)) == {b"10"}, (layout, specialisation)


def test_results_are_rounded_to_nearest() -> None:
    """The interpreter, which knows no rounding to bf16, cannot tell."""
    assert b"cvt.rn.bf16" in _compiled().ptx


def test_two_compiles_give_the_same_bytes(fresh: triton.Triton) -> None:
    """And in another process: nothing of the worker, such as its folder, gets into the code."""
    source = _source(GemmProblem(64, 128, 96))
    assert fresh.compile(source, "sm_90").cubin == TRITON.compile(source, "sm_90").cubin


def test_no_path_gets_into_the_code() -> None:
    compiled = _compiled()
    for place in (b"/tmp", b"site-packages", os.fsencode(Path.cwd()), b"gemm-cache"):
        assert place not in compiled.cubin
        assert place not in compiled.ptx


def test_the_environment_does_not_reach_triton(
    fresh: triton.Triton, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its settings could change the bytes under the same key; and its cache could serve others."""
    expected = _compiled().cubin
    fresh.fingerprint()  # which may leave digests in the home it finds
    for name, value in (
        ("DISABLE_PTXAS_OPT", "1"),
        ("DISABLE_LLVM_OPT", "1"),
        ("PTXAS_OPTIONS", "--maxrregcount=32"),
        ("TRITON_DEFAULT_FP_FUSION", "0"),
        ("TRITON_OVERRIDE_ARCH", "sm80"),
        ("TRITON_INTERPRET", "1"),
        ("TRITON_PTXAS_BLACKWELL_PATH", "/bin/false"),
        ("PYTHONPATH", str(tmp_path / "other")),
        ("TRITON_CACHE_DIR", str(tmp_path / "cache")),
        ("HOME", str(tmp_path / "home")),
    ):
        monkeypatch.setenv(name, value)
    (tmp_path / "other" / "triton").mkdir(parents=True)
    (tmp_path / "other" / "triton" / "__init__.py").write_text("raise ImportError")
    assert fresh.compile(_source(GemmProblem(64, 128, 96)), "sm_90").cubin == expected
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "home").exists()


def test_a_refused_source_gives_log_source_and_flags() -> None:
    source = _source(GemmProblem(64, 128, 96)).replace("tl.dot(", "tl.no_such_thing(")
    with pytest.raises(CompileError, match=r"Triton rejected the source for sm_90: .*Error") as caught:
        TRITON.compile(source, "sm_90")
    error = caught.value
    assert "no_such_thing" in error.log
    assert error.source == source
    assert "TRITON_DISABLE_LINE_INFO=1" in error.flags
    _compiled()  # and the next caller is served


def test_a_kernel_that_cannot_be_launched_as_recorded_is_refused() -> None:
    """Another version of Triton may add other parameters."""
    source = _source(GemmProblem(64, 128, 96)).replace("global_scratch profile_scratch", "global_scratch")
    with pytest.raises(CompileError, match="made a kernel of 6 parameters; it must be 5"):
        TRITON.compile(source, "sm_90")


def test_more_shared_memory_than_the_target_has_is_refused_with_how_much() -> None:
    """Triton's share may come to be more than the family reckoned with."""
    source = _source(GemmProblem(128, 128, 512), KernelConfig(128, 128, 64, 4, 1, 8))
    with pytest.raises(InfeasibleConfig, match=r"made a kernel that needs .* more than the 101,376 of sm_120"):
        TRITON.compile(source, "sm_120")


def test_a_family_of_chips_is_no_target() -> None:
    with pytest.raises(InvalidProblem, match="no family targets such as sm_100f; use sm_100a"):
        _compiled("sm_100f")


def test_a_worker_that_dies_is_a_failed_compile_and_the_next_one_succeeds(fresh: triton.Triton) -> None:
    """As on an internal error of LLVM, which ends its process."""
    fresh.load()
    (worker,) = fresh._idle
    source = _source(GemmProblem(64, 128, 96))
    suicidal = source.replace("import triton\n", "import os, triton\nos.write(2, b'LLVM ERROR'); os.abort()\n", 1)
    with pytest.raises(CompileError, match=r"the process of Triton ended with -6: LLVM ERROR") as caught:
        fresh.compile(suicidal, "sm_90")
    assert "LLVM ERROR" in caught.value.log
    assert fresh.compile(source, "sm_90").cubin == _compiled().cubin
    assert not worker._folder.exists()


@pytest.mark.parametrize("harm", ["killed", "tidied away"])
def test_an_idle_worker_that_is_lost_is_replaced(fresh: triton.Triton, harm: str) -> None:
    fresh.load()
    (worker,) = fresh._idle
    if harm == "killed":
        worker._process.kill()
        worker._process.wait()
    else:
        shutil.rmtree(worker._folder)
    assert fresh.compile(_source(GemmProblem(64, 128, 96)), "sm_90").cubin == _compiled().cubin
    assert fresh._idle != [worker]


def test_a_forked_child_has_workers_of_its_own(tmp_path: Path) -> None:
    """Also where one of the parent's has ended before."""
    path = tmp_path / "source.py"
    path.write_text(_source(GemmProblem(64, 128, 96)))
    code = (
        "import os, sys\nfrom cache_engine.compilers.triton import Triton\nsource = open(sys.argv[1]).read()\n"
        "ended, compiler = Triton(), Triton()\nended.load()\n[worker] = ended._idle\nworker.end()\n"
        "expected = compiler.compile(source, 'sm_90').cubin\n[kept] = compiler._idle\nchild = os.fork()\n"
        "assert compiler.compile(source, 'sm_90').cubin == expected\n[used] = compiler._idle\n"
        "assert (used is kept) == (child != 0)\n"
        "if child: assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ending", ["pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_worker_and_no_folder_outlives_who_asked(ending: str, tmp_path: Path) -> None:
    code = (
        "from cache_engine.compilers import COMPILERS\n"
        "triton = COMPILERS['triton']\ntriton.load()\nprint(triton._idle[0]._process.pid, flush=True)\n" + ending
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if ending == "pass" else -signal.SIGKILL), done.stderr
    until(lambda: not Path(f"/proc/{done.stdout.strip()}").exists() and not list(tmp_path.iterdir()))


def test_triton_is_chosen_by_no_one_who_did_not_ask() -> None:
    for dtype in INPUT_DTYPES:
        assert choose(GemmProblem(64, 64, 64, dtype=dtype, arch="sm_90"))[0].name != "triton"


def test_a_triton_kernel_is_not_stale_where_there_is_no_triton(
    cache: Cache, fresh: triton.Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning must neither fail on it nor evict it: a user with Triton may hit it."""
    cache.get_or_compile(GemmProblem(64, 128, 96, arch="sm_90"), family="triton", config=SMALL)

    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(COMPILERS._made, "triton", fresh)
    monkeypatch.setattr(metadata, "distribution", nothing)
    with open_cache(cache.layout.root) as elsewhere:
        assert (
            elsewhere.get_or_compile(GemmProblem(64, 128, 96, arch="sm_90"), family="triton", config=SMALL).tier
            == "disk"
        )
        with pytest.raises(CompilerMissing):
            elsewhere.get_or_compile(GemmProblem(64, 256, 96, arch="sm_90"), family="triton", config=SMALL)
        assert elsewhere.admin.plan_cleaning(Limits(stale_toolchain=True)).victims == ()
