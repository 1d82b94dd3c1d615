"""Which GPU a process uses. The driver is stood in for by one that counts GPUs as CUDA's documentation says it does."""

# ruff: noqa: N802 (the functions have the driver's names)

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest

from cache_engine.errors import GpuRequired
from cache_engine.gpu import probe
from cache_engine.model.fingerprint import DeviceFingerprint

GPUS = ("first", "second", "third")


class Driver:
    """Reads ``CUDA_VISIBLE_DEVICES`` once, at ``cuInit``: the GPUs up to the first name that is none."""

    def __init__(self) -> None:
        self.visible: list[str] = []

    def cuInit(self, flags: int) -> int:
        """0, or CUDA_ERROR_NO_DEVICE."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        for name in range(len(GPUS)) if named is None else named.split(","):
            if not str(name).strip().isdigit() or int(name) >= len(GPUS):
                break
            self.visible.append(GPUS[int(name)])
        return 0 if self.visible else 100

    def cuDeviceGetCount(self, count: Any) -> int:
        """How many are visible."""
        count._obj.value = len(self.visible)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        """A handle."""
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:
        """Its name."""
        name.value = self.visible[device.value].encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: ctypes.c_int) -> int:
        """A number."""
        value._obj.value = 9
        return 0

    def cuDeviceTotalMem_v2(self, value: Any, device: ctypes.c_int) -> int:
        """A number."""
        value._obj.value = 2**30
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: ctypes.c_int) -> int:
        """Where the GPU is, as NVML finds it."""
        text.value = f"0000:{GPUS.index(self.visible[device.value]):02}:00.0".encode()
        return 0

    def cuDriverGetVersion(self, value: Any) -> int:
        """As CUDA writes 13.0."""
        value._obj.value = 13000
        return 0


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    driver = Driver()  # one, as ctypes gives the same library each time
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    probe.gpu.cache_clear()
    probe.driver_cuda.cache_clear()
    probe.pci_bus_id.cache_clear()
    yield
    monkeypatch.undo()
    probe.gpu.cache_clear()
    probe.driver_cuda.cache_clear()
    probe.pci_bus_id.cache_clear()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Restores what ``choose`` sets."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    return monkeypatch


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(
    ("visible", "number", "name"),
    [(None, 0, "first"), (None, 2, "third"), ("2,0", 0, "third"), ("2, 0", 1, "first"), ("1,2,", 1, "third")],
)
def test_the_chosen_gpu_is_the_first_for_all_that_follows(
    environment: pytest.MonkeyPatch, visible: str | None, number: int, name: str
) -> None:
    if visible is not None:
        environment.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert probe.choose(number).name == name
    found = probe.gpu()
    assert isinstance(found, DeviceFingerprint)
    assert (found.name, found.arch, found.driver) == (name, "sm_99", "13.0")


@pytest.mark.usefixtures("_driver")
def test_without_a_choice_it_is_the_first(environment: pytest.MonkeyPatch) -> None:
    found = probe.gpu()
    assert isinstance(found, DeviceFingerprint)
    assert found.name == "first"
    with pytest.raises(RuntimeError, match="asked already"):
        probe.choose(1)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(
    ("visible", "number", "says"),
    [
        (None, 3, "there is no GPU 3; nvidia-smi -L lists"),
        ("1,2", 2, "there is no GPU 2: CUDA_VISIBLE_DEVICES is '1,2', whose first GPU has the number 0"),
        ("", 0, "there is no GPU 0: CUDA_VISIBLE_DEVICES is ''"),
        ("7", 0, "there is no GPU 0; nvidia-smi -L lists"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(
    environment: pytest.MonkeyPatch, visible: str | None, number: int, says: str
) -> None:
    if visible is not None:
        environment.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(GpuRequired, match=says):
        probe.choose(number)


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(("capability", "target"), [((9, 0), "sm_90a"), ((10, 0), "sm_100"), ((9, 9), None)])
def test_the_local_target_has_the_instructions_of_the_chip_that_a_family_needs(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], target: str | None
) -> None:
    def attribute(self: Driver, value: Any, number: int, device: ctypes.c_int) -> int:
        value._obj.value = dict(zip((75, 76), capability, strict=True)).get(number, 9)
        return 0

    monkeypatch.setattr(Driver, "cuDeviceGetAttribute", attribute)
    assert probe.local_arch() == target
    found = probe.gpu()
    assert isinstance(found, DeviceFingerprint)
    assert found.arch == "sm_" + "".join(map(str, capability)), "what runs there, not what is compiled"


@pytest.mark.usefixtures("_driver")
def test_nvml_is_asked_of_the_first_gpu_that_the_process_sees(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert probe.pci_bus_id() == "0000:02:00.0"
