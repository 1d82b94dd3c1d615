"""The caches that the installed PyTorch makes: read, explained by its trace, and carried to a new process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cache_engine.frameworks.comparison import differences
from cache_engine.frameworks.readers.inductor import Inductor
from cache_engine.frameworks.snapshots import read_snapshot
from cache_engine.frameworks.torch_compile import Lookup, artifacts_of, lookups, put_artifacts
from cache_engine.frameworks.values import Entry, KeyFactors, Place, State
from cache_engine.store.disk import open_store

PROGRAM = """
import json, sys, torch
from torch._dynamo.utils import counters

def gelu(x, w):
    return torch.nn.functional.gelu(x @ w)

arguments, file, loads = (torch.ones(4, 8), torch.ones(8, 8)), *sys.argv[1:]
if loads == "load":
    torch.compiler.load_cache_artifacts(open(file, "rb").read())
torch.compile(gelu)(*arguments)
if loads != "load":
    open(file, "wb").write(torch.compiler.save_cache_artifacts()[0])
    torch.compiler.reset()
    with torch._inductor.config.patch(epilogue_fusion=False):
        torch.compile(gelu)(*arguments)
print(json.dumps({"torch": torch.__version__, **counters["inductor"], **counters["aot_autograd"]}))
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for the CPU with g++")


def compiled(folder: Path, artifacts: Path, word: str) -> Any:
    """Runs the program with caches and a trace in a folder; returns what it counted."""
    (folder / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCH_TRACE": str(folder / "trace"),
        "CUDA_VISIBLE_DEVICES": "", "TORCH_LOGS": "+aot",
    }  # fmt: skip
    command = [sys.executable, str(folder / "program.py"), str(artifacts), word]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_real_caches_traces_and_artifacts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    compiled(folders[0], tmp_path / "artifacts.bin", "save")

    place = Place("inductor", folders[0] / "cache", "given")
    found = [each for each in Inductor().scan(place, {}) if isinstance(each, Entry) and each.state == State.COMPLETE]
    graphs = [each for each in found if each.id.startswith("fxgraph/")]
    assert [each.name for each in found] == ["gelu in program.py"] * 4
    assert {each.version for each in found} == {torch.__version__}
    assert len({each.compiler for each in found}) == 1
    first, second = (Inductor().key_factors(place, each) for each in graphs)
    assert isinstance(first, KeyFactors)
    assert isinstance(second, KeyFactors)
    assert [each.name for each in differences(first, second)] == ["epilogue_fusion"]

    seen = list(lookups(folders[0] / "trace"))
    assert all(isinstance(each, Lookup) for each in seen), seen
    logged = {each.key: each for each in seen if isinstance(each, Lookup)}
    assert {each.id.rpartition("/")[2] for each in found} == set(logged)
    for cache in ("fx_graph", "aotautograd"):  # the second, as TORCH_LOGS has +aot
        one, other = (each.factors for each in logged.values() if each.cache == cache)
        assert "epilogue_fusion" in str(differences(one, other)), cache

    layout = open_store(tmp_path / "store")
    data = (tmp_path / "artifacts.bin").read_bytes()
    assert put_artifacts(layout, "one", data) == torch.__version__
    snapshot = read_snapshot(layout, "one")
    assert snapshot is not None
    restored, version = artifacts_of(layout, snapshot[0])
    assert version == torch.__version__
    (tmp_path / "restored.bin").write_bytes(restored)
    counts = compiled(folders[1], tmp_path / "restored.bin", "load")
    assert (counts.get("fxgraph_cache_hit"), counts.get("autograd_cache_hit")) == (1, 1)
