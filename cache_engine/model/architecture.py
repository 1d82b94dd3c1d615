"""The targets of compiling, and their limits.

Limits are those of the CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", as NVIDIA
also ships them in code (CCCL, ``cuda/__device/arch_traits.h``); a test compares this table with that header.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import msgspec

from cache_engine.errors import InvalidProblem
from cache_engine.model.kernel import ceil_div

KIB = 1024
CUDA_VERSIONS: tuple[int, ...] = (13, 12)
"""The major versions of CUDA whose compilers are used, newest first."""


# Each target is one object of the table below, so that caches find it by identity, in nanoseconds.
class Architecture(msgspec.Struct, frozen=True, eq=False):
    """A compile target.

    Attributes:
        name: the name that the compiler takes, such as ``"sm_90a"``. A trailing ``a`` allows instructions of that one
            chip, a trailing ``f`` those of its family; code without either also runs on later chips of the same major
            version.
        major, minor: the compute capability.
        shared_bytes_per_block: the largest shared memory that a block may ask for (opt-in limit).
        shared_bytes_per_sm: the shared memory of a streaming multiprocessor (SM).
        warps_per_sm, blocks_per_sm: the largest numbers that can be resident on an SM.
        example: the name of a GPU with this target.
        example_sms: the number of SMs of that GPU. Used only to rank configs when there is no measurement; it is never
            a limit or a claim. Source: the data sheets of the GPUs named.
    """

    name: str
    major: int
    minor: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    example: str
    example_sms: int

    # The same for every target in the table.
    registers_per_sm: ClassVar[int] = 64 * KIB
    registers_per_thread: ClassVar[int] = 255
    threads_per_block: ClassVar[int] = 1024

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The compute capability as (major, minor), which can be compared."""
        return (self.major, self.minor)

    @property
    def reserved_shared_bytes_per_block(self) -> int:
        """The bytes of shared memory that the system reserves in each resident block (0 before capability 8.0)."""
        return KIB if self.major >= 8 else 0

    @property
    def cuda_versions(self) -> tuple[int, ...]:
        """The versions in ``CUDA_VERSIONS`` whose compilers support this target.

        Source: ``nvrtcGetSupportedArchs`` of 12.9, 13.0 and 13.5. CUDA 12 names the target 11.0 as 10.1.
        """
        return _ONLY_OF_CUDA.get(self.compute_capability, CUDA_VERSIONS)


_ONLY_OF_CUDA = {(7, 0): (12,), (8, 8): (13,), (10, 7): (13,), (11, 0): (13,)}


# capability → shared KiB per block, per SM, warps and blocks per SM, example, its SMs, target suffixes
_CAPABILITIES = {
    (7, 0): (96, 96, 64, 32, "V100", 80, ("",)),
    (7, 5): (64, 64, 32, 16, "T4", 40, ("",)),
    (8, 0): (163, 164, 64, 32, "A100", 108, ("",)),
    (8, 6): (99, 100, 48, 16, "A10", 72, ("",)),
    (8, 7): (163, 164, 48, 16, "Jetson AGX Orin", 16, ("",)),
    (8, 8): (99, 100, 48, 16, "A10 (no part of 8.8 is public; its limits are those of 8.6)", 72, ("",)),
    (8, 9): (99, 100, 48, 24, "L40S", 142, ("",)),
    (9, 0): (227, 228, 64, 32, "H100 SXM", 132, ("", "a")),
    (10, 0): (227, 228, 64, 32, "B200", 148, ("", "a", "f")),
    (10, 3): (227, 228, 64, 32, "B300", 148, ("", "a", "f")),
    (10, 7): (227, 228, 32, 16, "B300 (no part of 10.7 has a data sheet)", 148, ("", "a", "f")),
    (11, 0): (227, 228, 48, 24, "Jetson Thor", 20, ("", "a", "f")),
    (12, 0): (99, 100, 48, 24, "RTX 5090", 170, ("", "a", "f")),
    (12, 1): (99, 100, 48, 24, "GB10", 48, ("", "a", "f")),
}

ARCHITECTURES: dict[str, Architecture] = {
    f"sm_{major}{minor}{suffix}": Architecture(
        name=f"sm_{major}{minor}{suffix}",
        major=major,
        minor=minor,
        shared_bytes_per_block=per_block * KIB,
        shared_bytes_per_sm=per_sm * KIB,
        warps_per_sm=warps,
        blocks_per_sm=blocks,
        example=example,
        example_sms=sms,
    )
    for (major, minor), (per_block, per_sm, warps, blocks, example, sms, suffixes) in _CAPABILITIES.items()
    for suffix in suffixes
}


def architecture(name: str) -> Architecture:
    """The target with this name.

    Raises:
        InvalidProblem: when the name is unknown; the text lists the known names.
    """
    try:
        return ARCHITECTURES[name]
    except (KeyError, TypeError):
        names = ", ".join(ARCHITECTURES)
        raise InvalidProblem(f"unknown architecture {name!r}; use one of: {names}") from None


# NVIDIA keeps code of one major version running on its later chips, those of embedded systems apart.
_EMBEDDED = {(8, 7)}
# NVIDIA does not say that code for the family of another chip runs there.
_OF_NO_FAMILY = {(10, 7)}


