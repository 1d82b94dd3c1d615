"""The little of ELF that is read: what is no code for a target is seen."""

from __future__ import annotations

import struct

import pytest

from cache_engine.compilers.elf import cubin_fault
from tests.helpers import make_cubin

CUBIN = make_cubin("sm_90", b"code" * 100)


def _with(position: int, *values: int, of: bytes = CUBIN) -> bytes:
    return of[:position] + bytes(values) + of[position + len(values) :]


def test_the_header_of_code_names_its_target() -> None:
    assert cubin_fault(CUBIN, "sm_90") is None
    assert cubin_fault(CUBIN, "sm_90a") is None
    assert cubin_fault(make_cubin("sm_120", b""), "sm_120f") is None


def test_the_abi_of_earlier_compilers_has_its_target_elsewhere() -> None:
    earlier = _with(48, 0x5A, 0x05, 0x5A, 0x00, of=_with(7, 0x33, 0x07))
    assert cubin_fault(earlier, "sm_90") is None
    assert "not for sm_80" in (cubin_fault(earlier, "sm_80") or "")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (b"", "not a 64-bit ELF"),
        (CUBIN[:63], "not a 64-bit ELF"),
        (b"MZ" + CUBIN[2:], "not a 64-bit ELF"),
        (_with(4, 1), "not a 64-bit ELF"),
        (_with(5, 2), "not a 64-bit ELF"),
        (_with(7, 0), "ABI 0 version 8"),
        (_with(8, 9), "ABI 65 version 9"),
        (_with(16, 1), "type 1 for machine 190"),
        (_with(18, 62), "machine 62"),
        (_with(49, 80), "code for sm_80, not for sm_90"),
        (_with(56, 1), "shorter than its header declares"),
        (_with(60, 1), "shorter than its header declares"),
        (_with(40, *struct.pack("<Q", 2**63), of=_with(58, 64, 0, 1)), "shorter than its header declares"),
    ],
    ids=["empty", "cut", "magic", "32 bits", "big-endian", "system", "abi", "type", "machine", "target", "programs",
         "sections", "far"],
)  # fmt: skip
def test_code_that_is_not_for_the_target_is_reported(image: bytes, said: str) -> None:
    assert said in (cubin_fault(image, "sm_90") or "")
