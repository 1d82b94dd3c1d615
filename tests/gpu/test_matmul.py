"""On a real GPU: ``matmul`` on arrays of CuPy, and of PyTorch where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from cache_engine import matmul
from cache_engine.cache.cache import Cache, CompiledKernel
from cache_engine.errors import UsageError
from cache_engine.gpu import multiply
from cache_engine.gpu.launch import from_stored, to_stored
from cache_engine.model.gemm import DType, GemmProblem, Layout
from tests.gpu.test_kernels import KINDS

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def _no_kernels_from_before() -> Iterator[None]:
    yield
    multiply._kernels.clear()
    multiply._codes.clear()


def normal(*shape: int, seed: int = 0) -> Any:
    import cupy

    return cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32)


def close(computed: Any, expected: Any, allowed: float = 2**-7) -> bool:
    return bool(abs(computed - expected).max() <= allowed * abs(expected).max())


def launched() -> int:
    """Kernels ready to launch on the first GPU."""
    return multiply._kernels.count(0)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_is_what_cupy_computes_and_copies_nothing(kernels: Cache, dtype: str, layout: Layout) -> None:
    import cupy

    a, b = normal(96, 160).astype(dtype), normal(160, 224, seed=1).astype(dtype)
    a = cupy.asfortranarray(a) if layout.a_transposed else a
    b = cupy.asfortranarray(b) if layout.b_transposed else b
    c = matmul(a, b, cache=kernels)
    assert (type(c), c.dtype, c.shape, c.flags.c_contiguous) == (cupy.ndarray, a.dtype, (96, 224), True)
    assert close(c.astype("float64"), a.astype("float64") @ b.astype("float64"))


def test_int8_gives_exact_sums(kernels: Cache) -> None:
    import cupy

    a, b = (cupy.rint(32 * normal(64, 64, seed=seed)).clip(-127, 127).astype("int8") for seed in (1, 2))
    c = matmul(a, b, cache=kernels)
    assert c.dtype == cupy.int32
    assert bool((c == a.astype("int32") @ b.astype("int32")).all())


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP8_E4M3, DType.FP8_E5M2])
def test_types_that_cupy_may_not_know_go_as_their_bits(kernels: Cache, dtype: DType) -> None:
    if ("tensor_core", dtype) not in KINDS:
        pytest.skip(f"this GPU has no {dtype}")
    a, b = to_stored(normal(64, 128), dtype), to_stored(normal(128, 96, seed=1), dtype)
    expected = from_stored(a, dtype, "float32") @ from_stored(b, dtype, "float32")
    c = matmul(a, b, dtype=dtype, cache=kernels)
    assert c.dtype.itemsize == 2
    assert close(from_stored(c, DType.BF16, "float32"), expected, 2**-5)
    with pytest.raises(UsageError, match="may mean anything"):
        matmul(a, b, cache=kernels)


def test_batches_and_linear_layers(kernels: Cache) -> None:
    a, weight = normal(3, 5, 40, 64).astype("float16"), normal(96, 64, seed=1).astype("float16")
    assert close(matmul(a, weight.T, cache=kernels), a @ weight.T)
    b = normal(3, 5, 64, 24, seed=2).astype("float16")
    assert close(matmul(a, b, cache=kernels), a @ b)
    assert matmul(a, b, cache=kernels).shape == (3, 5, 40, 24)


@pytest.mark.parametrize("how", ["padded", "reversed", "misaligned", "misaligned columns", "broadcast"])
def test_an_array_in_an_unsupported_layout_is_copied(kernels: Cache, how: str) -> None:
    import cupy

    wide, b = normal(64, 130).astype("float16"), normal(128, 48, seed=1).astype("float16")
    flat = wide.ravel()
    a = {
        "padded": wide[:, :128],
        "reversed": wide[:, 127::-1],
        "misaligned": flat[1 : 1 + 64 * 128].reshape(64, 128),
        "misaligned columns": flat[1 : 1 + 64 * 128].reshape(128, 64).T,
        "broadcast": cupy.broadcast_to(wide[:1, :128], (64, 128)),
    }[how]
    assert close(matmul(a, b, cache=kernels), cupy.ascontiguousarray(a) @ b)


def test_the_epilogue_and_out(kernels: Cache) -> None:
    import cupy

    a, b, bias = normal(70, 64), normal(64, 48, seed=1), normal(48, seed=2)
    out = normal(70, 48, seed=3)
    expected = cupy.maximum(0.5 * (a @ b) + 2.0 * out + bias, 0)
    result = matmul(a, b, out, alpha=0.5, beta=2.0, bias=bias, activation="relu", cache=kernels)
    assert result is out
    assert close(out, expected, 2**-14)
    with pytest.raises(UsageError, match="out overlaps A"):
        matmul(b.T, b, b[:48], cache=kernels)
    with pytest.raises(UsageError, match="there is no out to be added"):
        matmul(a, b, beta=1.0, cache=kernels)


def test_a_repeated_call_finds_its_kernel_in_memory(kernels: Cache) -> None:
    class Asked:
        """A cache that counts how often it is asked."""

        times = 0

        journal = kernels.journal

        def get_to_launch(self, problem: GemmProblem, **options: Any) -> CompiledKernel:
            """As the cache it stands before."""
            self.times += 1
            kernel: CompiledKernel = kernels.get_to_launch(problem, **options)
            return kernel

    a, b = normal(64, 64).astype("float16"), normal(64, 64, seed=1).astype("float16")
    asked: Any = Asked()
    for _ in range(20):
        c = matmul(a, b, cache=asked)
    assert (asked.times, launched()) == (1, 1)
    assert close(c, a @ b)


def test_it_runs_on_the_stream_that_is_current_or_given(kernels: Cache) -> None:
    import cupy

    a, b = normal(512, 512).astype("float16"), normal(512, 512, seed=1).astype("float16")
    cupy.cuda.Device().synchronize()
    expected = a @ b
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        c = matmul(a, b, cache=kernels)
        stream.synchronize()
    given = matmul(a, b, stream=stream, cache=kernels)
    by_handle = matmul(a, b, stream=stream.ptr, cache=kernels)
    stream.synchronize()
    assert close(c, expected)
    assert close(given, expected)
    assert close(by_handle, expected)
    assert launched() == 1, "a kernel for each stream, and the three were on one"


def test_skinny_products_on_two_streams_do_not_mix_their_sums(kernels: Cache) -> None:
    """Split k exchanges sums through memory that no two launches may share."""
    import cupy

    a, b = normal(16, 8192).astype("float16"), normal(8192, 64, seed=1).astype("float16")
    expected = a.astype("float32") @ b.astype("float32")
    cupy.cuda.Device().synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    results = [matmul(a, b, stream=stream, cache=kernels) for _ in range(25) for stream in streams]
    cupy.cuda.Device().synchronize()
    assert all(close(result.astype("float32"), expected) for result in results)


def test_arrays_of_numpy_are_refused(kernels: Cache) -> None:
    import numpy

    with pytest.raises(UsageError, match="A is not on an NVIDIA GPU"):
        matmul(numpy.zeros((4, 4)), numpy.zeros((4, 4)), cache=kernels)


@needs_torch
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_pytorchs_tensors(kernels: Cache, name: str) -> None:
    import torch

    dtype = getattr(torch, name)
    a = torch.randn(5, 40, 64, device="cuda").to(dtype)
    weight = torch.randn(96, 64, device="cuda").to(dtype)
    out = torch.empty(5, 40, 96, device="cuda", dtype=dtype)
    assert matmul(a, weight.T, out, cache=kernels) is out
    torch.cuda.synchronize()
    expected = a.double() @ weight.T.double()
    assert (out.double() - expected).abs().max() <= 2**-5 * expected.abs().max()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    again = torch.empty_like(out)
    matmul(a, weight.T, again, stream=side, cache=kernels)
    side.synchronize()
    assert torch.equal(out, again)


@needs_torch
def test_a_tensor_that_needs_a_gradient_is_refused(kernels: Cache) -> None:
    import torch

    a = torch.zeros(16, 16, device="cuda", requires_grad=True)
    with pytest.raises(UsageError, match="cannot be used"):
        matmul(a, a, cache=kernels)
