"""Extra compiler flags: which may be given.

Flags enter the key as they are written, so one may be given if its text is all there is to it. One that names a file or
a folder has effects that the key would not see; one that names a target contradicts the problem; one that defines a
macro contradicts the constants; a limit on registers does nothing beside the launch bounds of our kernels; how hard to
optimise is the problem's to say. So there is a list of those allowed, all of which NVRTC and NVCC both take.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cache_engine.errors import UsageError
from cache_engine.model.gemm import OPT_LEVELS

FAST_MATH = "--use_fast_math"

_YES_OR_NO = "(true|false)"
# Source: NVRTC documentation, "Supported Compile Options"; NVCC documentation, "NVCC Command Options"; ptxas --help.
ALLOWED = {
    "--fmad": _YES_OR_NO,
    "--ftz": _YES_OR_NO,
    "--prec-div": _YES_OR_NO,
    "--prec-sqrt": _YES_OR_NO,
    "--extra-device-vectorization": None,
    "--restrict": None,
    "--disable-warnings": None,
    "--diag-suppress": "[0-9]{1,5}",
    "--ptxas-options": "(-dlcm=c[agsv]|--allow-expensive-optimizations=(true|false)|--warn-on-spills)",
}


_HIGHEST = f"-O{OPT_LEVELS[-1]}"


def flags_at_level(flags: tuple[str, ...], level: int) -> tuple[str, ...]:
    """A compiler's flags with another level of ptxas, the program that all of them end with, than the highest."""
    return tuple(f"{flag.removesuffix(_HIGHEST)}-O{level}" if flag.endswith(_HIGHEST) else flag for flag in flags)


def extra_flags(fast_math: bool, given: Sequence[str]) -> tuple[str, ...]:
    """The flags that settings ask for, once each is known to be allowed.

    Raises:
        UsageError: naming the flag that is not, and those that are.
    """
    for flag in given:
        name, equals, value = flag.partition("=")
        pattern = ALLOWED.get(name, "")
        if pattern == "" or bool(equals) != (pattern is not None):
            raise UsageError(f"compiler_flags has {flag!r}, which is not allowed; use: {_usage()}")
        if pattern is not None and not re.fullmatch(pattern, value):
            hint = "; the level is asked for with --opt-level" if value.startswith("-O") else ""
            raise UsageError(f"compiler_flags has {flag!r}; its value must be of the form {pattern}{hint}")
    return (*((FAST_MATH,) if fast_math else ()), *given)


def _usage() -> str:
    return ", ".join(name if pattern is None else f"{name}=…" for name, pattern in ALLOWED.items())
