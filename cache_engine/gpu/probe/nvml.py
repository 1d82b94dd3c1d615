"""NVIDIA's management library: the current clock and the driver's release; ``None`` when unavailable.

Source: NVML API Reference Guide; every call returns 0 for success.
"""

from __future__ import annotations

import ctypes
from functools import cache

_SM_CLOCK = 1  # nvmlClockType_t


def sm_clock_mhz(pci_bus_id: str) -> int | None:
    """The current clock of a GPU's SMs.

    Args:
        pci_bus_id: of the GPU, as CUDA gives it, such as ``"0000:17:00.0"``: the two number GPUs differently.
    """
    library = _library()
    if library is None:
        return None
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device)) != 0:
        return None
    clock = ctypes.c_uint()
    if library.nvmlDeviceGetClockInfo(device, _SM_CLOCK, ctypes.byref(clock)) != 0:
        return None
    return clock.value


def driver_release() -> str | None:
    """The driver's own version, such as ``"580.65.06"``."""
    library = _library()
    if library is None:
        return None
    version = ctypes.create_string_buffer(96)
    if library.nvmlSystemGetDriverVersion(version, len(version)) != 0:
        return None
    return version.value.decode(errors="replace")


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
