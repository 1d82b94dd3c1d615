"""The core-grid model by brute force, written from its description alone: every partition, tile, order and core.

It shares nothing with ``cache_engine.evaluator`` but the values it is given and returns.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from cache_engine.evaluator.hardware import Hardware
from cache_engine.evaluator.problem import EvaluationProblem


def brute_force(
    problem: EvaluationProblem, hw: Hardware, *, tile_search: bool = True, partition_search: bool = True
) -> dict[str, Any]:
    """Every output of the model, found by trying everything."""
    cores = hw.num_cores
    if partition_search:
        numbers = range(1, cores + 1)
        partitions = [
            (g, m, n, k) for g in numbers if cores % g == 0 for m in numbers if cores // g % m == 0
            for n in numbers if cores // g // m % n == 0 for k in (cores // g // m // n,)
        ]  # fmt: skip
    else:
        root = math.isqrt(cores)
        partitions = [(1, root, root, 1) if root**2 == cores else (1, cores, 1, 1)]
    best: dict[str, Any] | None = None
    known: dict[tuple[int, int, int], tuple[tuple[int, int, int], str]] = {}
    for partition in partitions:
        evaluated = _partition(problem, hw, partition, tile_search, known)
        if best is None or evaluated["latency_us"] < best["latency_us"]:
            best = evaluated
    assert best is not None
    return best


def _partition(
    problem: EvaluationProblem,
    hw: Hardware,
    partition: tuple[int, int, int, int],
    tile_search: bool,
    known: dict[tuple[int, int, int], tuple[tuple[int, int, int], str]],
) -> dict[str, Any]:
    sizes = (problem.batch, problem.m, problem.n, problem.k)
    nominal = [math.ceil(size / parts) for size, parts in zip(sizes, partition, strict=True)]
    block = (nominal[1], nominal[2], nominal[3])
    if block not in known:
        known[block] = _tiling(problem, hw, block, tile_search)
    tile, order = known[block]
    cube = hw.cube_m * hw.cube_k * hw.cube_n
    slowest = (-1.0, 0.0, 0.0)
    flops = padded_flops = traffic = 0
    for core in itertools.product(*map(range, partition)):
        g, m, n, k = (
            max(0, min(part, size - index * part)) for index, part, size in zip(core, nominal, sizes, strict=True)
        )
        if not g * m * n * k:
            continue
        padded = _up(m, hw.cube_m) * _up(k, hw.cube_k) * _up(n, hw.cube_n)
        moved = g * _traffic(problem, (m, n, k), tile)[order]
        compute = g * padded // cube / hw.freq_ghz / 1e3
        memory = 1e6 * moved / (hw.dram_bandwidth / hw.num_cores)
        latency = max(compute, memory) + (1 - hw.compute_dma_overlap) * min(compute, memory)
        if latency > slowest[0]:
            slowest = (latency, compute, memory)
        flops += 2 * g * m * n * k
        padded_flops += 2 * g * padded
        traffic += moved
    peak = 2e9 * hw.num_cores * cube * hw.freq_ghz
    return {
        "latency_us": slowest[0],
        "compute_us": slowest[1],
        "memory_us": slowest[2],
        "flops": flops,
        "traffic_bytes": traffic,
        "arch_utilization": slowest[1] / slowest[0],
        "effective_utilization": flops / (slowest[0] * 1e-6 * peak),
        "alignment_efficiency": flops / padded_flops,
        "tile": tile,
        "order": order,
        "partition": partition,
    }


def _tiling(
    problem: EvaluationProblem, hw: Hardware, block: tuple[int, int, int], tile_search: bool
) -> tuple[tuple[int, int, int], str]:
    tiles = _tiles(problem, hw, block) if tile_search else []
    tiles = tiles or [(hw.cube_m, hw.cube_n, min(block[2], hw.cube_k))]
    least, chosen = None, (tiles[0], "mnk")
    for tile in tiles:
        for order, moved in _traffic(problem, block, tile).items():
            if least is None or moved < least:
                least, chosen = moved, (tile, order)
    return chosen


def _tiles(problem: EvaluationProblem, hw: Hardware, block: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    m, n, k = block
    kept: list[tuple[int, int, int]] = []
    for tile_m in range(_up(m, hw.cube_m), 0, -hw.cube_m):
        for tile_n in range(_up(n, hw.cube_n), 0, -hw.cube_n):
            if tile_m > max(2 * m, hw.cube_m) or tile_n > max(2 * n, hw.cube_n):
                continue
            rows, columns = _up(tile_m, hw.lane_num), _up(tile_n, hw.lane_num)
            available = math.floor(hw.sram_bytes * hw.sram_utilization)
            available -= rows * _up(tile_n * problem.out_bytes, hw.align_bytes)
            if available <= 0:
                continue
            k_max = available // ((rows + columns) * problem.in_bytes)
            if k_max < 1:
                continue
            tile_k = min(k, k_max)
            if tile_k >= hw.cube_k:
                tile_k = tile_k // hw.cube_k * hw.cube_k
            if not any(a >= tile_m and b >= tile_n and c >= tile_k for a, b, c in kept):
                kept.append((tile_m, tile_n, tile_k))
    return kept


def _traffic(problem: EvaluationProblem, block: tuple[int, int, int], tile: tuple[int, int, int]) -> dict[str, int]:
    m, n, k = block
    a, b, c = m * k * problem.in_bytes, k * n * problem.in_bytes, m * n * problem.out_bytes
    t_m, t_n, t_k = (-(-size // part) for size, part in zip(block, tile, strict=True))
    partial = 8 * m * n * (t_k - 1)
    return {"mnk": a * t_n + b * t_m + c, "nkm": b + a * t_n + partial + c, "mkn": a + b * t_m + partial + c}


def _up(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple
