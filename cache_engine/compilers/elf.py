"""The little of ELF that is needed: the build ID of a library.

Source: System V ABI, "Object Files"; the note is ``NT_GNU_BUILD_ID`` as GNU binutils writes it.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3


def build_id(path: Path) -> str | None:
    """The linker's content hash of a 64-bit little-endian library, as hex; ``None`` when it carries none."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:4] != b"\x7fELF":
            return None
        fields = _HEADER.unpack(header)
        table_offset, entry_size, entries = fields[5], fields[9], fields[10]
        for index in range(entries):
            file.seek(table_offset + index * entry_size)
            kind, _, offset, _, _, size, _, _ = _PROGRAM_HEADER.unpack(file.read(_PROGRAM_HEADER.size))
            if kind == _PT_NOTE:
                file.seek(offset)
                found = _build_id_in(file.read(size))
                if found:
                    return found
    return None


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
