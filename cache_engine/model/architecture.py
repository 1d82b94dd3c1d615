"""Targets and their limits.

Limits are those of the CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", as NVIDIA
also ships them in code (CCCL, ``cuda/__device/arch_traits.h``); a test holds this table against that header.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from cache_engine.errors import InvalidProblem

KIB = 1024
CUDA_VERSIONS: tuple[int, ...] = (13, 12)
"""The major versions of CUDA whose compilers are used, the newest first."""


# Each target is one value of the table below, so that it is found by its identity, in nanoseconds, in what is cached.
@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """One compile target.

    Attributes:
        name: as the compiler takes it, such as ``"sm_90a"``. A trailing ``a`` allows instructions of that one chip, an
            ``f`` those of its family; code without either runs on later chips of the same major version too.
        major, minor: compute capability.
        shared_bytes_per_block: the most shared memory a block may ask for (opt-in limit).
        shared_bytes_per_sm: shared memory of one streaming multiprocessor (SM).
        warps_per_sm, blocks_per_sm: the most that can be resident on one SM.
        example: a GPU of this target, and
        example_sms: how many SMs it has. Used only to rank configs when no measurement is at hand; it never enters a
            limit or a claim. Source: the data sheets of the GPUs named.
    """

    name: str
    major: int
    minor: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    example: str
    example_sms: int

    # The same for every target in the table.
    registers_per_sm: ClassVar[int] = 64 * KIB
    registers_per_thread: ClassVar[int] = 255
    threads_per_block: ClassVar[int] = 1024

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor), comparable."""
        return (self.major, self.minor)

    @property
    def reserved_shared_bytes_per_block(self) -> int:
        """Shared memory the system keeps for itself in every resident block (none before 8.0)."""
        return KIB if self.major >= 8 else 0

    @property
    def cuda_versions(self) -> tuple[int, ...]:
        """Those of ``CUDA_VERSIONS`` whose compilers have this target.

        Source: ``nvrtcGetSupportedArchs`` of 12.9, 13.0 and 13.5. CUDA 12 calls 11.0 10.1.
        """
        return _ONLY_OF_CUDA.get(self.compute_capability, CUDA_VERSIONS)


_ONLY_OF_CUDA = {(7, 0): (12,), (8, 8): (13,), (10, 7): (13,), (11, 0): (13,)}


# capability → shared KiB per block, per SM, warps and blocks per SM, example, its SMs, target suffixes
_CAPABILITIES = {
    (7, 0): (96, 96, 64, 32, "V100", 80, ("",)),
    (7, 5): (64, 64, 32, 16, "T4", 40, ("",)),
    (8, 0): (163, 164, 64, 32, "A100", 108, ("",)),
    (8, 6): (99, 100, 48, 16, "A10", 72, ("",)),
    (8, 7): (163, 164, 48, 16, "Jetson AGX Orin", 16, ("",)),
    (8, 8): (99, 100, 48, 16, "A10 (no part of 8.8 is public; its limits are those of 8.6)", 72, ("",)),
    (8, 9): (99, 100, 48, 24, "L40S", 142, ("",)),
    (9, 0): (227, 228, 64, 32, "H100 SXM", 132, ("", "a")),
    (10, 0): (227, 228, 64, 32, "B200", 148, ("", "a", "f")),
    (10, 3): (227, 228, 64, 32, "B300", 148, ("", "a", "f")),
    (10, 7): (227, 228, 32, 16, "B300 (no part of 10.7 has a data sheet)", 148, ("", "a", "f")),
    (11, 0): (227, 228, 48, 24, "Jetson Thor", 20, ("", "a", "f")),
    (12, 0): (99, 100, 48, 24, "RTX 5090", 170, ("", "a", "f")),
    (12, 1): (99, 100, 48, 24, "GB10", 48, ("", "a", "f")),
}

ARCHITECTURES: dict[str, Architecture] = {
    f"sm_{major}{minor}{suffix}": Architecture(
        name=f"sm_{major}{minor}{suffix}",
        major=major,
        minor=minor,
        shared_bytes_per_block=per_block * KIB,
        shared_bytes_per_sm=per_sm * KIB,
        warps_per_sm=warps,
        blocks_per_sm=blocks,
        example=example,
        example_sms=sms,
    )
    for (major, minor), (per_block, per_sm, warps, blocks, example, sms, suffixes) in _CAPABILITIES.items()
    for suffix in suffixes
}


def architecture(name: str) -> Architecture:
    """The target called ``name``.

    Raises:
        InvalidProblem: when there is none; the text lists the known ones.
    """
    try:
        return ARCHITECTURES[name]
    except (KeyError, TypeError):
        names = ", ".join(ARCHITECTURES)
        raise InvalidProblem(f"unknown architecture {name!r}; use one of: {names}") from None


# NVIDIA keeps code of one major version running on its later chips, those of embedded systems apart.
_EMBEDDED = {(8, 7)}
# NVIDIA does not say that code for the family of another chip runs there.
_OF_NO_FAMILY = {(10, 7)}


@lru_cache(maxsize=64)
def runs_on(target: str) -> tuple[Architecture, ...]:
    """The chips that run code compiled for a target, by their plain names; none for a target that is not known.

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Set Compiler Targets".
    """
    code = ARCHITECTURES.get(target)
    if code is None:
        return ()
    chips = [chip for name, chip in ARCHITECTURES.items() if name[-1].isdigit()]
    own = [chip for chip in chips if chip.compute_capability == code.compute_capability]
    if target.endswith("a") or code.compute_capability in _EMBEDDED:
        return tuple(own)
    apart = _EMBEDDED | _OF_NO_FAMILY if target.endswith("f") else _EMBEDDED
    later = [
        chip
        for chip in chips
        if chip.major == code.major and chip.minor > code.minor and chip.compute_capability not in apart
    ]
    return (*own, *later)


def compiled_for(chip: str) -> str:
    """The target to compile for a chip, given by its plain name: with its own instructions where a family has them."""
    return {"sm_90": "sm_90a"}.get(chip, chip)
