"""The config of a kernel (its tiles), and its launch."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated

import msgspec

from cache_engine.errors import UsageError

MAX_TILE = 65_536

# The values that a record may have; the family decides whether a kernel can have them.
Tile = Annotated[int, msgspec.Meta(ge=1, le=MAX_TILE)]

# A config's name; its numbers are the fields in order.
_NAME = r"(\d+)x(\d+)x(\d+)_w(\d+)x(\d+)_s(\d+)(?:_k(\d+))?(?:_c(\d+))?"


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """The division of a kernel's work into blocks, warps and stages.

    Attributes:
        block_m, block_n, block_k: the tile of C that a thread block computes, and the elements of k in each step.
        warps_m, warps_n: the number of the block's warps along the rows, and along the columns, of its tile.
        stages: the number of tiles of A and of B that are in shared memory at once.
        split_k: the number of blocks that share a tile of C; each sums a part of k.
        cluster: the number of blocks that share each tile of B; each block copies a part of the tile for all of them.
    """

    block_m: Tile
    block_n: Tile
    block_k: Tile
    warps_m: Tile
    warps_n: Tile
    stages: Tile
    split_k: Tile = 1
    cluster: Tile = 1

    @property
    def threads(self) -> int:
        """The threads of one block."""
        return 32 * self.warps_m * self.warps_n

    def __str__(self) -> str:
        split = f"_k{self.split_k}" if self.split_k > 1 else ""
        shared = f"_c{self.cluster}" if self.cluster > 1 else ""
        tile, warps = f"{self.block_m}x{self.block_n}x{self.block_k}", f"{self.warps_m}x{self.warps_n}"
        return f"{tile}_w{warps}_s{self.stages}{split}{shared}"

    @classmethod
    def parse(cls, text: str) -> KernelConfig:
        """Reads a config from its name, as ``str`` gives it, or from a list of fields.

        ``128x128x32_w2x2_s4`` is ``block_m=128,block_n=128,block_k=32,warps_m=2,warps_n=2,stages=4``, in any order;
        split_k and cluster may be left out.

        Raises:
            UsageError: when a field is unknown, missing, repeated or not a positive integer; the text names it.
        """
        names = [field.name for field in fields(cls)]
        values: dict[str, int] = {}
        if named := re.fullmatch(_NAME, text.strip(), flags=re.ASCII):
            text = ",".join(f"{name}={value}" for name, value in zip(names, named.groups("1"), strict=True))
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name not in names or not equals:
                raise UsageError(
                    f"config has {part.strip()!r}; write it as listings do, such as 128x128x32_w2x2_s4, "
                    f"or name=value with names: {', '.join(names)}"
                )
            if name in values:
                raise UsageError(f"config gives {name} twice")
            if not re.fullmatch("[0-9]{1,5}", value) or not 1 <= int(value) <= MAX_TILE:
                raise UsageError(f"config has {name}={value}; it must be a whole number from 1 to {MAX_TILE}")
            values[name] = int(value)
        missing = [name for name in names if name not in values and name not in ("split_k", "cluster")]
        if missing:
            raise UsageError(f"config lacks {', '.join(missing)}")
        return cls(**values)


class Box(msgspec.Struct, frozen=True):
    """The part of an operand (``"a"``, ``"b"`` or ``"c"``) that the copy engine (TMA) copies at once, in elements."""

    operand: str
    columns: int
    rows: int

    @property
    def parameter(self) -> str:
        """The name of the kernel's parameter for the operand's tensor map, which is passed by value."""
        return f"{self.operand}_map"


class Launch(msgspec.Struct, frozen=True):
    """The launch parameters of a kernel, without the operands.

    A kernel takes ``arguments`` in this order: pointers to A, B and C, each at a multiple of 16 bytes; m as a 32-bit
    integer (a kernel with a constant m ignores it); then ``parameters``.

    Attributes:
        grid: the number of blocks along x (tiles of C, or as many as a GPU holds), y (slices of k) and z (the batch; 1
            for groups).
        threads: the threads of one block, along x.
        shared_bytes: the dynamic shared memory of one block. For more than 48 KiB, first set the function's attribute
            ``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`` to it.
        parameters: the names of the arguments after m, in order. The kernel takes each of them even if it does not use
            it; give 0 for an unused one. ``n`` and ``k`` are 32-bit integers. ``alpha``, ``beta`` and ``scale_result``
            are numbers of type ``GemmProblem.accumulate``; if C is fp8, ``scale_result`` takes the place of ``beta``.
            ``bias`` and ``workspace`` are pointers. ``a_map``, ``b_map`` and ``c_map`` are the tensor maps of
            ``boxes``, 128 bytes by value. ``a_scales`` and ``b_scales`` are pointers to the scales; 0 for a kernel for
            groups without scales. ``counts`` is a pointer to an int32 for each group, its number of rows; ``groups`` is
            the number of groups, a 32-bit integer. Any other name is a pointer that the compiler adds and the kernel
            does not use: give 0.
        workspace_bytes: the bytes of device memory through which blocks exchange accumulators. All of them must be 0
            before the first launch. Kernels may share this memory if they never run at the same time.
        boxes: the parts of operands that the copy engine copies for the kernel.
    """

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    parameters: tuple[str, ...] = ()
    workspace_bytes: int = 0
    boxes: tuple[Box, ...] = ()

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of one block along x, y and z."""
        return (self.threads, 1, 1)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of all arguments of the kernel, in order: ``("a", "b", "c", "m", …)``."""
        return ("a", "b", "c", "m", *self.parameters)


def ceil_div(a: int, b: int) -> int:
    """The quotient a / b, rounded up."""
    return -(-a // b)
