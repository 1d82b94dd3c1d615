"""The little of ELF that is needed: the build ID of a library, and the target of a CUBIN.

Source: System V ABI, "Object Files"; the note is ``NT_GNU_BUILD_ID`` as GNU binutils writes it; what is CUDA's own is
in LLVM's ``llvm/BinaryFormat/ELF.h``.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER_BYTES = 64
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MOST_NOTES = 2**16  # bytes; the note with a build ID has 36
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_ET_EXEC, _EM_CUDA = 2, 190
# EI_OSABI and EI_ABIVERSION -> where in e_flags the number of the target is. CUDA 13 writes the second.
_TARGET_AT = {b"\x33\x07": 0, b"\x41\x08": 8}


def cubin_fault(image: bytes, arch: str) -> str:
    """Why these bytes cannot be code for a target, such as ``sm_90a``; empty when nothing in the header says so.

    The flags do not say ``sm_90a`` from ``sm_90`` in every ABI, so only the number is compared. Of a target that is
    none of CUDA's, which a later version may have, nothing is known.
    """
    if not arch.startswith("sm_"):
        return ""
    if len(image) < _HEADER.size or image[:7] != _MAGIC:
        return "it is no 64-bit ELF image"
    fields = _HEADER.unpack_from(image)
    if fields[1:3] != (_ET_EXEC, _EM_CUDA):
        return f"it is an ELF image of type {fields[1]} for machine {fields[2]}, not CUDA code (2 and {_EM_CUDA})"
    at = _TARGET_AT.get(image[7:9])
    if at is None:
        return f"its ABI {image[7]} version {image[8]} is none that is known here"
    target = fields[7] >> at & 0xFF
    if f"sm_{target}" != arch.rstrip("af"):
        return f"it is code for sm_{target}, not for {arch}"
    programs, sections = (fields[5], *fields[9:11]), (fields[6], *fields[11:13])
    for (offset, size, count), least in ((programs, _PROGRAM_HEADER.size), (sections, _SECTION_HEADER_BYTES)):
        if count and (size < least or offset + size * count > len(image)):
            return "it ends before what its header promises"
    return ""


def build_id(path: Path) -> str | None:
    """The linker's content hash of a 64-bit little-endian library, as hex; ``None`` when it carries none.

    Raises:
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:4] != _MAGIC[:4]:
            return None
        fields = _HEADER.unpack(header)
        table_offset, entry_size, entries = fields[5], fields[9], fields[10]
        for index in range(entries):
            entry = _read_at(file, table_offset + index * entry_size, _PROGRAM_HEADER.size)
            if len(entry) < _PROGRAM_HEADER.size:
                return None
            kind, _, offset, _, _, size, _, _ = _PROGRAM_HEADER.unpack(entry)
            if kind == _PT_NOTE:
                found = _build_id_in(_read_at(file, offset, min(size, _MOST_NOTES)))
                if found:
                    return found
    return None


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """So many bytes from a place, fewer where the file ends, none where it does not reach."""
    if offset > os.fstat(file.fileno()).st_size:
        return b""  # a place beyond 2^63, or what the file system has, cannot be asked for
    file.seek(offset)
    return file.read(size)


def _build_id_in(notes: bytes) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_size, value_size, kind = struct.unpack_from("<III", notes, position)
        name_end = position + 12 + (name_size + 3) // 4 * 4
        name = notes[position + 12 : position + 12 + name_size]
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return notes[name_end : name_end + value_size].hex()
        position = name_end + (value_size + 3) // 4 * 4
    return None
