"""The little of ELF that is read: what is no code for a target is seen."""

from __future__ import annotations

import contextlib
import re
import struct

import pytest

from cache_engine.compilers.elf import cubin_fault, read_cubin
from cache_engine.compilers.inspect import resources, sass
from tests.foreign.fixtures import unpack
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


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What Triton's ptxas made for two ABIs."""
    place = unpack("triton", tmp_path_factory.mktemp("triton"))
    return [path.read_bytes() for path in sorted(place.rglob("*.cubin"))]


def test_the_resources_are_those_that_cuobjdump_reports(cubins: list[bytes]) -> None:
    assert {image[7] for image in cubins} == {0x33, 0x41}
    for image in cubins:
        found, reported = read_cubin(image), resources(image, b"", 0)
        (function,) = found.functions
        assert (function.registers, function.stack_bytes) == (reported.registers, reported.stack_bytes)
        assert cubin_fault(image, found.arch) is None


def test_the_size_of_the_code_is_that_of_the_instructions(cubins: list[bytes]) -> None:
    """Each of 16 bytes; nvdisasm prints them all."""
    image = min(cubins, key=len)
    (function,) = read_cubin(image).functions
    instructions = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/", sass(image), re.MULTILINE)
    assert function.code_bytes == int(instructions[-1], 16) + 16


def test_the_note_of_the_assembler_tells_sm_90a_from_sm_90(cubins: list[bytes]) -> None:
    assert {(found.arch, found.assembler.partition(" ")[0]) for found in map(read_cubin, cubins)} == {
        ("sm_80", ""),
        ("sm_90a", "ptxas"),
    }


def test_any_cut_and_any_changed_byte_is_refused_or_read(cubins: list[bytes]) -> None:
    """Never another error, and never for long."""
    image = min(cubins, key=len)
    for length in range(0, len(image), 11):
        _read_or_refuse(image[:length])
    for at in range(0, len(image), 3):
        for value in (0, 0x7F, 0xFF):
            _read_or_refuse(image[:at] + bytes([value]) + image[at + 1 :])


def _read_or_refuse(image: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_cubin(image)
