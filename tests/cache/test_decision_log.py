"""The log says why each lookup missed, and what was chosen.

Every timing here is invented: input for what chooses, not a measurement.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.compilers import COMPILERS
from cache_engine.errors import NotCached
from cache_engine.kernels.select import ranking
from cache_engine.model.decision import CHOICE, MISS, Causes, Decision
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.upkeep.plan import Limits
from tests.helpers import INVENTED_GPU, blob_file, invented_timing, record_file

PROBLEM = GemmProblem(16, 64, 96, arch="sm_90")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def _missed(root: Path, **settings: Any) -> Decision:
    """Asks in a process of its own, as far as memory goes; what the log says of the miss."""
    with open_cache(root, durability="fast", **settings) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
        return cache.admin.decisions(kinds=[MISS])[-1]


def test_a_kernel_that_was_never_asked_for(root: Path) -> None:
    miss = _missed(root)
    assert (miss.reason, miss.detail) == ("never seen", "")
    assert miss.name.startswith("gemm_tensor_core_bf16_nt_n64_k96")


def test_the_last_miss_is_known_at_once(root: Path) -> None:
    with open_cache(root, durability="fast") as cache:
        made = cache.get_or_compile(PROBLEM)
        assert [one.key for one in cache.admin.misses()] == [made.key]
        cache.get_or_compile(replace(PROBLEM, n=128))
        decisions, damaged = cache.admin.recent_decisions()
        assert (decisions[0].name.startswith("gemm_tensor_core_bf16_nt_n128_k96"), damaged) == (True, 0)


def test_hits_of_every_tier_leave_the_log_as_it_is(root: Path) -> None:
    _missed(root)
    before = (root / "decisions" / "log.jsonl").read_bytes()
    with open_cache(root) as cache:
        assert [cache.get_or_compile(PROBLEM).tier for _ in range(3)] == ["disk", "memory", "memory"]
    assert (root / "decisions" / "log.jsonl").read_bytes() == before


def test_an_evicted_kernel_by_whom_and_why(root: Path) -> None:
    _missed(root)
    with open_cache(root) as cache:
        cache.admin.clean(Limits(everything=True), by="Ann")
    miss = _missed(root)
    assert (miss.reason, miss.detail, miss.by) == ("evicted", "everything", "Ann")


def test_a_damaged_kernel(root: Path) -> None:
    key = _missed(root).key
    with open_cache(root) as cache:
        path = blob_file(cache.store, key)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:200])
    miss = _missed(root)
    assert miss.reason == "damaged"
    assert "blob of" in miss.detail


def test_a_kernel_that_verify_quarantined(root: Path) -> None:
    key = _missed(root).key
    with open_cache(root) as cache:
        blob_file(cache.store, key).unlink()  # type: ignore[arg-type]
        cache.admin.verify(repair=True)
    miss = _missed(root)
    assert miss.reason == "damaged"
    assert miss.detail.startswith("record without blob")


def test_a_kernel_of_another_format_version(root: Path) -> None:
    key = _missed(root).key
    with open_cache(root) as cache:
        record_file(cache.store, key).write_bytes(b'{"format": 99}')  # type: ignore[arg-type]
    assert _missed(root).reason == "another format version"
    assert [one.reason for one in _all(root) if one.kind == "refusal"] == ["not stored"]


def _all(root: Path) -> list[Decision]:
    with open_cache(root) as cache:
        return cache.admin.decisions()


def test_a_kernel_that_could_not_be_stored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        with open_cache(root):
            patched.setattr(os, "rename", full)
        _missed(root)
    miss = _missed(root)
    assert miss.reason == "not stored"
    assert "No space left on device" in miss.detail


def test_a_kernel_that_was_not_compiled(root: Path) -> None:
    with open_cache(root, enable_jit=False) as cache, pytest.raises(NotCached):
        cache.get_or_compile(PROBLEM)
    assert [(one.kind, one.reason) for one in _all(root)][-1] == ("refusal", "not compiled")
    assert _missed(root).reason == "not compiled"


def test_a_forced_compile(root: Path) -> None:
    _missed(root)
    with open_cache(root) as cache:
        cache.get_or_compile(PROBLEM, force=True)
        assert cache.admin.decisions(kinds=[MISS])[-1].reason == "forced"


@pytest.mark.parametrize("in_log", [True, False], ids=["by the log", "by the entry"])
def test_a_kernel_of_another_toolchain(root: Path, in_log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log says of the first, or the entry that is still there, names the compiler that made it."""
    here = COMPILERS["nvrtc"].fingerprint()
    older = msgspec.structs.replace(here, version="12.1")
    with monkeypatch.context() as patched:
        patched.setattr(COMPILERS["nvrtc"], "fingerprint", lambda: older)
        _missed(root)
    if in_log:
        with open_cache(root) as cache:
            for path in (cache.layout.kernels, cache.layout.metadata):
                for file in path.rglob("*-*" if path == cache.layout.kernels else "*.json"):
                    file.unlink()
    else:
        (root / "decisions" / "log.jsonl").unlink()
    miss = _missed(root)
    assert miss.reason == "another toolchain"
    assert "nvrtc 12.1" in miss.detail
    assert f"nvrtc {here.version}" in miss.detail


