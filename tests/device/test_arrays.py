"""What arrays say of themselves is understood, or refused in words. NumPy's descriptions stand for those of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.errors import UsageError
from cache_engine.gpu import arrays
from cache_engine.gpu.arrays import BITS8, BITS16, ArrayView, Form, packed_strides, read_capsule, read_interface, view


class OnGpu:
    """What a CuPy array shows of itself, with the addresses of a NumPy array."""

    def __init__(self, array: numpy.ndarray[Any, Any], **changed: Any) -> None:
        self.dtype = array.dtype
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "stream": None, **changed}


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float16", "fp16"), ("float32", "fp32"), ("float64", "fp64"), ("int8", "int8"), ("int32", "int32"),
        ("uint8", BITS8), ("uint16", BITS16), ("V1", BITS8), ("V2", BITS16),
    ],
)  # fmt: skip
def test_the_interface_gives_elements_shape_strides_and_address(dtype: str, element: str) -> None:
    array = numpy.zeros((3, 4, 5), dtype=dtype)
    seen = view(OnGpu(array), "A")
    assert seen.form == Form(element, (3, 4, 5), (20, 5, 1))
    assert (seen.address, seen.read_only) == (array.ctypes.data, False)
    assert seen.form.itemsize == array.itemsize


@pytest.mark.parametrize(
    ("name", "element"),
    [("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("float8_e5m2", "fp8_e5m2"), ("float8_e4m3fn", "fp8_e4m3")],
)
def test_raw_bits_are_recognised_by_the_arrays_type_name(name: str, element: str) -> None:
    raw = "<V2" if element == "bf16" else "|V1"
    interface = {"typestr": raw, "shape": (2, 2), "data": (64, True), "strides": None}
    seen = read_interface(interface, "A", SimpleNamespace(dtype=name))
    assert (seen.form.element, seen.read_only, seen.form.strides) == (element, True, (2, 1))


def test_a_name_does_not_overrule_what_the_interface_says() -> None:
    interface = {"typestr": "<f4", "shape": (1,), "data": (64, False)}
    seen = read_interface(interface, "A", SimpleNamespace(dtype="bfloat16"))
    assert seen.form.element == "fp32"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"typestr": "<f16"}, "elements of type .*f16.*known are fp16"),
        ({"typestr": ">f4"}, "elements of type"),
        ({"typestr": "<c8"}, "elements of type"),
        ({"typestr": "|b1"}, "elements of type"),
        ({"mask": object()}, "masked"),
        ({"strides": (10, 4)}, "not all whole elements"),
    ],
)
def test_an_unusable_array_is_refused_by_name(changed: dict[str, Any], says: str) -> None:
    interface = {"typestr": "<f4", "shape": (2, 2), "data": (64, False), "strides": None, **changed}
    with pytest.raises(UsageError, match=f"B .*{says}"):
        read_interface(interface, "B")


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "uint8", "uint16"])
def test_a_dlpack_capsule_says_the_same_as_the_interface(dtype: str, versioned: bool) -> None:
    array = numpy.zeros((6, 8), dtype=dtype)[1::2, ::3].T
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    told = read_capsule(capsule, "A")
    assert told == view(OnGpu(array), "A")
    assert read_capsule(capsule, "A") == told  # it was not consumed
    del capsule  # and frees what it holds


def test_a_versioned_capsule_marks_a_read_only_array() -> None:
    array = numpy.zeros((2, 2))
    array.flags.writeable = False
    assert read_capsule(array.__dlpack__(max_version=(1, 0)), "A").read_only


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (numpy.zeros((2, 2)), "A is not on an NVIDIA GPU; move it there"),
        ([[1.0]], "A is of type list; it must be an array on a GPU"),
        (None, "A is of type NoneType"),
    ],
)
def test_an_object_that_is_no_gpu_array_is_refused(array: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        view(array, "A")


def test_a_capsule_of_something_else_or_of_unknown_elements_is_refused() -> None:
    with pytest.raises(UsageError, match="no DLPack tensor"):
        read_capsule(object(), "A")
    with pytest.raises(UsageError, match="DLPack's type 5 with 128 bits and 1 lanes"):
        read_capsule(numpy.zeros(2, dtype=complex).__dlpack__(), "A")


def test_an_array_that_needs_a_gradient_is_refused_with_its_own_words() -> None:
    class Tensor:
        @property
        def __cuda_array_interface__(self) -> object:
            raise RuntimeError("use tensor.detach()")

    with pytest.raises(UsageError, match=r"A cannot be used: use tensor\.detach"):
        view(Tensor(), "A")


def test_elements_at_address_0_are_refused_and_an_empty_array_is_not() -> None:
    interface = {"typestr": "<f4", "shape": (2, 2), "data": (0, False), "strides": None}
    with pytest.raises(UsageError, match=r"A has no memory on a GPU \(its address is 0\)"):
        view(SimpleNamespace(__cuda_array_interface__=interface), "A")
    assert view(SimpleNamespace(__cuda_array_interface__=interface | {"shape": (0, 2)}), "A").address == 0
    capsule = numpy.zeros((2, 2)).__dlpack__()
    arrays._Tensor.from_address(arrays._pointer_of(capsule, b"dltensor")).data = None
    with pytest.raises(UsageError, match="address is 0"):
        read_capsule(capsule, "A")


def test_the_owner_of_the_memory_stays_referenced() -> None:
    array = OnGpu(numpy.zeros((2, 2)))
    assert view(array, "A").owner is array


_EXTENTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(_EXTENTS, st.data())
def test_packed_is_what_numpy_calls_contiguous(shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    steps = [data.draw(st.sampled_from([1, 2, -1])) for _ in shape]
    array = numpy.zeros([extent * 2 for extent in shape], dtype="float32").transpose(axes)
    array = array[tuple(slice(None, None, step) for step in steps)]
    assert view(OnGpu(array), "A").form.is_packed() == array.flags.c_contiguous
    assert packed_strides(array.shape) == tuple(stride // 4 for stride in numpy.zeros(array.shape, "float32").strides)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 3), st.sampled_from([1, 2, 3, -1]))
def test_overlap_is_never_missed(first: int, second: int, width: int, step: int) -> None:
    """As numpy.may_share_memory, which looks at bounds likewise."""
    memory = numpy.zeros((12, 8), dtype="float32")
    one = memory[first : first + width, ::step]
    other = memory[second : second + width, 1:5]
    views = view(OnGpu(one), "A"), view(OnGpu(other), "B")
    assert views[0].overlaps(views[1]) == views[1].overlaps(views[0]) == numpy.may_share_memory(one, other)


def test_neighbours_do_not_overlap() -> None:
    form = Form("fp32", (4, 4), (4, 1))
    assert not ArrayView(form, 0).overlaps(ArrayView(form, 64))
    assert ArrayView(form, 0).overlaps(ArrayView(form, 60))
    assert not ArrayView(Form("fp32", (0, 4), (4, 1)), 16).overlaps(ArrayView(form, 0))
