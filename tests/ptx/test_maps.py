"""Tensor maps: the rules of the driver that this machine holds."""

from __future__ import annotations

from typing import Any

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
