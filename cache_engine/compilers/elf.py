"""Reads the target of a CUBIN from its ELF header, and the resources of its kernels from its sections.

Sources: System V ABI, "Object Files"; for the CUDA fields, LLVM's ``llvm/BinaryFormat/ELF.h``; for the attributes of
``.nv.info``, the names that ``cuobjdump -elf`` gives them. A test compares with ``cuobjdump -res-usage``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<II16xQQ24x")  # name, kind, offset, size
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_NOBITS = 8  # a section without bytes in the file
_FORMAT_SIZED = 4  # EIFMT_SVAL: the attribute's value is so many bytes that follow
_REGCOUNT, _MIN_STACK_SIZE = 0x2F, 0x12  # EIATTR_…, of a function: its symbol and a number
_TOOLS, _TEXT = b".note.nv.tkinfo", b".text."
_Section = tuple[int, int, int]
"""A section's type, its position in the file, and its size, which may be larger if it has no bytes in the file."""
_ARCH_OPTION = re.compile(rb"-arch[ =](sm_\d{2,3}[af]?)\b")
_RELEASE = re.compile(rb"ptxas[^\0]{0,40}+\0[^\0]{0,100}?release [^\0]{0,100}?V(\d[\d.]{0,30})")
# Sections: more than any compiler writes. Without a limit, a hostile file could take minutes.
_MOST_SECTIONS, _MOST_ATTRIBUTES = 20_000, 200_000
_MOST_NOTES = 1 << 16  # bytes of the notes that tools write about themselves; usual are less than a kilobyte
_LONGEST_NAME, _MOST_LETTERS = 1 << 16, 64 << 20  # letters of one name (of templates: thousands), and of all
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_NO_IMAGE = "it is not a 64-bit ELF image"
_ET_EXEC, _EM_CUDA = 2, 190
# EI_OSABI and EI_ABIVERSION -> the bit in e_flags where the target's number starts. CUDA 13 writes the second.
_TARGET_AT = {b"\x33\x07": 0, b"\x41\x08": 8}


def cubin_fault(image: bytes, arch: str) -> str | None:
    """The reason why these bytes are not code for a target such as ``sm_90a``; ``None`` if the header fits the target.

    Only the number in the target's name is compared, because not every ABI distinguishes ``sm_90a`` from ``sm_90``. A
    target whose name does not look like CUDA's is not checked, because a later version may have other names.
    """
    if not arch.startswith("sm_"):
        return None
    fields = _header(image)
    if fields is None:
        return _NO_IMAGE
    if fields[1:3] != (_ET_EXEC, _EM_CUDA):
        return f"it is an ELF image of type {fields[1]} for machine {fields[2]}, not CUDA code (2 and {_EM_CUDA})"
    at = _TARGET_AT.get(image[7:9])
    if at is None:
        return f"its ABI {image[7]} version {image[8]} is unknown"
    target = fields[7] >> at & 0xFF
    if f"sm_{target}" != arch.rstrip("af"):
        return f"it is code for sm_{target}, not for {arch}"
    programs, sections = (fields[5], *fields[9:11]), (fields[6], *fields[11:13])
    for (offset, size, count), least in ((programs, _PROGRAM_HEADER.size), (sections, _SECTION_HEADER.size)):
        if count and (size < least or offset + size * count > len(image)):
            return "it is shorter than its header declares"
    return None


def machine_of(data: bytes) -> int | None:
    """The machine number in the header of an ELF image, of any class and byte order; ``None`` if it is no ELF."""
    if not data.startswith(b"\x7fELF"):
        return None
    order: Literal["little", "big"] = "big" if data[5:6] == b"\x02" else "little"
    return int.from_bytes(data[18:20], order)


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel, or another function, in a CUBIN.

    Values that the file does not state are ``None``. ``shared_bytes`` is the static shared memory alone: a CUBIN does
    not contain the dynamic part, which a launch adds. ``code_bytes`` is the size of the machine code.
    """

    name: str
    code_bytes: int
    registers: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    """The contents of a CUBIN's headers: its target, the assembler that made it (empty if unknown), its functions."""

    arch: str
    assembler: str = ""
    functions: tuple[Function, ...] = field(default=())


def read_cubin(image: bytes) -> Image:
    """The contents of a CUBIN's headers.

    Raises:
        ValueError: when the bytes are not CUDA code, or contradict themselves; the text says how.
    """
    fields, sections = _sections(image)
    if fields[2] != _EM_CUDA:
        raise ValueError(f"it is an ELF image for machine {fields[2]}, not CUDA code ({_EM_CUDA})")
    at = _TARGET_AT.get(image[7:9])
    tools = _content(image, sections.get(_TOOLS))[:_MOST_NOTES]
    asked, release = _ARCH_OPTION.search(tools), _RELEASE.search(tools)
    arch = f"sm_{fields[7] >> at & 0xFF}" if at is not None else ""
    # The header does not distinguish sm_90a from sm_90 in every ABI; the options of ptxas do.
    if asked is not None and asked[1].decode().rstrip("af") == (arch or asked[1].decode().rstrip("af")):
        arch = asked[1].decode()
    return Image(arch, f"ptxas {release[1].decode()}" if release else "", tuple(_functions(image, sections)))


