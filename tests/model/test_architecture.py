"""The table of targets, held against NVIDIA's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cache_engine.compilers.contents import package_files
from cache_engine.model.architecture import ARCHITECTURES, Architecture

HEADER = "include/cccl/cuda/__device/arch_traits.h"


@pytest.fixture(scope="module")
def nvidia_traits() -> dict[str, dict[str, str]]:
    """Assignments in each of the header's traits, those it derives from another filled in."""
    (path,) = package_files(HEADER)
    traits: dict[str, dict[str, str]] = {}
    for name, body in re.findall(r"arch_traits<arch_id::(sm_\d+)>\(\) noexcept\n\{(.*?)\n\};", _text(path), re.DOTALL):
        base = re.search(r"arch_traits<arch_id::(sm_\d+)>\(\)", body)
        own = dict(re.findall(r"__traits\.(\w+)\s*=\s*([^;]+?);", body, re.DOTALL))
        traits[name] = {**(traits[base[1]] if base else {}), **own}
    return traits


def _text(path: Path) -> str:
    return path.read_text()


@pytest.mark.parametrize("target", ARCHITECTURES.values(), ids=lambda target: target.name)
def test_limits_are_those_nvidia_ships(target: Architecture, nvidia_traits: dict[str, dict[str, str]]) -> None:
    traits = nvidia_traits[f"sm_{target.major}{target.minor}"]
    per_sm = _product(traits["max_shared_memory_per_multiprocessor"])
    assert target.shared_bytes_per_sm == per_sm
    assert target.blocks_per_sm == int(traits["max_blocks_per_multiprocessor"])
    assert target.warps_per_sm == int(traits["max_threads_per_multiprocessor"]) // 32
    assert "reserved_shared_memory_per_block" in traits["max_shared_memory_per_block_optin"]
    assert target.shared_bytes_per_block == per_sm - target.reserved_shared_bytes_per_block


def test_limits_common_to_all_targets_are_those_nvidia_ships() -> None:
    (path,) = package_files(HEADER)
    common = re.search(r"__common_arch_traits\(.*?\n\{(.*?)\n\}", _text(path), re.DOTALL)
    assert common is not None
    values = dict(re.findall(r"__traits\.(\w+)\s*=\s*([^;]+);", common[1]))
    assert Architecture.registers_per_sm == _product(values["max_registers_per_multiprocessor"])
    assert Architecture.registers_per_thread == int(values["max_registers_per_thread"])
    assert "80}) ? 1024 : 0" in values["reserved_shared_memory_per_block"]


def _product(text: str) -> int:
    left, right = text.split("*")
    return int(left) * int(right)
