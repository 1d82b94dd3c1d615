"""Kernels side by side, and the nearest to a key that was missed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_engine.insight.comparison import (
    Comparison,
    Pair,
    change,
    compare,
    differing,
    in_words,
    merged,
    nearest,
    sass_difference,
    shown,
)
from cache_engine.insight.inspection import inspect
from cache_engine.model.artifact import Record
from cache_engine.model.key import Components
from cache_engine.store.codec import encode_blob
from tests.helpers import make_entry

HERE: Components = (
    ("schema", "1"),
    ("family", "tensor_core"),
    ("template", "ab" * 32),
    ("compiler", "nvrtc"),
    ("compiler_version", "13.5"),
    ("compiler_build", "cd" * 20),
    ("flags", "--minimal"),
    ("arch", "sm_90"),
    ("KERNEL_NAME", "gemm"),
    ("BLOCK_M", "128"),
    ("BLOCK_N", "128"),
    ("STAGES", "4"),
    ("N", "4096"),
    ("K", "512"),
    ("B_TRANSPOSED", "1"),
    ("B_VECTOR", "8"),
)


def _record(seed: int = 0, components: Components | None = None, **changed: str) -> Record:
    key, artifact, describe = make_entry(seed)
    record = describe(encode_blob(key, artifact, compress=True)[1])
    if components is None:
        components = tuple((label, changed.get(label, value)) for label, value in HERE)
    return msgspec.structs.replace(record, components=components)


def _names(pairs: tuple[Pair, ...]) -> list[str]:
    return [pair.name for pair in pairs]


def test_the_compilers_version_is_shown() -> None:
    there = _record(compiler_version="13.4", compiler_build="ef" * 20, N="4096")
    found = nearest(HERE, [there])
    assert found is not None
    assert [in_words(pair) for pair in found.causes] == ["compiler version: 13.4 in the nearest kernel, 13.5 requested"]
    assert _names(found.consequences) == ["compiler_build"]


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        (Pair("N", "4096", "7168"), "n: 4096 in the nearest kernel, 7168 requested"),
        (Pair("BLOCK_M", "64", "128"), "block_m: 64 in the nearest kernel, 128 requested"),
        (Pair("arch", "sm_90", "sm_90a"), "target: sm_90 in the nearest kernel, sm_90a requested"),
        (Pair("A_TRANSPOSED", "0", "1"), "A stored transposed: no in the nearest kernel, yes requested"),
        (Pair("NEW", None, "1"), "new: nothing in the nearest kernel, 1 requested"),
        (
            Pair("template", "a" * 64, "b" * 64),
            f"kernel template: {'a' * 12}… in the nearest kernel, {'b' * 12}… requested",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Pair) else "",
)
def test_each_difference_has_its_words(pair: Pair, text: str) -> None:
    assert in_words(pair) == text


def test_follow_on_differences_are_not_counted() -> None:
    """A compiler upgrade changes two components, another n three; each is one cause."""
    upgraded = _record(1, compiler_version="13.4", compiler_build="ef" * 20)
    other_n = _record(2, N="520", B_VECTOR="4", KERNEL_NAME="another")
    other_two = _record(3, N="520", arch="sm_80")
    found = nearest(HERE, [other_two, other_n, upgraded])
    assert found is not None
    assert found.record == upgraded
    found = nearest(HERE, [other_two, other_n])
    assert found is not None
    assert (_names(found.causes), _names(found.consequences)) == (["N"], ["KERNEL_NAME", "B_VECTOR"])


def test_the_config_counts_as_one() -> None:
    """The same problem with other tiles is nearer than another problem on another target."""
    other_tiles = _record(1, BLOCK_M="64", BLOCK_N="64", STAGES="3", KERNEL_NAME="another")
    other_problem = _record(2, N="64", KERNEL_NAME="another")
    for records in ([other_tiles, other_problem], [other_problem, other_tiles]):
        found = nearest(HERE, records)
        assert found is not None
        assert found.record == other_tiles
        assert _names(found.causes) == ["BLOCK_M", "BLOCK_N", "STAGES"]


def test_of_equally_near_ones_the_newest_is_taken() -> None:
    older, newer = _record(1, N="64"), _record(2, N="32")
    assert older.created_at < newer.created_at
    for records in ([older, newer], [newer, older]):
        found = nearest(HERE, records)
        assert found is not None
        assert found.record == newer


def test_a_name_that_alone_differs_is_a_cause() -> None:
    found = nearest(HERE, [_record(KERNEL_NAME="another")])
    assert found is not None
    assert (_names(found.causes), found.consequences) == (["KERNEL_NAME"], ())


def test_no_record_is_nearest_to_nothing() -> None:
    assert nearest(HERE, []) is None


_COMPONENTS = st.dictionaries(st.sampled_from([label for label, _ in HERE]), st.sampled_from("12"), min_size=1)


@given(_COMPONENTS, _COMPONENTS)
def test_every_difference_is_shown_once_and_nothing_else(first: dict[str, str], second: dict[str, str]) -> None:
    pairs = differing(tuple(first.items()), tuple(second.items()))
    expected = {label for label in first | second if first.get(label) != second.get(label)}
    assert sorted(_names(pairs)) == sorted(expected)
    assert all((pair.first, pair.second) == (first.get(pair.name), second.get(pair.name)) for pair in pairs)


@given(_COMPONENTS, _COMPONENTS)
def test_every_difference_has_a_cause(first: dict[str, str], second: dict[str, str]) -> None:
    """Every follow-on difference has a cause."""
    found = nearest(tuple(second.items()), [_record(components=tuple(first.items()))])
    assert found is not None
    assert bool(found.causes) == (first != second)
    assert sorted(_names((*found.causes, *found.consequences))) == sorted(
        _names(differing(tuple(first.items()), tuple(second.items())))
    )


def test_a_kernel_compared_with_itself_has_no_differences() -> None:
    inspection = inspect(_record(), "        /*0000*/                   HMMA R1, R2 ;\n")
    compared = compare(inspection, inspection)
    assert (compared.components, compared.config) == ((), ())
    for pairs in (compared.resources, compared.occupancy, compared.instructions):
        assert pairs
        assert not [pair for pair in pairs if pair.differs]


def test_numbers_are_shown_with_their_change() -> None:
    assert [change(pair) for pair in (Pair("", 2000, 1000), Pair("", 1, 1), Pair("", None, 1), Pair("", "1", "2"))] == [
        "-1,000", "", "", ""
    ]  # fmt: skip
    assert [shown(value) for value in (None, 0.125, 1234, "sm_90")] == ["–", "12.5%", "1,234", "sm_90"]


def test_several_comparisons_are_one_table() -> None:
    """A property that one comparison leaves out, as it is equal there, has the baseline's value."""
    same, other = (
        Comparison(components, (), (Pair("registers", 128, registers),), (), ())
        for components, registers in (((), 128), ((Pair("arch", "sm_80", "sm_90"),), 96))
    )
    assert merged([same, other]) == {
        "Key differences": {"arch": ["sm_80", "sm_80", "sm_90"]},
        "Resources": {"registers per thread": [128, 128, 96]},
    }
    assert list(merged([other, same])) == ["Key differences", "Resources"]


