"""NVIDIA's management library: clock, memory and the driver's release; ``None`` when unavailable.

Source: NVML API Reference Guide; every call returns 0 for success.
"""

from __future__ import annotations

import ctypes
from functools import cache

_SM_CLOCK = 1  # nvmlClockType_t


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def sm_clock_mhz(pci_bus_id: str) -> int | None:
    """The current clock of a GPU's SMs.

    Args:
        pci_bus_id: of the GPU, as CUDA gives it, such as ``"0000:17:00.0"``: the two number GPUs differently.
    """
    library, device = _library(), ctypes.c_void_p()
    if library is None or not _found(library, pci_bus_id, device):
        return None
    clock = ctypes.c_uint()
    if library.nvmlDeviceGetClockInfo(device, _SM_CLOCK, ctypes.byref(clock)) != 0:
        return None
    return clock.value


def memory_bytes(pci_bus_id: str) -> tuple[int, int, int] | None:
    """A GPU's memory over all programs: free, used and total.

    It starts nothing on the GPU. Of a GPU in parts (MIG) it is the whole GPU's.

    Args:
        pci_bus_id: as of ``sm_clock_mhz``.
    """
    library, device = _library(), ctypes.c_void_p()
    if library is None or not _found(library, pci_bus_id, device):
        return None
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
        return None
    return memory.free, memory.used, memory.total


def driver_release() -> str | None:
    """The driver's own version, such as ``"580.65.06"``."""
    library = _library()
    if library is None:
        return None
    version = ctypes.create_string_buffer(96)
    if library.nvmlSystemGetDriverVersion(version, len(version)) != 0:
        return None
    return version.value.decode(errors="replace")


def _found(library: ctypes.CDLL, pci_bus_id: str, device: ctypes.c_void_p) -> bool:
    """Sets the handle of a GPU."""
    return bool(library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device)) == 0)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
