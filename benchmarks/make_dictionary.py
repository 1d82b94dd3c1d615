"""Writes the dictionary of ``cache_engine.store.dictionary``: ``python -m benchmarks.make_dictionary``.

One kernel of each family is compiled. Its source is taken whole, and of its PTX the head: the rest repeats it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import zstandard

from cache_engine import GemmProblem, open_cache
from cache_engine.model.artifact import PTX, SOURCE
from cache_engine.store import dictionary

_PTX_BYTES = 30_000
_BLOCKS = "1x128,128x128"
KERNELS = {
    "triton": GemmProblem(128, 4096, 1024, arch="sm_90"),
    "simt": GemmProblem(256, 4096, 4096, dtype="fp32", arch="sm_80"),
    "grouped": GemmProblem(64, 7168, 2048, batch=256, dtype="fp8_e4m3", mode="grouped", scales=_BLOCKS, arch="sm_90"),
    "scaled": GemmProblem(64, 7168, 2048, dtype="fp8_e4m3", scales=_BLOCKS, arch="sm_90"),
    "hopper": GemmProblem(4096, 6144, 4096, arch="sm_90a"),
    "tensor_core": GemmProblem(64, 6144, 4096, arch="sm_90"),
}
"""The kernel of each family."""


def made() -> bytes:
    """The text of the dictionary."""
    with tempfile.TemporaryDirectory() as folder, open_cache(Path(folder) / "store") as cache:
        kernels = [cache.get_or_compile(problem, family=family).record for family, problem in KERNELS.items()]
        heads = [cache.section(record, PTX)[:_PTX_BYTES] for record in kernels]
        return b"".join([*heads, *(cache.section(record, SOURCE) for record in kernels)])


if __name__ == "__main__":
    raw = made()
    file = Path(dictionary.__file__).with_name(dictionary.NAME)
    file.write_bytes(zstandard.ZstdCompressor(level=19, write_content_size=True).compress(raw))
    print(f"{file.name}: {len(raw):,} bytes, {file.stat().st_size:,} compressed")