def code_of(image: bytes) -> dict[str, bytes]:
    """The machine code of each function of a CUBIN, by section name.

    Raises:
        ValueError: when the bytes contradict themselves.
    """
    _, sections = _sections(image)
    texts = {name: section for name, section in sections.items() if name.startswith(_TEXT)}
    if sum(length for kind, _, length in texts.values() if kind != _NOBITS) > len(image):
        raise ValueError("its sections overlap")
    return {name.decode(errors="replace"): _content(image, section) for name, section in texts.items()}


def lacks_last_byte(image: bytes) -> bool:
    """Whether the CUBIN is one byte shorter than its headers say."""
    if (fields := _header(image)) is None:
        return False
    end: int = max(fields[5] + fields[9] * fields[10], fields[6] + fields[11] * fields[12])
    return len(image) + 1 == end


def _header(image: bytes) -> tuple[Any, ...] | None:
    """The fields of the ELF header; ``None`` if the bytes are not a 64-bit ELF image."""
    return _HEADER.unpack_from(image) if len(image) >= _HEADER.size and image[:7] == _MAGIC else None


def _sections(image: bytes) -> tuple[tuple[Any, ...], dict[bytes, _Section]]:
    """The header's fields, and the sections by name. Their bytes are not copied, because callers use few of them."""
    fields = _header(image)
    if fields is None:
        raise ValueError(_NO_IMAGE)
    offset, size, count, names = fields[6], *fields[11:14]
    if not count:
        return fields, {}
    if size != _SECTION_HEADER.size or count > _MOST_SECTIONS or offset + size * count > len(image) or names >= count:
        raise ValueError("it is shorter than its header declares")
    headers = [*_SECTION_HEADER.iter_unpack(memoryview(image)[offset : offset + size * count])]
    _, _, start, length = headers[names]
    texts = image[start : start + length]
    most, name_at, found = len(image), _names(texts), {}
    for name, kind, start, length in headers:
        if kind != _NOBITS and start + length > most:
            raise ValueError("it is shorter than its sections declare")
        found[name_at(name)] = (kind, start, length)
    return fields, found


def _names(texts: bytes) -> Callable[[int], bytes]:
    """A function that returns the name at a position of the string table ``texts``; empty if the name has no end.

    The function raises ``ValueError`` if the names that it has returned are too long together: as names may overlap, a
    small file can have many long ones.
    """
    left = _MOST_LETTERS

    def name_at(start: int) -> bytes:
        nonlocal left
        end = texts.find(b"\0", start, start + _LONGEST_NAME)
        if end < 0:
            return b""
        left -= end - start
        if left < 0:
            raise ValueError(f"its names have more than {_MOST_LETTERS:,} letters")
        return texts[start:end]

    return name_at


def _content(image: bytes, section: _Section | None) -> bytes:
    """The bytes of a section; empty if the section is ``None`` or has no bytes in the file."""
    if section is None or section[0] == _NOBITS:
        return b""
    return image[section[1] : section[1] + section[2]]


def _functions(image: bytes, sections: Mapping[bytes, _Section]) -> Iterator[Function]:
    functions = {
        section.removeprefix(_TEXT): length for section, (_, _, length) in sections.items() if section.startswith(_TEXT)
    }
    registers: dict[bytes, int] = {}
    stacks: dict[bytes, int] = {}
    symbols, name_at = _content(image, sections.get(b".symtab")), _names(_content(image, sections.get(b".strtab")))
    for attribute, value in _attributes(_content(image, sections.get(b".nv.info"))):
        if attribute in (_REGCOUNT, _MIN_STACK_SIZE) and len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            at = symbol * _SYMBOL.size
            if (
                at + _SYMBOL.size <= len(symbols)
                and (name := name_at(_SYMBOL.unpack_from(symbols, at)[0])) in functions
            ):
                (registers if attribute == _REGCOUNT else stacks)[name] = number
    for name, length in functions.items():
        _, _, shared = sections.get(b".nv.shared." + name, (0, 0, 0))
        yield Function(name.decode(errors="replace"), length, registers.get(name), stacks.get(name), shared)


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(_MOST_ATTRIBUTES):
        if at + _ATTRIBUTE.size > len(info):
            return
        form, attribute, value = _ATTRIBUTE.unpack_from(info, at)
        at += _ATTRIBUTE.size
        if form == _FORMAT_SIZED:
            yield attribute, info[at : at + value]
            at += value
