"""C (m x n) = A (m x k) * B (k x n) in Triton: fp16, bf16, or fp32 rounded to tf32; sums in fp32.

A program computes BLOCK_M x BLOCK_N of C. Triton places its warps, stages the tiles of A and B through shared memory
and chooses the instructions: mma.sync, wgmma or tcgen05. Edges are read as zeroes and not written, so every m, n and k
is right. Which of them are constants, CONSTANTS says: M, M_MOST, N and K, as in sizes.cuh. m is always given.

What stands above this text, when it is compiled, sets CONSTANTS.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

_MOST = 2**24  # what any size may be


@triton.jit(repr=lambda specialised: specialised.constants["kernel_name"])
def kernel(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,  # or a constant, as k
    k: tl.tensor,
    kernel_name: tl.constexpr,
    constant_m: tl.constexpr,
    m_most: tl.constexpr,
    n_most: tl.constexpr,
    k_most: tl.constexpr,
    whole_m: tl.constexpr,
    whole_n: tl.constexpr,
    whole_k: tl.constexpr,
    a_transposed: tl.constexpr,
    b_transposed: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    raster_rows: tl.constexpr,
    input_precision: tl.constexpr,
) -> None:
    """One tile of C. The grid is (tiles, 1, batch). Sizes that are whole are multiples of the tile's."""
    if constant_m:
        m = tl.full((), constant_m, tl.int32)
    # Which tile: consecutive programs walk down raster_rows rows of tiles before they move one column on, so that those
    # running together share rows of A and columns of B in L2. As raster.cuh does it.
    if m_most <= block_m:
        first_row = tl.full((), 0, tl.int32)
        first_column = tl.program_id(0) * block_n
    else:
        rows = tl.cdiv(m, block_m)
        columns = (n + block_n - 1) // block_n
        band = tl.program_id(0) // (raster_rows * columns)
        within = tl.program_id(0) % (raster_rows * columns)
        band_rows = tl.minimum(rows - band * raster_rows, raster_rows)
        first_row = (band * raster_rows + within % band_rows) * block_m
        first_column = (within // band_rows) * block_n

    # Positions in a tile; offsets of its elements fit in 32 bits unless its rows lie very far apart. Where the tile is
    # takes 64.
    batch = tl.program_id(2).to(tl.int64)
    a += batch * m * k
    b += batch * n * k
    c += batch * m * n
    wide_a: tl.constexpr = not a_transposed and block_m * k_most >= 2**31
    wide_b: tl.constexpr = (block_n * k_most if b_transposed else block_k * n_most) >= 2**31
    wide_c: tl.constexpr = block_m * n_most >= 2**31
    row = tl.arange(0, block_m)
    column = tl.arange(0, block_n)
    deep = tl.arange(0, block_k)
    row_a = row.to(tl.int64) if wide_a else row
    column_b = column.to(tl.int64) if wide_b else column
    deep_b = deep.to(tl.int64) if wide_b else deep
    if a_transposed:
        a_tile = a + first_row + (row[:, None] + deep[None, :] * m)
    else:
        a_tile = a + first_row.to(tl.int64) * k + (row_a[:, None] * k + deep[None, :])
    if b_transposed:
        b_tile = b + first_column.to(tl.int64) * k + (column_b[None, :] * k + deep[:, None])
    else:
        b_tile = b + first_column + (column[None, :] + deep_b[:, None] * n)
    row_valid = tl.full((block_m,), True, tl.int1) if whole_m else first_row + row < m
    column_valid = tl.full((block_n,), True, tl.int1) if whole_n else first_column + column < n

    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in tl.range(0, (k + block_k - 1) // block_k):
        if whole_k:
            in_a = row_valid[:, None]
            in_b = column_valid[None, :]
        else:
            deep_valid = step * block_k + deep < k
            in_a = row_valid[:, None] & deep_valid[None, :]
            in_b = column_valid[None, :] & deep_valid[:, None]
        a_part = tl.load(a_tile, mask=in_a, other=0.0)
        b_part = tl.load(b_tile, mask=in_b, other=0.0)
        total = tl.dot(a_part, b_part, total, input_precision=input_precision)
        a_tile += block_k * m.to(tl.int64) if a_transposed else block_k
        b_tile += block_k if b_transposed else block_k * tl.cast(n, tl.int64)

    row_c = row.to(tl.int64) if wide_c else row
    c_tile = c + first_row.to(tl.int64) * n + first_column + (row_c[:, None] * n + column[None, :])
    in_c = row_valid[:, None] & column_valid[None, :]
    tl.store(c_tile, total.to(c.dtype.element_ty), mask=in_c)


def specialise(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Compile options for Triton besides the target.

    Returns:
        ``signature``, ``constants``, ``hints`` and ``options`` of ``triton.compile``; and all ``parameters`` of the
        compiled kernel in the order a launch gives them. Triton adds the last two; this kernel needs no scratch memory,
        so they are null pointers.
    """
    sizes = {name: constants[name] for name in ("M", "N", "K") if name in constants}
    fixed = {name.lower(): value for name, value in constants.items() if name.lower() in kernel.arg_names}
    fixed.pop("m", None)
    fixed["constant_m"] = sizes.get("M", 0)
    fixed["m_most"] = constants.get("M_MOST", sizes.get("M", _MOST))
    for name, block in (("M", "BLOCK_M"), ("N", "BLOCK_N"), ("K", "BLOCK_K")):
        fixed[f"whole_{name.lower()}"] = name in sizes and sizes[name] % constants[block] == 0
    for name in ("N", "K"):
        fixed[f"{name.lower()}_most"] = sizes.get(name, _MOST)
    arguments = {
        "a": "*" + constants["IN_TYPE"],
        "b": "*" + constants["IN_TYPE"],
        "c": "*" + constants["OUT_TYPE"],
        **{name: "i32" for name in ("m", "n", "k") if name not in fixed},
    }
    # Operands start at multiples of 16 bytes, as all that device allocators give do. Of a size that rows are long, and
    # that is an argument, a divisor is known: Triton then reads or writes as many elements at once.
    divisors = dict.fromkeys("abc", 16) | {name: constants.get(f"{name.upper()}_DIVISOR", 1) for name in "mnk"}
    return {
        "signature": {**arguments, **dict.fromkeys(fixed, "constexpr")},
        "constants": fixed,
        "hints": {
            (kernel.arg_names.index(name),): [["tt.divisibility", divisors[name]]]
            for name in arguments
            if divisors[name] > 1
        },
        "options": {"num_warps": constants["WARPS"], "num_stages": constants["STAGES"]},
        "parameters": (*arguments, *constants["HIDDEN_PARAMETERS"].split()),
    }
