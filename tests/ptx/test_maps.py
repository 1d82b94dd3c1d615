"""Tensor maps: the rules of the driver that this machine holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import maps
from tests.ptx.faults import Fault


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"address": 8}, "multiple of 16 bytes"),
        ({"sizes": (64, 0)}, "sizes are 1 to"),
        ({"strides": (136,)}, "strides are multiples of 16"),
        ({"strides": (1 << 40,)}, "strides are multiples of 16"),
        ({"box": (64, 257)}, "edges of a box"),
        ({"box": (4, 8)}, "lines of a box"),
        ({"box": (128, 8)}, "at most as long as what is swizzled"),
        ({"strides": ()}, "dimensions"),
    ],
)
def test_a_tensor_map_that_breaks_a_rule_is_refused(change: dict[str, Any], what: str) -> None:
    right: dict[str, Any] = {
        "kind": 9,
        "address": 1024,
        "sizes": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": 3,
    }
    assert maps.decode(maps.encode(**right)).box_bytes == 64 * 8 * 2
    with pytest.raises(Fault, match=what):
        maps.encode(**{**right, **change})


def test_copies_of_tf32_are_rounded_to_the_nearest_ties_to_even() -> None:
    stored = np.array(
        [0x3F801000, 0x3F803000, 0x3F801001, 0xBF800FFF, 0x3FFFF000, 0x7F800000, 0x7F800001, 1], dtype="u4"
    )
    tensor = maps.TensorMap(0, (8,), (), (8,), 11, maps.SWIZZLE_NONE)
    copied = maps.box_of(tensor, stored.view("u1"), (0,)).view("u4")
    wanted = [0x3F800000, 0x3F804000, 0x3F802000, 0xBF800000, 0x40000000, 0x7F800000, 0x7F800001, 0]
    assert copied.tolist() == [wanted]
    raw = maps.TensorMap(0, (8,), (), (8,), 7, maps.SWIZZLE_NONE)
    assert maps.box_of(raw, stored.view("u1"), (0,)).view("u4").tolist() == [stored.tolist()]
