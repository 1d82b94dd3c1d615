"""Runs a canary (a test of a kernel): several launches on exact operands, with guard bytes around C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cache_engine.gpu.launch import Startable, random_operands
from cache_engine.gpu.memory_pool import shared_pool
from cache_engine.gpu.reference import bits_of, wrong_elements
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch

REPEATS = 4
"""The number of launches of one canary; all must give the same bits of C."""
_GUARD_BYTES = 64 * 1024
_GUARD = 0xA5


def _guarded(size_bytes: int) -> tuple[Any, Callable[[], bool]]:
    """Bytes between two stretches that no kernel may write, and a function that says whether those are unchanged."""
    import cupy

    every = cupy.full(_GUARD_BYTES + size_bytes + _GUARD_BYTES, _GUARD, dtype=cupy.uint8)
    inside = slice(_GUARD_BYTES, _GUARD_BYTES + size_bytes)
    before, behind = every[: inside.start], every[inside.stop :]
    return every[inside], lambda: bool((before == _GUARD).all() and (behind == _GUARD).all())


def run_canary(
    load: Callable[[], Startable], launch: Launch, problem: GemmProblem, seed: int,
    watch: Callable[[bool], object] = lambda _: None,
) -> tuple[str, float]:  # fmt: skip
    """Launches a kernel several times on one set of exact operands.

    Returns the mistake (empty for none), and the seconds of all launches together.

    Args:
        load: a function that loads the kernel, without a workspace of its own: the operands have one.
        watch: a function called with ``True`` before each launch, and with ``False`` when the launch has ended.

    Raises:
        OutOfDeviceMemory: when the operands do not fit on the GPU.
    """
    import cupy

    with shared_pool().serving():
        operands = random_operands(problem, seed, exact=True)
        if problem.mode:  # counts that are none: kernels must clamp them
            operands.counts[0], operands.counts[-1] = -3, problem.m + 7
        before = operands.c
        c, *are_intact = _guarded(before.nbytes)
        operands.c = c.view(before.dtype).reshape(before.shape)
        if launch.workspace_bytes:
            operands.workspace, is_intact = _guarded(launch.workspace_bytes)
            operands.workspace[...] = 0
            are_intact.append(is_intact)
        kernel = load()
        first: Any = None
        gpu_s = 0.0
        for number in range(REPEATS):
            operands.c[...] = before
            watch(True)
            started = time.perf_counter()
            kernel(operands)
            cupy.cuda.get_current_stream().synchronize()
            gpu_s += time.perf_counter() - started
            watch(False)
            if not all(is_intact() for is_intact in are_intact):
                return "bytes outside of C or of the workspace were written", gpu_s
            if first is None:
                first = operands.c.copy()
                if wrong := wrong_elements(problem, operands, before):
                    return f"{wrong:,} of {first.size:,} elements of C are wrong", gpu_s
            elif not bool((bits_of(operands.c) == bits_of(first)).all()):
                return f"launch {number + 1} gave other bits than the first", gpu_s
    return "", gpu_s
