"""Calls of the operators, with launches that NumPy computes: memory, streams, waiting, graphs, threads, refusals."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.cache.cache import open_cache
from cache_engine.errors import UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.launch import LoadedKernel
from cache_engine.torch import external_matmul, grouped_mm, launches, linear, mm, scaled_mm
from tests.device.numpy_gpu import Finder
from tests.torch.test_launches import assert_close, some


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (some(6, 40, dtype=torch.float32)[:, ::2], some(9, 20, dtype=torch.float32, seed=1)),
        (some(20, 6, dtype=torch.float32).t(), some(20, 9, dtype=torch.float32, seed=1).t()),
        (some(1, 20, dtype=torch.float32).expand(6, 20), some(9, 20, dtype=torch.float32, seed=1)),
        (some(121, dtype=torch.float32)[1:].view(6, 20), some(181, dtype=torch.float32, seed=1)[1:].view(9, 20)),
        (some(4, 6, 20, dtype=torch.float32).transpose(0, 1), some(9, 60, dtype=torch.float32, seed=1)[:, 20:40]),
        (some(20, dtype=torch.float32), some(9, 20, dtype=torch.float32, seed=1)),
        (some(2, 3, 4, 20, dtype=torch.float32), some(1, 20, dtype=torch.float32, seed=1)),
    ],
    ids=["every second", "transposed", "expanded", "not at 16 bytes", "gaps in both", "a vector", "four axes"],
)
def test_tensors_that_lie_otherwise(finder: Finder, x: Any, weight: Any) -> None:
    bias = some(len(weight) + 1, dtype=torch.float32, seed=2)[1:]
    found = linear(x, weight, bias, "relu")
    exact = F.linear(x.double(), weight.double(), bias.double()).relu()
    assert found.shape == exact.shape
    assert_close(found, exact)
    assert len(finder.asked) == 1


@pytest.mark.parametrize("bias", [some(10, dtype=torch.float32)[::2], some(1, dtype=torch.float32).expand(5)])
def test_a_bias_that_has_gaps_is_copied(finder: Finder, bias: Any) -> None:
    x, weight = some(3, 20, dtype=torch.float32), some(5, 20, dtype=torch.float32, seed=1)
    assert_close(linear(x, weight, bias), F.linear(x.double(), weight.double(), bias.double()))
    assert len(finder.asked) == 1


@pytest.mark.parametrize("kind", ["sparse", "jagged"])
@pytest.mark.filterwarnings("ignore:.*beta state")
def test_what_has_no_strides_is_pytorchs_own(finder: Finder, kind: str) -> None:
    given, weight = [torch.ones(2, 8), torch.ones(3, 8)], some(5, 8, dtype=torch.float32)
    x = given[0].to_sparse() if kind == "sparse" else torch.nested.nested_tensor(given, layout=torch.jagged)
    found, own = linear(x, weight, None, "relu"), F.linear(x, weight).relu()
    assert type(found) is type(own)
    assert torch.equal(*(one if kind == "sparse" else one.values() for one in (found, own)))
    assert not finder.asked


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 8), (3, 0, 8), (3, 4, 0)])
def test_an_axis_without_an_element_is_pytorchs_own(finder: Finder, m: int, n: int, k: int) -> None:
    x, weight, bias = torch.ones(m, k), torch.ones(n, k), torch.arange(n).float()
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
    given = [one.clone().requires_grad_() for one in (x, weight, bias)]
    torch.ops.gemm_cache.linear(*given, "relu").sum().backward()
    assert [one.grad.shape for one in given] == [one.shape for one in (x, weight, bias)]
    assert not [problem for problem in finder.asked if 0 in (problem.m, problem.n, problem.k)]


def test_a_type_that_no_kernel_of_the_target_has_is_pytorchs_own(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cache_engine.errors import InvalidProblem

    def refuse(problem: Any, **_: Any) -> Any:
        raise InvalidProblem("not on this target")

    monkeypatch.setattr(finder, "get_to_launch", refuse)
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)
    for _ in range(2):
        assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_a_repeated_call_looks_nothing_up(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)
    linear(x, weight)
    monkeypatch.setattr(launches, "plan_of", None)
    monkeypatch.setattr(multiply, "_load", None)
    assert torch.equal(linear(x.clone(), weight), F.linear(x, weight))
    assert len(finder.asked) == 1


def test_fp32_is_tf32_where_the_program_told_pytorch(finder: Finder) -> None:
    x, weight = some(8, 8, dtype=torch.float32), some(8, 8, dtype=torch.float32)
    linear(x, weight)
    torch.set_float32_matmul_precision("high")
    try:
        linear(x, weight)
        mm(x.t(), weight)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [problem.dtype for problem in finder.asked] == ["fp32", "tf32", "tf32"]


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="PyTorch 2.9 brought this setting")
@pytest.mark.parametrize(("given", "dtype"), [("tf32", "tf32"), ("ieee", "fp32")])
def test_the_newer_setting_of_fp32_is_read_too(finder: Finder, given: str, dtype: str) -> None:
    """PyTorch raises an error if the older is read after it."""
    x, weight = some(8, 8, dtype=torch.float32), some(8, 8, dtype=torch.float32)
    torch.backends.cuda.matmul.fp32_precision = given
    try:
        linear(x, weight)
        linear(x.requires_grad_(), weight).sum().backward()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert torch.get_float32_matmul_precision() == "highest"
    assert {problem.dtype for problem in finder.asked} == {dtype}


# ---- Waiting and graphs ----


def test_pytorch_serves_while_a_kernel_is_compiled_which_then_takes_its_place_and_all_is_counted(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[Any] = []
    with open_cache(tmp_path / "store", durability="fast") as cache:
        monkeypatch.setattr(launches.serving, "cache", cache)
        monkeypatch.setattr(launches.serving, "wait_ms", 0.0)
        go, compiling = threading.Event(), cache._serving.get_or_compile

        def slowly(*given: Any, **named: Any) -> Any:
            assert go.wait(60)
            return compiling(*given, **named)

        monkeypatch.setattr(cache._serving, "get_or_compile", slowly)
        x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)

        def multiplied(x: Any, weight: Any) -> Any:
            own.append(x)
            return F.linear(x, weight)

        by_torch = launches.Given(x, weight, partial(multiplied, x, weight), lambda *_: None, transposes_b=True)
        for _ in range(3):
            assert torch.equal(launches.product(by_torch), F.linear(x, weight))
        assert len(own) == 3
        gpu.is_captured = True
        with pytest.raises(UsageError, match=r"a CUDA graph is being captured.*GemmProblem\(3, 5, 8.*warm\(model, m=…"):
            launches.product(by_torch)
        gpu.is_captured = False
        (ready,) = multiply.light_kernels._kept[0].values()
        go.set()
        better: Any = ready.better
        assert better.wait(120)
        for _ in range(2):
            assert torch.equal(launches.product(by_torch), F.linear(x, weight))
        assert len(own) == 3
        gpu.is_captured = True
        assert torch.equal(launches.product(by_torch), F.linear(x, weight))
        cache.journal.flush()
        counted = cache.demand().total.launches
    assert counted == pytest.approx(6, rel=0.01)  # what was counted a while ago counts less


def test_while_a_graph_is_captured_nothing_is_loaded_or_looked_up(finder: Finder, gpu: Any) -> None:
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)
    gpu.is_captured = True
    with pytest.raises(UsageError, match=r"is not loaded; call cache_engine\.torch\.warm"):
        linear(x, weight)
    assert not finder.asked
    gpu.is_captured = False
    linear(x, weight)
    gpu.is_captured, gpu.handle = True, 9  # graphs are captured on a stream of their own
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert len(finder.asked) == 1


# ---- Streams and threads ----


def test_launches_go_to_pytorchs_current_stream(finder: Finder, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    seen: list[int] = []
    launch = LoadedKernel.__call__

    def noted(self: Any, operands: Any) -> None:
        seen.append(cupy.cuda.get_current_stream().ptr)
        launch(self, operands)

    monkeypatch.setattr(LoadedKernel, "__call__", noted)
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16).requires_grad_()
    for gpu.handle in (0, 7, 0, 12):
        linear(x, weight).sum().backward()
    assert seen == [0, 0, 7, 7, 0, 0, 12, 12]
    assert cupy.cuda.get_current_stream().ptr == 0


def test_threads_share_kernels(finder: Finder) -> None:
    """Also autograd's own: backward runs in the thread that calls it on the CPU, here in eight."""
    weight = some(5, 8, dtype=torch.float64)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for m in (3, 4, 5):
                x = some(m, 8, dtype=torch.float64, seed=seed).requires_grad_()
                torch.ops.gemm_cache.linear(x, weight, None, "relu").sum().backward()
                again = x.detach().requires_grad_()
                F.linear(again, weight).relu().sum().backward()
                assert torch.equal(x.grad, again.grad)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class _Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return linear(torch.full((8,), float(index)), self.weight, None, "relu")


