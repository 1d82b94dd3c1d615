"""Fingerprints: of the toolchain, which can change compiled bytes, and of the device, which can change speed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from cache_engine.model.key import Components, sha256


class ToolchainFingerprint(msgspec.Struct, frozen=True):
    """A compiler, identified so exactly that two compilers with equal fingerprints make the same bytes.

    Attributes:
        compiler: its name, such as ``"nvrtc"``.
        version: its version for people, such as ``"13.5"``.
        build: a digest of the content of all files that make its code; never a path.
        environment: the environment variables that the compiler reads, with hashes of their values; empty if none is
            set.
    """

    compiler: str
    version: str
    build: str
    environment: str = ""

    def components(self) -> tuple[tuple[str, str], ...]:
        """The key components of the fingerprint. The environment is a component only if it is not empty."""
        named = (("compiler", self.compiler), ("compiler_version", self.version), ("compiler_build", self.build))
        return (*named, ("environment", self.environment)) if self.environment else named


def toolchain_text(components: Mapping[str, str]) -> str:
    """The toolchain that a key names, on one line: compiler, version and build, then environment variables."""
    named = [components.get(label, "") for label in ("compiler", "compiler_version", "compiler_build")]
    return " ".join((*named, components["environment"]) if "environment" in components else named)


class DeviceFingerprint(msgspec.Struct, frozen=True):
    """The properties of a GPU that can change speed. Every timing has one; no key contains it.

    Attributes:
        name: the name that the driver gives.
        arch: the target to compile for, such as ``"sm_90a"``.
        sms: the number of streaming multiprocessors.
        memory_bytes, l2_bytes: the sizes of device memory and of the L2 cache.
        clock_khz: the maximum clock of the SMs.
        driver: the newest CUDA version that the driver supports, such as ``"13.0"``.
    """

    name: str
    arch: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    clock_khz: int
    driver: str

    def digest(self) -> str:
        """A digest of all fields, 32 hexadecimal digits: it differs between devices that differ in any field."""
        return _digest(self)


@lru_cache(maxsize=256)
def _digest(device: DeviceFingerprint) -> str:
    parts = []
    for name in device.__struct_fields__:
        text = str(getattr(device, name))
        parts.append(f"{len(name)}:{name}{len(text)}:{text}")
    return sha256("".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


class Provenance(msgspec.Struct, frozen=True):
    """The key components that many kernels of a pack or store have in common; each field is named like its component.

    A field is empty if the key has no such component.
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
        """The provenance of a kernel with these key components."""
        named = dict(components)
        return cls(*(named.get(label, "") for label in cls.__struct_fields__))

    @property
    def toolchain(self) -> ToolchainFingerprint:
        """The compiler of the provenance."""
        return ToolchainFingerprint(self.compiler, self.compiler_version, self.compiler_build, self.environment)
