"""The surroundings of a compile: the toolchain, which can change bytes, and the device, which can change speed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from cache_engine.model.key import Components, sha256


class ToolchainFingerprint(msgspec.Struct, frozen=True):
    """A compiler, identified so closely that two with equal fingerprints make the same bytes.

    Attributes:
        compiler: its name, such as ``"nvrtc"``.
        version: for people, such as ``"13.5"``.
        build: what identifies by content all that makes its code; never a path.
        environment: variables that reach it, with hashes of their values; empty where none is set.
    """

    compiler: str
    version: str
    build: str
    environment: str = ""

    def components(self) -> tuple[tuple[str, str], ...]:
        """As key components. The environment is one only where it holds something."""
        named = (("compiler", self.compiler), ("compiler_version", self.version), ("compiler_build", self.build))
        return (*named, ("environment", self.environment)) if self.environment else named


def toolchain_text(components: Mapping[str, str]) -> str:
    """The toolchain that a key names, on one line: compiler, version and build, then variables of the environment."""
    named = [components.get(label, "") for label in ("compiler", "compiler_version", "compiler_build")]
    return " ".join((*named, components["environment"]) if "environment" in components else named)


class DeviceFingerprint(msgspec.Struct, frozen=True):
    """A GPU as far as it can change speed; carried by every timing, part of no key.

    Attributes:
        name: as the driver gives it.
        arch: the target its own code is compiled for, such as ``"sm_90a"``.
        sms: streaming multiprocessors.
        memory_bytes, l2_bytes: sizes.
        clock_khz: the maximum SM clock.
        driver: the newest CUDA version the driver supports, such as ``"13.0"``.
    """

    name: str
    arch: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    clock_khz: int
    driver: str

    def digest(self) -> str:
        """32 hexadecimal digits that differ between any two devices that differ in a field."""
        return _digest(self)


@lru_cache(maxsize=256)
def _digest(device: DeviceFingerprint) -> str:
    parts = []
    for name in device.__struct_fields__:
        text = str(getattr(device, name))
        parts.append(f"{len(name)}:{name}{len(text)}:{text}")
    return sha256("".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


class Provenance(msgspec.Struct, frozen=True):
    """The origin that many kernels of a pack or store share; each field is the key component of that name.

    A component that a key lacks is empty here.
    """

    schema: str = ""
    family: str = ""
    template: str = ""
    compiler: str = ""
    compiler_version: str = ""
    compiler_build: str = ""
    environment: str = ""
    flags: str = ""

    @classmethod
    def of(cls, components: Components) -> Provenance:
        """That of a kernel whose key was hashed from these."""
        named = dict(components)
        return cls(*(named.get(label, "") for label in cls.__struct_fields__))

    @property
    def toolchain(self) -> ToolchainFingerprint:
        """The compiler's part."""
        return ToolchainFingerprint(self.compiler, self.compiler_version, self.compiler_build, self.environment)
