"""Disassembles machine code, counts its instructions, and removes meaningless differences between lines.

The input is the output of nvdisasm or cuobjdump, one instruction per line::

    /*09f0*/              @!P6 STG.E desc[UR6][R2.64+0x8c000], R137 ;
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from cache_engine.compilers.contents import find_tool, find_tools
from cache_engine.errors import GemmCacheError, ToolMissing
from cache_engine.model.artifact import Resources
from cache_engine.process import unforked

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
    """The number of instructions in a kernel's code for each opcode, not how often they run.

    Attributes:
        opcodes: counts by opcode without its modifiers, most frequent first. Without NOP, which only fills the end of
            the code.
    """

    opcodes: dict[str, int]

    @property
    def total(self) -> int:
        """The number of all instructions."""
        return sum(self.opcodes.values())

    @property
    def classes(self) -> dict[str, int]:
        """The counts of the opcodes in ``CLASSES`` that occur, in that order, then the sum of all others."""
        named = {name: self.opcodes[name] for name in CLASSES if name in self.opcodes}
        return {**named, OTHER: self.total - sum(named.values())}

    @property
    def others(self) -> dict[str, int]:
        """The counts of opcodes that belong to no class, most frequent first."""
        return {name: count for name, count in self.opcodes.items() if name not in CLASSES}


def instruction_mix(sass: str) -> InstructionMix:
    """Counts the instructions of disassembled code."""
    counts = Counter(match["opcode"] for match in _instructions(sass))
    counts.pop("NOP", None)
    return InstructionMix(dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))))


def comparable_lines(sass: str, kernel: str) -> list[str]:
    """Instructions and labels, one per line, without addresses and names, because these differ between equal kernels.

    Args:
        kernel: the kernel's name, which is replaced by the word ``kernel``.
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


# ---- NVIDIA's tools, and what they print about a CUBIN ----

_MOST_BYTES, _TIMEOUT_S = 64 << 20, 60  # bytes of a tool's output: ten times the usual; a forged CUBIN may be large
_USAGE = re.compile(r"REG:(?P<registers>\d+)\s+STACK:(?P<stack>\d+)\s+SHARED:(?P<shared>\d+)")
_SPILLS = re.compile(rb"(?<!\d)(\d{1,18}) bytes spill (?:stores|loads)")


def resources(cubin: bytes, log: bytes, dynamic_shared_bytes: int) -> Resources:
    """The resources that the kernel in a CUBIN uses.

    Args:
        log: the report of ptxas on the same compile; only it states the register spills.
        dynamic_shared_bytes: the dynamic shared memory that the launch asks for; a CUBIN does not contain it.

    Raises:
        ToolMissing: when cuobjdump is not installed.
    """
    usage = _run("cuobjdump", "nvidia-cuda-cuobjdump", ["-res-usage"], cubin)
    found = _USAGE.search(usage)
    if found is None:
        raise GemmCacheError(f"cuobjdump reported no resource usage: {usage.strip()[:200]!r}")
    return Resources(
        registers=int(found["registers"]),
        # The reported SHARED is reserved by the system; the kernels have no static shared memory.
        shared_bytes=dynamic_shared_bytes,
        stack_bytes=int(found["stack"]),
        spill_bytes=sum(int(count) for count in _SPILLS.findall(log)),
    )


def sass(cubin: bytes) -> str:
    """The disassembled machine code.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c"], cubin)


def linked_sass(cubin: bytes) -> str:
    """The disassembled machine code; lines before an instruction name its source and PTX lines, if the CUBIN has them.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c", "-gi", "-gp"], cubin)


def register_table(cubin: bytes) -> str:
    """The disassembled machine code, with the encoding of each instruction and what it does to each register.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c", "-hex", "-lrm", "narrow"], cubin)


def _run(tool: str, package: str, arguments: list[str], cubin: bytes) -> str:
    find_tool(tool, package)  # otherwise it raises an error that says how to get the tool
    failure = ""
    for executable in find_tools(tool):
        printed, failure = _printed(executable, arguments, cubin)
        if not failure:
            return printed
        if "is deprecated" not in failure:
            raise GemmCacheError(f"{tool} failed: {failure}")
    raise ToolMissing(f"{failure}; set CUDA_HOME to such a toolkit")  # for sm_70: CUDA 13.0 is the last with it


def _printed(executable: Path, arguments: list[str], cubin: bytes) -> tuple[str, str]:
    """The output of a tool for a CUBIN; and the reason why the tool failed, or an empty text.

    Raises:
        GemmCacheError: when the tool cannot be started, or prints more than ``_MOST_BYTES``.
    """
    # Files in memory: a temporary folder may be full, and every compile calls this.
    image, errors = os.memfd_create("kernel.cubin"), os.memfd_create("errors")
    try:
        with open(image, "wb", closefd=False) as file:
            file.write(cubin)
        command = [str(executable), *arguments, f"/proc/self/fd/{image}"]
        with unforked():
            started = subprocess.Popen(command, pass_fds=(image,), stdout=subprocess.PIPE, stderr=errors)
        with started as process:
            limit = Timer(_TIMEOUT_S, process.kill)
            limit.start()
            try:
                printed = process.stdout.read(_MOST_BYTES + 1) if process.stdout else b""
                if len(printed) > _MOST_BYTES:
                    name = executable.name
                    raise GemmCacheError(f"{name} prints more than {_MOST_BYTES:,} bytes of this code; it is not shown")
                process.wait()
            finally:
                limit.cancel()
                process.kill()  # does nothing to a process that has ended
        failure = os.pread(errors, 500, 0) or printed[:500] or b"it was ended after %d s" % _TIMEOUT_S
    except OSError as error:
        raise GemmCacheError(f"cannot run {executable.name}: {error}") from error
    finally:
        os.close(image)
        os.close(errors)
    text = printed.decode(errors="replace")
    return text, failure.decode(errors="replace").strip() if process.returncode else ""
