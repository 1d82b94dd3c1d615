"""The experts of a model as groups: which problems ``warm`` and ``coverage`` make of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache_engine.batch.warm import problems_of
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import InvalidProblem
from cache_engine.model.gemm import Mode


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with open_cache(tmp_path / "store") as opened:
        yield opened


def test_experts_are_groups_and_other_layers_are_not(cache: Cache) -> None:
    """A token goes to 8 of DeepSeek-V3's 256 experts; gpt-oss has 128, and 64 tokens may all choose one."""
    asked: dict[str, Any] = {"arch": "sm_90", "m": "1,4096", "dtype": "fp8_e4m3", "scales": "1x128,128x128"}
    plain = {(one.n, one.k) for one in problems_of(cache, "DeepSeek-V3", **asked)}
    grouped = problems_of(cache, "DeepSeek-V3", **asked, mode="grouped")
    assert {(one.n, one.k) for one in grouped} == plain
    assert {(one.batch, one.m, one.n, one.k) for one in grouped if one.mode is Mode.GROUPED} == {
        (256, m, n, k) for m in (8, 8 * 4096) for n, k in ((4096, 7168), (7168, 2048))
    }
    masked = problems_of(cache, "gpt-oss-120b", arch="sm_90", m="64", mode="masked")
    assert {(one.batch, one.m) for one in masked if one.mode is Mode.MASKED} == {(128, 64)}


def test_an_unknown_mode_is_refused(cache: Cache) -> None:
    mode: Any = "ragged"
    with pytest.raises(InvalidProblem, match="unknown mode 'ragged'; use one of: grouped, masked"):
        problems_of(cache, "gpt-oss-120b", arch="sm_90", mode=mode)
