"""The operators' launches: tensors stand for a GPU's memory, and the PTX machine executes NVRTC's code."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.gpu import multiply
from cache_engine.gpu.fp8 import quantise
from cache_engine.model.gemm import GemmProblem, ScalesLike
from cache_engine.torch import grouped_mm, launches, linear, mm, products, scaled_mm

# Of results: a rounding of the type, and of sums of fp32 for gelu.
CLOSE = {
    torch.float16: (2**-10, 1e-4), torch.bfloat16: (2**-7, 1e-3), torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-9, 1e-9),
}  # fmt: skip
FLOATS = tuple(CLOSE)


def assert_close(found: Any, exact: Any) -> None:
    """Compares with a result in float64."""
    relative, absolute = CLOSE[found.dtype]
    torch.testing.assert_close(found.double(), exact, rtol=relative, atol=absolute)


def some(*shape: int, dtype: Any, seed: int = 0) -> Any:
    """Values in quarters: sums of products are exact in every type but for the last rounding."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-4, 5, shape, generator=generator) / 4).to(dtype)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear_of_each_type_and_epilogue(machine: list[GemmProblem], dtype: Any, activation: str) -> None:
    x, weight, bias = some(3, 5, 24, dtype=dtype), some(17, 24, dtype=dtype, seed=1), some(17, dtype=dtype, seed=2)
    with torch.no_grad():
        y = linear(x, weight, bias, activation)
    exact = F.linear(x.double(), weight.double(), bias.double())
    exact = {"none": exact, "relu": exact.relu(), "gelu": F.gelu(exact)}[activation]
    assert (y.dtype, y.shape, y.is_contiguous()) == (dtype, (3, 5, 17), True)
    assert_close(y, exact)
    (problem,) = machine
    epilogue = {"none": "bias", "relu": "bias+relu", "gelu": "bias+gelu"}[activation]
    assert (problem.m, problem.n, problem.k, str(problem.layout), str(problem.epilogue)) == (15, 17, 24, "nt", epilogue)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mm_of_each_type_and_layout_reads_operands_where_they_lie(
    machine: list[GemmProblem], dtype: Any, layout: str
) -> None:
    a = some(7, 11, dtype=dtype) if layout[0] == "n" else some(11, 7, dtype=dtype).t()
    b = some(11, 13, dtype=dtype, seed=1) if layout[1] == "n" else some(13, 11, dtype=dtype, seed=1).t()
    assert_close(mm(a, b), a.double() @ b.double())
    assert [str(problem.layout) for problem in machine] == [layout]


def test_mm_of_batches_and_of_types_that_pytorch_does_not_multiply(machine: list[GemmProblem]) -> None:
    a, b = some(3, 6, 10, dtype=torch.bfloat16), some(3, 10, 9, dtype=torch.bfloat16, seed=1)
    assert_close(mm(a, b), a.double() @ b.double())
    whole, other = torch.randint(-128, 128, (9, 20)).to(torch.int8), torch.randint(-128, 128, (20, 7)).to(torch.int8)
    found = mm(whole, other)
    assert found.dtype is torch.int32
    assert torch.equal(found, whole.int() @ other.int())
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        a, b = some(8, 32, dtype=dtype), some(16, 32, dtype=dtype, seed=1).t()
        assert_close(mm(a, b), a.double() @ b.double())
        assert_close(mm(a, b, out_dtype=torch.float32), a.double() @ b.double())
    assert [problem.output for problem in machine] == ["bf16", "int32", "bf16", "fp32", "bf16", "fp32"]


