"""The caches of other frameworks as a target: one input as each file that their sources read."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from cache_engine.frameworks.registry import load_sources, survey
from cache_engine.frameworks.values import Entry, KeyFactors, Place, ScanFinding
from cache_engine.model.outcome import Failure
from tests.frameworks.fixtures import unpack

_SOURCES = load_sources()
_KEY = "A" * 52


def seeds(folder: Path) -> list[bytes]:
    """Files that Triton, CuPy and cuTile wrote, and one of vLLM's by hand."""
    triton, cupy, cutile = (unpack(kind, folder) for kind in ("triton", "cupy", "cutile"))
    files = [min(triton.rglob(name)) for name in ("tile.json", "__grp__tile.json", "scale.cubin")]
    with closing(sqlite3.connect(cutile / "cache.db")) as database:
        (metadata,) = database.execute("SELECT metadata FROM cache").fetchone()
    return [
        *(file.read_bytes() for file in files),
        *(file.read_bytes()[40:] for file in sorted(cupy.glob("*.cubin"))),
        metadata.encode(),
        b'{"code_hash":"91c6","env":{"VLLM_API_KEY":"x","A":null,"B":[1]},"config":[1,{"a":2}],"code":{"a":"b"}}',
    ]


def read(data: bytes, folder: Path) -> None:
    """Scans each cache with the input in it, and asks each entry for the inputs of its key."""
    place = folder / "caches"
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest().encode()
    files = {
        f"triton/{_KEY}/__grp__k.json": data,
        f"triton/{_KEY}/k.json": data,
        f"triton/{_KEY}/k.cubin": data,
        f"cupy/{'0' * 40}.cubin": digest + data,
        f"cuda_core/entries/00/{'0' * 62}": data,
        f"tilelang/0.1/linux-x86_64/kernels/{'0' * 64}/manifest.json": data,
        f"tilelang/0.1/linux-x86_64/kernels/{'0' * 64}/device_kernel.cu": data,
        f"tilelang/0.1/cuda-binaries/{'0' * 64}/kernel.cubin": data,
        "vllm/0123456789/rank_0_0/backbone/cache_key_factors.json": data,
        f"deepgemm/cache/kernel.gemm.{'0' * 32}/kernel.cu": data,
        f"deepgemm/cache/kernel.gemm.{'0' * 32}/kernel.cubin": data,
        "cutile/cache.db": data,
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    rows = place / "rows"
    rows.mkdir(exist_ok=True)
    with closing(sqlite3.connect(":memory:")) as database:  # a file would be synced to disk
        database.execute("CREATE TABLE cache (key TEXT, blob BLOB, blob_size INTEGER, atime REAL, metadata TEXT)")
        database.execute("INSERT INTO cache VALUES ('k', ?, 1, 1.0, ?)", (data, data.decode("latin-1")))
        database.commit()
        (rows / "cache.db").write_bytes(database.serialize())
    kinds = [*dict.fromkeys(name.partition("/")[0] for name in files)]
    places = [*(Place(kind, place / kind, "given") for kind in kinds), Place("cutile", rows, "given")]
    for at, seen in survey(_SOURCES, places):
        assert isinstance(seen, Entry | ScanFinding)
        if isinstance(seen, Entry):
            seen.id.encode()
            assert isinstance(_SOURCES.by_kind[at.kind].key_factors(at, seen), KeyFactors | Failure)