def test_forked_workers_of_a_loader_multiply() -> None:
    weight = some(5, 8, dtype=torch.float32)
    linear(torch.ones(2, 8), weight)
    loader = torch.utils.data.DataLoader(_Rows(weight), num_workers=2, multiprocessing_context="fork", batch_size=1)
    found = torch.cat(list(loader))
    assert torch.equal(found, F.linear(torch.arange(4.0)[:, None].expand(4, 8), weight).relu())


# ---- Refusals ----

X, W = torch.ones(3, 8), torch.ones(5, 8)
FP8, COLUMN = torch.ones(4, 128).to(torch.float8_e4m3fn), torch.ones(16, 128).to(torch.float8_e4m3fn).t()
ONES = torch.ones(4, 1), torch.ones(16, 1)
COUNTS = torch.tensor([1, 2], dtype=torch.int32)
REFUSED = {
    "weight has the dtype torch.float64 and x torch.float32": lambda: linear(X, W.double()),
    "x has the dtype torch.int32; use one of: torch.float16": lambda: torch.ops.gemm_cache.linear(X.int(), W.int()),
    "weight is on meta and x on cpu": lambda: torch.ops.gemm_cache.linear(X, W.to("meta")),
    "x is 3 × 8 and weight 8 × 5": lambda: linear(X, W.t()),
    "bias is 4 of torch.float32; it must be 5 of torch.float32": lambda: linear(X, W, torch.ones(4)),
    "unknown activation 'silu'; use one of: none, relu, gelu": lambda: linear(X, W, None, "silu"),
    "a is 3 × 8 and b 5 × 8": lambda: mm(X, W),
    "out_dtype is torch.float16; of torch.int8": lambda: mm(X.char(), W.t().char(), out_dtype=torch.float16),
    r"b has strides of \(16, 1\); it must lie column by column": lambda: scaled_mm(FP8, COLUMN.contiguous(), *ONES),
    r"a_scales has strides of \(1, 4\)": lambda: scaled_mm(
        torch.cat([FP8] * 2, 1), torch.cat([COLUMN.t()] * 2, 1).t(), torch.ones(2, 4).t(), torch.ones(16, 2)
    ),
    "b_scales is 3 × 1; it must be 16 or 1 × 1": lambda: scaled_mm(FP8, COLUMN, ONES[0], torch.ones(3, 1)),
    "a_scales has the dtype torch.float16": lambda: scaled_mm(FP8, COLUMN, ONES[0].half(), ONES[1]),
    "counts is 2 of torch.int64; it must be 2 of int32": lambda: grouped_mm(X, torch.ones(2, 8, 4), COUNTS.long()),
    r"counts has strides of \(2,\)": lambda: grouped_mm(X, torch.ones(2, 8, 4), torch.zeros(4, dtype=torch.int32)[::2]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit_is_named(why: str) -> None:
    with pytest.raises(UsageError, match=why):
        REFUSED[why]()


def test_a_gradient_of_fp8_is_refused() -> None:
    scales = ONES[0].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="scaled_mm has no gradient"):
        scaled_mm(FP8, COLUMN, scales, ONES[1]).sum().backward()


def test_fake_tensors_never_reach_a_launch(finder: Finder) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = linear(torch.empty(3, 8, device="cuda"), torch.empty(5, 8, device="cuda"))
        assert (tuple(y.shape), y.device.type) == ((3, 5), "cuda")
    assert linear(X.to("meta"), W.to("meta")).shape == (3, 5)
    assert not finder.asked


def test_inductors_external_product_goes_into_its_tensor_and_waits(
    finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches.serving, "wait_ms", 0.0)  # Finder could not serve meanwhile
    a, b = some(3, 8, dtype=torch.bfloat16), some(8, 5, dtype=torch.bfloat16)
    for out in (torch.empty(3, 5, dtype=torch.bfloat16), torch.empty(5, 3, dtype=torch.bfloat16).t()):
        external_matmul(a, b, out)
        assert torch.equal(out, a @ b)
    assert len(finder.asked) == 1


# ---- Imports ----


@pytest.mark.parametrize("first", ["import torch", "from cache_engine import GemmProblem, open_cache"])
def test_pytorch_may_be_imported_before_us_and_after(first: str, tmp_path: Path) -> None:
    program = (
        f"{first}\nimport sys\nfrom cache_engine import GemmProblem, open_cache\n"
        f"with open_cache({str(tmp_path)!r}, durability='fast') as cache:\n"
        "    cache.get_or_compile(GemmProblem(16, 16, 16), arch='sm_90')\n"
        "    import torch, cache_engine.torch as ours\n"
        "    assert ours.linear(torch.ones(2, 3), torch.ones(4, 3)).sum() == 24\n"
        "    cache.get_or_compile(GemmProblem(32, 16, 16), arch='sm_80')\n"
        "names = {line.split('/')[-1].strip() for line in open('/proc/self/maps') if 'libnvrtc.' in line}\n"
        "print(len(names), 'cupy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1 False\n", done.stderr


def test_the_solution_for_flashinfer_bench_launches_and_never_calls_what_that_replaces(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cache_engine.insight import packs

    there: dict[str, Any] = {}
    exec(packs._SOURCE, there)
    a, b = torch.randn(5, 32).bfloat16(), torch.randn(24, 32).bfloat16()
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *_: pytest.fail("it would call the solution again"))
    torch.testing.assert_close(there["run"](a, b), a @ b.T)
    assert [(one.layout, one.dtype) for one in machine] == [("nt", "bf16")]  # B is read where it lies
    monkeypatch.setattr(launches.gpu, "owns", lambda tensor: False)
    torch.testing.assert_close(there["run"](a, b), a @ b.T)


# ---- Loading before graphs ----


class _Later:
    """A kernel that is being proved; ready once somebody has waited for it."""

    def __init__(self, ends_well: bool) -> None:
        self.ready, self._ends_well, self.waits = False, ends_well, 0

    def wait(self) -> bool:
        self.waits += 1
        self.ready = self._ends_well
        return self.ready


@pytest.mark.parametrize("ends_well", [True, False])
def test_loading_waits_for_the_compile_and_for_the_proof_of_a_faster_kernel(
    finder: Finder, gpu: Any, monkeypatch: pytest.MonkeyPatch, ends_well: bool
) -> None:
    """So a graph has the kernel that serves later; and if the proof fails, the one that serves until then."""
    later, waited, find = _Later(ends_well), list[Any](), launches._find

    def found(most_ms: float | None, problem: Any) -> Any:
        waited.append(most_ms)
        return dataclasses.replace(find(most_ms, problem), better=None if later.ready else later)

    monkeypatch.setattr(launches, "_find", found)
    monkeypatch.setattr(launches.serving, "wait_ms", 0.0)
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)
    plan = launches.plan_of(
        "none", None, True, False, (x.dtype, x.shape, x.stride()), (x.dtype, weight.shape, weight.stride()),
        None, None, None, None,
    )  # fmt: skip
    assert plan is not None
    launches.load(plan[0].problem)
    assert (later.waits, waited) == (1, [None, None] if ends_well else [None])
    gpu.is_captured = True
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert len(waited) == (2 if ends_well else 1)


def test_a_kernel_in_a_graph_stays_loaded_when_others_take_its_place(
    finder: Finder, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "_in_graphs", set())
    x, weight = some(3, 8, dtype=torch.bfloat16), some(5, 8, dtype=torch.bfloat16)
    linear(x, weight)
    assert not launches._in_graphs
    (ready,) = multiply.light_kernels._kept[0].values()
    kernel = weakref.ref(ready.kernel)
    gpu.is_captured = True
    for _ in range(2):
        linear(x, weight)
    del ready
    multiply.unload()
    gc.collect()
    assert {kernel()} == launches._in_graphs
    launches._in_graphs.clear()
    gc.collect()
    assert kernel() is None
