"""Linear layers of a model, swapped for ones with our kernels."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.cache.cache import open_cache
from cache_engine.errors import GpuRequired
from cache_engine.gpu.probe import gpu as first_gpu
from cache_engine.torch import Linear, launches, swap, unswap, warm
from cache_engine.torch.modules import problems_of
from tests.torch.test_launches import some


class Block(torch.nn.Module):  # type: ignore[misc]
    """A decoder layer of Llama's kind, as public models have it: attention, then a gated product."""

    def __init__(self, width: int = 32, heads: int = 4, inner: int = 48) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = torch.nn.Linear(width, inner), torch.nn.Linear(width, inner)
        self.down = torch.nn.Linear(inner, width)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))

    def forward(self, x: Any) -> Any:
        """As such a layer does."""
        y = self.norms[0](x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.o(attended)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.fixture(params=["CPU", "GPU"])
def place(request: pytest.FixtureRequest) -> str:
    """PyTorch's own products, and our launches."""
    if request.param == "GPU":
        request.getfixturevalue("finder")
    return str(request.param)


def model() -> Any:
    """With a block and a head."""
    torch.manual_seed(1)
    return torch.nn.Sequential(Block(), torch.nn.Linear(32, 10)).double()


def test_a_swapped_block_has_the_same_results_and_gradients_and_compiles_without_a_break(place: str) -> None:
    ours, theirs, x = model(), model(), torch.randn(2, 5, 32, dtype=torch.float64)
    assert len(swap(ours).swapped) == 8
    torch._dynamo.reset()
    for one in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        ours.zero_grad()
        theirs.zero_grad()
        given, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = one(given), theirs(right)
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(given.grad, right.grad)
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, other.grad)


def test_an_optimizer_that_knew_the_weights_before_trains_them(place: str) -> None:
    ours, x = model(), torch.randn(2, 5, 32, dtype=torch.float64)
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-2)
    swap(ours)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ours(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]


def test_weights_and_hooks_stay_and_it_is_undone() -> None:
    ours = model()
    called: list[Any] = []
    ours[1].register_forward_hook(lambda *_: called.append(1))
    before, layers = ours.state_dict(keep_vars=True), [*ours.modules()]
    swap(ours)
    after = ours.state_dict(keep_vars=True)
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)
    assert [*ours.modules()] == layers
    assert isinstance(ours[1], Linear)
    ours(torch.randn(1, 2, 32, dtype=torch.float64))
    assert called == [1]
    copy.deepcopy(ours)
    stored = io.BytesIO()
    torch.save(ours.state_dict(), stored)
    assert unswap(ours) == 8
    assert type(ours[1]) is torch.nn.Linear
    assert unswap(ours) == 0
    ours.load_state_dict(torch.load(io.BytesIO(stored.getvalue())))


class _Own(torch.nn.Linear):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def test_what_is_left_is_said_with_the_reason() -> None:
    whole = torch.nn.Linear(8, 4)
    whole.weight = torch.nn.Parameter(torch.ones(4, 8, dtype=torch.int8), requires_grad=False)
    gaps = torch.nn.Linear(8, 4)
    gaps.weight = torch.nn.Parameter(torch.ones(4, 20)[:, ::2][:, :8])
    replaced = torch.nn.Linear(8, 4)
    replaced.forward = lambda x: x
    parts = {
        "whole": whole, "gaps": gaps, "replaced": replaced, "own": _Own(8, 4), "kept": torch.nn.Linear(8, 4),
        "attention": torch.nn.MultiheadAttention(8, 2), "norm": torch.nn.LayerNorm(8), "right": torch.nn.Linear(8, 4),
        "weighted": torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 4)),
    }  # fmt: skip
    done = swap(torch.nn.ModuleDict(parts), only=lambda name, _: name != "kept")
    assert done.swapped == ("right",)
    assert done.left == {
        "whole": "its weight has the dtype torch.int8",
        "gaps": "its weight has strides of (20, 2), and would be copied in each call",
        "replaced": "its forward has been replaced",
        "own": "it is a _Own, which may do more",
        "kept": "only= leaves it out",
        "attention": "its projections are multiplied inside of one function of PyTorch",
        "attention.out_proj": "it is a NonDynamicallyQuantizableLinear, which may do more",
        "weighted": "it is a ParametrizedLinear, which may do more",
    }
    assert str(done).startswith("1 linear layers swapped, 8 left\n  whole: its weight has the dtype")
    assert swap(parts["right"]).left == {"": "it uses our kernels already"}


