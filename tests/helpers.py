"""Entries for tests that need any bytes in a store."""

from __future__ import annotations

import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

import cache_engine
from cache_engine.compilers.disassembly import sass
from cache_engine.kernels.select import FAMILIES
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem, Resources
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey, KeyPrefix
from cache_engine.model.measurement import COST_MODEL, Measurement
from cache_engine.store.disk import DiskStore, open_store

_HOST_COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
needs_host_compiler = pytest.mark.skipif(_HOST_COMPILER is None, reason="NVCC needs a C++ compiler of the host")

T = TypeVar("T")
# Chooses the cases of a short run; changes daily.
_SEED = int(os.environ.get("SAMPLE_SEED") or time.time() // 86_400)

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")


def of_today(cases: Sequence[T], count: int) -> list[T]:
    """A sample of the cases, in their order, that changes daily; prints how to take the same again."""
    print(f"SAMPLE_SEED={_SEED} takes the same")
    chosen = random.Random(_SEED).sample(range(len(cases)), count)
    return [cases[number] for number in sorted(chosen)]


def code_of(cubin: bytes) -> str:
    """The machine code as text, for telling whether two compiles made the same.

    Bytes would be too strict: NVRTC 13.5 has been seen to mark one load of 24 ``.CONSTANT``, which says how it is
    cached, in one compile of a source and not in hundreds of others.
    """
    return sass(cubin).replace(".CONSTANT", "")


def missing_bytes(image: bytes) -> int:
    """How many bytes the headers of a 64-bit ELF image promise beyond its end. Source: System V ABI, "Object Files"."""
    assert image[:4] == b"\x7fELF"
    fields = struct.unpack_from("<16sHHIQQQIHHHHHH", image)
    program_end, section_end = fields[5] + fields[9] * fields[10], fields[6] + fields[11] * fields[12]
    return int(max(program_end - len(image), section_end - len(image), 0))


def make_cubin(arch: str, code: bytes) -> bytes:
    """The header of a CUBIN for a target, as NVRTC 13.5 writes it, then ``code`` in place of all that follows."""
    target = int(arch.removeprefix("sm_").rstrip("af"))
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    return (
        struct.pack("<16sHHIQQQIHHHHHH", ident, 2, 190, 1, 0, 0, 0, 0x6000004 | target << 8, 64, 0, 0, 0, 0, 0) + code
    )


def make_store(folder: Path, *, durable: bool = False, compress: bool = True) -> DiskStore:
    """An open store; not synced to disk unless asked, since no test pulls the plug."""
    return DiskStore(open_store(folder), durable=durable, compress=compress)


def make_entry(
    seed: int = 0, *, cubin_bytes: int = 3000, compile_ms: float = 150.0
) -> tuple[CacheKey, Artifact, Callable[[Blob], Record]]:
    """A key with an artifact and what describes it; the same for the same seed."""
    generator = random.Random(seed)
    arch = ARCHS[seed % len(ARCHS)]
    problem = GemmProblem(64 + seed, 128 * (seed % 7 + 1), 256, arch=arch)
    config = KernelConfig(64, 64, 32, 2, 2, 3)
    start = (("family", "tensor_core"), ("template", "of a test"), ("compiler", "nvrtc"), ("compiler_version", "13.5"))
    prefix = KeyPrefix((*start, ("compiler_build", "of a test"), ("flags", "-O3"), ("arch", arch)))
    name = f"gemm_tensor_core_bf16_nt_n{problem.n}_k{problem.k}_{config}_{seed}"
    constants = {**FAMILIES["tensor_core"].constants(problem, config), "KERNEL_NAME": name, "SEED": seed}
    key = prefix.key(constants)
    artifact = Artifact(
        cubin=make_cubin(arch, generator.randbytes(cubin_bytes // 2) + b"code" * (cubin_bytes // 8)),
        ptx=f".version 9.0 // {seed}\n".encode() * 20,
        source=f"// source of {seed}\n".encode() * 20,
        log=b"ptxas info\n",
        resources=Resources(registers=64 + seed % 100, shared_bytes=49_152, stack_bytes=0, spill_bytes=0),
    )

    def describe(blob: Blob) -> Record:
        return Record(
            key=key,
            components=prefix.with_constants(constants),
            name=name,
            family="tensor_core",
            compiler="nvrtc",
            compiler_version="13.5",
            arch=arch,
            problem=RecordedProblem.of(problem),
            config=config,
            resources=artifact.resources,
            blob=blob,
            compile_ms=compile_ms,
            stages_ms={"compile": compile_ms},
            created_at=1_700_000_000.0 + seed,
            created_by="a test",
        )

    return key, artifact, describe


def fill(store: DiskStore, count: int, start: int = 0) -> list[CacheKey]:
    """Publishes entries with consecutive seeds; returns their keys."""
    return [publish(store, seed) for seed in range(start, start + count)]


def publish(store: DiskStore, seed: int = 0) -> CacheKey:
    """Publishes one entry; returns its key."""
    key, artifact, describe = make_entry(seed)
    store.publish(key, artifact, describe)
    return key


def record_file(store: DiskStore, key: CacheKey) -> Path:
    """The path of an entry's record."""
    return Path(store.layout.record_path(key))


def damage_record(store: DiskStore, key: CacheKey, content: bytes = b"{") -> None:
    """Replaces the bytes of a record. Its folder changes too, so that an index of the store reads it again."""
    record_file(store, key).unlink()
    record_file(store, key).write_bytes(content)


def blob_file(store: DiskStore, key: CacheKey) -> Path:
    """The path of an entry's blob."""
    (path,) = (store.layout.kernels / key[:2]).glob(f"{key}-*")
    return path


def files_of(store: DiskStore) -> Iterator[Path]:
    """Every record, blob and temporary of a store."""
    for folder in (store.layout.metadata, store.layout.kernels, store.layout.temp):
        yield from (path for path in folder.rglob("*") if path.is_file())


INVENTED_GPU = DeviceFingerprint("Invented GPU", "sm_90", 132, 80 * 2**30, 50 * 2**20, 1_980_000, "13.0")
"""A device that does not exist, for invented timings."""


def invented_timing(
    problem: GemmProblem,
    config: KernelConfig,
    median_us: float,
    *,
    key: str = "ab" * 32,
    family: str = "tensor_core",
    compiler: str = "nvrtc",
    config_from: str = COST_MODEL,
    device: DeviceFingerprint = INVENTED_GPU,
    measured_at: float = 1_790_000_000.0,
    **timing: object,
) -> Measurement:
    """An invented timing: input for code that stores timings or chooses by them, never a claim about speed.

    Args:
        timing: further fields of what would have been measured.
    """
    return Measurement(
        key=key,
        family=family,
        compiler=compiler,
        compiler_version="13.5",
        arch=problem.arch or "",
        problem=RecordedProblem.of(problem),
        config=config,
        config_from=config_from,
        device=device,
        timing={"median_us": median_us, "p10_us": median_us, "p90_us": median_us, "verified": True, **timing},
        measured_at=measured_at,
        measured_by="a test",
    )


def host_compiler() -> str:
    """The C++ compiler of this machine. Skips the test where there is none; in CI that is a failure."""
    if _HOST_COMPILER is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C++ compiler, such as g++, which holds occupancy against NVIDIA's own calculator")
        pytest.skip("there is no C++ compiler")
    return _HOST_COMPILER


def require_triton() -> None:
    """Skips the test where Triton is not installed; in CI that is a failure."""
    if find_spec("triton") is None:
        if os.environ.get("CI"):
            pytest.fail("Triton is not installed; make test installs it")
        pytest.skip("Triton is not installed")


def patch_in_place(path: Path, offset: int | None = None) -> None:
    """Changes one byte of a file, and hides it: the size and the time of modification stay.

    Args:
        offset: which one; by default the last.
    """
    seen = path.stat()
    with path.open("r+b") as file:
        file.seek(seen.st_size - 1 if offset is None else offset)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert path.stat().st_ctime_ns != seen.st_ctime_ns


def public_names() -> list[str]:
    """What programs may import, as ``module.name``: of the package, and of the modules for less common needs."""
    names = [f"cache_engine.{name}" for name in cache_engine.__all__ if name != "__version__"]
    return names + [
        f"cache_engine.{home}.{name}" for home, moved in cache_engine._MOVED.items() for name in moved.split()
    ]
