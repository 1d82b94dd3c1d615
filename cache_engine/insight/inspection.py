"""Everything known about a compiled kernel without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cache_engine.compilers.disassembly import InstructionMix, instruction_mix
from cache_engine.errors import GemmCacheError, InvalidProblem
from cache_engine.frameworks.bundle_facts import describe, inputs_of, text_of
from cache_engine.frameworks.bundles import Group
from cache_engine.frameworks.values import Entry, KeyFactors
from cache_engine.kernels.family import threads_of
from cache_engine.kernels.hopper import GROUP_WARPS, Hopper
from cache_engine.kernels.hopper import MMA_M as GROUP_M
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.simt import LANES_M, LANES_N, Simt
from cache_engine.kernels.tensor_core import MMA_K_BYTES, MMA_M, MMA_N, Grouped, Scaled, TensorCore
from cache_engine.model.architecture import Occupancy, architecture, occupancy
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.documents import picked
from cache_engine.model.gemm import SCALE_BLOCK, DType, Mode, Scales
from cache_engine.model.kernel import ceil_div
from cache_engine.model.outcome import Failure
from cache_engine.store.codec import stored_bytes
from cache_engine.units import counted, human_bytes, human_ms

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache

_WARP, _MOST_WARPS = 32, 32
"""The number of threads of a warp, and the most warps of a block."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A kernel's record, and facts derived from the record and from the machine code.

    Attributes:
        instructions: the number of instructions of each class; ``None`` when the code could not be disassembled.
        occupancy: the occupancy on the kernel's target; ``None`` when this program does not know the target.
        notes: sentences that say why facts are missing.
    """

    record: Record
    instructions: InstructionMix | None
    occupancy: Occupancy | None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The kernel's key in the store."""
        return self.record.key

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        return self.record.name

    @property
    def fusion_saves_bytes(self) -> int | None:
        """The bytes of memory traffic that fusing saves for the recorded problem; ``None`` for an unknown problem."""
        try:
            return self.record.problem.on(self.record.arch).fusion_saves_bytes
        except GemmCacheError:
            return None

    @property
    def fusion_in_words(self) -> str:
        """The memory traffic that fusing saves, as text; empty if nothing is fused."""
        saved = self.fusion_saves_bytes
        return f"{human_bytes(saved)} of traffic for m = {self.record.problem.m:,}" if saved else ""


@dataclass(frozen=True, slots=True)
class AdaptedInspection:
    """The inspection of another framework's kernel that is in our store.

    Attributes:
        known: the facts that the kernel's files say.
        inputs: those inputs of the kernel's key that are stored.
        instructions, occupancy, notes: as in ``Inspection``.
    """

    group: Group
    known: Entry
    inputs: KeyFactors | Failure
    instructions: InstructionMix | None
    occupancy: Occupancy | None
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The kernel's key in the store."""
        return self.group.key

    @property
    def name(self) -> str:
        """The name of the kernel's function; empty if it is not known."""
        return self.known.name or ""


Stored = Record | Group
Inspected = Inspection | AdaptedInspection


def inspect_kernel(cache: Cache, record: Record) -> Inspection:
    """The resources and instruction counts of a stored kernel. Disassembles it, which takes half a second."""
    try:
        return inspect(record, cache.text(record, "sass"))
    except GemmCacheError as error:  # no disassembler, or damaged code: the rest is still known
        return inspect(record, None, str(error))


def sass_of(cache: Cache, kernel: Stored) -> str:
    """The disassembled code of a stored kernel.

    Raises:
        GemmCacheError: when the kernel has no code, is damaged, or no disassembler is installed.
    """
    return text_of(kernel, "sass") if isinstance(kernel, Group) else cache.text(kernel, "sass")


def inspect_stored(kernel: Stored, disassemble: Callable[[], str]) -> Inspected:
    """The facts about a kernel, ours or another framework's.

    Instructions are left out if ``disassemble`` raises ``GemmCacheError``.
    """
    sass, trouble = None, ""
    try:
        sass = disassemble()
    except GemmCacheError as error:  # no disassembler, or damaged code: the rest is still known
        trouble = str(error)
    return inspect_adapted(kernel, sass, trouble) if isinstance(kernel, Group) else inspect(kernel, sass, trouble)


def block_threads(record: Record) -> int:
    """The number of threads of a block; of an unknown family, only the number of threads that multiply."""
    family = FAMILIES.get(record.family)
    return record.config.threads if family is None else threads_of(family, record.config)