@pytest.mark.parametrize("only", ["0.*", ["0.[qkvo]", "0.gate", "0.up", "0.down"]])
def test_names_say_what_is_swapped(only: Any) -> None:
    done = swap(model(), only=only)
    assert len(done.swapped) == 7
    assert done.left == {"1": "only= leaves it out"}


def test_an_activation_is_part_of_the_kernel(finder: Any) -> None:
    layer = Linear(8, 6)
    layer.activation = "gelu"
    x = some(3, 8, dtype=torch.float32)
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(y, F.gelu(F.linear(x, layer.weight, layer.bias)))
    assert [str(problem.epilogue) for problem in finder.asked] == ["bias+gelu"]
    assert unswap(layer) == 0


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch knows no other process")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_layer_whose_weight_is_spread_over_processes_is_pytorchs_own(place: str, tmp_path: Path) -> None:
    """Tensor parallelism after swap: no operator but PyTorch's own knows how to divide the work."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        ours, x = torch.nn.Sequential(torch.nn.Linear(8, 6)), torch.randn(3, 8)
        expected = ours(x)
        swap(ours)
        parallelize_module(ours, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
        torch._dynamo.reset()
        for one in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
            for context in (torch.no_grad(), torch.enable_grad()):
                with context:
                    torch.testing.assert_close(one(x), expected)
        one(x).sum().backward()
        assert ours[0].weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


# ---- Warming ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_warming_has_the_problems_that_calls_have(finder: Any, activation: str, dtype: Any) -> None:
    """Of each m, forward and backward: what is warmed is all that is asked for, and nothing else."""
    layers = torch.nn.ModuleList([torch.nn.Linear(8, 24), torch.nn.Linear(24, 8, bias=False)]).to(dtype)
    swap(layers)
    layers[0].activation = activation
    rows = (1, 6, 9)
    for m in rows:
        x = torch.randn(m, 8, dtype=dtype)
        with torch.no_grad():
            layers[0](x)
        layers[1](layers[0](x.requires_grad_())).backward(torch.randn(m, 8, dtype=dtype))
    planned = list(problems_of(layers, rows, None, training=True))
    assert {problem.on("sm_90") for problem in planned} == set(finder.asked)
    inference = list(problems_of(layers, rows, None, training=False))
    assert len(inference) == 2 * len(rows)
    assert set(inference) < set(planned)


def test_a_warmed_model_is_captured_and_compiles_nothing(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU()).to(torch.bfloat16)
    swap(layer)
    from cache_engine.torch import modules
    from tests.device.numpy_gpu import DEVICE

    monkeypatch.setattr(modules, "require_gpu", lambda _: DEVICE)
    with open_cache(tmp_path / "store", durability="fast") as cache:
        monkeypatch.setattr(launches.serving, "cache", cache)
        done = warm(layer, m=range(1, 4))
        assert [one.trouble for one in done] == [None] * 3
        gpu.is_captured = True
        with torch.no_grad():
            for m in (1, 2, 3):
                x = some(m, 16, dtype=torch.bfloat16)
                torch.testing.assert_close(layer(x), F.linear(x, layer[0].weight, layer[0].bias).relu())


@pytest.mark.skipif(not isinstance(first_gpu(), str), reason="a GPU is here")
def test_without_a_gpu_a_model_is_compiled_for_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(16, 24).half()
    swap(layer)
    with pytest.raises(GpuRequired, match="warm without arch= needs an NVIDIA GPU"):
        warm(layer, 4)
    with open_cache(tmp_path / "store", durability="fast") as cache:
        monkeypatch.setattr(launches.serving, "cache", cache)
        (done,) = warm(layer, 4, arch="sm_80")
        assert done.kernel is not None
        assert (done.problem.arch, done.problem.dtype, str(done.problem.epilogue)) == ("sm_80", "fp16", "bias")
