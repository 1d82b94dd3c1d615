"""The little of ELF that is read: what is no code for a target is seen."""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path

import pytest

from cache_engine.compilers import disassembly
from cache_engine.compilers.disassembly import resources, sass
from cache_engine.compilers.elf import code_of, cubin_fault, read_cubin
from cache_engine.errors import GemmCacheError
from tests.frameworks.fixtures import unpack
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
    refused = sum(not _is_read(image[:length]) for length in range(0, len(image), 11))
    assert refused > len(image) // 22, "most of a CUBIN that is cut is refused"
    for at in range(0, len(image), 3):
        for value in (0, 0x7F, 0xFF):
            _is_read(image[:at] + bytes([value]) + image[at + 1 :])


def _is_read(image: bytes) -> bool:
    """Whether it is read; another error than that of a refusal fails the test."""
    with contextlib.suppress(ValueError):
        read_cubin(image)
        return True
    return False


def _image(names: bytes, content: bytes, *rows: tuple[bytes, int, int]) -> bytes:
    """A CUBIN of sections: of each the name, which begins somewhere in ``names``, and place and size in ``content``."""
    names = b"\0" + names
    headers = [(names.index(name), 1, 64 + start, size) for name, start, size in rows]
    headers.append((0, 3, 64 + len(content), len(names)))
    image = bytearray(make_cubin("sm_90", content + names))
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<HHH", image, 58, 64, len(headers), len(headers) - 1)
    return bytes(image) + b"".join(struct.pack("<II16xQQ24x", *each) for each in headers)


_LONG = b"k" * 60_000 + b"\0"
_INFO = struct.pack("<BBHII", 4, 0x2F, 8, 0, 1) * 2_000  # registers of the first symbol


@pytest.mark.parametrize(
    "image",
    [
        _image(_LONG, b"", *[(_LONG, 0, 0)] * 2_000),
        _image(
            b".text.k\0.symtab\0.strtab\0.nv.info\0",
            bytes(24) + _LONG + _INFO,
            *((b".text.k", 0, 0), (b".symtab", 0, 24), (b".strtab", 24, len(_LONG))),
            (b".nv.info", 24 + len(_LONG), len(_INFO)),
        ),
    ],
    ids=["sections", "symbols"],
)
def test_long_names_that_overlap_are_refused(image: bytes) -> None:
    """A file of a hundred kilobytes would take gigabytes."""
    with pytest.raises(ValueError, match="letters"):
        read_cubin(image)


def test_code_that_overlaps_is_refused() -> None:
    both = ((b".text.a", 0, 1_000), (b".text.b", 0, 1_000))
    assert code_of(_image(b".text.a\0.text.b\0", bytes(1_000), *both[:1])) == {".text.a": bytes(1_000)}
    with pytest.raises(ValueError, match="overlap"):
        code_of(_image(b".text.a\0.text.b\0", bytes(1_000), *both))


def test_a_disassembler_that_prints_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\nexec yes\n")
    (tmp_path / "tool").chmod(0o700)
    monkeypatch.setattr(disassembly, "find_tools", lambda _: [tmp_path / "tool"])
    with pytest.raises(GemmCacheError, match="more than"):
        sass(CUBIN)
