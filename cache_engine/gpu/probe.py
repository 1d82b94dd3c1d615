"""Finds the GPU, if there is one. Asks the driver directly, which takes milliseconds and imports no package."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from cache_engine.errors import GpuRequired

# No package is imported here: a Python without packages uses this to find out which packages fit the driver.
if TYPE_CHECKING:
    from cache_engine.model.fingerprint import DeviceFingerprint

# ---- NVIDIA's management library: clock, memory and the driver's release; ``None`` when unavailable ----
#
# Source: NVML API Reference Guide; every call returns 0 for success.

_SM_CLOCK = 1  # nvmlClockType_t


class _Memory(ctypes.Structure):
    """NVML's struct ``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def sm_clock_mhz(pci_bus_id: str) -> int | None:
    """The current clock of a GPU's SMs, in MHz; ``None`` if it is unknown.

    Args:
        pci_bus_id: the GPU's bus id, as CUDA gives it, such as ``"0000:17:00.0"``. Not a number, because CUDA and NVML
            number GPUs differently.
    """
    clock = ctypes.c_uint()
    is_known = _asked(pci_bus_id, "nvmlDeviceGetClockInfo", _SM_CLOCK, ctypes.byref(clock))
    return clock.value if is_known else None


def memory_bytes(pci_bus_id: str) -> tuple[int, int, int] | None:
    """The free, used and total memory of a GPU in bytes, over all programs. Starts nothing on the GPU.

    For a part of a GPU (MIG), it is the memory of the whole GPU.

    Args:
        pci_bus_id: as for ``sm_clock_mhz``.
    """
    memory = _Memory()
    is_known = _asked(pci_bus_id, "nvmlDeviceGetMemoryInfo", ctypes.byref(memory))
    return (memory.free, memory.used, memory.total) if is_known else None


def driver_release() -> str | None:
    """The version of the driver, such as ``"580.65.06"``; ``None`` if it is unknown."""
    library = _library()
    if library is None:
        return None
    version = ctypes.create_string_buffer(96)
    if library.nvmlSystemGetDriverVersion(version, len(version)) != 0:
        return None
    return version.value.decode(errors="replace")


def _asked(pci_bus_id: str, function: str, *arguments: object) -> bool:
    """Calls a function of NVML with the handle of a GPU and ``arguments``; returns whether it answered."""
    library, device = _library(), ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device)) != 0:
        return False
    return bool(getattr(library, function)(device, *arguments) == 0)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


# CUdevice_attribute, from cuda.h.
_CLOCK_KHZ, _SMS, _L2_BYTES, _MAJOR, _MINOR = 13, 16, 38, 75, 76
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_SEES_NONE = "the NVIDIA driver sees no GPU"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@cache
def gpu() -> DeviceFingerprint | str:
    """The fingerprint of the first GPU; or, as text, the reason why no GPU can be used."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed"
    count = ctypes.c_int()
    status = driver.cuInit(0)
    if status not in (0, _NO_DEVICE):
        return f"the NVIDIA driver cannot be used (cuInit returned error {status})"
    if status == _NO_DEVICE or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return _SEES_NONE
    return _fingerprint(driver, 0)


def current_gpu() -> tuple[int, DeviceFingerprint]:
    """The number and the fingerprint of CuPy's current GPU, on which callers launch.

    Raises:
        GpuRequired, ExtraMissing: as ``require_gpu``.
    """
    first = require_gpu("a proof on a GPU")
    import cupy

    number = int(cupy.cuda.runtime.getDevice())
    return number, first if number == 0 else _numbered(number)


@cache
def _numbered(number: int) -> DeviceFingerprint:
    return _fingerprint(ctypes.CDLL("libcuda.so.1"), number)


def _fingerprint(driver: ctypes.CDLL, number: int) -> DeviceFingerprint:
    """The fingerprint of the GPU with this number, as CUDA counts; the driver must be initialised."""
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), number)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = driver_cuda() or (0, 0)
    from cache_engine.model.fingerprint import DeviceFingerprint

    return DeviceFingerprint(
        name=name.value.decode(errors="replace"),
        arch=f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}",
        sms=attribute(_SMS),
        memory_bytes=memory.value,
        l2_bytes=attribute(_L2_BYTES),
        clock_khz=attribute(_CLOCK_KHZ),
        driver=f"{major}.{minor}",
    )


@cache
def pci_bus_id() -> str | None:
    """The bus id of the first GPU, such as ``"0000:17:00.0"``; ``None`` without a GPU. Starts nothing on the GPU."""
    if isinstance(gpu(), str):
        return None
    driver, device, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(64)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    if driver.cuDeviceGetPCIBusId(text, len(text), device) != 0:
        return None
    return text.value.decode(errors="replace")


@cache
def driver_cuda() -> tuple[int, int] | None:
    """The newest version of CUDA that the driver supports, as (major, minor); ``None`` without a driver.

    The driver is not initialised, because a child forked after that could not use the GPU.
    """
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return (version.value // 1000, version.value % 1000 // 10) if version.value else None


def gpu_extra() -> str:
    """The name of the extra that installs CuPy for this machine's driver."""
    return "cuda12" if (driver_cuda() or (13,)) < (13,) else "gpu"


def choose(number: int) -> DeviceFingerprint:
    """Makes one GPU the only one that this process sees; returns its fingerprint.

    Then timings, targets and memory are those of this GPU. Call this before any use of the driver, which reads the
    environment once. ``number`` counts the GPUs that
    ``CUDA_VISIBLE_DEVICES`` names, or else all; see the CUDA C++ Programming Guide, "CUDA Environment Variables".

    Raises:
        GpuRequired: when there is no such GPU.
    """
    if gpu.cache_info().currsize:
        raise RuntimeError("the driver has been asked already; choose a GPU before that")
    named = os.environ.get(_VISIBLE)
    names = None if named is None else [name.strip() for name in named.split(",") if name.strip()]
    if names is not None and number >= len(names):
        raise GpuRequired(f"there is no GPU {number}: {_VISIBLE} is {named!r}, whose first GPU has the number 0")
    os.environ[_VISIBLE] = str(number) if names is None else names[number]
    found = gpu()
    if not isinstance(found, str):
        return found
    if found == _SEES_NONE:
        raise GpuRequired(f"there is no GPU {number}; nvidia-smi -L lists those that there are, and they count from 0")
    raise GpuRequired(f"there is no GPU {number} to use: {found}")


def local_arch() -> str | None:
    """The target for the first GPU; ``None`` if there is no GPU, or its target is unknown.

    If the chip has instructions of its own that kernels use, the target includes them: ``"sm_90a"`` on a Hopper GPU.
    """
    device = gpu()
    if isinstance(device, str):
        return None
    from cache_engine.model.architecture import ARCHITECTURES, compiled_for

    return compiled_for(device.arch) if device.arch in ARCHITECTURES else None


def require_gpu(what: str) -> DeviceFingerprint:
    """The fingerprint of the first GPU, after checking that CuPy can launch kernels on it.

    Raises:
        GpuRequired: when there is no GPU; the text says what needed it, and why there is none.
        ExtraMissing: when CuPy is not installed.
    """
    device = gpu()
    if isinstance(device, str):
        raise GpuRequired(f"{what} needs an NVIDIA GPU, and {device}")
    _import_cupy(what)
    return device


@cache
def _import_cupy(what: str) -> None:
    """Imports CuPy, which every use of a GPU needs. Cached, because ``matmul`` calls this each time."""
    from cache_engine.settings.extras import needing

    with needing(gpu_extra(), what):
        import cupy  # noqa: F401
