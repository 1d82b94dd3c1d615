"""Configs as people type them."""

from __future__ import annotations

import pytest

from cache_engine.errors import UsageError
from cache_engine.model.kernel import KernelConfig


def test_a_config_is_read_in_any_order() -> None:
    text = "stages=4, warps_n=2,warps_m=4,block_k=32,block_n=128,block_m=256"
    assert KernelConfig.parse(text) == KernelConfig(256, 128, 32, 4, 2, 4)


@pytest.mark.parametrize(
    "config",
    [
        KernelConfig(128, 64, 32, 2, 4, 3),
        KernelConfig(16, 64, 64, 1, 2, 3, split_k=4),
        KernelConfig(128, 256, 64, 8, 1, 4, cluster=2),
        KernelConfig(128, 256, 64, 8, 1, 4, split_k=65_536, cluster=2),
    ],
    ids=str,
)
def test_a_config_is_read_from_the_name_that_it_is_shown_by(config: KernelConfig) -> None:
    assert KernelConfig.parse(f" {config} ") == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "or name=value"),
        ("block_m", "or name=value"),
        ("tile_m=8", "block_m, block_n"),
        ("block_m=128", "lacks block_n"),
        ("block_m=0,block_n=1,block_k=1,warps_m=1,warps_n=1,stages=1", "block_m=0"),
        ("block_m=-8,block_n=1,block_k=1,warps_m=1,warps_n=1,stages=1", "block_m=-8"),
        ("block_m=8,block_m=8", "block_m twice"),
        ("0x64x32_w2x2_s4", "block_m=0"),
        ("64x64x32_w2x2_s999999", "stages=999999"),
        ("64x64x32_w2x2", "128x128x32_w2x2_s4"),
        ("64x64x32_w2x2_s4_c2_k4", "128x128x32_w2x2_s4"),
        ("64x64x32_w2x2_s4,split_k=2", "128x128x32_w2x2_s4"),
        ("٦4x64x32_w2x2_s4", "128x128x32_w2x2_s4"),
        ("block_m=999999999999999999999", "from 1 to 65536"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_naming_the_field(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        KernelConfig.parse(text)
