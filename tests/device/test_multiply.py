"""``matmul`` from arrays to the arguments of the launch and back, with NumPy in the place of CuPy and of the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import cache_engine
from cache_engine.cache import matmul as multiplication
from cache_engine.cache.operator import GemmOperator
from cache_engine.errors import GpuRequired, UsageError
from cache_engine.gpu import launch as launching
from cache_engine.gpu import multiply
from cache_engine.gpu.fp8 import dequantise, quantise
from cache_engine.gpu.probe import gpu
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose
from cache_engine.model.gemm import DType, GemmProblem, Layout, Scales
from tests.device import numpy_gpu
from tests.device.numpy_gpu import Array, Finder, array

Matmul = Callable[..., Any]


@pytest.fixture
def stream() -> numpy_gpu.Stream:
    return numpy_gpu.Stream()


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch, stream: numpy_gpu.Stream) -> Iterator[Finder]:
    with numpy_gpu.launching_in_numpy(monkeypatch, stream):
        yield Finder()


@pytest.fixture
def matmul(finder: Finder) -> Matmul:
    cache: Any = finder
    return lambda *given, **asked: multiplication.matmul(*given, cache=cache, **asked)


def normal(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_operands_are_read_where_they_lie(matmul: Matmul, finder: Finder, dtype: str, layout: Layout) -> None:
    a, b = normal(6, 10), normal(10, 14, seed=1)
    a = array(numpy.asfortranarray(a) if layout.a_transposed else a, dtype)
    b = array(numpy.asfortranarray(b) if layout.b_transposed else b, dtype)
    c = matmul(a, b)
    assert (type(c), c.dtype, c.shape) == (Array, a.dtype, (6, 14))
    assert numpy.allclose(c.astype("float64"), a.astype("float64") @ b.astype("float64"), rtol=2e-3, atol=1e-2)
    assert finder.asked[0].layout is layout
    assert finder.asked[0].arch == "sm_90a"


@pytest.mark.parametrize(
    "how", ["padded", "reversed", "misaligned", "misaligned columns", "broadcast", "strided batch"]
)
def test_an_array_in_an_unsupported_layout_is_copied(matmul: Matmul, how: str) -> None:
    wide, b = array(normal(8, 20), "float32"), array(normal(16, 4, seed=1), "float32")
    flat = wide.ravel()
    a = {
        "padded": wide[:, :16],
        "reversed": wide[:, 15::-1],
        "misaligned": flat[1 : 1 + 8 * 16].reshape(8, 16),
        "misaligned columns": flat[1 : 1 + 8 * 16].reshape(16, 8).T,
        "broadcast": numpy.broadcast_to(wide[:1, :16], (8, 16), subok=True),
        "strided batch": array(normal(4, 8, 16), "float32")[::2],
    }[how]
    before = a.copy()
    c = matmul(a, b)
    assert numpy.allclose(c, before @ b, rtol=1e-5, atol=1e-5)
    assert numpy.array_equal(a, before)


def test_batches_and_linear_layers(matmul: Matmul, finder: Finder) -> None:
    x, weight, b = array(normal(2, 3, 5, 8)), array(normal(6, 8, seed=1)), array(normal(2, 3, 8, 4, seed=2))
    assert numpy.allclose(matmul(x, weight.T), x @ weight.T)
    assert numpy.allclose(matmul(x, b), x @ b)
    assert [(problem.m, problem.batch) for problem in finder.asked] == [(30, 1), (5, 6)]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_out_and_the_epilogue(matmul: Matmul, activation: str) -> None:
    a, b, bias, out = (array(values) for values in (normal(4, 8), normal(8, 6, seed=1), normal(6), normal(4, 6)))
    expected = 0.5 * (a @ b) + 2.0 * out + bias
    if activation == "relu":
        expected = numpy.maximum(expected, 0)
    elif activation == "gelu":
        expected = numpy.vectorize(lambda x: x * (1 + math.erf(x / 2**0.5)) / 2)(expected)
    assert matmul(a, b, out, alpha=0.5, beta=2.0, bias=bias, activation=activation) is out
    assert numpy.allclose(out, expected)


@pytest.mark.parametrize("epilogue", ["", "alpha", "beta", "alpha+beta"])
def test_a_kernel_gets_the_factors_that_its_epilogue_names_and_neutral_ones_else(
    monkeypatch: pytest.MonkeyPatch, epilogue: str
) -> None:
    numpy_gpu.install(monkeypatch)
    problem = GemmProblem(8, 16, 32, arch="sm_90", epilogue=epilogue)
    family, config = choose(problem)
    launch = launch_of(family, problem, config)
    got: dict[str, Any] = {}

    def start(_grid: object, _block: object, arguments: tuple[Any, ...], **_: object) -> None:
        got.update(zip(launch.arguments, arguments, strict=True))

    loaded = launching.LoadedKernel(b"", "gemm", launch, problem, start)
    loaded(launching.Operands(1, 2, 3, alpha=0.5, beta=0.25))
    assert [got["alpha"], got["beta"]] == [0.5 if "alpha" in epilogue else 1.0, 0.25 if "beta" in epilogue else 0.0]
    assert type(got["alpha"]) is type(got["beta"]) is numpy.float32
    assert [got[name] for name in "abcm"] == [1, 2, 3, 8]


@pytest.mark.parametrize("fusion", [True, False])
def test_a_result_of_fp8_is_scaled_and_rounded_once(matmul: Matmul, finder: Finder, fusion: bool) -> None:
    """The kernel always applies the epilogue: steps after it would start from a product rounded to fp8."""
    a, b = normal(4, 32), normal(32, 6, seed=1)
    x, weight = (numpy_gpu.array(launching.to_stored(one, DType.FP8_E4M3)) for one in (a, b))
    bias = numpy_gpu.array(launching.to_stored(normal(6, seed=2), DType.FP8_E4M3))
    asked: dict[str, Any] = {"dtype": "fp8_e4m3", "out_dtype": "fp8_e4m3", "bias": bias, "activation": "relu"}
    c = matmul(x, weight, **asked, scale_result=0.3, fusion=fusion)
    wide_a, wide_b, wide_bias = (launching.from_stored(one, DType.FP8_E4M3, "float64") for one in (x, weight, bias))
    exact = numpy.maximum(wide_a @ wide_b + wide_bias, 0) * 0.3
    assert c.dtype == numpy.uint8
    wanted = launching.to_stored(exact.astype("float32"), DType.FP8_E4M3)
    assert numpy.array_equal(c, wanted)
    assert str(finder.asked[0].epilogue) == "bias+relu"
    assert not numpy.array_equal(matmul(x, weight, **asked), wanted), "the scale is 1 where none is given"


@pytest.mark.parametrize("fusion", [True, False])
def test_a_bias_off_16_bytes_is_copied(matmul: Matmul, fusion: bool) -> None:
    """A kernel reads several of its elements at once, which faults on a GPU where they are not aligned."""
    a, b, several = (array(values, "float32") for values in (normal(4, 8), normal(8, 6, seed=1), normal(8)))
    c = matmul(a, b, bias=several[1:7], fusion=fusion)
    assert numpy.allclose(c, a @ b + several[1:7], rtol=1e-5, atol=1e-5)


def test_bits_that_cupy_has_no_name_for(matmul: Matmul, finder: Finder) -> None:
    values = normal(4, 8).astype("float32")
    a = array(launching.to_stored(values, DType.BF16))
    b = array(launching.to_stored(normal(8, 4, seed=1).astype("float32"), DType.BF16))
    c = matmul(a, b, dtype="bf16")
    expected = launching.from_stored(a, DType.BF16, "float64") @ launching.from_stored(b, DType.BF16, "float64")
    assert c.dtype == numpy.uint16
    assert numpy.allclose(launching.from_stored(c, DType.BF16, "float64"), expected, rtol=1e-2, atol=1e-2)
    assert finder.asked[0].dtype is DType.BF16


@pytest.mark.parametrize("scales", [scales for scales in Scales if scales])
def test_fp8_with_scales(matmul: Matmul, finder: Finder, scales: Scales) -> None:
    """What ``quantise`` makes of activations and of a weight, with and without a batch in front of the rows."""
    x, weight = normal(2, 3, 256), normal(130, 256, seed=1)
    (a, a_scales), (b, b_scales) = quantise(x, scales), quantise(weight, scales, of_b=True)
    placed = {"a_scales": array(a_scales), "b_scales": array(b_scales)}
    asked: dict[str, Any] = {"dtype": "fp8_e4m3", "out_dtype": "fp32", "activation": "relu", "fusion": False}
    c = matmul(array(a), array(b).T, **placed, **asked)
    near = (
        dequantise(a, a_scales, scales, dtype="fp8_e4m3"),
        dequantise(b, b_scales, scales, of_b=True, dtype="fp8_e4m3"),
    )
    assert numpy.allclose(c, numpy.maximum(near[0] @ near[1].T, 0), rtol=1e-5, atol=1e-4)
    assert numpy.allclose(c, numpy.maximum(x @ weight.T, 0), atol=3)
    assert finder.asked[0].scales is scales
    assert (finder.asked[0].m, finder.asked[0].layout) == (6, Layout.NT)


def test_scales_that_do_not_go_with_the_arrays_are_refused(matmul: Matmul) -> None:
    a, b = array(numpy.zeros((4, 256), "uint8")), array(numpy.zeros((200, 256), "uint8"))
    of_a, of_b = array(numpy.ones((4, 2), "float32")), array(numpy.ones((2, 2), "float32"))
    for given, says in (
        ({"a_scales": of_a}, "scales are given of one operand; give a_scales and b_scales, or neither"),
        ({"a_scales": of_a, "b_scales": of_b.astype("float64")}, "both must be fp32, or E8M0 as uint8"),
        ({"a_scales": of_a[:3], "b_scales": of_b}, "the scales of A are 3 × 2; they must be 4 × 2"),
        ({"a_scales": of_a, "b_scales": array(numpy.ones((3, 2), "float32"))}, "the scales of B are 3 × 2; .* 200 × 2"),
        ({"a_scales": of_a.T.copy().T, "b_scales": of_b}, "row by row without a gap"),
        ({"a_scales": array(numpy.ones((4, 2), "uint8")), "b_scales": array(numpy.ones((2, 4), "uint8"))}, "4 × 4"),
    ):
        with pytest.raises(UsageError, match=says):
            matmul(a, b.T, dtype="fp8_e4m3", **given)
    with pytest.raises(UsageError, match="the layout is nn, and with scales it must be nt"):
        matmul(a, array(numpy.zeros((256, 200), "uint8")), dtype="fp8_e4m3", a_scales=of_a, b_scales=of_b)
    out = array(numpy.zeros((4, 200), "float32"))
    with pytest.raises(UsageError, match="out overlaps scales"):
        matmul(a, b.T, out, dtype="fp8_e4m3", a_scales=out.reshape(-1)[:8].reshape(4, 2), b_scales=of_b)


def test_a_kernel_is_found_once_for_each_problem_family_and_stream(
    matmul: Matmul, finder: Finder, stream: numpy_gpu.Stream
) -> None:
    a, b = array(normal(4, 8), "float32"), array(normal(8, 4), "float32")
    for _ in range(5):
        matmul(a, b)
    assert len(finder.asked) == 1
    matmul(a, b, family="simt")
    stream.ptr = 77
    matmul(a, b)
    assert len(finder.asked) == 3
    assert multiply._kernels.count(0) == 3
    assert multiply._codes.count(0) == 1, "they share their code"


def _unlike(what: str, stream: numpy_gpu.Stream) -> tuple[dict[str, Any], str]:
    """Arrays of the same form as those before, that lie or may be used otherwise; and what is said of it, if anything.

    Here a GPU is other than the current one for addresses of an array that is named.
    """
    import cupy

    given = {"a": normal(4, 8), "b": normal(8, 4, seed=1), "bias": normal(4, seed=2), "out": normal(4, 4)}
    arrays = {name: array(values, "float32") for name, values in given.items()}
    if what in ("a", "b", "bias"):
        wide = array(numpy.zeros(arrays[what].size + 1), "float32")
        moved = wide[1:].reshape(arrays[what].shape)
        moved[...] = arrays[what]
        return {**arrays, what: moved}, ""
    if what == "out":
        return {**arrays, what: array(numpy.zeros(17), "float32")[1:].reshape(4, 4)}, "no multiple of 16"
    if what == "out over a":
        arrays["out"] = arrays["a"].reshape(8, 4)[:4]
        return arrays, "out overlaps A"
    if what == "read-only":
        arrays["out"].flags.writeable = False
        return arrays, "out is read-only"
    if what == "half an element":
        raw = array(numpy.zeros(20), "uint8")[2:18]
        return {**arrays, "bias": raw.view("float32")}, "no multiple of 4"
    if what == "stream":
        stream.ptr = 77
        return arrays, ""
    place = arrays["b"].ctypes.data
    cupy.cuda.runtime.pointerGetAttributes = lambda address: SimpleNamespace(device=int(address == place))
    return arrays, "B is on GPU 1, and GPU 0 is the current one"


@pytest.mark.parametrize(
    "what",
    ["a", "b", "bias", "out", "out over a", "read-only", "half an element", "stream", "device"],
)
@pytest.mark.parametrize("operator", [False, True])
def test_a_plan_that_is_known_hides_nothing_of_where_arrays_lie(
    matmul: Matmul, finder: Finder, stream: numpy_gpu.Stream, what: str, operator: bool
) -> None:
    """Forms that were multiplied before are not looked at again; places, streams and GPUs are, in each call."""
    if operator:
        cache: Any = finder
        called = type("Operator", (GemmOperator,), {"cache": cache})(dtype="fp32", layout="nn", epilogue="bias")
    else:
        called = matmul

    def check(arrays: dict[str, Any]) -> None:
        expected = arrays["a"] @ arrays["b"] + arrays["bias"]
        assert called(arrays["a"], arrays["b"], arrays["out"], bias=arrays["bias"]) is arrays["out"]
        assert numpy.allclose(arrays["out"], expected, rtol=1e-5, atol=1e-5)

    for _ in range(2):
        check(_unlike("b", stream)[0])
    plans = multiply.planned.cache_info().misses
    arrays, says = _unlike(what, stream)
    if says:
        before = arrays["out"].copy()
        with pytest.raises(UsageError, match=says):
            check(arrays)
        assert numpy.array_equal(arrays["out"], before)
    else:
        check(arrays)
    assert multiply.planned.cache_info().misses == plans
    assert [event.stream.ptr for event in stream.waited] == ([0] * 4 if what == "stream" else [])


def test_calls_alike_differ_in_their_factors_and_their_bias(matmul: Matmul) -> None:
    """What a launch is put together from is not what an earlier one was given."""
    a, b = array(normal(4, 8), "float32"), array(normal(8, 4, seed=1), "float32")
    for number in (2.0, 3.0):
        bias, out = array([number] * 4, "float32"), array(numpy.full((4, 4), number), "float32")
        expected = number * (a @ b) + 7 * number * out + bias
        matmul(a, b, out, alpha=number, beta=7 * number, bias=bias)
        assert numpy.allclose(out, expected, rtol=1e-5, atol=1e-4)


def test_the_stream_of_another_array_is_waited_for(matmul: Matmul, stream: numpy_gpu.Stream) -> None:
    a, b = array(normal(4, 8)), array(normal(8, 4))
    matmul(a, b)
    assert stream.waited == [], "both are on the default stream"
    stream.ptr = 77
    matmul(a, b)
    assert [event.stream.ptr for event in stream.waited] == [0, 0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"beta": 1.0}, "beta is 1.0, and there is no out"),
        ({"dtype": "half"}, "unknown dtype 'half'; use one of: fp16"),
        ({"out_dtype": "float"}, "unknown out_dtype 'float'"),
        ({"scale_result": 0.5}, "scale_result is for results of fp8, and C is of fp64; leave it out"),
        ({"activation": "swish"}, "unknown activation 'swish'; use one of: none, relu, gelu"),
    ],
)
def test_an_unsupported_request_is_refused(matmul: Matmul, asked: dict[str, Any], says: str) -> None:
    a = array(normal(4, 4))
    with pytest.raises(UsageError, match=says):
        matmul(a, a, **asked)


def test_out_must_not_share_memory_with_what_is_read(matmul: Matmul) -> None:
    a, b = array(normal(4, 4)), array(normal(4, 4))
    with pytest.raises(UsageError, match="out overlaps B"):
        matmul(a, b, b)
    with pytest.raises(UsageError, match="is no stream"):
        multiply.stream_of("a stream")


@pytest.mark.skipif(not isinstance(gpu(), str), reason="a GPU is here")
def test_without_a_gpu_it_says_that_it_needs_one() -> None:
    with pytest.raises(GpuRequired, match="matmul needs an NVIDIA GPU"):
        cache_engine.matmul(numpy.zeros((2, 2)), numpy.zeros((2, 2)))