def test_another_config_since_a_timing_came(root: Path) -> None:
    ranked = [config for _, config in ranking(PROBLEM, "tensor_core")]
    first = _missed(root)
    with open_cache(root) as cache:
        for config, median_us in ((ranked[0], 10.0), (ranked[1], 8.0)):
            cache.timings.add([invented_timing(PROBLEM, config, median_us)])
    miss = _missed(root, timings_of=INVENTED_GPU.name)
    assert miss.reason == "another config"
    assert first.key[:12] in miss.detail
    choice = _all(root)[-1]
    assert (choice.kind, choice.reason) == (CHOICE, "measured on Invented GPU: 8 µs at m = 16")
    assert choice.detail == f"tensor_core {ranked[1]}"
    assert choice.runner_up == f"tensor_core {ranked[0]}"
    assert choice.margin == pytest.approx(0.25)


def test_a_choice_of_the_cost_model_has_its_runner_up_and_margin(root: Path) -> None:
    _missed(root)
    (choice,) = [one for one in _all(root) if one.kind == CHOICE]
    (best, first), (next_best, second) = ranking(PROBLEM, "tensor_core")[:2]
    assert (choice.detail, choice.runner_up) == (f"tensor_core {first}", f"tensor_core {second}")
    assert choice.margin == pytest.approx(next_best / best - 1)


def test_a_config_that_was_given_has_no_runner_up(root: Path) -> None:
    with open_cache(root) as cache:
        cache.get_or_compile(PROBLEM, config=KernelConfig(64, 64, 32, 2, 2, 3))
        (choice,) = cache.admin.decisions(kinds=[CHOICE])
    assert (choice.reason, choice.runner_up, choice.margin) == ("given", "", None)


def test_decisions_are_filtered_by_key_kind_and_time(root: Path) -> None:
    miss = _missed(root)
    with open_cache(root) as cache:
        assert len(cache.admin.decisions()) == 2
        assert cache.admin.decisions(miss.key[:8], kinds=[MISS]) == [miss]
        assert cache.admin.decisions("0" * 64) == []
        assert cache.admin.decisions(since=miss.at + 3600) == []


def _line(kind: str, key: str = "a" * 64, at: float = 1.0, reason: str = "") -> Decision:
    return Decision(kind=kind, at=at, key=key, reason=reason)


def _reasons(*lines: Decision) -> list[str]:
    return [one.reason for one in map(Causes().explained, lines) if one.kind == MISS]


def test_the_order_of_the_lines_counts_and_not_their_times() -> None:
    """The clock was set back between the eviction and the miss."""
    evicted = _line("eviction", reason="expired", at=5000.0)
    assert _reasons(_line("miss"), evicted, _line("miss", at=10.0)) == ["never seen", "evicted"]


def test_a_miss_after_a_miss_does_not_claim_to_know_more() -> None:
    assert _reasons(_line("miss"), _line("miss")) == ["never seen", "missed before"]


def test_other_kernels_do_not_count() -> None:
    assert _reasons(_line("eviction", key="b" * 64, reason="expired"), _line("miss")) == ["never seen"]


def test_a_compile_that_was_refused_made_no_kernel_that_a_miss_can_be_blamed_on() -> None:
    missed = [
        msgspec.structs.replace(_line("miss", key=key * 64), request="r", toolchain=f"nvrtc {key}") for key in "ab"
    ]
    assert _reasons(*missed) == ["never seen", "another toolchain"]
    assert _reasons(missed[0], _line("refusal", reason="not compiled"), missed[1]) == ["never seen", "never seen"]
