"""Theoretical occupancy: how many blocks and warps of a kernel one SM can hold, and what keeps it from holding more.

The rules are those of NVIDIA's occupancy calculator, which ships in code (``cuda_occupancy.h`` of the CUDA toolkit,
``cudaOccMaxActiveBlocksPerMultiprocessor``); a test holds this module against that header. It is what can be resident
at most: with the SM's memory divided in favour of shared memory, and enough blocks to fill every SM.
"""

from __future__ import annotations

from dataclasses import dataclass

from cache_engine.model.architecture import Architecture
from cache_engine.model.kernel import ceil_div

REGISTERS, SHARED, WARPS, BLOCKS = "registers", "shared memory", "warps", "blocks"

# Registers are given to whole warps, in units of 256; warps are spread over the four parts of an SM. Shared memory is
# given to blocks, in units of 128 bytes (256 before 8.0). Source: cuda_occupancy.h, cudaOccRegAllocationGranularity,
# cudaOccSubPartitionsPerMultiprocessor, cudaOccSMemAllocationGranularity.
_WARP = 32
_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks and warps of a kernel that one SM holds.

    Attributes:
        arch: the target.
        warps_per_block: warps of one block.
        most_warps_per_sm: warps an SM has room for.
        block_limits: how many blocks each limit alone would allow. A limit that the kernel does not touch is missing.
    """

    arch: str
    warps_per_block: int
    most_warps_per_sm: int
    block_limits: dict[str, int]

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that are resident at once; 0 when not even one can be."""
        return min(self.block_limits.values())

    @property
    def warps_per_sm(self) -> int:
        """Warps that are resident at once."""
        return self.blocks_per_sm * self.warps_per_block

    @property
    def share(self) -> float:
        """Resident warps as a share of those there is room for: what is called the occupancy."""
        return self.warps_per_sm / self.most_warps_per_sm

    @property
    def bound_by(self) -> tuple[str, ...]:
        """The limits that allow the fewest blocks."""
        return tuple(name for name, blocks in self.block_limits.items() if blocks == self.blocks_per_sm)

    def __str__(self) -> str:
        """``"12.5%, 8 of 64 warps (1 block) per SM, bound by registers"``."""
        blocks = "1 block" if self.blocks_per_sm == 1 else f"{self.blocks_per_sm} blocks"
        return (
            f"{self.share:.1%}, {self.warps_per_sm} of {self.most_warps_per_sm} warps ({blocks}) per SM, "
            f"bound by {' and '.join(self.bound_by)}"
        )


def occupancy(target: Architecture, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy of a kernel on a target.

    Args:
        threads: of one block.
        registers: of one thread.
        shared_bytes: of one block, static and dynamic together, without what the system reserves.
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
    # A launch is refused unless the block would fit with its warps spread evenly over the parts of the SM.
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
