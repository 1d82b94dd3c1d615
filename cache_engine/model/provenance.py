"""The provenance of kernels: what their keys name besides the target and the constants."""

from __future__ import annotations

import msgspec

from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.key import Components


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
