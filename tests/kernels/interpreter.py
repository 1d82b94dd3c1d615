"""Runs Triton kernels on the CPU: Triton's own interpreter, in a process in which ``TRITON_INTERPRET=1``.

    python -m tests.kernels.interpreter FOLDER

The folder holds ``cases.json``, a list of ``Case``. For each, ``NUMBER.a`` and ``NUMBER.b`` are the operands as stored,
and ``NUMBER.c`` is written, or ``NUMBER.fault``. Reads outside the operands and writes outside C are faults. C starts
as NaN, so an element that is never written shows.
"""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import FAMILIES
from cache_engine.kernels.source import render
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig

_TYPES = {"fp16": "float16", "bf16": "bfloat16", "tf32": "float32", "fp32": "float32"}


@dataclass(frozen=True)
class Case:
    """One run of a kernel: its source, how it is launched, and the types and sizes of its operands."""

    source: str
    m: int
    n: int
    k: int
    grid: tuple[int, int, int]
    in_type: str
    out_type: str
    c_bytes: int


class InterpreterFault(Exception):
    """The interpreter refused the kernel, or the kernel left its operands."""


def source_of(problem: GemmProblem, config: KernelConfig) -> str:
    """The kernel's source, as it would be compiled."""
    family = FAMILIES["triton"]
    return render(family.template, family.constants(problem, config))


def run(
    runs: list[tuple[GemmProblem, KernelConfig, str]],
    operands: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
    folder: Path,
) -> list[npt.NDArray[np.float64] | InterpreterFault]:
    """C as each kernel computes it, batch × m × n, or why there is none.

    Args:
        runs: what each run is of, with the kernel's source.
        operands: of each run, A (batch × m × k) and B (batch × k × n), of values that the problem's dtype has.
    """
    cases = []
    for number, ((problem, config, source), (a, b)) in enumerate(zip(runs, operands, strict=True)):
        stored_a = a.transpose(0, 2, 1) if problem.layout.a_transposed else a
        stored_b = b.transpose(0, 2, 1) if problem.layout.b_transposed else b
        _to_stored(stored_a, problem.dtype).tofile(folder / f"{number}.a")
        _to_stored(stored_b, problem.dtype).tofile(folder / f"{number}.b")
        launch = launch_of(FAMILIES["triton"], problem, config)
        c_bytes = problem.batch * problem.m * problem.n * problem.output.itemsize
        sizes = (problem.m, problem.n, problem.k)
        cases.append(Case(source, *sizes, launch.grid, problem.dtype, problem.output, c_bytes))
    (folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
    command = [sys.executable, "-m", "tests.kernels.interpreter", str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return [_result(problem, folder / f"{number}") for number, (problem, _, _) in enumerate(runs)]


def _result(problem: GemmProblem, path: Path) -> npt.NDArray[np.float64] | InterpreterFault:
    fault = path.with_suffix(".fault")
    if fault.exists():
        return InterpreterFault(fault.read_text())
    kind = _to_stored(np.zeros(0), problem.output).dtype
    c = _from_stored(np.fromfile(path.with_suffix(".c"), dtype=kind), problem.output)
    return c.reshape(problem.batch, problem.m, problem.n)


def rounded(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[np.float64]:
    """Values rounded to what ``dtype`` represents."""
    return _from_stored(_to_stored(values, dtype), dtype)


def _to_stored(values: npt.NDArray[np.float64], dtype: DType) -> npt.NDArray[Any]:
    """Values as such elements: the nearest, of bf16 ties to even, of tf32 away from zero."""
    if dtype is DType.FP16:
        return np.ascontiguousarray(values, dtype=np.float16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    match dtype:
        case DType.BF16:
            return ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        case DType.TF32:
            return (bits + 0x1000 & ~np.uint32(0x1FFF)).view(np.float32)
        case _:
            return bits.view(np.float32)


def _from_stored(stored: npt.NDArray[Any], dtype: DType) -> npt.NDArray[np.float64]:
    if dtype is DType.BF16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


# ---- In the process that interprets ----


class _Operand:
    """As much of a tensor as Triton's interpreter wants: an address and a type."""

    def __init__(self, memory: npt.NDArray[np.uint8], dtype: str) -> None:
        self.memory = memory
        self.dtype = _TYPES[dtype]

    def data_ptr(self) -> int:
        return self.memory.ctypes.data

    # It would copy tensors from the GPU and back; this one is where it should be.

    def untyped_storage(self) -> _Operand:
        return self

    def new_empty(self, *_: Any, **__: Any) -> _Operand:
        return self

    def cpu(self) -> _Operand:
        return self

    def set_(self, *_: Any) -> None: ...

    def copy_(self, *_: Any) -> None: ...

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return ()

    def stride(self) -> tuple[int, ...]:
        return ()


def _interpret(case: Case, path: Path) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    a, b = (_Operand(np.fromfile(path.with_suffix(end), dtype=np.uint8), case.in_type) for end in (".a", ".b"))
    c = _Operand(np.full(case.c_bytes, 0xFF, dtype=np.uint8), case.out_type)
    # Triton reads the text of a function where Python would look for it.
    linecache.cache[str(path)] = (len(case.source), None, case.source.splitlines(keepends=True), str(path))
    module: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(case.source, str(path), "exec"), module)
    fixed = module["specialise"](module["CONSTANTS"])["constants"]
    with ExitStack() as patches:
        for careful in _careful(InterpreterBuilder, readable=(a, b), writable=(c,)):
            patches.enter_context(patch.object(InterpreterBuilder, careful.__name__, careful))
        module["kernel"][case.grid](a, b, c, case.m, **{"n": case.n, "k": case.k, **fixed})
    c.memory.tofile(path.with_suffix(".c"))


def _careful(builder: Any, readable: Iterable[_Operand], writable: Iterable[_Operand]) -> list[Callable[..., Any]]:
    """The interpreter's loads and stores with their addresses checked, and its dot product made right for bf16.

    Triton 3.9's interpreter keeps bf16 as its bits, and would multiply those as whole numbers.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot

    def check(what: str, operands: Iterable[_Operand], pointers: Any, mask: Any) -> None:
        addresses = pointers.data[mask.data]
        last = pointers.get_element_ty().primitive_bitwidth // 8 - 1
        inside = np.zeros(addresses.shape, dtype=bool)
        for operand in operands:
            start = operand.data_ptr()
            inside |= (addresses >= start) & (addresses + last < start + operand.memory.nbytes)
        if not inside.all():
            raise InterpreterFault(f"{what} {np.count_nonzero(~inside)} elements outside the operands")

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check("read", readable, pointers, mask)
        return load(self, pointers, mask, *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check("wrote", writable, pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def widened(part: Any) -> Any:
        if part.dtype.scalar != tl.bfloat16:
            return part
        return TensorHandle((part.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), *rest)

    return [create_masked_load, create_masked_store, create_dot]


def main(folder: Path) -> None:
    """Runs all cases; the fault of a case is written next to its operands."""
    for number, fields in enumerate(json.loads((folder / "cases.json").read_text())):
        path = folder / str(number)
        try:
            _interpret(Case(**{**fields, "grid": tuple(fields["grid"])}), path)
        except Exception as error:
            path.with_suffix(".fault").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
