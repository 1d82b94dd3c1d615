"""The division of a kernel's work: the grid, a block's tile, its warps and their roles, instructions or lanes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cache_engine.kernels.hopper import GROUP_WARPS, Hopper
from cache_engine.kernels.hopper import MMA_M as GROUP_M
from cache_engine.kernels.simt import LANES_M, LANES_N, Simt
from cache_engine.kernels.tensor_core import MMA_K_BYTES, MMA_M, MMA_N, Grouped, Scaled, TensorCore
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.gemm import SCALE_BLOCK, DType, Mode, Scales
from cache_engine.model.kernel import ceil_div
from cache_engine.units import counted


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tiling: its tile of C, its depth in k, and the number of such tiles in a tile above it."""

    name: str
    m: Fraction
    n: Fraction
    k: int
    along_m: Fraction
    along_n: Fraction


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a block's warp groups, where they differ: some copy tiles, the others multiply them."""

    producers: int
    consumers: int
    produce: str
    consume: str


@dataclass(frozen=True, slots=True)
class ScaleBlocks:
    """The sizes of the blocks that share a scale: rows of A, columns of B, and the depth ``k``."""

    a_rows: int
    b_columns: int
    k: int


@dataclass(frozen=True, slots=True)
class Walk:
    """The groups of rows that every block goes through.

    Attributes:
        groups: the number of groups.
        tiles: the number of tiles of C in each group, if all groups have equally many rows.
    """

    groups: int
    tiles: int


def walk(record: Record) -> Walk | None:
    """The groups that a kernel's blocks go through; ``None`` for a kernel without a mode."""
    p, c = record.problem, record.config
    if not p.mode:
        return None
    return Walk(p.batch, ceil_div(_rows_of_a_group(p), c.block_m) * ceil_div(p.n, c.block_n))


def _rows_of_a_group(p: RecordedProblem) -> int:
    """The assumed number of rows of a group, as only the GPU knows the real one: an even share, or all that fit."""
    return ceil_div(p.m, max(p.batch, 1)) if p.mode == Mode.GROUPED else p.m


def roles(record: Record) -> Roles | None:
    """The numbers of warp groups that copy and that multiply; ``None`` where every warp does both."""
    if record.family != Hopper.name:
        return None
    consumers = record.config.warps_m * record.config.warps_n // GROUP_WARPS
    return Roles(Hopper.copying_threads // (32 * GROUP_WARPS), consumers, "TMA", "wgmma")


def scale_blocks(record: Record) -> ScaleBlocks | None:
    """The blocks of A and B that share a scale; ``None`` without scales, or if the record's scales are unknown."""
    try:
        scales = Scales(record.problem.scales)
    except ValueError:
        return None
    return ScaleBlocks(1, scales.b_columns, SCALE_BLOCK) if scales else None


def levels(record: Record) -> list[Level]:
    """The levels block, warp and instruction (or lane), largest first, without those that the family does not fix."""
    c = record.config
    block = Level("Block", Fraction(c.block_m), Fraction(c.block_n), c.block_k, Fraction(1), Fraction(1))
    if record.family not in (TensorCore.name, Scaled.name, Grouped.name, Simt.name, Hopper.name):
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
    """The tiling as a table, with a row for each level."""
    p, c = record.problem, record.config
    grid_m, grid_n = ceil_div(p.m, c.block_m * c.cluster) * c.cluster, ceil_div(p.n, c.block_n)
    steps = ceil_div(ceil_div(p.k, c.block_k), c.split_k)
    split = f" × {c.split_k} split-k slices" if c.split_k > 1 else ""
    split += f", in clusters of {c.cluster} that share B" if c.cluster > 1 else ""
    # Blocks of these compute one tile after the other.
    unit = "tiles" if record.family in (Hopper.name, Grouped.name) else "blocks"
    products = f"batch {p.batch}"
    if p.mode:  # how many tiles a group has is known on the device alone
        grid_m, products = ceil_div(_rows_of_a_group(p), c.block_m), f"{p.batch} groups"
        unit += " (of even groups)" if p.mode == Mode.GROUPED else " at most"
    table = [
        {
            "Level": "Grid",
            "Tile of C": f"{p.m} × {p.n}",
            "k depth": f"{p.k}",
            "Count": f"{grid_m} × {grid_n} {unit}{split} × {products}; {steps} steps of {c.block_k}",
        }
    ]
    parent = ""
    for level in levels(record):
        inside = f"{plain(level.along_m)} × {plain(level.along_n)} per {parent}"
        held = inside if parent else f"{c.stages}-stage pipeline in shared memory"
        parent = level.name.lower()
        part = f"{plain(level.m)} × {plain(level.n)}"
        table.append({"Level": level.name, "Tile of C": part, "k depth": f"{level.k}", "Count": held})
    return [*table, *_role_rows(record), *_scale_rows(record)]


def _role_rows(record: Record) -> list[dict[str, str]]:
    found = roles(record)
    if found is None:
        return []
    work = (
        ("Producers", found.producers, f"copy A and B into {record.config.stages} stages ({found.produce})"),
        ("Consumers", found.consumers, f"multiply from there ({found.consume}), store C"),
    )
    return [
        {"Level": name, "Tile of C": "", "k depth": "", "Count": f"{counted(count, 'warp group')}: {does}"}
        for name, count, does in work
    ]


def _scale_rows(record: Record) -> list[dict[str, str]]:
    found, c = scale_blocks(record), record.config
    if found is None:
        return []
    return [
        {
            "Level": f"Scales of {operand}",
            "Tile of C": "",
            "k depth": f"{found.k}",
            "Count": f"{counted(ceil_div(whole, part), 'scale')} per step, of {shape} elements each",
        }
        for operand, whole, part, shape in (
            ("A", c.block_m, found.a_rows, f"{found.a_rows} × {found.k}"),
            ("B", c.block_n, found.b_columns, f"{found.k} × {found.b_columns}"),
        )
    ]


def plain(number: Fraction) -> str:
    """A part of a tile as text: with a decimal only if it is not whole."""
    return f"{int(number)}" if number.denominator == 1 else f"{float(number):.1f}"
