"""``wait_ms`` and ``submit``: a kernel that is there serves at once; that which is asked for is compiled behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cache_engine.cache.cache import Cache, open_cache
from cache_engine.cache.operator import GemmOperator
from cache_engine.cache.queue import PendingKernel, State, tickets
from cache_engine.cache.serving import CompiledKernel
from cache_engine.cache.serving.stand_ins import stand_ins
from cache_engine.compilers import COMPILERS
from cache_engine.errors import CompileError, NotCached, UsageError
from cache_engine.kernels.family import launch_of
from cache_engine.model.decision import NOT_COMPILED, REFUSAL
from cache_engine.model.gemm import DType, GemmProblem, Layout, Specialisation
from cache_engine.store.lock import file_lock
from tests.remote.waiting import until

T = TypeVar("T")
PROBLEM = GemmProblem(40, 192, 128, dtype=DType.FP32, arch="sm_80")
OTHER = replace(PROBLEM, layout=Layout.NN)
DYNAMIC = replace(PROBLEM, specialisation=Specialisation.DYNAMIC)


class Gate:
    """Holds compiles up until it is opened, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.compiles = 0
        self.error: Exception | None = None
        compiler = COMPILERS["nvrtc"]
        really = compiler.compile

        def compile_it(source: str, arch: str) -> Any:
            self.compiles += 1
            assert self.opened.wait(60)
            if self.error is not None:
                raise self.error
            return really(source, arch)

        monkeypatch.setattr(compiler, "compile", compile_it)


@pytest.fixture(scope="module")
def _floor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("floor") / "store"
    with open_cache(folder, durability="fast") as cache:
        cache.get_or_compile(DYNAMIC)
    return folder


@pytest.fixture
def cache(_floor: Path, tmp_path: Path) -> Iterator[Cache]:
    """A cache whose store has the dynamic kernel alone."""
    import shutil

    shutil.copytree(_floor, tmp_path / "store")
    with open_cache(tmp_path / "store", durability="fast", compile_slots=1) as opened:
        yield opened


