"""From forms to a problem: carried out with NumPy, a plan gives what numpy.matmul gives; what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import InvalidProblem, UsageError
from cache_engine.gpu.arrays import ArrayView, Form, view
from cache_engine.gpu.matmul_plan import MatmulPlan, check_places, plan_matmul
from cache_engine.model.gemm import Activation, DType, Epilogue, Layout
from tests.device.test_arrays import OnGpu

Array = numpy.ndarray[Any, Any]


def form(array: Array) -> Form:
    return view(OnGpu(array), "A").form


def plan(a: Array, b: Array, **asked: Any) -> MatmulPlan:
    return plan_matmul(form(a), form(b), **asked)


def carried_out(a: Array, b: Array) -> Array:
    """What a kernel would compute that reads memory from the first element on, as the plan's problem says."""
    chosen = plan(a, b)
    p = chosen.problem
    stored_a = _memory(a, p.layout.a_transposed, chosen.copy_a)
    stored_b = _memory(b, p.layout.b_transposed, chosen.copy_b)
    a_matrices = stored_a.reshape(p.batch, *((p.k, p.m) if p.layout.a_transposed else (p.m, p.k)))
    b_matrices = stored_b.reshape(p.batch, *((p.n, p.k) if p.layout.b_transposed else (p.k, p.n)))
    a_matrices = a_matrices.transpose(0, 2, 1) if p.layout.a_transposed else a_matrices
    b_matrices = b_matrices.transpose(0, 2, 1) if p.layout.b_transposed else b_matrices
    result: Array = (a_matrices @ b_matrices).reshape(chosen.shape)
    return result


def _memory(array: Array, transposed: bool, copy: bool) -> Array:
    """The elements in the order in which they lie, or in which their copy would."""
    if copy:
        assert not transposed
        return numpy.ascontiguousarray(array).reshape(-1)
    in_order = array.swapaxes(-1, -2) if transposed else array
    flat: Array = numpy.lib.stride_tricks.as_strided(array, (array.size,), (array.itemsize,))
    assert in_order.flags.c_contiguous
    return flat


def _arranged(data: st.DataObject, array: Array) -> Array:
    """The same numbers, lying in memory in some other way."""
    how = data.draw(st.sampled_from(["rows", "columns", "padded", "reversed", "outer last", "broadcast"]))
    if how == "columns":
        return numpy.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "padded":
        wide = numpy.zeros((*array.shape[:-1], array.shape[-1] + 3))
        wide[..., :-3] = array
        return wide[..., :-3]
    if how == "reversed":
        return numpy.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if how == "outer last" and array.ndim > 2:
        return numpy.moveaxis(numpy.ascontiguousarray(numpy.moveaxis(array, 0, -1)), -1, 0)
    if how == "broadcast":
        return numpy.broadcast_to(array[..., :1, :], array.shape)
    return array


@given(
    st.lists(st.integers(1, 3), max_size=2), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.booleans(),
    st.data(),
)  # fmt: skip
def test_a_plan_carried_out_is_numpys_matmul(
    batch: list[int], m: int, n: int, k: int, one_b: bool, data: st.DataObject
) -> None:
    generator = numpy.random.default_rng(0)
    a = _arranged(data, generator.integers(-4, 5, (*batch, m, k)).astype("float64"))
    b = _arranged(data, generator.integers(-4, 5, (*([] if one_b else batch), k, n)).astype("float64"))
    assert numpy.array_equal(carried_out(a, b), a @ b)
    assert plan(a, b).shape == (a @ b).shape


@pytest.mark.parametrize("layout", Layout)
def test_layouts_follow_from_strides_without_a_copy(layout: Layout) -> None:
    a, b = numpy.zeros((8, 16), "float16"), numpy.zeros((16, 24), "float16")
    a = numpy.asfortranarray(a) if layout.a_transposed else a
    b = numpy.asfortranarray(b) if layout.b_transposed else b
    chosen = plan(a, b)
    assert (chosen.problem.layout, chosen.copy_a, chosen.copy_b) == (layout, False, False)
    assert (chosen.problem.m, chosen.problem.n, chosen.problem.k, chosen.problem.batch) == (8, 24, 16, 1)
    assert chosen.problem.dtype is DType.FP16


