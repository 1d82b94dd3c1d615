"""Writes the table of machine code in ``records/machine-code.md``: what compilers make of default configs.

Run as ``python docs/write_machine_code.py``: NVRTC, Triton and nvdisasm must be installed. Each kernel is compiled into
a store of its own, and its machine code read: the loop that multiplies, the widths of copies, registers and spills.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.serving import CompiledKernel
from cache_engine.insight.linked.marks import kinds_of, lines_of, main_loop
from cache_engine.model.gemm import GemmProblem, Scales
from cache_engine.model.kernel import KernelConfig

PAGE = Path(__file__).resolve().parent / "records" / "machine-code.md"
_TABLE = re.compile(r"(<!-- machine code -->\n).*?(<!-- end -->)", re.DOTALL)
_ADDRESS = r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P(?:\d+|T)\s+)?"
_INSTRUCTION = re.compile(_ADDRESS + r"(?!NOP\b)[A-Z]")
# The shape of a product, m x n x k: of warp groups as 64x256x16, of warps as 16816.
_PRODUCT = re.compile(_ADDRESS + r"[HIQ](?:GMMA\.(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)|MMA\.16(?P<columns>8)(?P<depth>\d+))")
_COPY = re.compile(_ADDRESS + r"(?P<copy>LDGSTS|LDG|UTMALDG)\b(?P<modifiers>[.\w]*)")
_BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
_GROUP_WARPS = 4


@dataclass(frozen=True)
class Compared:
    """A problem, the families whose default configs compute it, and what CUTLASS publishes for it.

    Attributes:
        triton: a config of Triton's as well, whose tile is that of another family.
    """

    problem: GemmProblem
    families: tuple[str, ...]
    cutlass: str = ""
    triton: KernelConfig | None = None


_LARGE, _DECODE = (4096, 7168, 2048), (16, 2112, 7168)
_SCALES = Scales("1x128,128x128")
COMPARED = (
    Compared(GemmProblem(*_LARGE, arch="sm_80"), ("tensor_core", "triton"), "128x256x64, 3 stages, warps of 64x64"),
    Compared(GemmProblem(*_DECODE, arch="sm_80"), ("tensor_core", "triton")),
    Compared(
        GemmProblem(*_LARGE, arch="sm_90a"), ("tensor_core", "triton", "hopper"),
        "128x128x64, clusters of 2x1 blocks", KernelConfig(128, 256, 64, 8, 1, 3),
    ),
    Compared(GemmProblem(*_DECODE, arch="sm_90a"), ("tensor_core", "triton", "hopper")),
    Compared(
        GemmProblem(*_LARGE, dtype="tf32", arch="sm_90a"), ("tensor_core", "triton", "hopper"),
        "128x128x32, clusters of 4x2 blocks", KernelConfig(128, 256, 32, 8, 1, 3),
    ),
    Compared(
        GemmProblem(*_LARGE, dtype="fp8_e4m3", arch="sm_90a"), ("tensor_core", "hopper"),
        "64x128x128, clusters of 1x2 blocks",
    ),
    Compared(
        GemmProblem(*_LARGE, dtype="fp8_e4m3", arch="sm_90a", scales=_SCALES), ("scaled", "hopper"),
        "128x128x128, clusters of 1x2 blocks",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """The loop that multiplies, of one warp.

    Attributes:
        depth: how far along k a round goes.
        products: instructions that multiply matrices.
        instructions: all.
        multiply_adds: of a warp, in one round.
    """

    depth: int
    products: int
    instructions: int
    multiply_adds: int


def loop_of(sass: str, config: KernelConfig) -> Loop | None:
    """The loop of a kernel's code; none where it has no loop that multiplies.

    Args:
        sass: as nvdisasm prints it.
    """
    lines = lines_of(sass)
    found = main_loop("sass", lines, kinds_of("sass", lines))
    if found is None:
        return None
    inside = lines[found[0] - 1 : found[1]]
    shapes = [shape for line in inside if (shape := _shape(line))]
    multiply_adds = sum(m * n * k // warps for m, n, k, warps in shapes)
    depth = multiply_adds * config.warps_m * config.warps_n // (config.block_m * config.block_n)
    return Loop(depth, len(shapes), sum(map(bool, map(_INSTRUCTION.match, inside))), multiply_adds)


def _shape(line: str) -> tuple[int, int, int, int] | None:
    """m, n and k of the product on a line, and how many warps compute it together."""
    found = _PRODUCT.match(line)
    if found is None:
        return None
    if found["m"]:
        return int(found["m"]), int(found["n"]), int(found["k"]), _GROUP_WARPS
    return 16, int(found["columns"]), int(found["depth"]), 1


def copies_of(sass: str, boxes: Sequence[int] = ()) -> str:
    """How wide copies from global memory are, the most frequent first.

    Args:
        boxes: bytes of those that the copy engine copies.
    """
    widths: Counter[str] = Counter()
    for line in lines_of(sass):
        found = _COPY.match(line)
        if found is None:
            continue
        if found["copy"] == "UTMALDG":
            widths[f"boxes of {' and '.join(f'{size // 1024}' for size in sorted(set(boxes)))} KiB"] += 1
            continue
        size = next((_BYTES[one] for one in found["modifiers"].split(".") if one in _BYTES), 4)
        widths[f"{size} B" + (" to registers" if found["copy"] == "LDG" else "")] += 1
    return ", ".join(name for name, _ in widths.most_common())


def cells(kernel: CompiledKernel, sass: str) -> Iterator[str]:
    """Those of a kernel's row."""
    record = kernel.record
    loop, resources = loop_of(sass, record.config), record.resources
    yield f"`{record.family}` {record.config}"
    if loop is None:
        yield from ("–",) * 5
    else:
        yield f"{loop.depth}"
        yield f"{loop.products}"
        yield f"{loop.instructions}"
        yield f"{loop.products / loop.instructions:.0%}"
        yield f"{loop.multiply_adds / loop.instructions:,.0f}"
    itemsize = kernel.problem.dtype.itemsize
    yield copies_of(sass, [box.columns * box.rows * itemsize for box in kernel.launch.boxes if box.operand != "c"])
    yield f"{resources.registers}"
    yield f"{resources.spill_bytes}"


