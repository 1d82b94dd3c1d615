"""The proof of a kernel family on one device with one toolchain: whether its kernels computed the canaries right."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cache_engine.model.artifact import Count, Seconds
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.key import CacheKey, Components, sha256

UNPROVED: Final = "unproved"
PROVED: Final = "proved"
REFUSED: Final = "refused"
HINT: Final = "hint"
"""The state of a proof that a pack has brought. It proves nothing: a device of that name confirms it by one canary."""

# Evidence that this program ships: the GPU and the compiler on which all tests of ``tests/gpu`` passed for the family.
# A device counts by its name, because another GPU of that name has the same hardware.
_SHIPPED = {("hopper", "NVIDIA H200", "nvrtc 13.0")}


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a family's canaries (test kernels) on one device. A family without a ``Proof`` is unproved.

    Attributes:
        state: ``PROVED`` if all results were correct, ``REFUSED`` if one was wrong, ``HINT`` if a pack says ``PROVED``.
        toolchain: the name and version of the compiler.
        at: the time, in seconds since 1970, UTC.
        cases: the number of canaries that ran.
        kernels: a digest of the toolchain and the family's template (``kernels_digest``), the same on every device.
        confirms: whether only one canary ran, because a pack had a hint.
        case, seed: of a refused family, the canary that failed, and the seed of its operands.
        reason: of a refused family, the mistake that its canary made.
        command: of a refused family, the command that times and checks the same kernel again.
    """

    family: str
    state: Literal["proved", "refused", "hint"]
    device: DeviceFingerprint
    toolchain: str
    at: Seconds
    cases: Count
    kernels: str = ""
    confirms: bool = False
    case: str = ""
    seed: int = 0
    reason: str = ""
    command: str = ""

    @property
    def words(self) -> str:
        """The state with its evidence, on one line."""
        if self.state == PROVED:
            confirmed = ", which confirm the hint of a pack" if self.confirms else ""
            return f"proved on {self.device.name} by {self.cases} canaries{confirmed}"
        if self.state == HINT:
            return f"not proved here; a pack says: {self.cases} canaries were right on another {self.device.name}"
        return f"refused on {self.device.name}: {self.reason} ({self.case}, seed {self.seed})"


def identity(device: DeviceFingerprint, toolchain: Components) -> CacheKey:
    """A digest of all that a proof depends on: the device, and the key components common to all kernels of the family.

    These components are the family, its template, the compiler with its build and flags, and the target. If any of them
    changes, the family is unproved again.
    """
    return CacheKey(sha256(f"{device.digest()}{kernels_digest(toolchain)}".encode()).hexdigest())


def kernels_digest(toolchain: Components) -> str:
    """A digest of the key components that all kernels of a family share: as ``identity``, but without the device."""
    text = "".join(f"{len(label)}:{label}{len(value)}:{value}" for label, value in toolchain)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def is_shipped(family: str, device: DeviceFingerprint, compiler: str, version: str) -> bool:
    """Whether this program is released with a family already proved on such a device with this compiler."""
    return (family, device.name, f"{compiler} {version}") in _SHIPPED
