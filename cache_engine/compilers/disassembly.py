"""Reads disassembled machine code: counts its instructions, and makes its lines comparable.

The input is the output of nvdisasm or cuobjdump, one instruction per line::

    /*09f0*/              @!P6 STG.E desc[UR6][R2.64+0x8c000], R137 ;
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

OTHER = "other"

# Opcodes that characterise a GEMM kernel, by their names in NVIDIA's "CUDA Binary Utilities", tables "Instruction
# Set Reference"; UTC… are the tensor-core instructions of sm_100, …GMMA those of sm_90a. HFMA2 is not among them: the
# compiler also uses it to make constants.
CLASSES = (
    *("HMMA", "IMMA", "QMMA", "OMMA", "DMMA", "BMMA", "HGMMA", "IGMMA", "QGMMA"),
    *("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),
    *("FFMA", "FFMA2", "DFMA", "IDP"),
    *("LDSM", "LDGSTS", "UTMALDG", "UTMASTG", "LDTM", "LDG", "STG", "LDS", "STS", "STSM", "LDL", "STL"),
    *("BAR", "SYNCS"),
)

_INSTRUCTION = re.compile(
    r"^\s*+/\*[0-9a-f]{4,}+\*/\s++"  # its address
    r"(?P<text>\{?\s*+(?:@!?U?P(?:\d++|T)\s++)?(?P<opcode>[A-Z][A-Z0-9_]*+)[^;]*+);"
)
_LABEL = re.compile(r"^(?P<label>\.L_x?_?\d+|\$\S+):")


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """The static number of instructions per opcode, however often each runs.

    Attributes:
        opcodes: counts by opcode without its modifiers, the most frequent first. NOP, which pads the end, is
            left out.
    """

    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        """The number of all instructions."""
        return sum(self.opcodes.values())

    @property
    def classes(self) -> dict[str, int]:
        """Counts of the opcodes in ``CLASSES`` that occur, in that order, then of all others together."""
        named = {name: self.opcodes[name] for name in CLASSES if name in self.opcodes}
        return {**named, OTHER: self.total - sum(named.values())}

    @property
    def others(self) -> dict[str, int]:
        """Counts of the opcodes in no class, the most frequent first."""
        return {name: count for name, count in self.opcodes.items() if name not in CLASSES}


def instruction_mix(sass: str) -> InstructionMix:
    """Counts the instructions of disassembled code."""
    counts = Counter(match["opcode"] for match in _instructions(sass))
    counts.pop("NOP", None)
    return InstructionMix(dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))))


def comparable_lines(sass: str, kernel: str) -> list[str]:
    """Instructions and labels, one per line, without addresses and names, which differ between equal kernels.

    Args:
        kernel: the kernel's name, which is replaced by ``kernel``.
    """
    lines = []
    for line in sass.splitlines():
        found = _INSTRUCTION.match(line)
        if found is not None:
            if found["opcode"] != "NOP":
                lines.append(found["text"].rstrip())
        elif label := _LABEL.match(line):
            lines.append(f"{label['label']}:")
    # Last, because the kernel's name may look like part of an instruction.
    return [line.replace(kernel, "kernel") for line in lines] if kernel else lines


def _instructions(sass: str) -> Iterator[re.Match[str]]:
    return (match for line in sass.splitlines() if (match := _INSTRUCTION.match(line)))