@lru_cache(maxsize=64)
def runs_on(target: str) -> tuple[Architecture, ...]:
    """The chips, as targets without a suffix, that run code compiled for ``target``; empty if the target is unknown.

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Set Compiler Targets".
    """
    code = ARCHITECTURES.get(target)
    if code is None:
        return ()
    chips = [chip for name, chip in ARCHITECTURES.items() if name[-1].isdigit()]
    own = [chip for chip in chips if chip.compute_capability == code.compute_capability]
    if target.endswith("a") or code.compute_capability in _EMBEDDED:
        return tuple(own)
    apart = _EMBEDDED | _OF_NO_FAMILY if target.endswith("f") else _EMBEDDED
    later = [
        chip
        for chip in chips
        if chip.major == code.major and chip.minor > code.minor and chip.compute_capability not in apart
    ]
    return (*own, *later)


def compiled_for(chip: str) -> str:
    """The target for which to compile code for a chip: for ``"sm_90"`` it is ``"sm_90a"``."""
    return {"sm_90": "sm_90a"}.get(chip, chip)


# ---- Theoretical occupancy: how many blocks and warps of a kernel one SM can hold, and what limits them ----
# The rules are those of NVIDIA's occupancy calculator, which is also published as code (``cuda_occupancy.h`` of the
# CUDA toolkit, ``cudaOccMaxActiveBlocksPerMultiprocessor``); a test compares this part with that header. The result is
# an upper bound: with the SM's memory divided in favour of shared memory, and enough blocks to fill every SM.

REGISTERS, SHARED, WARPS, BLOCKS = "registers", "shared memory", "warps", "blocks"

# Registers are given to whole warps, in units of 256; warps are spread over the four parts of an SM. Shared memory is
# given to blocks, in units of 128 bytes (256 before 8.0). Source: cuda_occupancy.h, cudaOccRegAllocationGranularity,
# cudaOccSubPartitionsPerMultiprocessor, cudaOccSMemAllocationGranularity.
_WARP = 32
_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4


class Occupancy(msgspec.Struct, frozen=True):
    """The number of blocks and warps of a kernel that an SM holds at once.

    Attributes:
        arch: the target.
        warps_per_block: the warps of one block.
        most_warps_per_sm: the warps that an SM has room for.
        block_limits: for each limit, the number of blocks on an SM that this limit alone would allow. A limit on
            something that the kernel does not use is missing.
    """

    arch: str
    warps_per_block: int
    most_warps_per_sm: int
    block_limits: dict[str, int]

    @property
    def blocks_per_sm(self) -> int:
        """The number of blocks that an SM holds at once; 0 if it has no room for one."""
        return min(self.block_limits.values())

    @property
    def warps_per_sm(self) -> int:
        """The number of warps that an SM holds at once."""
        return self.blocks_per_sm * self.warps_per_block

    @property
    def share(self) -> float:
        """The occupancy: resident warps as a share of the warps that an SM has room for."""
        return self.warps_per_sm / self.most_warps_per_sm

    @property
    def bound_by(self) -> tuple[str, ...]:
        """The limits that allow the fewest blocks."""
        return tuple(name for name, blocks in self.block_limits.items() if blocks == self.blocks_per_sm)

    def __str__(self) -> str:
        """The occupancy as text: ``"12.5%, 8 of 64 warps (1 block) per SM, bound by registers"``."""
        blocks = "1 block" if self.blocks_per_sm == 1 else f"{self.blocks_per_sm} blocks"
        return (
            f"{self.share:.1%}, {self.warps_per_sm} of {self.most_warps_per_sm} warps ({blocks}) per SM, "
            f"bound by {' and '.join(self.bound_by)}"
        )


def occupancy(target: Architecture, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of a kernel on a target.

    Args:
        threads: the threads of one block.
        registers: the registers of one thread.
        shared_bytes: the shared memory of one block, static and dynamic together, without what the system reserves.
    """
    warps = ceil_div(threads, _WARP)
    limits = {
        REGISTERS: _blocks_by_registers(target, warps, registers),
        SHARED: _blocks_by_shared_memory(target, shared_bytes),
        WARPS: target.warps_per_sm // warps if threads <= target.threads_per_block else 0,
        BLOCKS: target.blocks_per_sm,
    }
    touched = {name: blocks for name, blocks in limits.items() if blocks is not None}
    return Occupancy(target.name, warps, target.warps_per_sm, touched)


def _blocks_by_registers(target: Architecture, warps: int, registers: int) -> int | None:
    if not registers:
        return None
    per_warp = ceil_div(registers * _WARP, _REGISTER_UNIT) * _REGISTER_UNIT
    # A launch is refused unless the block fits with its warps spread evenly over the parts of the SM.
    spread = ceil_div(warps, _SUB_PARTITIONS) * _SUB_PARTITIONS
    if registers > target.registers_per_thread or per_warp * spread > target.registers_per_sm:
        return 0
    return target.registers_per_sm // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS // warps


def _blocks_by_shared_memory(target: Architecture, shared_bytes: int) -> int | None:
    unit = 128 if target.major >= 8 else 256
    per_block = ceil_div(shared_bytes + target.reserved_shared_bytes_per_block, unit) * unit
    if shared_bytes > target.shared_bytes_per_block:
        return 0
    return target.shared_bytes_per_sm // per_block if per_block else None
