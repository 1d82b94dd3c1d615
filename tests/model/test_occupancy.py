"""Occupancy, held against NVIDIA's own calculator and against what must be so of any."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.compilers.contents import package_files
from cache_engine.model.architecture import (
    ARCHITECTURES,
    BLOCKS,
    REGISTERS,
    SHARED,
    WARPS,
    Architecture,
    Occupancy,
    architecture,
    occupancy,
)
from tests.helpers import host_compiler

# Reads kernels, a line each, and prints what NVIDIA's calculator makes of them.
CALCULATOR = """
#include <cstddef>
#include <cstdio>
#include <climits>
#include "cuda_occupancy.h"
int main() {
  int major, minor, warps, sm, block, reserved, threads, registers, shared;
  while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &warps, &sm, &block, &reserved, &threads, &registers,
               &shared) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = 32 * warps; device.warpSize = 32;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.sharedMemPerBlock = 49152; device.sharedMemPerMultiprocessor = sm; device.sharedMemPerBlockOptin = block;
    device.reservedSharedMemPerBlock = reserved; device.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX; kernel.numRegs = registers; kernel.numBlockBarriers = 1;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = shared;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared)) return 1;
    printf("%d %d %d %d %d\\n", result.activeBlocksPerMultiprocessor, result.blockLimitRegs,
           result.blockLimitSharedMem, result.blockLimitWarps, result.blockLimitBlocks);
  }
}
"""
NO_LIMIT = 2**31 - 1
Kernel = tuple[int, int, int]


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (header,) = package_files("include/cuda_occupancy.h")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "calculator.cpp").write_text(CALCULATOR)
    command = [host_compiler(), "-w", f"-I{header.parent}", "calculator.cpp", "-o", "calculator"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "calculator"


@pytest.mark.parametrize("target", ARCHITECTURES.values(), ids=lambda target: target.name)
def test_every_limit_is_that_of_nvidias_calculator(target: Architecture, calculator: Path) -> None:
    kernels: list[Kernel] = list(
        product(
            (1, 33, 64, 96, 160, 256, 288, 512, 1024, 1056),
            (1, 24, 32, 33, 64, 65, 96, 128, 168, 255),
            (0, 1, 16_384, 49_153, 65_536, 101_376, 101_377, 166_912, 232_448, 232_449),
        )
    )
    given_lines = "".join(
        f"{target.major} {target.minor} {target.warps_per_sm} {target.shared_bytes_per_sm} "
        f"{target.shared_bytes_per_block} {target.reserved_shared_bytes_per_block} {threads} {registers} {shared}\n"
        for threads, registers, shared in kernels
    )
    done = subprocess.run([calculator], input=given_lines, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    for (threads, registers, shared), answer in zip(kernels, answers, strict=True):
        blocks, *limits = map(int, answer.split())
        found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared)
        expected = dict(zip((REGISTERS, SHARED, WARPS, BLOCKS), limits, strict=True))
        assert found.block_limits == {name: limit for name, limit in expected.items() if limit != NO_LIMIT}
        assert found.blocks_per_sm == blocks, (threads, registers, shared)


def test_a_kernel_worked_out_by_hand() -> None:
    """256 threads of 234 registers and 96 KiB on an H100.

    A warp gets 234 · 32 = 7488 registers, rounded up to 7680; a quarter of the SM, 16 384, holds two such warps, the SM
    eight, which are one block. Shared memory, 228 KiB, holds two blocks of 97 KiB.
    """
    found = occupancy(architecture("sm_90"), threads=256, registers=234, shared_bytes=96 * 1024)
    assert found == Occupancy("sm_90", 8, 64, {REGISTERS: 1, SHARED: 2, WARPS: 8, BLOCKS: 32})
    assert (found.blocks_per_sm, found.warps_per_sm, found.share) == (1, 8, 0.125)
    assert found.bound_by == (REGISTERS,)
    assert str(found) == "12.5%, 8 of 64 warps (1 block) per SM, bound by registers"


def test_limits_that_bind_together_are_all_named() -> None:
    found = occupancy(architecture("sm_90"), threads=64, registers=32, shared_bytes=0)
    assert (found.blocks_per_sm, found.bound_by, found.share) == (32, (REGISTERS, WARPS, BLOCKS), 1.0)


@given(
    st.sampled_from(list(ARCHITECTURES.values())),
    st.integers(1, 1024),
    st.integers(1, 255),
    st.integers(0, 230_000),
)
def test_needing_more_never_gives_more(target: Architecture, threads: int, registers: int, shared: int) -> None:
    found = occupancy(target, threads=threads, registers=registers, shared_bytes=shared)
    assert 0 <= found.share <= 1
    for more in (
        occupancy(target, threads=threads + 32, registers=registers, shared_bytes=shared),
        occupancy(target, threads=threads, registers=registers + 1, shared_bytes=shared),
        occupancy(target, threads=threads, registers=registers, shared_bytes=shared + 1),
    ):
        assert more.blocks_per_sm <= found.blocks_per_sm
    roomier = msgspec.structs.replace(target, shared_bytes_per_sm=2 * target.shared_bytes_per_sm)
    assert occupancy(roomier, threads=threads, registers=registers, shared_bytes=shared).share >= found.share
