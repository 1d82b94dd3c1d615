"""Solutions of FlashInfer-Bench: files by which its ``apply`` calls our kernels for its GEMM definitions.

The format is that of flashinfer-bench 0.1.2 (``flashinfer_bench/data/solution.py``). A solution is Python source that
calls ``cache_engine.torch``; no kernel is copied, so it needs the store, or packs, where it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.gemm import DType, Layout
from cache_engine.store.publish import publish_file

_AUTHOR = "gemm-cache"
_DTYPES = (DType.FP16, DType.BF16)
# Not gemm.linear: PyTorch's own product, which serves while a kernel is compiled, would be F.linear there, and that
# is the function which FlashInfer-Bench replaces by its definitions' solutions.
_SOURCE = '''"""C = A · Bᵀ by kernels of gemm-cache, from its store; PyTorch multiplies while one is compiled."""

import cache_engine.torch as gemm


def run(A, B):
    return gemm.mm(A, B.mT)
'''


def write_solutions(dataset: Path, records: Iterable[Record]) -> list[Path]:
    """Writes a solution for each GEMM definition that one of the kernels computes: C = A · Bᵀ of fp16 or bf16.

    A definition has a fixed n and k and any m, and its name has no dtype: one solution serves every m and both dtypes.

    Args:
        dataset: a FlashInfer Trace dataset, such as a clone of flashinfer-trace. Other files in it stay as they are.

    Returns:
        The files, in the order of n and k.
    """
    shapes = sorted({(record.problem.n, record.problem.k) for record in records if _is_defined(record.problem)})
    return [_write(dataset, n, k) for n, k in shapes]


def _is_defined(problem: RecordedProblem) -> bool:
    """Whether a kernel computes the product of a GEMM definition, without epilogue, scales or groups."""
    plain = not (problem.mode or problem.scales or problem.epilogue)
    return plain and problem.layout == Layout.NT and problem.dtype in _DTYPES and problem.out_dtype == problem.dtype


def _write(dataset: Path, n: int, k: int) -> Path:
    definition = f"gemm_n{n}_k{k}"
    name = f"gemm_cache_{definition}"
    solution = {
        "name": name,
        "definition": definition,
        "author": _AUTHOR,
        "description": "Kernels of gemm-cache, for every m. FlashInfer-Bench must have measured it to choose it.",
        "spec": {
            "language": "python",
            "target_hardware": ["cuda"],
            "entry_point": "main.py::run",
            "dependencies": ["gemm-cache", "torch"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": _SOURCE}],
    }
    path = dataset / "solutions" / _AUTHOR / "gemm" / definition / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_file(path.parent, str(path), (json.dumps(solution, indent=2) + "\n").encode(), durable=False)
    return path
