"""Reads the target of a CUBIN from its ELF header.

Source: System V ABI, "Object Files"; for the CUDA fields, LLVM's ``llvm/BinaryFormat/ELF.h``.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER_BYTES = 64
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_ET_EXEC, _EM_CUDA = 2, 190
# EI_OSABI and EI_ABIVERSION -> the bit in e_flags where the target's number starts. CUDA 13 writes the second.
_TARGET_AT = {b"\x33\x07": 0, b"\x41\x08": 8}


def cubin_fault(image: bytes, arch: str) -> str | None:
    """Why these bytes cannot be code for a target such as ``sm_90a``; ``None`` when the header has no contradiction.

    Only the number is compared, because not every ABI distinguishes ``sm_90a`` from ``sm_90`` in the flags. A target
    that is not CUDA's, which a later version may have, is not checked.
    """
    if not arch.startswith("sm_"):
        return None
    if len(image) < _HEADER.size or image[:7] != _MAGIC:
        return "it is not a 64-bit ELF image"
    fields = _HEADER.unpack_from(image)
    if fields[1:3] != (_ET_EXEC, _EM_CUDA):
        return f"it is an ELF image of type {fields[1]} for machine {fields[2]}, not CUDA code (2 and {_EM_CUDA})"
    at = _TARGET_AT.get(image[7:9])
    if at is None:
        return f"its ABI {image[7]} version {image[8]} is unknown"
    target = fields[7] >> at & 0xFF
    if f"sm_{target}" != arch.rstrip("af"):
        return f"it is code for sm_{target}, not for {arch}"
    programs, sections = (fields[5], *fields[9:11]), (fields[6], *fields[11:13])
    for (offset, size, count), least in ((programs, _PROGRAM_HEADER.size), (sections, _SECTION_HEADER_BYTES)):
        if count and (size < least or offset + size * count > len(image)):
            return "it is shorter than its header declares"
    return None