def inspect(record: Record, sass: str | None, trouble: str = "") -> Inspection:
    """Inspects a kernel of ours.

    Args:
        sass: the disassembled code; ``None`` if unavailable.
        trouble: why the code is unavailable.
    """
    used = record.resources
    resident = _resident(record.arch, block_threads(record), used.registers, used.shared_bytes)
    instructions = None if sass is None else instruction_mix(sass)
    return Inspection(record, instructions, *_noted(resident, trouble))


def inspect_adapted(group: Group, sass: str | None, trouble: str = "") -> AdaptedInspection:
    """Inspects another framework's kernel.

    Args:
        sass: the disassembled code; ``None`` if unavailable.
        trouble: why the code is unavailable.
    """
    known = describe(group)
    warps = known.config.get("num_warps")
    resident: Occupancy | str
    if isinstance(warps, int) and 0 < warps <= _MOST_WARPS and known.arch and known.shared_bytes is not None:
        resident = _resident(known.arch, warps * _WARP, known.registers or 0, known.shared_bytes)
    else:
        resident = f"occupancy is not known: {group.framework} does not store how many threads a block has"
    instructions = None if sass is None else instruction_mix(sass)
    return AdaptedInspection(group, known, inputs_of(group), instructions, *_noted(resident, trouble))


def _resident(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | str:
    """The occupancy of a kernel on a target, or the reason why it is not known."""
    try:
        return occupancy(architecture(arch), threads=threads, registers=registers, shared_bytes=shared_bytes)
    except InvalidProblem:
        return f"occupancy is not known: this program has no limits of {arch}"


def _noted(resident: Occupancy | str, trouble: str) -> tuple[Occupancy | None, tuple[str, ...]]:
    """The occupancy if it is known, and the sentences that say why facts are missing."""
    notes = [f"instructions were not counted: {trouble}"] if trouble else []
    if isinstance(resident, str):
        return None, (*notes, resident)
    return resident, tuple(notes)


# ---- A record in words: the one list of a kernel's properties, for the kernel page and for ``show`` ----


def titled(record: Record) -> str:
    """A kernel in one line: ``"4096×7168×2048 bf16 sm_90 · tensor_core"``, with the m that was requested first."""
    p = record.problem
    types = p.dtype if p.dtype == p.out_dtype else f"{p.dtype}→{p.out_dtype}"
    types += f" scaled {p.scales}" if p.scales else ""
    batch = f" {p.batch} groups {p.mode}" if p.mode else f" batch {p.batch}" if p.batch > 1 else ""
    return f"{p.m}×{p.n}×{p.k}{batch} {types} {record.arch} · {record.family}"


def record_document(record: Record) -> dict[str, Any]:
    """The record of a kernel as a JSON document."""
    p = record.problem
    return {
        **picked(record, "key", "name", "arch", "compiler", "family", "config"),
        **picked(p, "specialisation", "opt_level"),
        **picked(record, "compiler_version", "problem", "size_bytes"),
        "stored_bytes": stored_bytes(record),
        **picked(record.resources, "registers", "shared_bytes", "stack_bytes", "spill_bytes"),
        **picked(record, "compile_ms", "stages_ms", "created_at", "created_by"),
        "components": dict(record.components),
        **picked(record, "warnings", "config_from"),
    }


def described(record: Record, created: str) -> dict[str, str]:
    """A kernel's properties by name, as text, without its key and its name.

    Args:
        created: the time of compiling, as text: a date, or an age.
    """
    p, r = record.problem, record.resources
    return {
        "Target": record.arch,
        "Problem": f"{p.m} × {p.n} × {p.k}, {f'{p.batch} groups, {p.mode}' if p.mode else f'batch {p.batch}'}",
        "Compile-time sizes": f"{p.specialisation}: {p.served}",
        "Types": p.types,
        "Family": record.family,
        "Config": str(record.config),
        "Compiler": f"{record.compiler} {record.compiler_version}, optimisation level {p.opt_level}",
        "Compile time": human_ms(record.compile_ms),
        "Created": f"{created}, by {record.created_by}",
        "Cubin size": human_bytes(record.size_bytes),
        "Size on disk": f"{human_bytes(stored_bytes(record))}, with PTX, source and log",
        "Registers": f"{r.registers} per thread",
        "Spills": f"{human_bytes(r.spill_bytes)} per thread, in local memory",
        "Stack": f"{human_bytes(r.stack_bytes)} per thread",
        "Shared memory": f"{human_bytes(r.shared_bytes)} per block",
    }


# ---- The division of a kernel's work: the grid, a block's tile, its warps and their roles, instructions or lanes ----


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the tiling: its tile of C, its depth in k, and the number of such tiles in a tile one level up."""

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
    """The assumed number of rows of a group, as only the GPU knows the real number: an even share, or all that fit."""
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