@pytest.fixture
def gate(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def test_a_cold_shape_is_served_at_once_and_replaced_behind(cache: Cache, gate: Gate) -> None:
    kernel = cache.get_or_compile(PROBLEM, wait_ms=0)
    assert (kernel.tier, kernel.problem, kernel.record.problem.specialisation) == ("disk", PROBLEM, "dynamic")
    better = kernel.better
    assert better is not None
    assert (better.key, better.ready) == (cache.select(PROBLEM).key, False)
    assert cache.get_or_compile(PROBLEM, wait_ms=0).better is better
    gate.opened.set()
    assert better.wait(60)
    assert better.kernel is not None
    assert (better.kernel.key, better.kernel.tier, better.kernel.better) == (better.key, "compiled", None)
    after = cache.get_or_compile(PROBLEM, wait_ms=0)
    assert (after.key, after.tier, after.better, gate.compiles) == (better.key, "memory", None, 1)
    assert cache.admin.verify() == []


def test_the_stand_in_is_launched_for_the_very_problem(cache: Cache, gate: Gate) -> None:
    kernel = cache.get_or_compile(PROBLEM, wait_ms=0)
    selected = cache.select(DYNAMIC)
    assert kernel.key == selected.key
    assert kernel.launch == launch_of(selected.family, DYNAMIC, selected.config, kernel.record.resources.shared_bytes)
    assert kernel.launch.arguments[3:6] == ("m", "n", "k")


def test_whoever_waits_long_enough_gets_the_kernel_itself(cache: Cache, gate: Gate) -> None:
    gate.opened.set()
    kernel = cache.get_or_compile(PROBLEM, wait_ms=60_000)
    assert (kernel.key, kernel.tier, kernel.better) == (cache.select(PROBLEM).key, "compiled", None)


def test_whoever_does_not_gets_the_stand_in_after_that_time(cache: Cache, gate: Gate) -> None:
    kernel = cache.get_or_compile(PROBLEM, wait_ms=20)
    assert kernel.better is not None
    assert not kernel.better.ready


def test_a_waiter_lends_its_priority_to_the_compile_behind(cache: Cache, gate: Gate) -> None:
    with file_lock(cache.layout.slot_lock(0), 1):
        better = cache.get_or_compile(PROBLEM, wait_ms=0).better
        assert better is not None
        waiter = threading.Thread(target=better.wait)
        waiter.start()
        wanted = {(State.QUEUED, 1), (State.WAITS, 0)}
        until(lambda: {(one.state, one.priority) for one in tickets(cache.layout)} == wanted)
    gate.opened.set()
    waiter.join(60)
    assert better.ready


def test_where_nothing_is_there_the_call_waits(cache: Cache, gate: Gate) -> None:
    gate.opened.set()
    other = OTHER
    kernel = cache.get_or_compile(other, wait_ms=0)
    assert (kernel.tier, kernel.better) == ("compiled", None)


def test_a_failure_behind_is_told_and_not_tried_again(cache: Cache, gate: Gate) -> None:
    gate.error = CompileError("refused", log="", source="", flags=())
    gate.opened.set()
    kernel = cache.get_or_compile(PROBLEM, wait_ms=0)
    assert kernel.better is not None
    assert not kernel.better.wait(60)
    assert str(kernel.better.failure) == "refused"
    again = cache.get_or_compile(PROBLEM, wait_ms=0)
    assert (again.key, again.better) == (kernel.key, kernel.better)
    assert gate.compiles == 1
    [noted] = cache.admin.decisions(kinds=[REFUSAL])
    assert (noted.key, noted.reason, noted.detail) == (kernel.better.key, NOT_COMPILED, "refused")
    other = OTHER
    for _ in range(2):
        with pytest.raises(CompileError, match="refused"):
            cache.get_or_compile(other, wait_ms=0)
    assert gate.compiles == 2
    with pytest.raises(CompileError):  # who waits for it, as ever, has it tried
        cache.get_or_compile(other)
    assert gate.compiles == 3


def test_closing_waits_for_no_queue(cache: Cache, gate: Gate) -> None:
    with file_lock(cache.layout.slot_lock(0), 1):
        handles = [cache.get_or_compile(replace(PROBLEM, n=192 + 64 * more), wait_ms=0).better for more in range(5)]
        cache.close()
        assert gate.compiles == 0
        assert cache.stand_ins.behind.dropped == 5
        assert {str(better and better.failure) for better in handles} == {"the cache was closed before it was compiled"}
    assert tickets(cache.layout) == []


def test_without_compiling_what_is_there_serves(cache: Cache) -> None:
    with open_cache(cache.layout.root, enable_jit=False) as fixed:
        kernel = fixed.get_or_compile(PROBLEM, wait_ms=0)
        assert (kernel.record.problem.specialisation, kernel.better) == ("dynamic", None)
        with pytest.raises(NotCached):
            fixed.get_or_compile(OTHER, wait_ms=0)


def test_without_a_store_it_serves_from_memory(gate: Gate) -> None:
    gate.opened.set()
    with open_cache(enable_caching=False) as cache:
        cache.get_or_compile(DYNAMIC)
        kernel = cache.get_or_compile(PROBLEM, wait_ms=0)
        assert kernel.tier == "memory"
        assert kernel.better is not None
        assert kernel.better.wait(60)
        assert cache.get_or_compile(PROBLEM, wait_ms=0).key == kernel.better.key


def test_demand_counts_what_was_asked_once(cache: Cache, gate: Gate) -> None:
    gate.opened.set()
    better = cache.get_or_compile(PROBLEM, wait_ms=0).better
    assert better is not None
    assert better.wait(60)
    totals = cache.stats().totals
    assert (totals.misses, totals.compiles, totals.hits) == (1 + 1, 1 + 1, {"disk": 1})


def test_a_kernel_that_is_submitted_is_compiled_behind_and_calls_back_once(
    cache: Cache, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    pending, called = cache.submit(PROBLEM), list[PendingKernel[CompiledKernel]]()
    pending.on_done(called.append)
    pending.on_done(lambda _: 1 // 0)
    pending.on_done(called.append)
    assert (pending.ready, called, cache.submit(PROBLEM)) == (False, [], pending)
    gate.opened.set()
    assert pending.wait(60)
    until(lambda: len(called) == 2)
    assert called == [pending, pending]
    assert "ZeroDivisionError" in caplog.text
    assert pending.kernel is not None
    assert (pending.kernel.key, pending.kernel.tier) == (cache.select(PROBLEM).key, "compiled")
    again = cache.submit(PROBLEM)
    again.on_done(called.append)
    assert (again.ready, called[2:], gate.compiles) == (True, [again], 1)
    totals = cache.stats().totals
    assert (totals.misses, totals.hits) == (1 + 1, {"memory": 1})


def test_a_kernel_on_disk_is_ready_when_it_is_submitted(cache: Cache, gate: Gate) -> None:
    pending = cache.submit(DYNAMIC)
    assert pending.kernel is not None
    assert (pending.kernel.tier, pending.key, gate.compiles) == ("disk", pending.kernel.key, 0)
    with pytest.raises(UsageError, match="with a GemmProblem"):
        cache.submit("16x16x16")  # type: ignore[arg-type]


def in_own_loop(serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Its result. In a thread, because a browser of other tests may have left its loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(serve())).result(600)


def test_a_coroutine_awaits_a_kernel_while_the_loop_goes_on(cache: Cache, gate: Gate) -> None:
    async def serve() -> tuple[CompiledKernel, CompiledKernel]:
        impatient = asyncio.ensure_future(cache.submit(PROBLEM))
        patient = asyncio.ensure_future(cache.submit(PROBLEM))
        await asyncio.sleep(0)
        impatient.cancel()
        asyncio.get_running_loop().call_soon(gate.opened.set)
        kernel = await patient
        assert impatient.cancelled()
        return kernel, await cache.submit(PROBLEM)

    first, second = in_own_loop(serve)
    assert (first.tier, second.tier, second.key, gate.compiles) == ("compiled", "memory", first.key, 1)


def test_a_coroutine_gets_the_error_of_the_compile_and_of_a_cache_that_is_closed(cache: Cache, gate: Gate) -> None:
    async def serve() -> None:
        gate.error = CompileError("refused", log="", source="", flags=())
        gate.opened.set()
        with pytest.raises(CompileError, match="refused"):
            await cache.submit(PROBLEM)
        with file_lock(cache.layout.slot_lock(0), 1):
            pending = cache.submit(OTHER)
            cache.close()
            with pytest.raises(NotCached, match="the cache was closed"):
                await pending

    in_own_loop(serve)


def test_without_compiling_what_is_submitted_fails_with_the_reason(cache: Cache) -> None:
    with open_cache(cache.layout.root, enable_jit=False) as fixed:
        pending = fixed.submit(PROBLEM)
        assert not pending.wait(60)
        assert "compiling is switched off" in str(pending.failure)


def test_the_old_name_of_the_wait_works_and_warns(cache: Cache, gate: Gate) -> None:
    with pytest.warns(DeprecationWarning, match="wait is wait_ms now") as warned:
        assert cache.get_or_compile(PROBLEM, wait=0).better is not None
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="wait_ms"), pytest.raises(UsageError, match="wait_ms is -1"):
        GemmOperator(wait=-1)


@pytest.mark.parametrize("wait", [-1, True, "5", float("nan"), float("inf"), 1e12])
def test_what_is_no_time_to_wait_is_refused(cache: Cache, wait: Any) -> None:
    with pytest.raises(UsageError, match="milliseconds"):
        cache.get_or_compile(PROBLEM, wait_ms=wait)


@pytest.mark.parametrize("asked", list(Specialisation))
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_stand_ins_are_other_kernels_that_are_right_for_the_problem(
    cache: Cache, asked: Specialisation, layout: Any
) -> None:
    """Right: to ask for the kernel's own config and specialisation, with these sizes, makes its key."""
    problem = replace(PROBLEM, m=100, specialisation=asked, layout=layout)
    own = cache.select(problem)
    offers = list(stand_ins(cache.selector, (problem, None, None, None)))
    assert len({own.key, *(offer.key for offer in offers)}) == 1 + len(offers)
    kinds = [offer.problem.specialisation for offer in offers]
    assert {*kinds, asked} == set(Specialisation)
    order = [Specialisation.EXACT, Specialisation.BUCKETED, Specialisation.NK, Specialisation.DYNAMIC]
    assert [order.index(kind) for kind in kinds] == sorted(order.index(kind) for kind in kinds)
    for offer in offers:
        assert (offer.problem.m, offer.problem.n, offer.problem.k) == (100, 192, 128)
        again = cache.select(replace(problem, specialisation=offer.problem.specialisation), config=offer.config)
        assert again.key == offer.key


def test_the_kernel_of_another_m_comes_before_the_dynamic_one(cache: Cache, gate: Gate) -> None:
    gate.opened.set()
    wide = replace(PROBLEM, m=40, n=4096, k=4096)
    configs = {m: cache.select(replace(wide, m=m)).config for m in (8, 64, 512)}
    assert len(set(configs.values())) > 1
    other = next(m for m in (512, 64, 8) if configs[m] != cache.select(wide).config)
    made = cache.get_or_compile(replace(wide, m=other))
    gate.opened.clear()
    kernel = cache.get_or_compile(wide, wait_ms=0)
    assert (kernel.key, kernel.problem.m) == (made.key, 40)
    assert kernel.launch.grid != made.launch.grid
