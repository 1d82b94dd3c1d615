"""Looking into kernels on the command line: one of them, two side by side, and why one was missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cache_engine.model.architecture import architecture
from cache_engine.store.disk import DiskStore
from tests.helpers import blob_file, make_store
from tests.test_cli import document, run


def _keys(store: Path) -> dict[tuple[str, str], str]:
    """Keys of the compiled store by target and element type."""
    return {(record.arch, record.problem.dtype): record.key for record in make_store(store).records()}


# ---- show ----


def test_show_counts_instructions_and_tells_occupancy(compiled_store: Path) -> None:
    for (arch, dtype), key in _keys(compiled_store).items():
        shown = document("show", key, store=compiled_store)
        mix, resident = shown["instructions"], shown["occupancy"]
        assert ("FFMA" if dtype == "fp32" else "HMMA") in mix["classes"]
        assert sum(mix["classes"].values()) == sum(mix["opcodes"].values()) == mix["total"] > 100
        assert resident["arch"] == arch
        assert resident["blocks_per_sm"] == min(resident["block_limits"].values()) > 0
        assert resident["block_limits"]["blocks"] == architecture(arch).blocks_per_sm
        assert resident["share"] == resident["warps_per_sm"] / resident["most_warps_per_sm"]
        assert set(resident["bound_by"]) <= set(resident["block_limits"])
        assert shown["notes"] == []
        text = run("show", key[:12], store=compiled_store).stdout
        assert f"Theoretical occupancy on {arch}: {resident['share']:.1%}" in text
        assert f"{mix['total']:,} instructions in the code" in text


def test_show_without_a_disassembler_tells_the_rest_and_how_to_get_it(compiled_store: Path, tmp_path: Path) -> None:
    key = next(iter(_keys(compiled_store).values()))
    without = (
        "import sys; from cache_engine.compilers import inspect, tools; from cache_engine.errors import ToolMissing\n"
        "def missing(name, package): raise ToolMissing(f'{name} is not installed; run: pip install {package}')\n"
        "inspect.find_tool = missing\n"
        "from cache_engine.cli import main; main()\n"
    )
    command = [sys.executable, "-c", without, "--store", str(compiled_store), "show", key]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "instructions were not counted: nvdisasm is not installed; run: pip install nvidia-cuda-nvdisasm" in (
        done.stdout
    )
    assert "Theoretical occupancy" in done.stdout


def test_show_of_damaged_code_tells_the_rest(compiled_store: Path) -> None:
    store: DiskStore = make_store(compiled_store)
    key = next(iter(store.keys()))
    blob = blob_file(store, key)
    blob.write_bytes(bytes(blob.stat().st_size))
    shown = document("show", key, store=compiled_store)
    assert shown["instructions"] is None
    assert shown["notes"][0].startswith("instructions were not counted: ")
    assert shown["occupancy"] is not None
