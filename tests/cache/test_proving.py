"""Families are proved behind the caller before they serve; what is wrong, hangs or faults is refused.

The canaries run in a process of their own (``tests/device/canary_process.py``), on NumPy or on the PTX machine.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache_engine.batch.warm import warm
from cache_engine.cache import proving
from cache_engine.cache.cache import Cache, CompiledKernel, open_cache
from cache_engine.cache.matmul import matmul
from cache_engine.cache.proving import watchdog
from cache_engine.cache.proving.watchdog import Order, Verdict, watched
from cache_engine.cache.queue import PendingKernel
from cache_engine.errors import GpuRequired
from cache_engine.gpu.timer import Timing
from cache_engine.model.decision import PROOF
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.proof import HINT, PROVED, REFUSED, UNPROVED, Proof
from cache_engine.store.journal.lines import with_checksum
from cache_engine.store.pack import Pack
from cache_engine.store.proofs import proofs, write_proof
from tests.device import numpy_gpu
from tests.device.canary_process import CANARIES
from tests.device.numpy_gpu import DEVICE, stored

PROBLEM = GemmProblem(40, 72, 96, arch="sm_90a")


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(watchdog, "HANG_S", 600.0)  # a busy processor is no GPU
    with numpy_gpu.launching_in_numpy(monkeypatch):
        monkeypatch.setattr(proving, "current_gpu", lambda: (0, DEVICE))
        yield


class Proving:
    """Counts the processes of canaries; their kernels behave as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.behaviour, self.orders = "right", list[Order]()
        self.device: Callable[[], DeviceFingerprint] = lambda: vars(proving)["current_gpu"]()[1]
        self.budget_s = 600.0  # the PTX machine is no GPU
        monkeypatch.setattr(proving, "watched", self._watched)

    def _watched(self, order: Order, is_wanted: Callable[[], bool]) -> Verdict:
        order = msgspec.structs.replace(order, budget_s=self.budget_s)
        self.orders.append(order)
        device = msgspec.json.encode(self.device()).decode()
        program = [sys.executable, "-m", "tests.device.canary_process", self.behaviour, device]
        return watched(order, is_wanted, program)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Proving:
    return Proving(monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with _opened(tmp_path) as cache:
        yield cache


def _opened(folder: Path, prove: str = "behind", **settings: Any) -> Cache:
    return open_cache(folder / "store", durability="fast", prove=prove, **settings)


def _served(cache: Cache, problem: GemmProblem = PROBLEM) -> CompiledKernel:
    """The kernel of a caller that launches, after the proof that it began has ended."""
    got = cache.get_to_launch(problem)
    if got.better is not None:
        got.better.wait()
    return got


def _pending(cache: Cache, problem: GemmProblem = PROBLEM) -> PendingKernel[CompiledKernel]:
    """The handle that a caller gets who is served by the plain family meanwhile."""
    kernel = cache.get_to_launch(problem)
    assert kernel.record.family == "tensor_core"
    assert kernel.better is not None
    return kernel.better


def _logged(cache: Cache) -> list[tuple[str, str]]:
    cache.journal.flush()
    return [(one.reason, one.detail) for one in cache.admin.decisions() if one.kind == PROOF]


def _proof(cache: Cache) -> Proof:
    ((_, proof),) = proofs(cache.layout)
    return proof


def test_the_first_call_is_served_at_once_and_the_second_by_the_proved_family(cache: Cache, process: Proving) -> None:
    process.behaviour = "ptx"
    first = _served(cache)
    assert first.record.family == "tensor_core"
    assert first.better is not None
    assert first.better.ready
    second = _served(cache)
    assert (second.record.family, second.better) == ("hopper", None)
    proof = _proof(cache)
    assert (proof.family, proof.state, proof.cases, proof.device) == ("hopper", PROVED, 3, DEVICE)
    ((reason, detail),) = _logged(cache)
    assert reason == PROVED
    assert "no timing (there is no clock of a device); the choice stays by prediction" in detail
    assert not list(cache.timings)
    assert len(process.orders) == 1


def test_a_loaded_kernel_gives_way_to_the_proved_one(cache: Cache, process: Proving) -> None:
    a, b = stored(40, 96, seed=0), stored(72, 96, seed=1).T
    first = matmul(a, b, dtype="bf16", cache=cache, wait_ms=60_000)
    assert "hopper" not in first.served_by
    assert first.better.wait()
    second = matmul(a, b, dtype="bf16", cache=cache, wait_ms=60_000)
    assert ("hopper" in second.served_by, second.better) == (True, None)
    assert (first.array == second.array).all()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("wrong", "elements of C are wrong"),
        ("beyond", "bytes outside of C or of the workspace were written"),
        ("before", "bytes outside of C or of the workspace were written"),
        ("differs", "launch 2 gave other bits than the first"),
        ("fault", "it faulted: CUDARuntimeError: cudaErrorIllegalAddress"),
        ("fault at length", "it faulted: CUDARuntimeError: cudaErrorIllegalAddress"),
        ("crashes", "its process ended with SIGSEGV"),
        ("hangs", "it did not end within"),
        ("ptx sums do not begin at 0", ""),
    ],
)
def test_a_wrong_family_is_refused_with_its_evidence_once_for_all(
    behaviour: str, reason: str, tmp_path: Path, process: Proving, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if behaviour == "hangs":
        monkeypatch.setattr(watchdog, "HANG_S", 2.0)
    process.behaviour = behaviour
    with _opened(tmp_path) as cache:
        first = _served(cache)
        assert first.better is not None
        assert not first.better.ready
        proof = _proof(cache)
        assert proof.state == REFUSED
        assert reason in proof.reason
        assert proof.case.startswith("hopper 40x72x96 bf16 nt")
        assert "gemm-cache time 40 72 96" in proof.command
        assert "--family=hopper" in proof.command
        ((logged, detail),) = _logged(cache)
        assert logged == REFUSED
        assert proof.command in detail
        assert sum("refused on NumPy" in one.message for one in caplog.records) == 1
        again = _served(cache)
        assert (again.record.family, again.better) == ("tensor_core", None)
    with _opened(tmp_path) as cache:  # in another process too
        assert _served(cache).record.family == "tensor_core"
        assert cache.get_to_launch(PROBLEM, family="hopper").record.family == "hopper"  # by name
    assert len(process.orders) == 1


@pytest.mark.parametrize(
    ("behaviour", "why"), [("gone", "the GPU was lost"), ("is killed", "ended early, with status -9")]
)
def test_what_says_nothing_against_a_kernel_leaves_it_unproved(
    behaviour: str, why: str, tmp_path: Path, process: Proving
) -> None:
    process.behaviour = behaviour
    with _opened(tmp_path) as cache:
        assert _served(cache).record.family == "tensor_core"
        assert not list(proofs(cache.layout))
        ((reason, detail),) = _logged(cache)
        assert reason == UNPROVED
        assert why in detail
        assert _served(cache).record.family == "tensor_core"  # and is not tried again by this process
        assert len(process.orders) == 1
    process.behaviour = "right"
    with _opened(tmp_path) as cache:
        _served(cache)
        assert _served(cache).record.family == "hopper"


@pytest.mark.parametrize("budget_s", [0.0, 1e-9])
def test_a_budget_that_ends_leaves_it_unproved(budget_s: float, cache: Cache, process: Proving) -> None:
    process.budget_s = budget_s
    _served(cache)
    assert _served(cache).record.family == "tensor_core"
    ((reason, detail),) = _logged(cache)
    assert (reason, "ended after 1 canaries" in detail) == (UNPROVED, True)


def test_a_kernel_that_is_wrong_on_random_operands_is_refused(cache: Cache, process: Proving) -> None:
    process.behaviour = "inexact"
    _served(cache)
    proof = _proof(cache)
    assert (proof.state, proof.seed) == (REFUSED, 7)
    assert "its largest relative error is 0.5" in proof.reason


def _decided_by(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    monkeypatch.setattr(proving, "watched", lambda order, is_wanted: verdict)


def _timing(median_us: float) -> Timing:
    return Timing(DEVICE, median_us, median_us, median_us, 20, 1.0, 0.0, True)


@pytest.mark.parametrize(("hopper_us", "serves"), [(94.0, "hopper"), (96.0, "tensor_core"), (120.0, "tensor_core")])
def test_a_right_family_serves_where_it_is_faster_by_a_twentieth(
    hopper_us: float, serves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_engine.gpu.probe.gpu", lambda: DEVICE)
    _decided_by(monkeypatch, Verdict(cases=22, timings=[(_timing(hopper_us), _timing(100.0))]))
    with _opened(tmp_path) as cache:
        first = _served(cache)
        assert first.better is not None
        assert first.better.ready is (serves == "hopper")
        assert _served(cache).record.family == serves
        assert _served(cache, replace(PROBLEM, m=70)).record.family == serves  # near what was timed
        assert _served(cache, replace(PROBLEM, m=700)).record.family == "hopper"  # by prediction
        ((_, detail),) = _logged(cache)
        assert f"{hopper_us:g} µs, tensor_core 100 µs at m = 40; {serves} serves" in detail
        assert {(one.family, one.median_us) for one in cache.timings} == {("hopper", hopper_us), ("tensor_core", 100.0)}


def test_before_waits_and_with_never_nothing_unproved_serves(tmp_path: Path, process: Proving) -> None:
    with _opened(tmp_path, "before") as cache:
        got = cache.get_to_launch(PROBLEM)
        assert (got.record.family, got.better) == ("hopper", None)
    with _opened(tmp_path / "other", "never") as cache:
        got = cache.get_to_launch(PROBLEM)
        assert (got.record.family, got.better) == ("tensor_core", None)
        assert cache.get_to_launch(PROBLEM, family="hopper").record.family == "hopper"
    assert len(process.orders) == 1
    with _opened(tmp_path, "never") as cache:
        assert cache.get_to_launch(PROBLEM).record.family == "hopper"  # proved above


def test_other_selections_need_no_proof(cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.get_or_compile(PROBLEM).record.family == "hopper"
    assert cache.select(PROBLEM).family.name == "hopper"
    assert cache.get_to_launch(replace(PROBLEM, arch="sm_80")).record.family == "tensor_core"

    monkeypatch.setattr(proving, "current_gpu", _no_gpu)
    assert cache.get_to_launch(PROBLEM).record.family == "hopper"
    assert not process.orders


def test_where_nothing_is_compiled_nothing_can_be_proved(tmp_path: Path, process: Proving) -> None:
    with _opened(tmp_path) as cache:
        cache.get_or_compile(PROBLEM)
    with _opened(tmp_path, enable_jit=False) as cache:
        assert cache.get_to_launch(PROBLEM).record.family == "hopper"
    assert not process.orders


def test_shipped_evidence_counts_for_its_gpu_and_compiler_alone(
    cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = msgspec.structs.replace(DEVICE, name="NVIDIA H200")
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, h200))
    compiler = cache.select(PROBLEM).compiler.fingerprint()
    monkeypatch.setattr("cache_engine.model.proof._SHIPPED", {("hopper", "NVIDIA H200", f"nvrtc {compiler.version}")})
    assert cache.get_to_launch(PROBLEM).record.family == "hopper"
    assert not process.orders
    monkeypatch.setattr("cache_engine.model.proof._SHIPPED", {("hopper", "NVIDIA H200", "nvrtc 1.0")})
    assert _served(cache).record.family == "tensor_core"
    assert len(process.orders) == 1


def test_each_gpu_has_a_state_of_its_own(cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch) -> None:
    _served(cache)
    part = DeviceFingerprint("NumPy MIG 1g", "sm_90", 1, 2**28, 2**18, 1, "0.0")
    monkeypatch.setattr(proving, "current_gpu", lambda: (1, part))
    _decided_by(monkeypatch, Verdict(refused="wrong", case="a case"))
    assert _served(cache).record.family == "tensor_core"
    assert _served(cache).record.family == "tensor_core"
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, DEVICE))
    assert _served(cache).record.family == "hopper"
    assert {(proof.device.name, proof.state) for _, proof in proofs(cache.layout)} == {
        ("NumPy", PROVED), (part.name, REFUSED),
    }  # fmt: skip


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_store_that_cannot_be_written_leaves_the_proof_in_the_process(
    number: int, cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(proving, "write_proof", refuse)
    monkeypatch.setattr(proving, "file_lock", refuse)
    _served(cache)
    assert _served(cache).record.family == "hopper"
    assert not list(proofs(cache.layout))


def test_two_that_prove_at_once_prove_once(tmp_path: Path, process: Proving, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two processes do: each has a cache of its own on one store."""
    with _opened(tmp_path) as one, _opened(tmp_path) as other:
        pending = [_pending(cache) for cache in (one, other)]
        assert all(handle.wait() for handle in pending)
        assert {cache.get_to_launch(PROBLEM).record.family for cache in (one, other)} == {"hopper"}
    assert len(process.orders) == 1


def test_another_problem_joins_the_proof_that_runs(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def wait(order: Order, is_wanted: object) -> Verdict:
        assert gate.wait(60)
        return Verdict(cases=1, untimed="none")

    monkeypatch.setattr(proving, "watched", wait)
    first, second = _pending(cache), _pending(cache, replace(PROBLEM, n=144))
    gate.set()
    assert first.wait()
    assert second.wait()
    assert second.kernel is not None
    assert (second.kernel.record.family, second.kernel.problem.n) == ("hopper", 144)


def test_a_damaged_proof_counts_as_none_and_is_replaced(tmp_path: Path, process: Proving) -> None:
    with _opened(tmp_path) as cache:
        _served(cache)
        ((name, _),) = proofs(cache.layout)
    path = Path(cache.layout.proof_path(name))
    for damage in (b"", b"{}", path.read_bytes().replace(b"proved", b"rubbed"), b"[" * 10_000):
        path.write_bytes(damage)
        with _opened(tmp_path) as cache:
            assert not list(proofs(cache.layout))
            assert _served(cache).record.family == "tensor_core"
            assert _proof(cache).state == PROVED
            assert not cache.admin.verify()


def test_a_proof_under_anothers_name_counts_as_none(tmp_path: Path, process: Proving) -> None:
    with _opened(tmp_path) as cache:
        _served(cache)
        ((name, proof),) = proofs(cache.layout)
        assert proof.state == PROVED
    process.behaviour = "wrong"
    for change in ({"family": "another"}, {"device": HERE}, {"kernels": "f" * 64}):
        with _opened(tmp_path) as cache:
            write_proof(cache.layout, name, msgspec.structs.replace(proof, **change), durable=False)
            assert _served(cache).record.family == "tensor_core"
            assert _served(cache).record.family == "tensor_core"
            assert _proof(cache).state == REFUSED


def test_a_proof_of_another_version_is_skipped_and_stays(tmp_path: Path, process: Proving) -> None:
    with _opened(tmp_path) as cache:
        _served(cache)
        ((name, proof),) = proofs(cache.layout)
    path = Path(cache.layout.proof_path(name))
    inner = msgspec.json.encode(proof).replace(b'"proved"', b'"sampled"')
    newer = with_checksum(inner)
    path.write_bytes(newer)
    with _opened(tmp_path) as cache:
        (finding,) = cache.admin.verify()
        assert (finding.is_damage, finding.repairable) == (False, False)
        assert _served(cache).record.family == "tensor_core"
        assert _served(cache).record.family == "hopper"  # by what this process knows
    assert path.read_bytes() == newer


def test_closing_the_cache_ends_a_proof_and_all_that_wait_for_it(
    tmp_path: Path, process: Proving, caplog: pytest.LogCaptureFixture
) -> None:
    process.behaviour = "hangs"
    with _opened(tmp_path) as cache:
        pending = [_pending(cache), _pending(cache, replace(PROBLEM, n=144))]
        assert _pending(cache) is pending[0]
    for handle in pending:
        assert not handle.wait(60)
        assert handle.failure is not None
    assert not caplog.records, "a program that ends has nothing to be warned of"
    assert not list(proofs(cache.layout))


def test_the_canaries_end_with_their_parent(cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with ``kill -9``, the parent closes the pipe; a process whose kernel hangs ends all the same."""
    start, running = watchdog._started, list[subprocess.Popen[bytes]]()

    def started(order: Order, command: Sequence[str]) -> subprocess.Popen[bytes]:
        running.append(start(order, command))
        return running[0]

    monkeypatch.setattr(watchdog, "_started", started)
    process.behaviour = "hangs"
    got = _pending(cache)
    while not running and not got.done:
        threading.Event().wait(0.01)
    (canaries,) = running
    assert canaries.stdin is not None
    canaries.stdin.close()
    assert canaries.wait(60) is not None
    got.wait()
    assert "ended early" in str(got.failure)


# ---- Ahead of the calls, and with a hint ----


def test_warm_proves_a_whole_model_ahead_and_times_each_problem(
    cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [PROBLEM, replace(PROBLEM, n=144), replace(PROBLEM, n=144, m=900)]
    warm(cache, problems)
    ((reason, detail),) = _logged(cache)
    (order,) = process.orders
    assert (reason, len(order.asked), order.most) == (PROVED, 3, None)
    assert _proof(cache).cases == 3 + CANARIES
    assert "no timing" in detail
    for problem in problems:
        got = cache.get_to_launch(problem)
        assert (got.record.family, got.better) == ("hopper", None)
    warm(cache, problems)
    assert len(process.orders) == 1


def test_each_problem_of_a_model_serves_by_its_own_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_engine.gpu.probe.gpu", lambda: DEVICE)
    timings = [(_timing(50.0), _timing(100.0)), (), (_timing(100.0), _timing(50.0))]
    _decided_by(monkeypatch, Verdict(cases=24, timings=timings, untimed="memory"))
    wide, tall = replace(PROBLEM, n=144), replace(PROBLEM, n=208)
    with _opened(tmp_path) as cache:
        cache._proofs.ahead([PROBLEM, wide, tall])
        served = [cache.get_to_launch(one).record.family for one in (PROBLEM, wide, tall)]
        assert served == ["hopper", "hopper", "tensor_core"]
        ((_, detail),) = _logged(cache)
        assert detail.count("serves near there") == 2


def test_of_many_problems_some_are_run_evenly_chosen(
    cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "_MOST_AHEAD", 2)
    cache._proofs.ahead([replace(PROBLEM, n=72 + 8 * number) for number in range(5)])
    (order,) = process.orders
    assert [(one.problem.n, plain.problem.n) for one, plain in order.asked] == [(72, 72), (96, 96)]


def test_warm_proves_nothing_for_other_targets_or_without_a_gpu(
    cache: Cache, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, msgspec.structs.replace(DEVICE, arch="sm_80")))
    warm(cache, [PROBLEM])
    monkeypatch.setattr(proving, "current_gpu", _no_gpu)
    warm(cache, [PROBLEM])
    assert not process.orders


def _no_gpu() -> None:
    raise GpuRequired("there is none")


def _packed_proof(tmp_path: Path, process: Proving) -> Path:
    """A pack of a store whose GPU has proved the family."""
    with _opened(tmp_path / "there") as cache:
        _served(cache)
        cache.admin.export(tmp_path / "proved.gemmpack")
    process.orders.clear()
    return tmp_path / "proved.gemmpack"


HERE = msgspec.structs.replace(DEVICE, driver="99.9")
"""Another device of the same name."""


def test_a_hint_of_a_pack_is_confirmed_by_one_canary(
    tmp_path: Path, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = _packed_proof(tmp_path, process)
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, HERE))
    with _opened(tmp_path) as cache:
        cache.admin.import_pack(pack)
        assert _proof(cache).state == HINT
        assert not cache.admin.verify()
        assert _served(cache).record.family == "tensor_core"
        (order,) = process.orders
        assert order.most == 1
        confirmed = next(one for _, one in proofs(cache.layout) if one.state == PROVED)
        assert (confirmed.device, confirmed.cases, confirmed.confirms) == (HERE, 2, True)
        assert _served(cache).record.family == "hopper"
        cache.admin.export(tmp_path / "again.gemmpack")
    assert not Pack(tmp_path / "again.gemmpack").hints()  # what is confirmed by one canary is no hint for others


def test_a_hint_is_never_trusted_without_its_canary(
    tmp_path: Path, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the very device that the hint names, and if that device's canary is wrong."""
    pack = _packed_proof(tmp_path, process)
    process.behaviour = "wrong"
    for number, device in enumerate((DEVICE, HERE)):
        monkeypatch.setattr(proving, "current_gpu", lambda device=device: (0, device))
        with _opened(tmp_path / str(number)) as cache:
            cache.admin.import_pack(pack)
            assert _served(cache).record.family == "tensor_core"
            assert _served(cache).record.family == "tensor_core"
            assert {one.state for _, one in proofs(cache.layout) if one.device == device} == {REFUSED}
            cache.admin.import_pack(pack)  # changes nothing that this device has found out
            assert {one.state for _, one in proofs(cache.layout) if one.device == device} == {REFUSED}


def test_a_hint_for_another_device_or_toolchain_shortens_nothing(
    tmp_path: Path, process: Proving, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = _packed_proof(tmp_path, process)
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, msgspec.structs.replace(DEVICE, name="NumPy MIG 1g")))
    with _opened(tmp_path) as cache:
        cache.admin.import_pack(pack)
        _served(cache)
    monkeypatch.setattr(proving, "current_gpu", lambda: (0, HERE))
    with _opened(tmp_path / "flags", compiler_flags=("--fmad=false",)) as cache:
        cache.admin.import_pack(pack)
        _served(cache)
    assert [order.most for order in process.orders] == [None, None]
