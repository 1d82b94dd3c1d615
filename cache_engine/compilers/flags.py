"""Extra compiler flags: which are allowed.

The key contains the text of each flag, so a flag is allowed only if its text determines its effect. The key would not
see the content of a file or folder that a flag names. A target contradicts the problem, a macro contradicts the
constants, and a register limit has no effect because our kernels have launch bounds. The problem sets the optimisation
level. NVRTC and NVCC accept every flag in the list, and none has an effect on a later compile of the same process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cache_engine.errors import UsageError
from cache_engine.model.gemm import OPT_LEVELS
from cache_engine.settings import FAST_MATH

# Of NVRTC and NVCC. Not allowed as an extra flag: the CUBIN is three to four times as large, and its code the same.
LINE_TABLES = "-lineinfo"

_YES_OR_NO = "(true|false)"
# Source: NVRTC documentation, "Supported Compile Options"; NVCC documentation, "NVCC Command Options"; ptxas --help.
ALLOWED = {
    FAST_MATH: None,
    "--fmad": _YES_OR_NO,
    "--ftz": _YES_OR_NO,
    "--prec-div": _YES_OR_NO,
    "--prec-sqrt": _YES_OR_NO,
    "--extra-device-vectorization": None,
    "--disable-warnings": None,
    "--diag-suppress": "[0-9]{1,5}",
    "--ptxas-options": "(-d[ls]cm=c[agsv]|--allow-expensive-optimizations=(true|false)"
    "|--register-usage-level=(10|[0-9])|--Ofast-compile=(0|min|mid|max)|--disable-optimizer-constants|--dont-merge-basicblocks|--warn-on-spills)",
}

# Measured with NVRTC 13.5: after one compile with it, every later one of the process has its effect without having it
# in its flags, so kernels were stored with other code than their key states.
_STAYS = "--restrict"

_HIGHEST = f"-O{OPT_LEVELS[-1]}"


def flags_at_level(flags: tuple[str, ...], level: int) -> tuple[str, ...]:
    """A compiler's flags with the highest level of ptxas, which every compiler runs last, replaced by ``level``."""
    return tuple(f"{flag.removesuffix(_HIGHEST)}-O{level}" if flag.endswith(_HIGHEST) else flag for flag in flags)


def extra_flags(given: Sequence[str]) -> tuple[str, ...]:
    """The flags that the settings ask for, each checked against ``ALLOWED``; in the order that keys have them.

    Raises:
        UsageError: naming the flag that is not allowed, and those that are.
    """
    for flag in given:
        name, equals, value = flag.partition("=")
        pattern = ALLOWED.get(name, "")
        if name == _STAYS:
            raise UsageError(f"compiler_flags has {flag!r}; remove it: NVRTC would apply it to all later compiles too")
        if pattern == "" or bool(equals) != (pattern is not None):
            raise UsageError(f"compiler_flags has {flag!r}, which is not allowed; use: {_usage()}")
        if pattern is not None and not re.fullmatch(pattern, value):
            hint = "; set the optimisation level with --opt-level" if value.startswith("-O") else ""
            raise UsageError(f"compiler_flags has {flag!r}; its value must be of the form {pattern}{hint}")
    return tuple(sorted(given, key=lambda flag: flag != FAST_MATH))  # first, as when it was a setting of its own


def _usage() -> str:
    return ", ".join(name if pattern is None else f"{name}=…" for name, pattern in ALLOWED.items())
