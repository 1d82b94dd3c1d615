"""One machine as two: DeepGEMM's commands, a program of Triton's and one of JAX's find their kernels at other paths.

The second machine has another home, store, root and install path, and gets all from a signed remote. Needs DeepGEMM's
headers and CUTLASS's in the folder that ``DEEPGEMM_INCLUDE`` names; ``JAX_PYTHON`` names a Python with JAX.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cache_engine.frameworks.snapshots import JAX_CACHES
from tests.cli.test_run_snapshots import JAX, TRITON, Machine, signed
from tests.trust.keys import Builder

_SHAPES = [(4096, 7168), (7168, 2048), (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384)]
_K, _END = "cute::UMMA::Major::K", "GemmType::Normal"
_FP8, _BF16, _SAME = "cutlass::float_e4m3_t", "cutlass::bfloat16_t", "epilogue::transform::EpilogueIdentity"
# A server: it makes the kernels that its first argument counts, is ready, and then needs all of them.
SERVER = """
import concurrent.futures, hashlib, json, os, pathlib, subprocess, sys, uuid
here = pathlib.Path(sys.argv[0]).parent

def deepgemm(arch, text):
    flags = ["-std=c++20", "--diag-suppress=39,161,174,177,186,940", "--ptxas-options=--register-usage-level=10",
             f"-I{here}/include", f"--gpu-architecture=sm_{arch}", "-O3", "--expt-relaxed-constexpr",
             "--compiler-options=-fPIC,-O3,-fconcepts,-Wno-deprecated-declarations,-Wno-abi", "--expt-extended-lambda"]
    digest = hashlib.sha256(f"{flags}{text}".encode()).hexdigest()[:32]
    cache = pathlib.Path(os.environ["DG_JIT_CACHE_DIR"])
    done, made = cache / "cache" / f"kernel.gemm.{digest}", cache / "tmp" / str(uuid.uuid4())
    if done.exists():
        return
    made.mkdir(parents=True)
    done.parent.mkdir(exist_ok=True)
    (made / "kernel.cu").write_text(text)
    nvcc = os.environ["DG_JIT_NVCC_COMPILER"]
    subprocess.run([nvcc, f"{made}/kernel.cu", "-cubin", "-o", f"{made}/kernel.cubin", *flags], cwd=cache / "tmp",
                   check=True)
    made.rename(done)

def serve(part):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: deepgemm(*one), json.loads((here / "kernels.json").read_text())[:part]))
    subprocess.run([sys.executable, here / "triton_part.py", *("64", "128")[:part]], check=True)
    if "JAX_PYTHON" in os.environ:
        subprocess.run([os.environ["JAX_PYTHON"], here / "jax_part.py", *("8", "16")[:part]], check=True)