def test_a_linear_layer_is_one_product_of_all_rows() -> None:
    """Activations with any number of axes times a weight stored n × k."""
    chosen = plan(numpy.zeros((2, 7, 64), "float16"), numpy.zeros((32, 64), "float16").T)
    assert (chosen.problem.m, chosen.problem.batch, chosen.shape) == (14, 1, (2, 7, 32))
    assert (chosen.problem.layout, chosen.copy_a) == (Layout.NT, False)


def test_a_single_row_or_column_is_read_along_its_length() -> None:
    row, column, square = numpy.zeros((1, 64)), numpy.zeros((64, 1)), numpy.zeros((64, 64))
    assert plan(row, square).problem.layout is Layout.NN
    assert plan(square, column).problem.layout is Layout.NT
    assert plan(column, row).problem.layout is Layout.TN


@pytest.mark.parametrize("cut", [numpy.s_[:, :-1], numpy.s_[::2], numpy.s_[:, ::-1]])
def test_an_array_that_no_layout_describes_is_copied(cut: Any) -> None:
    a = numpy.zeros((8, 9), "float32")[cut]
    chosen = plan(a, numpy.zeros((a.shape[1], 4), "float32"))
    assert (chosen.copy_a, chosen.copy_b, chosen.problem.layout.a_transposed) == (True, False, False)


def test_the_given_dtype_applies_where_the_array_has_none() -> None:
    bits16, bits8, fp32 = (numpy.zeros((4, 4), dtype) for dtype in ("uint16", "uint8", "float32"))
    assert plan(bits16, bits16, dtype=DType.BF16).problem.dtype is DType.BF16
    assert plan(bits16, bits16, dtype=DType.FP16).problem.dtype is DType.FP16
    fp8 = plan(bits8, bits8, dtype=DType.FP8_E4M3, out_dtype=DType.FP16).problem
    assert (fp8.dtype, fp8.output) == (DType.FP8_E4M3, DType.FP16)
    assert plan(fp32, fp32).problem.dtype is DType.FP32
    assert plan(fp32, fp32, dtype=DType.TF32).problem.dtype is DType.TF32