@pytest.mark.parametrize("scales", ["1x128,1x128", "1x128,128x128", "1x128,1x128,e8m0", "1x128,128x128,e8m0"])
def test_scaled_mm_of_each_kind_of_scales(machine: list[GemmProblem], scales: ScalesLike) -> None:
    values, weight = torch.randn(5, 256), torch.randn(130, 256)
    (a, a_scales), (b, b_scales) = quantise(values, scales), quantise(weight, scales, of_b=True)
    a, b = (torch.from_numpy(one).view(torch.float8_e4m3fn) for one in (a, b))
    a_scales, b_scales = torch.from_numpy(a_scales), torch.from_numpy(b_scales)
    bias = some(130, dtype=torch.bfloat16)
    found = scaled_mm(a, b.t(), a_scales, b_scales, bias, activation="relu")
    near = (values.double() @ weight.double().t() + bias.double()).relu()
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), near, rtol=0.1, atol=2.5)
    (problem,) = machine
    assert str(problem.scales) == scales
    same = products.scaled_mm(a, b.t(), a_scales, b_scales, bias, out_dtype=torch.float32, activation="relu")
    torch.testing.assert_close(found.float(), same, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("shape", [(20, 24), (3, 9, 24)], ids=["groups share the rows", "each has a matrix"])
def test_grouped_mm_and_rows_of_no_group(machine: list[GemmProblem], shape: tuple[int, ...]) -> None:
    a, b = some(*shape, dtype=torch.bfloat16), some(3, 16, 24, dtype=torch.bfloat16, seed=1).mT
    counts, bias = torch.tensor([7, 0, 9], dtype=torch.int32), some(3, 16, dtype=torch.bfloat16, seed=2)
    found = grouped_mm(a, b, counts, bias, "relu")
    rows = [(slice(0, 7), 0), (slice(7, 16), 2)] if len(shape) == 2 else [((0, slice(0, 7)), 0), ((2, slice(0, 9)), 2)]
    for where, group in rows:
        exact = (a[where].double() @ b[group].double() + bias[group].double()).relu()
        assert_close(found[where], exact)
    if len(shape) == 3:
        assert not found[0, 7:].any()
        assert not found[1].any()
    assert [str(problem.mode) for problem in machine] == ["grouped" if len(shape) == 2 else "masked"]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_are_products_of_ours_that_copy_nothing(
    machine: list[GemmProblem], dtype: Any, activation: str
) -> None:
    x, weight, bias = some(2, 3, 8, dtype=dtype), some(5, 8, dtype=dtype, seed=1), some(5, dtype=dtype, seed=2)
    given = [one.requires_grad_() for one in (x, weight, bias)]
    exact = [one.detach().double().requires_grad_() for one in given]
    grad = some(2, 3, 5, dtype=dtype, seed=3)
    torch.ops.gemm_cache.linear(*given, activation).backward(grad)
    expected = F.linear(*exact)
    {"none": lambda y: y, "relu": torch.relu, "gelu": F.gelu}[activation](expected).backward(grad.double())
    for one, right in zip(given, exact, strict=True):
        relative, absolute = CLOSE[dtype]
        torch.testing.assert_close(one.grad.double(), right.grad, rtol=4 * relative, atol=32 * absolute)
    layouts = [str(problem.layout) for problem in machine]
    assert layouts == [*(["nt", "nt"] if activation == "gelu" else ["nt"]), "nn", "tn"]


def test_slices_of_k_have_zeroed_memory_of_pytorch_in_every_launch(
    machine: list[GemmProblem], gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one stream the same; of a graph its own, as its replays may overlap with other launches."""
    gc.collect()
    before = launches._kept.size_bytes
    a, b = some(16, 4096, dtype=torch.bfloat16), some(4096, 16, dtype=torch.bfloat16, seed=1)
    exact, given, workspace_of = a.double() @ b.double(), list[Any](), launches._Loaded._workspace

    def noted(*asked: Any, **named: Any) -> Any:
        given.append(workspace_of(*asked, **named))
        return given[-1]

    monkeypatch.setattr(launches._Loaded, "_workspace", noted)
    monkeypatch.setattr(launches, "_in_graphs", set())
    for gpu.handle, gpu.is_captured in ((0, False), (0, False), (7, False), (7, True), (7, True)):
        assert_close(mm(a, b), exact)
    (ready,) = multiply.light_kernels._kept[0].values()
    loaded: Any = ready.kernel
    assert [stream for stream, _ in loaded._workspaces] == [0, 7]
    assert len(machine) == 5
    assert given[0] is given[1]
    assert len({id(one) for one in given}) == 4
    size = loaded._kernel.workspace_bytes
    assert launches._kept.size_bytes - before == 2 * size > 0
    monkeypatch.setattr(launches, "_MOST_KEPT_BYTES", before + 2 * size)
    for gpu.handle, gpu.is_captured in ((8, False), (8, False)):
        assert_close(mm(a, b), exact)
    assert len(loaded._workspaces) == 2
    launches._in_graphs.clear()
    del ready, loaded
    multiply.light_kernels.clear()
    gc.collect()
    assert launches._kept.size_bytes == before
