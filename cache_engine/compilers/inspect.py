"""Inspects compiled code with NVIDIA's disassemblers."""

from __future__ import annotations

import os
import re
import subprocess

from cache_engine.compilers.tools import find_tool
from cache_engine.errors import GemmCacheError
from cache_engine.model.artifact import Resources

_USAGE = re.compile(r"REG:(?P<registers>\d+)\s+STACK:(?P<stack>\d+)\s+SHARED:(?P<shared>\d+)")
_SPILLS = re.compile(rb"(?<!\d)(\d{1,18}) bytes spill (?:stores|loads)")


def resources(cubin: bytes, log: bytes, dynamic_shared_bytes: int) -> Resources:
    """The resources that the kernel in a CUBIN uses.

    Args:
        log: the report of ptxas on the same compile; the only source of spills.
        dynamic_shared_bytes: the amount that the launch asks for; a CUBIN does not contain it.

    Raises:
        ToolMissing: when cuobjdump is not installed.
    """
    usage = _run("cuobjdump", "nvidia-cuda-cuobjdump", ["-res-usage"], cubin)
    found = _USAGE.search(usage)
    if found is None:
        raise GemmCacheError(f"cuobjdump reported no resource usage: {usage.strip()[:200]!r}")
    return Resources(
        registers=int(found["registers"]),
        # The reported SHARED is what the system reserves; the kernels have no static shared memory.
        shared_bytes=dynamic_shared_bytes,
        stack_bytes=int(found["stack"]),
        spill_bytes=sum(int(count) for count in _SPILLS.findall(log)),
    )


def sass(cubin: bytes) -> str:
    """The machine code as text.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c"], cubin)


def linked_sass(cubin: bytes) -> str:
    """The machine code as text, after lines that say which lines of source and PTX it comes from, where it states them.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c", "-gi", "-gp"], cubin)


def live_registers(cubin: bytes) -> str:
    """The machine code as text, with the number of registers that hold a value at each instruction.

    Raises:
        ToolMissing: when nvdisasm is not installed.
    """
    return _run("nvdisasm", "nvidia-cuda-nvdisasm", ["-c", "-lrm", "count"], cubin)


def _run(tool: str, package: str, arguments: list[str], cubin: bytes) -> str:
    executable = find_tool(tool, package)
    # A file in memory: a temporary folder may be full, and every compile calls this.
    image = os.memfd_create("kernel.cubin")
    try:
        with open(image, "wb", closefd=False) as file:
            file.write(cubin)
        done = subprocess.run(
            [executable, *arguments, f"/proc/self/fd/{image}"],
            pass_fds=(image,),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GemmCacheError(f"cannot run {tool}: {error}") from error
    finally:
        os.close(image)
    if done.returncode != 0:
        raise GemmCacheError(f"{tool} failed: {(done.stderr or done.stdout).strip()[:500]}")
    return done.stdout
