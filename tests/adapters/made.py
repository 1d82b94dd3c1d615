"""Adapted kernels for tests: real files of Triton's, from its cache that ``tests/frameworks/fixtures`` has."""

from __future__ import annotations

from pathlib import Path

from cache_engine.frameworks.bundles import Group, put_group
from cache_engine.model.key import CacheKey
from cache_engine.store.layout import StoreLayout
from tests.frameworks.fixtures import unpack

TILE = "G76XWAFVF3OBS5ZKVCXA5ACOO5T3MYA6CK5FW4GFRR4N7Y2ZRUHQ"
"""Triton's key of a kernel for sm_90a named ``tile``."""
SCALE = "VO4HIU6YPCFA3BUAWPZQCMZIAJVNF4FRU4NZ2GGBOUWXVOMK4U3A"
SCALE_8_WARPS = "ABV3NOJUC64QWC4ANM3BQHSBXU2XVSPX53CGHRVHYJEIJ2VLSRUA"
SCALE_SM_80 = "Y5VPDLCMHHKKSVRWZJ6ID6NG57L2ERD2TANO2Y427RNYGY2CC5QA"
"""Keys of one named ``scale``: for sm_90 with 4 warps and with 8, and for sm_80 with 4."""
STAGES = {"source": 10.0, "ttir": 20.0, "ttgir": 30.0, "llir": 40.0, "ptx": 50.0, "cubin": 100.0}


def triton_groups(folder: Path, made_at: float = 1_700_000_000.0) -> dict[str, Group]:
    """A group of each kernel of the fixture, by Triton's key."""
    found = {}
    for index in unpack("triton", folder).rglob("__grp__*.json"):
        files = {path.name: path.read_bytes() for path in index.parent.iterdir() if path != index}
        name = index.name.removeprefix("__grp__")
        found[index.parent.name] = Group("triton", index.parent.name, name, files, made_at, STAGES)
    return found


def put_kernel(layout: StoreLayout, folder: Path, key: str = TILE) -> CacheKey:
    """Stores the kernel ``tile``, or that of another key of Triton; returns its key."""
    group = triton_groups(folder)[key]
    put_group(layout, group, durable=False)
    return group.key
