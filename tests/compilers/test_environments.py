"""Environments with NVRTC 12.9, 13.0 and the newest, as pip installs them: each compiles, and serves others' packs."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from cache_engine.model.gemm import Specialisation

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip")
PINS = {
    "12.9": ("nvidia-cuda-nvrtc-cu12>=12.9,<13",),
    "13.0": ("nvidia-cuda-nvrtc==13.0.88",),  # what PyTorch's wheels for CUDA 13.0 pin
    "newest": ("nvidia-cuda-nvrtc>=13,<14",),
}

# Gets every family's kernel for each target that CUDA 12 and 13 have; prints tiers and what compiled.
_GET = """
import sys
from cache_engine import GemmProblem, open_cache
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.architecture import ARCHITECTURES, CUDA_VERSIONS
SCALES = "1x128,128x128"
KINDS = {
    "tensor_core": dict(dtype="bf16"), "scaled": dict(dtype="fp8_e4m3", scales=SCALES), "simt": dict(dtype="fp32"),
    "grouped": dict(dtype="bf16", mode="grouped", batch=2), "hopper": dict(dtype="bf16"),
}
assert set(KINDS) == {name for name, family in FAMILIES.items() if family.template.endswith(".cu")}
store, pack, *packs = sys.argv[1:]
tiers, versions = set(), set()
with open_cache(store, durability="fast", packs=tuple(packs), toolchain="pack", enable_jit=not packs) as cache:
    for arch, target in ARCHITECTURES.items():
        for name, kind in KINDS.items():
            if target.cuda_versions != CUDA_VERSIONS or (name == "hopper" and arch != "sm_90a"):
                continue
            problem = GemmProblem(128, 256, 512, arch=arch, **kind)
            if target.compute_capability >= FAMILIES[name].min_capability(problem.dtype):
                kernel = cache.get_or_compile(problem, family=name)
                tiers.add(kernel.tier)
                versions.add(kernel.record.compiler_version)
    if not packs:
        cache.admin.export(pack)
print(*sorted(tiers), *sorted(versions))
"""


_TRITON = """
import sys
from cache_engine import GemmProblem, open_cache
from cache_engine.model.gemm import Specialisation
with open_cache(sys.argv[1], durability="fast") as cache:
    for specialisation in Specialisation:
        problem = GemmProblem(128, 256, 512, arch="sm_90", specialisation=specialisation)
        kernel = cache.get_or_compile(problem, compiler="triton")
        print(kernel.tier, kernel.record.compiler, kernel.record.compiler_version)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as users install it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", f"-w{folder}", str(ROOT)], check=True
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def pythons(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The Python of each environment, with the core installed from the wheel."""
    folder = tmp_path_factory.mktemp("environments")
    pythons = {name: _environment(folder / name, wheel, *pins) for name, pins in PINS.items()}
    without = [*PIP, f"--python={pythons['12.9']}", "uninstall", "--quiet", "--yes", "nvidia-cuda-nvrtc"]
    subprocess.run(without, check=True)
    return pythons


def _environment(at: Path, *packages: str | Path) -> Path:
    """The Python of a new environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(at)], check=True)
    python = at / "bin" / "python"
    subprocess.run([*PIP, f"--python={python}", "install", "--quiet", "--no-compile", *map(str, packages)], check=True)
    return python


def _get(python: Path, *arguments: Path) -> list[str]:
    done = subprocess.run([python, "-c", _GET, *arguments], capture_output=True, text=True, cwd=python.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.soak
def test_each_environment_compiles_every_family_and_serves_the_packs_of_the_others(
    pythons: dict[str, Path], tmp_path: Path
) -> None:
    packs = {name: tmp_path / f"{name}.gemmpack" for name in pythons}
    made = {name: _get(python, tmp_path / name, packs[name]) for name, python in pythons.items()}
    assert made["12.9"] == ["compiled", "12.9"]
    assert made["13.0"] == ["compiled", "13.0"]
    assert made["newest"][0] == "compiled"
    assert made["newest"][1] not in ("12.9", "13.0")
    for here, there in permutations(pythons, 2):
        served = _get(pythons[here], tmp_path / f"{here}-{there}", packs[there], packs[there])
        assert served == ["pack", *made[there][1:]], (here, there)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.6"])  # what machines with an H200 have; that of the tests is newer
def test_an_older_triton_compiles_every_specialisation(wheel: Path, tmp_path: Path, version: str) -> None:
    python = _environment(tmp_path / "environment", wheel, f"triton=={version}.*")
    command = [str(python), "-c", _TRITON, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=python.parent)
    assert done.returncode == 0, done.stderr
    made = [line.split() for line in done.stdout.splitlines()]
    assert len(made) == len(Specialisation)
    assert {(tier, compiler) for tier, compiler, _ in made} == {("compiled", "triton")}
    assert all(one.startswith(version) for _, _, one in made)
