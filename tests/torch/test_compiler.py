"""What PyTorch's own machinery makes of the operators: its checks, compiler, export, autocast, ``torch.func``."""

from __future__ import annotations

from shutil import which
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.autograd import forward_ad
from torch.func import grad, jacrev, vmap
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from cache_engine.torch import grouped_mm, linear, mm, swap
from tests.torch.test_launches import FLOATS, some

OPS = torch.ops.gemm_cache
# PyTorch's check that an operator writes none of its operands compares them, which it cannot do for fp8.
WITHOUT_SCHEMA = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
ACTIVATIONS = {"none": lambda y: y, "relu": torch.relu, "gelu": F.gelu}


@pytest.fixture(params=["CPU", "GPU"])
def place(request: pytest.FixtureRequest) -> str:
    """PyTorch's own products, and our launches."""
    if request.param == "GPU":
        request.getfixturevalue("finder")
    return str(request.param)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()


def of_linear(dtype: Any = torch.float64, *, grads: bool = True) -> list[Any]:
    """x, a weight and a bias."""
    made = [torch.randn(3, 2, 8), torch.randn(6, 8), torch.randn(6)]
    return [one.to(dtype).requires_grad_(grads) for one in made]


def faults(operator: Any, given: tuple[Any, ...], **asked: Any) -> dict[str, str]:
    """Tests of PyTorch's own that an operator fails, and how."""
    results = opcheck(operator.default, given, raise_exception=False, **asked)
    assert results
    return {test: str(result) for test, result in results.items() if result != "SUCCESS"}


@pytest.mark.parametrize(("dtype", "activation"), [*zip(FLOATS, ("relu", "none", "gelu", "relu"), strict=True)])
def test_pytorchs_own_check_of_linear_and_mm(place: str, dtype: Any, activation: str) -> None:
    x, weight, bias = of_linear(dtype)
    assert faults(OPS.linear, (x, weight, bias, activation)) == {}
    assert faults(OPS.linear, (x.detach(), weight.detach())) == {}
    assert faults(OPS.mm, (x.detach()[0].requires_grad_(), weight.detach().t().requires_grad_())) == {}
    assert faults(OPS.mm, (x.detach(), torch.randn(3, 8, 4).to(dtype))) == {}


def test_pytorchs_own_check_of_the_others(place: str) -> None:
    counts = torch.tensor([2, 0, 3], dtype=torch.int32)
    for shape in ((5, 8), (3, 4, 8)):
        a, b, bias = torch.randn(*shape), torch.randn(3, 8, 6), torch.randn(3, 6)
        assert faults(OPS.grouped_mm, (a.requires_grad_(), b.requires_grad_(), counts, bias, "relu")) == {}
    assert faults(OPS.grouped_weight_gradient, (torch.randn(5, 8), torch.randn(5, 6), counts)) == {}
    a, b = torch.randn(8, 256).to(torch.float8_e4m3fn), torch.randn(130, 256).to(torch.float8_e4m3fn).t()
    assert faults(OPS.scaled_mm, (a, b, torch.rand(8, 2), torch.rand(2, 2)), test_utils=WITHOUT_SCHEMA) == {}
    assert faults(OPS.mm, (a, b), test_utils=WITHOUT_SCHEMA) == {}
    whole = torch.randint(-9, 9, (4, 8)).to(torch.int8)
    assert faults(OPS.mm, (whole, whole.t())) == {}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_and_theirs_are_the_differences(place: str, activation: str) -> None:
    given = of_linear()
    assert torch.autograd.gradcheck(lambda *a: OPS.linear(*a, activation), given)
    assert torch.autograd.gradgradcheck(lambda *a: OPS.linear(*a, activation), given)
    assert torch.autograd.gradcheck(lambda x, w, b: linear(x, w, b, activation), given)
    a, b = given[0][0], given[1].t()
    assert torch.autograd.gradcheck(mm, (a, b))
    counts, experts = torch.tensor([1, 0, 1], dtype=torch.int32), torch.randn(3, 8, 4, dtype=torch.float64)
    further = (experts.requires_grad_(), torch.randn(3, 4, dtype=torch.float64, requires_grad=True))
    for rows in (a, given[0].detach().requires_grad_()):
        assert torch.autograd.gradcheck(lambda a, b, bias: grouped_mm(a, b, counts, bias, activation), (rows, *further))


def test_without_a_gradient_none_is_computed(finder: Any) -> None:
    x, weight, _ = of_linear()
    OPS.linear(x.detach(), weight).backward(torch.randn(3, 2, 6, dtype=torch.float64))
    assert [str(problem.layout) for problem in finder.asked] == ["nt", "tn"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])  # the last needs a C++ compiler