def test_a_share_changes_by_points() -> None:
    assert [change(Pair("", 0.5, second)) for second in (0.75, 0.5, None)] == ["+25.0 points", "", ""]


def test_a_value_that_one_kernel_lacks_is_none() -> None:
    """One compiled for a target that this program does not know, and not disassembled."""
    strange = msgspec.structs.replace(_record(), arch="sm_999")
    compared = compare(inspect(_record(), "        /*0000*/                   HMMA R1, R2 ;\n"), inspect(strange, None))
    assert [(pair.name, pair.first, pair.second) for pair in compared.instructions] == [
        ("HMMA", 1, None),
        ("other", 0, None),
        ("total", 1, None),
    ]
    assert {pair.second for pair in compared.occupancy} == {None}


def test_machine_code_is_compared_without_addresses_and_names() -> None:
    first = msgspec.structs.replace(_record(), name="gemm_a")
    second = msgspec.structs.replace(_record(), name="gemm_b")
    text = "        /*{0:04x}*/                   CALL `({1}) ;\n        /*{0:04x}*/                   EXIT ;\n"
    assert sass_difference(first, text.format(16, "gemm_a"), second, text.format(32, "gemm_b")) == ""
    changed = sass_difference(first, text.format(16, "gemm_a"), second, "        /*0000*/       EXIT ;\n")
    assert changed.splitlines()[2:] == ["@@ code: 1 of 2 lines differ @@", "-CALL `(kernel)", " EXIT"]
