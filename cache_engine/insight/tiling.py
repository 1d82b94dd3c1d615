"""How a kernel divides its work: the grid, a block's tile, its warps, their instructions or lanes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cache_engine.kernels.hopper import GROUP_WARPS, Hopper
from cache_engine.kernels.hopper import MMA_M as GROUP_M
from cache_engine.kernels.scaled import Scaled
from cache_engine.kernels.simt import LANES_M, LANES_N, Simt
from cache_engine.kernels.tensor_core import MMA_K_BYTES, MMA_M, MMA_N, TensorCore
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import DType
from cache_engine.model.kernel import ceil_div


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tiling: its tile of C, its depth in k, and how many of it its parent holds."""

    name: str
    m: Fraction
    n: Fraction
    k: int
    along_m: Fraction
    along_n: Fraction


def levels(record: Record) -> list[Level]:
    """Block, warp and instruction (or lane), largest first; as far as the family fixes them."""
    c = record.config
    block = Level("Block", Fraction(c.block_m), Fraction(c.block_n), c.block_k, Fraction(1), Fraction(1))
    if record.family not in (TensorCore.name, Scaled.name, Simt.name, Hopper.name):
        return [block]  # Triton places warps and chooses instructions itself
    warp_m, warp_n = Fraction(c.block_m, c.warps_m), Fraction(c.block_n, c.warps_n)
    warp = Level("Warp", warp_m, warp_n, c.block_k, Fraction(c.warps_m), Fraction(c.warps_n))
    if record.family == Simt.name:
        m, n = warp_m / LANES_M, warp_n / LANES_N
        return [block, warp, Level("Lane", m, n, 1, Fraction(LANES_M), Fraction(LANES_N))]
    try:
        depth = MMA_K_BYTES // DType(record.problem.dtype).itemsize
    except ValueError:
        return [block, warp]
    if record.family == Hopper.name:
        groups = Fraction(c.warps_m, GROUP_WARPS)
        group = Level("Warp group", c.block_m / groups, warp_n, c.block_k, groups, warp.along_n)
        return [block, group, Level("wgmma", Fraction(GROUP_M), warp_n, depth, group.m / GROUP_M, Fraction(1))]
    return [block, warp, Level("mma", Fraction(MMA_M), Fraction(MMA_N), depth, warp_m / MMA_M, warp_n / MMA_N)]


def level_table(record: Record) -> list[dict[str, str]]:
    """The tiling, a row for each level."""
    p, c = record.problem, record.config
    grid_m, grid_n = ceil_div(p.m, c.block_m), ceil_div(p.n, c.block_n)
    steps = ceil_div(ceil_div(p.k, c.block_k), c.split_k)
    split = f" × {c.split_k} split-k slices" if c.split_k > 1 else ""
    unit = "tiles" if record.family == Hopper.name else "blocks"  # its blocks compute one tile after the other
    rows = [
        {
            "Level": "Grid",
            "Tile of C": f"{p.m} × {p.n}",
            "k depth": f"{p.k}",
            "Count": f"{grid_m} × {grid_n} {unit}{split} × batch {p.batch}; {steps} steps of {c.block_k}",
        }
    ]
    parent = ""
    for level in levels(record):
        inside = f"{plain(level.along_m)} × {plain(level.along_n)} per {parent}"
        held = inside if parent else f"{c.stages}-stage pipeline in shared memory"
        parent = level.name.lower()
        part = f"{plain(level.m)} × {plain(level.n)}"
        rows.append({"Level": level.name, "Tile of C": part, "k depth": f"{level.k}", "Count": held})
    return rows


def plain(number: Fraction) -> str:
    """A part of a tile as people read it: with a decimal only where there is one."""
    return f"{int(number)}" if number.denominator == 1 else f"{float(number):.1f}"