def _rows(cache: Cache) -> Iterator[str]:
    for compared in COMPARED:
        problem = compared.problem
        scales = f", scales {problem.scales}" if problem.scales else ""
        what = f"{problem.m} × {problem.n} × {problem.k} {problem.dtype} `{problem.layout}`{scales}, {problem.arch}"
        yield f"| **{what}** | | | | | | | | |"
        asked: list[tuple[str, KernelConfig | None]] = [(family, None) for family in compared.families]
        if compared.triton is not None:
            asked.append(("triton", compared.triton))
        for family, config in asked:
            kernel = cache.get_or_compile(problem, family=family, config=config)
            yield f"| {' | '.join(cells(kernel, cache.text(kernel.record, 'sass')))} |"
        if compared.cutlass:
            yield f"| CUTLASS {compared.cutlass} | | | | | | | | |"


def table() -> str:
    """The table, with what made it."""
    with tempfile.TemporaryDirectory() as place, open_cache(Path(place) / "store", durability="fast") as cache:
        rows = "\n".join(_rows(cache))
    tools = f"NVRTC {version('nvidia-cuda-nvrtc')}, Triton {version('triton')}"
    return f"""\
| kernel | k a round | products | instructions | share | multiply-adds | copies | registers | spilled bytes |
|---|--:|--:|--:|--:|--:|---|--:|--:|
{rows}

{datetime.now(UTC):%Y-%m-%d}, {tools}, nvdisasm {version("nvidia-cuda-nvdisasm")}.
"""


def page(text: str, made: str) -> str:
    """A page with the table."""
    return _TABLE.sub(lambda found: found[1] + made + found[2], text)


if __name__ == "__main__":
    made = table()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
