"""A small matmul in Triton, to fill Triton's own cache with. Imported only where Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl

SIGNATURE = {**dict.fromkeys("abc", "*bf16"), **dict.fromkeys("mnk", "i32"), "block": "constexpr"}
CONSTANTS = {"block": 32}


def _matmul(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, m: tl.tensor, n: tl.tensor, k: tl.tensor, block: tl.constexpr
) -> None:
    """C = A · B, all row by row, one tile of C for each program."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for start in range(0, k, block):
        deep = start + tl.arange(0, block)
        in_a = (rows[:, None] < m) & (deep[None, :] < k)
        in_b = (deep[:, None] < k) & (columns[None, :] < n)
        tile_a = tl.load(a + rows[:, None] * k + deep[None, :], mask=in_a, other=0.0)
        tile_b = tl.load(b + deep[:, None] * n + columns[None, :], mask=in_b, other=0.0)
        total += tl.dot(tile_a, tile_b)
    in_c = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.bfloat16), mask=in_c)


matmul = triton.jit(_matmul)