def test_the_compiler_breaks_no_graph_and_guards_no_m(place: str, backend: str) -> None:
    weight, bias = some(6, 8, dtype=torch.float32), some(6, dtype=torch.float32)
    graphs: list[Any] = []
    if backend == "inductor" and (place == "CPU" or which("c++") is None):
        pytest.skip("one place is enough for the C++ compiler, which must be here")

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    def block(x: Any, weight: Any, bias: Any) -> Any:
        y = linear(torch.relu(x), weight, bias, "gelu")
        return y + mm(x, weight.t())

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counting)
    for m in (4, 7, 33):
        given = [some(m, 8, dtype=torch.float32, seed=m), weight.clone(), bias.clone()]
        again = [one.clone().requires_grad_() for one in given]
        for one in given:
            one.requires_grad_()
        compiled(*given).sum().backward()
        block(*again).sum().backward()
        for one, right in zip(given, again, strict=True):
            torch.testing.assert_close(one.grad, right.grad, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1
    names = [str(node.target) for node in graphs[0].graph.nodes]
    assert [name for name in names if name.startswith("gemm_cache")] == ["gemm_cache.linear", "gemm_cache.mm"]


class _Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return linear(x, self.inner.weight, self.inner.bias, "gelu")


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_has_the_operator_for_every_m(place: str, strict: bool) -> None:
    block, x = _Block().eval(), torch.randn(4, 8)
    m = torch.export.Dim("m", min=2, max=4096)
    exported = torch.export.export(block, (x,), dynamic_shapes=({0: m},), strict=strict)
    assert "gemm_cache.linear.default" in [str(node.target) for node in exported.graph.nodes]
    again = torch.randn(11, 8)
    torch.testing.assert_close(exported.module()(again), block(again))


@pytest.mark.parametrize("function", [linear, OPS.linear])
def test_autocast_casts_as_pytorchs_linear(place: str, function: Any) -> None:
    x, weight, bias = of_linear(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, right = function(x, weight, bias), F.linear(x, weight, bias)
        assert OPS.mm(x[0], weight.t()).dtype is torch.bfloat16
        assert function(x.double().detach(), weight.double().detach()).dtype is torch.float64
    assert y.dtype is right.dtype is torch.bfloat16
    torch.testing.assert_close(y, right, rtol=2**-6, atol=1e-2)
    y.float().sum().backward()
    assert weight.grad.dtype is torch.float32


@pytest.mark.parametrize(("function", "compiles"), [(linear, False), (OPS.linear, False), (linear, True)])
def test_transformations_of_functions(place: str, function: Any, compiles: bool) -> None:
    x, weight, bias = of_linear(grads=False)
    weights, biases = torch.randn(4, 6, 8).double(), torch.randn(4, 6).double()

    def right(*given: Any) -> Any:
        return F.gelu(F.linear(*given))

    def ours(*given: Any) -> Any:
        return function(*given, "gelu")

    made = []
    for one in (ours, right):
        of_all = [
            grad(lambda w, one=one: one(x, w, bias).sum()),
            lambda w, one=one: vmap(grad(lambda w, x: one(x, w, bias).sum()), (None, 0))(w, x),
            lambda _, one=one: vmap(lambda w, b: one(x, w, b))(weights, biases),
            jacrev(lambda w, one=one: one(x, w, bias)),
        ]
        of_all = (
            of_all if not compiles else [torch.compile(each, fullgraph=True, backend="aot_eager") for each in of_all]
        )
        made.append([each(weight) for each in of_all])
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("function", [linear, OPS.linear, lambda x, weight: mm(x, weight.t())])
def test_tangents_of_forward_mode_are_not_lost(place: str, function: Any) -> None:
    x, weight, _ = of_linear(grads=False)
    tangent = torch.randn(2, 8).double()
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(function(forward_ad.make_dual(x[0], tangent), weight)).tangent
    torch.testing.assert_close(found, tangent @ weight.t())


def test_torch_fx_traces_a_swapped_model(place: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU())
    swap(model)
    traced = torch.fx.symbolic_trace(model)
    assert OPS.linear in [node.target for node in traced.graph.nodes]
    x = torch.randn(3, 8)
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.filterwarnings("ignore")
def test_flops_are_counted_as_those_of_pytorchs_own(place: str) -> None:
    def counted(function: Any) -> int:
        given = of_linear(torch.float32)
        with FlopCounterMode(display=False) as counter:
            function(*given).sum().backward()
        return int(counter.get_total_flops())

    assert counted(linear) == counted(F.linear) == 3 * 2 * 6 * 6 * 8

    a, b, counts = torch.ones(5, 8, requires_grad=True), torch.ones(2, 8, 6, requires_grad=True), torch.tensor([2, 3])
    with FlopCounterMode(display=False) as counter:
        grouped_mm(a, b, counts.int()).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 5 * 6 * 8