serve(int(sys.argv[1]))
print("READY", flush=True)
serve(1000)
"""


def kernels() -> list[tuple[str, str]]:
    """The target and the source of kernels as DeepGEMM writes them: four each of sm_90a and sm_100a for each shape."""
    found: list[tuple[str, str, list[Any]]] = []
    for n, k in _SHAPES:
        for tile in (64, 128):
            last = [4, 128, 2 * tile, 1, "false", 132, _END]
            bf16 = [_K, _K, 0, n, k, 1, tile, tile, 64, 128, 128, 128, *last, "false", _BF16]
            found.append(("90a", "sm90_bf16_gemm", bf16))
            fp8 = [_K, 0, n, k, 1, tile, tile, 128, 128, 128, 128, *last, _BF16, _SAME]
            found.append(("90a", "sm90_fp8_gemm_1d2d", fp8))
            last = [128, 128, 1, "false", 148]
            out = _BF16 if tile == 128 else "float"
            bf16 = [_K, _K, 0, n, k, 128, tile, 64, 1, 128, 128, 128, 5, *last, 128, "false", "true", _END]
            found.append(("100a", "sm100_bf16_gemm", [*bf16, "false", out, 100]))
            fp8 = [_K, _K, 128, 128, 128, 0, n, k, 128, tile, 128, 1, 128, 128, 128, 4, *last, "false", "true", _END]
            found.append(("100a", "sm100_fp8_fp4_gemm_1d1d", [*fp8, "false", _FP8, _FP8, out, _SAME]))
    source = (
        "#include <deep_gemm/impls/{}.cuh>\nusing namespace deep_gemm;\nstatic void __instantiate_kernel() "
        "{{\n    auto ptr = reinterpret_cast<void*>(&{}_impl<{}>);\n}};\n"
    )
    return [(arch, source.format(name, name, ", ".join(map(str, given)))) for arch, name, given in found]


class Server(Machine):
    """A machine of its own home and install path, on which ``SERVER`` runs."""

    def __init__(self, folder: Path, python: str | None, **settings: str) -> None:
        super().__init__(folder, HOME=str(folder / "home"), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", **settings)
        self.environment |= {"JAX_PYTHON": python} if python else {}
        self.place, self.report = folder / "installed", folder / "report.json"
        (folder / "home").mkdir(parents=True)
        shutil.copytree(os.environ["DEEPGEMM_INCLUDE"], self.place / "include")
        (self.place / "serve.py").write_text(SERVER)
        (self.place / "kernels.json").write_text(json.dumps(kernels()[: int(os.environ.get("DEEPGEMM_KERNELS", "48"))]))
        given = "map(int, __import__('sys').argv[1:])"
        (self.place / "triton_part.py").write_text(TRITON.replace("(64, 128)", given))
        first, last = JAX.rstrip().rsplit("\n", 1)
        (self.place / "jax_part.py").write_text(f"{first}\nfor n in {given}:\n    {last.replace('8, 8', 'n, n')}\n")

    def serve(self, warm: int, *options: str) -> tuple[int, dict[str, Any], str]:
        """Serves, with this many kernels made before it is ready; returns the exit code, report and messages."""
        output = ("--output", str(self.report), "--ready", "line:READY", "--forbid-after-ready")
        whole = ("run", "--root", str(self.root), *output, *options, "--", sys.executable, f"{self.place}/serve.py")
        command = [sys.executable, "-m", "cache_engine", *whole, str(warm)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.place)
        print(done.stdout.replace("\n", " "), done.stderr, sep="\n", flush=True)
        return done.returncode, json.loads(self.report.read_text())["frameworks"], done.stderr

    @property
    def nvcc_runs(self) -> int:
        """Commands for which nvcc ran."""
        return int(json.loads(self.verb("stats", "--json").stdout)["compiles"])


@pytest.mark.soak
@pytest.mark.skipif("DEEPGEMM_INCLUDE" not in os.environ, reason="DEEPGEMM_INCLUDE names no folder of headers")
def test_the_second_machine_compiles_nothing(tmp_path: Path, builder: Builder) -> None:
    python = os.environ.get("JAX_PYTHON")
    settings = {**signed(tmp_path, builder), "GEMM_CACHE_HOST_CODE": "1"}
    one, two = (Server(tmp_path / name, python, **settings) for name in ("one", "two-elsewhere"))
    count = len(json.loads((one.place / "kernels.json").read_text()))
    code, seen, _ = one.serve(1000, "--save", "served")
    assert (code, seen["deepgemm"]["before"], seen["triton"]["before"]) == (0, count, 2)
    assert one.nvcc_runs == count
    pushed = one.verb("remote", "push", "--sign", str(builder.file), "--json")
    assert pushed.returncode == 0, pushed.stderr
    print("pushed", {name: each for name, each in json.loads(pushed.stdout).items() if isinstance(each, int)})
    shutil.move(tmp_path / "one", tmp_path / "gone")

    assert two.verb("remote", "pull").returncode == 0
    code, seen, said = two.serve(1000, "--restore", "served")
    assert (code, seen["triton"]["before"], sum(each["after"] for each in seen.values())) == (0, 0, 0), said
    assert "jax" not in seen or seen["jax"]["before"] == 0
    print("nvcc on the second machine:", two.nvcc_runs, "runs for", seen["deepgemm"]["before"], "commands")
    assert (seen["deepgemm"]["before"], two.nvcc_runs) == (count, 0)
    two.environment[JAX_CACHES] = "none"  # as --restore sets it, which would bring back what is removed here
    code, seen, said = two.serve(1)
    assert (code, sum(each["before"] + each["after"] for each in seen.values())) == (0, 0), "all there, used late"

    removed = {"triton": "triton/*/scale.cubin", "deepgemm": "deepgemm/cache/*/kernel.cubin", "jax": "jax/jit__*-cache"}
    for framework, pattern in removed.items():
        if framework not in seen:
            continue
        late = max(two.root.glob(pattern), key=lambda file: file.stat().st_mtime_ns)
        shutil.rmtree(late.parent) if framework != "jax" else late.unlink()
        code, seen, said = two.serve(0)
        assert (code, seen[framework]["after"]) == (3, 1), said
        assert f"after ready: {framework} " in said