@pytest.mark.parametrize(
    ("dtype", "asked", "says"),
    [
        ("uint16", None, "16 bits that may mean anything; say what, with dtype= one of: fp16, bf16$"),
        ("uint8", None, "8 bits that may mean anything; .* fp8_e4m3, fp8_e5m2, int8$"),
        ("uint16", DType.INT8, "cannot be taken for int8"),
        ("float16", DType.BF16, "hold fp16, which cannot be taken for bf16; convert"),
        ("float64", DType.TF32, "cannot be taken for tf32"),
        ("int32", None, "unknown dtype 'int32'"),
    ],
)
def test_elements_are_never_guessed(dtype: str, asked: DType | None, says: str) -> None:
    array = numpy.zeros((4, 4), dtype)
    with pytest.raises(UsageError, match=says):
        plan(array, array, dtype=asked)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ((4, 5), (6, 7), "A is 4 × 5 and B 6 × 7; A must have as many columns as B has rows"),
        ((5,), (5, 7), r"A has the shape \(5,\); it must have rows and columns"),
        ((4, 5), (5,), "B has the shape"),
        ((0, 5), (5, 7), "no element"),
        ((4, 0), (0, 7), "no element"),
        ((2, 4, 5), (3, 5, 7), "their batches must be the same"),
        ((4, 5), (3, 5, 7), "their batches must be the same"),
        ((2, 3, 4, 5), (3, 5, 7), "their batches must be the same"),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(a: tuple[int, ...], b: tuple[int, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(numpy.zeros(a), numpy.zeros(b))


def test_types_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match="A has elements of fp16 and B of fp32; convert one"):
        plan(numpy.zeros((4, 4), "float16"), numpy.zeros((4, 4), "float32"))
    with pytest.raises(InvalidProblem, match="out dtype fp64 cannot be made from fp16"):
        plan(numpy.zeros((4, 4), "float16"), numpy.zeros((4, 4), "float16"), out_dtype=DType.FP64)


def test_the_type_of_c_is_that_of_out_else_the_usual() -> None:
    a = numpy.zeros((4, 8), "float16")
    b = a.T
    assert plan(a, b).problem.output is DType.FP16
    assert plan(a, b, out=form(numpy.zeros((4, 4), "float32"))).problem.output is DType.FP32
    bits = numpy.zeros((4, 8), "uint16")
    chosen = plan(bits, bits.T, dtype=DType.BF16, out=form(numpy.zeros((4, 4), "uint16")))
    assert chosen.problem.output is DType.BF16


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (numpy.zeros((4, 5), "float16"), "out is 4 × 5; C is 4 × 4"),
        (numpy.zeros((1, 4, 4), "float16"), "out is 1 × 4 × 4; C is 4 × 4"),
        (numpy.zeros((4, 4), "float16", order="F"), "C is written row by row without a gap"),
        (numpy.zeros((4, 5), "float16")[:, :4], "without a gap"),
        (numpy.zeros((4, 4), "uint16"), "out has elements of 16 bits; C is of fp16"),
        (numpy.zeros((4, 4), "float64"), "out dtype fp64 cannot be made"),
    ],
)
def test_an_out_that_c_does_not_fit_is_refused(out: Array, says: str) -> None:
    a = numpy.zeros((4, 8), "float16")
    with pytest.raises(UsageError, match=says):
        plan(a, a.T, out=form(out))


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (numpy.zeros(5, "float16"), "the bias is 5; it must be 4 elements"),
        (numpy.zeros((1, 4), "float16"), "the bias is 1 × 4"),
        (numpy.zeros(8, "float16")[::2], "one behind the other"),
        (numpy.zeros(4, "float32"), "it must have those of C, fp16"),
    ],
)
def test_a_bias_that_does_not_fit_is_refused(bias: Array, says: str) -> None:
    a = numpy.zeros((4, 8), "float16")
    with pytest.raises(UsageError, match=says):
        plan(a, a.T, bias=form(bias), epilogue=Epilogue(bias=True))


def test_the_epilogue_is_part_of_the_problem() -> None:
    asked = Epilogue(alpha=True, bias=True, activation=Activation.RELU)
    a = numpy.zeros((4, 8), "float16")
    assert plan(a, a.T, bias=form(numpy.zeros(4, "float16")), epilogue=asked).problem.epilogue == asked
    with pytest.raises(InvalidProblem, match="int8 problems take no epilogue"):
        plan(numpy.zeros((4, 8), "int8"), numpy.zeros((8, 4), "int8"), epilogue=asked)


# ---- Places ----

_FORM = Form("fp16", (4, 8), (8, 1))
_A, _B = ArrayView(_FORM, 1024), ArrayView(_FORM, 2048)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (ArrayView(_FORM, 1024), "out overlaps A"),
        (ArrayView(_FORM, 1024 + 48), "out overlaps A"),
        (ArrayView(_FORM, 1024 - 48), "out overlaps A"),
        (ArrayView(_FORM, 2048 + 16), "out overlaps B"),
        (ArrayView(_FORM, 4096 + 16), "out overlaps the bias"),
        (ArrayView(_FORM, 8192, read_only=True), "out is read-only"),
        (ArrayView(_FORM, 8192 + 8), "out starts at an address that is no multiple of 16"),
    ],
)
def test_an_out_that_must_not_be_written_is_refused(out: ArrayView, says: str) -> None:
    """One next to an input is taken, and inputs may overlap each other."""
    check_places(_A, _A, ArrayView(_FORM, 1024 + 64), None)
    with pytest.raises(UsageError, match=says):
        check_places(_A, _B, out, ArrayView(Form("fp16", (64,), (1,)), 4096))


def test_a_bias_off_its_elements_is_refused() -> None:
    with pytest.raises(UsageError, match="no multiple of 2; copy it"):
        check_places(_A, _B, None, ArrayView(Form("fp16", (8,), (1,)), 4097))
